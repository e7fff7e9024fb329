"""The dialect of `--json` streams: each event in the words `session:*`, `agent:*` and `cost:*`.

One table, total over our events. What has no word there goes out as `holdfast:<name>` with its
data, so that no number is missing; numbers that were pruned are covered by `holdfast:gap`.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from holdfast.cli.camel import camel, context_data
from holdfast.cli.terminal import one_line
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
from holdfast.domain.sessions import Status, StopReason
from holdfast.domain.tools import ToolClass

Data = dict[str, Any]
Word = tuple[str, Data]

# Names the dialect knows for steering an agent; nothing here sends them.
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

# The dialect has one word for both kinds of writing.
ACTIONS: Final[Mapping[ToolClass, str]] = {
    **{each: each.value for each in ToolClass},
    ToolClass.SENSITIVE_WRITE: "write",
}


class Dialect:
    """Translates the events of one session, in their order.

    Some words repeat what an earlier event said (the model, the cost so far), so events that
    are not printed must be passed to `hear` all the same.
    """

    def __init__(self, agent: str, models: Mapping[ModelId, str], first_model: str) -> None:
        """`models` names models by id, `first_model` the one a new session asks first."""
        self.agent = agent
        self.models = models
        self.model = first_model
        self.spent = 0
        self.failed = 0
        self.answered = False

    def hear(self, payload: Payload) -> None:
        """Take note of an event before it is translated."""
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
        self.hear(event.payload)
        word, data = TABLE[type(event.payload)](event.payload, event, self)
        return {
            "type": word,
            "timestamp": _timestamp(event.at),
            "sequenceNumber": event.sequence,
            "sessionId": event.session_id,
            **{name: value for name, value in data.items() if value is not None},
        }


def gap_line(gap: Gap, session_id: str, at: datetime) -> Data:
    """Return the line that covers numbers which will not come."""
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


def _session_opened(payload: SessionOpened, _: Event, dialect: Dialect) -> Word:
    return "session:started", {
        "agentRef": payload.agent,
        "model": payload.model or dialect.model,
        "context": context_data(payload.context),
    }


def _session_closed(payload: SessionClosed, event: Event, dialect: Dialect) -> Word:
    if payload.status is Status.CANCELLED:
        return "session:cancelled", {"reason": payload.reason}
    return _own_word(payload, event, dialect)


def _session_compacted(payload: SessionCompacted, _: Event, __: Dialect) -> Word:
    return "session:compacted", {
        "messageId": payload.message_id,
        "keptMessageCount": payload.kept,
        "droppedThrough": payload.dropped_through,
        "reason": payload.reason,
        "summary": payload.summary or None,
        "tokensUsed": _tokens(payload.usage) if payload.usage else None,
    }


def _session_exported(payload: SessionExported, _: Event, __: Dialect) -> Word:
    return "session:exported", {"workflowPath": payload.target}


def _turn_started(_: Payload, event: Event, __: Dialect) -> Word:
    return "session:turn_started", {"turn": event.turn}


def _turn_ended(payload: TurnEnded, event: Event, dialect: Dialect) -> Word:
    word, code = STOPS[payload.stop_reason]
    return "session:turn_completed", {
        "turn": event.turn,
        "stopReason": word,
        "tokensUsed": {**_tokens(payload.usage), "model": dialect.model},
        "costMicrocents": payload.microcents,
        "error": _error(payload, code) if code is not None else None,
    }


def _tokens(usage: Usage) -> Data:
    return {"input": usage.input, "output": usage.output}


def _error(payload: TurnEnded, code: FailureCode) -> Data:
    """Return why a turn failed; where it does not say itself, its stop reason does."""
    found = payload.failure
    told = found.code if found else code
    return {
        "code": told.value,
        "message": found.message if found else f"The turn ended with {payload.stop_reason.value}.",
        "retryable": told in events.RETRYABLE,
        **({"correlationId": found.correlation_id} if found and found.correlation_id else {}),
    }


def _step_delta(payload: StepDelta, event: Event, dialect: Dialect) -> Word:
    said = {"nodeId": dialect.agent, "model": dialect.model, "turn": event.turn}
    if payload.channel is Channel.REASONING:
        return "agent:reasoning", {**said, "text": payload.text}
    return "agent:token", {**said, "token": payload.text}


def _step_ended(payload: StepEnded, _: Event, dialect: Dialect) -> Word:
    usage = payload.usage
    return "cost:updated", {
        "nodeId": dialect.agent,
        "model": dialect.model,
        "inputTokens": usage.input if usage else 0,
        "outputTokens": usage.output if usage else 0,
        "costMicrocents": payload.microcents,
        "cumulativeCostMicrocents": dialect.spent,
        "attemptNumber": dialect.failed + 1,
        "priced": payload.priced,
    }


def _tool_started(payload: ToolStarted, _: Event, dialect: Dialect) -> Word:
    return "agent:tool_call", {
        "nodeId": dialect.agent,
        "callId": payload.call_id,
        "toolId": payload.name,
        "toolInput": {name: _cut(value) for name, value in payload.arguments.items()},
        "model": dialect.model,
    }


def _tool_ended(payload: ToolEnded, _: Event, dialect: Dialect) -> Word:
    failure = payload.failure
    return "agent:tool_result", {
        "nodeId": dialect.agent,
        "callId": payload.call_id,
        "toolId": payload.name,
        "success": payload.status is ResultStatus.OK,
        "status": payload.status.value,
        "code": failure.code if failure else None,
        "outputSummary": one_line(failure.message if failure else _text(payload.result)),
    }


def _approval_requested(payload: ApprovalRequested, _: Event, dialect: Dialect) -> Word:
    return "agent:approval_requested", {
        "nodeId": dialect.agent,
        "approvalId": payload.approval_id,
        "callId": payload.call_id,
        "toolId": payload.tool,
        "action": ACTIONS[payload.tool_class],
        "preview": payload.preview or None,
        "question": payload.question,
    }


def _own_word(payload: Payload, event: Event, _: Dialect) -> Word:
    """Return an event that the dialect has no word for, under our own name."""
    return f"holdfast:{name_of(payload)}", {"turn": event.turn, **camel(payload)}


Translation = Callable[[Any, Event, Dialect], Word]

TABLE: Final[Mapping[type[Payload], Translation]] = {
    events.SessionOpened: _session_opened,
    events.SessionResumed: _own_word,
    events.SessionClosed: _session_closed,
    events.SessionForked: _own_word,
    events.SessionCompacted: _session_compacted,
    events.SessionExported: _session_exported,
    events.SessionObserved: _own_word,
    events.TurnStarted: _turn_started,
    events.TurnEnded: _turn_ended,
    events.StepStarted: _own_word,
    events.StepDelta: _step_delta,
    events.StepEnded: _step_ended,
    events.StepFailed: _own_word,
    events.MessageAppended: _own_word,
    events.ToolStarted: _tool_started,
    events.ToolEnded: _tool_ended,
    events.CallSettled: _own_word,
    events.ApprovalRequested: _approval_requested,
    events.ApprovalAnswered: _own_word,
    events.PlanChanged: _own_word,
    events.ZoneArchived: _own_word,
}


def _cut(value: Any) -> Any:
    """Return an argument, or the beginning of one that is long."""
    text = _text(value)
    return value if len(text.encode()) <= VALUE_LARGEST else f"{text[: VALUE_LARGEST // 4]}…"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _timestamp(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
