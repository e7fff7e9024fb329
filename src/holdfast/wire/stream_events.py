"""JSON forms of events in `--json` streams: `session:*`, `agent:*` or `cost:*`, in camelCase.

The vocabulary of `/v1` is `events.py`.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from holdfast.domain import events
from holdfast.domain.costs import Usage
from holdfast.domain.events import (
    ApprovalRequested,
    Channel,
    Event,
    FailureCode,
    Gap,
    Payload,
    SessionClosed,
    SessionCompacted,
    SessionExported,
    SessionOpened,
    StepDelta,
    StepEnded,
    StepFailed,
    StepStarted,
    ToolEnded,
    ToolStarted,
    TurnEnded,
    TurnStarted,
    name_of,
)
from holdfast.domain.ids import ModelId
from holdfast.domain.messages import ResultStatus
from holdfast.domain.sessions import SessionContext, Status, StopReason
from holdfast.domain.text import one_line
from holdfast.domain.tools import ToolClass
from holdfast.wire.messages import error_text


def context_data(context: SessionContext) -> dict[str, Any]:
    """Return the whole workspace; variables are passed on unchanged."""
    return {**to_camel_case(context), "variables": context.variables}


def to_camel_case(value: Struct) -> dict[str, Any]:
    """Return the fields of a value that are set, with camelCase names."""
    fields = {name: getattr(value, name) for name in value.__struct_fields__}
    return {_name(name): _plain(found) for name, found in fields.items() if found is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, Struct):
        return to_camel_case(value)
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return msgspec.to_builtins(value)


def _name(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


Data = dict[str, Any]
Word = tuple[str, Data]
# Event names reserved by the format; never sent.
RESERVED: Final = frozenset(
    {"agent:directive_injected", "agent:context_compacted", "agent:context_cleared"}
)
VALUE_LARGEST: Final = 2 << 10
STOPS: Final[Mapping[StopReason, tuple[str, FailureCode | None]]] = {
    StopReason.STOP: ("stop", None),
    StopReason.LENGTH: ("length", None),
    StopReason.REFUSAL: ("content_filter", None),
    StopReason.ABORTED: ("aborted", None),
    StopReason.INTERRUPTED: ("error", FailureCode.INTERRUPTED),
    StopReason.TURN_LIMIT: ("error", FailureCode.TURN_LIMIT),
    StopReason.BUDGET: ("error", FailureCode.BUDGET_EXCEEDED),
    StopReason.ERROR: ("error", FailureCode.INTERNAL),
}
# The format has one name for both classes of writes.
ACTIONS: Final[Mapping[ToolClass, str]] = {
    **{each: each.value for each in ToolClass},
    ToolClass.SENSITIVE_WRITE: "write",
}


class StreamVocabulary:
    """Translates the events of one session, in their order.

    Some lines repeat data of earlier events (the model, the cost so far), so events that are not
    printed must also be passed to `note`.
    """

    def __init__(self, agent: str, models: Mapping[ModelId, str], first_model: str) -> None:
        """`models` names models by id; `first_model` is the first model of a new session."""
        self.agent = agent
        self.models = models
        self.model = first_model
        self.spent = 0
        self.failed = 0
        self.answered = False

    def note(self, payload: Payload) -> None:
        """Record an event's data before it is translated."""
        match payload:
            case TurnStarted():
                self.failed = 0
            case StepStarted():
                self.model = self.models.get(payload.model_id, payload.model or payload.model_id)
                self.failed = 0 if self.answered else self.failed
                self.answered = False
            case StepEnded():
                self.spent += payload.microcents
                self.answered = True
            case StepFailed():
                self.failed += 1
            case _:
                pass

    def line(self, event: Event) -> Data:
        """Return the line of an event."""
        self.note(event.payload)
        word, data = TABLE[type(event.payload)](event.payload, event, self)
        return {
            "type": word,
            "timestamp": _timestamp(event.at),
            "sequenceNumber": event.sequence,
            "sessionId": event.session_id,
            **{name: value for name, value in data.items() if value is not None},
        }


def gap_line(gap: Gap, session_id: str, at: datetime) -> Data:
    """Return the line for a range of sequence numbers that will not be sent."""
    return {
        "type": "holdfast:gap",
        "timestamp": _timestamp(at),
        "sequenceNumber": gap.to_sequence,
        "sessionId": session_id,
        "from": gap.from_sequence,
        "to": gap.to_sequence,
        "reason": gap.reason,
        "resync": gap.resync,
    }


def _session_opened(payload: SessionOpened, _: Event, vocabulary: StreamVocabulary) -> Word:
    return "session:started", {
        "agentRef": payload.agent,
        "model": payload.model or vocabulary.model,
        "context": context_data(payload.context),
    }


def _session_closed(payload: SessionClosed, event: Event, vocabulary: StreamVocabulary) -> Word:
    if payload.status is Status.CANCELLED:
        return "session:cancelled", {"reason": payload.reason}
    return _stored_event(payload, event, vocabulary)


def _session_compacted(payload: SessionCompacted, _: Event, __: StreamVocabulary) -> Word:
    return "session:compacted", {
        "messageId": payload.message_id,
        "keptMessageCount": payload.kept,
        "droppedThrough": payload.dropped_through,
        "reason": payload.reason,
        "summary": payload.summary or None,
        "tokensUsed": _tokens(payload.usage) if payload.usage else None,
    }


def _session_exported(payload: SessionExported, _: Event, __: StreamVocabulary) -> Word:
    return "session:exported", {"workflowPath": payload.target}


def _turn_started(_: Payload, event: Event, __: StreamVocabulary) -> Word:
    return "session:turn_started", {"turn": event.turn}


def _turn_ended(payload: TurnEnded, event: Event, vocabulary: StreamVocabulary) -> Word:
    word, code = STOPS[payload.stop_reason]
    return "session:turn_completed", {
        "turn": event.turn,
        "stopReason": word,
        "tokensUsed": {**_tokens(payload.usage), "model": vocabulary.model},
        "costMicrocents": payload.microcents,
        "error": _error(payload, code) if code is not None else None,
    }


def _tokens(usage: Usage) -> Data:
    return {"input": usage.input, "output": usage.output}


def _error(payload: TurnEnded, code: FailureCode) -> Data:
    """Return the error of a failed turn; without a failure, its stop reason."""
    found = payload.failure
    error_code = found.code if found else code
    return {
        "code": error_code.value,
        "message": found.message if found else f"The turn ended with {payload.stop_reason.value}.",
        "retryable": error_code in events.RETRYABLE,
        **({"correlationId": found.correlation_id} if found and found.correlation_id else {}),
    }


def _step_delta(payload: StepDelta, event: Event, vocabulary: StreamVocabulary) -> Word:
    said = {"nodeId": vocabulary.agent, "model": vocabulary.model, "turn": event.turn}
    if payload.channel is Channel.REASONING:
        return "agent:reasoning", {**said, "text": payload.text}
    return "agent:token", {**said, "token": payload.text}


def _step_ended(payload: StepEnded, _: Event, vocabulary: StreamVocabulary) -> Word:
    usage = payload.usage
    return "cost:updated", {
        "nodeId": vocabulary.agent,
        "model": vocabulary.model,
        "inputTokens": usage.input if usage else 0,
        "outputTokens": usage.output if usage else 0,
        "costMicrocents": payload.microcents,
        "cumulativeCostMicrocents": vocabulary.spent,
        "attemptNumber": vocabulary.failed + 1,
        "priced": payload.priced,
    }


def _tool_started(payload: ToolStarted, _: Event, vocabulary: StreamVocabulary) -> Word:
    return "agent:tool_call", {
        "nodeId": vocabulary.agent,
        "callId": payload.call_id,
        "toolId": payload.name,
        "toolInput": {name: _cut(value) for name, value in payload.arguments.items()},
        "model": vocabulary.model,
    }


def _tool_ended(payload: ToolEnded, _: Event, vocabulary: StreamVocabulary) -> Word:
    failure = payload.failure
    error = error_text(payload.status, failure)
    return "agent:tool_result", {
        "nodeId": vocabulary.agent,
        "callId": payload.call_id,
        "toolId": payload.name,
        "success": payload.status is ResultStatus.OK,
        "status": payload.status.value,
        "code": failure.code if failure else None,
        "outputSummary": one_line(_text(payload.result) if error is None else error),
    }


def _approval_requested(payload: ApprovalRequested, _: Event, vocabulary: StreamVocabulary) -> Word:
    return "agent:approval_requested", {
        "nodeId": vocabulary.agent,
        "approvalId": payload.approval_id,
        "callId": payload.call_id,
        "toolId": payload.tool,
        "action": ACTIONS[payload.tool_class],
        "preview": payload.preview or None,
        "question": payload.question,
    }


def _stored_event(payload: Payload, event: Event, _: StreamVocabulary) -> Word:
    """Return an event without an equivalent in the format, under its internal name."""
    return f"holdfast:{name_of(payload)}", {"turn": event.turn, **to_camel_case(payload)}


Translation = Callable[[Any, Event, StreamVocabulary], Word]
TABLE: Final[Mapping[type[Payload], Translation]] = {
    events.SessionOpened: _session_opened,
    events.SessionResumed: _stored_event,
    events.SessionClosed: _session_closed,
    events.SessionForked: _stored_event,
    events.SessionCompacted: _session_compacted,
    events.SessionExported: _session_exported,
    events.SessionObserved: _stored_event,
    events.TurnStarted: _turn_started,
    events.TurnPaused: _stored_event,
    events.TurnContinued: _stored_event,
    events.TurnEnded: _turn_ended,
    events.StepStarted: _stored_event,
    events.StepDelta: _step_delta,
    events.StepEnded: _step_ended,
    events.StepFailed: _stored_event,
    events.MessageAppended: _stored_event,
    events.MessageWithdrawn: _stored_event,
    events.ToolStarted: _tool_started,
    events.ToolProgressed: _stored_event,
    events.ToolRequested: _stored_event,
    events.ToolEnded: _tool_ended,
    events.CallSettled: _stored_event,
    events.ApprovalRequested: _approval_requested,
    events.ApprovalAnswered: _stored_event,
    events.PlanChanged: _stored_event,
    events.ZoneArchived: _stored_event,
}


def _cut(value: Any) -> Any:
    """Return an argument, truncated if it is long."""
    text = _text(value)
    return value if len(text.encode()) <= VALUE_LARGEST else f"{text[: VALUE_LARGEST // 4]}…"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _timestamp(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
