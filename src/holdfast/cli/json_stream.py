"""The `--json` stream format: events as `session:*`, `agent:*` or `cost:*`, in camelCase.

The event format of `/v1` is `wire/events.py`.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec
from msgspec import Struct

from holdfast.cli.terminal import one_line
from holdfast.domain import events
from holdfast.domain.agents import LlmRuntime
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
from holdfast.domain.models import model_of
from holdfast.domain.sessions import Session, SessionContext, Status, StopReason
from holdfast.domain.tools import ToolClass

if TYPE_CHECKING:
    from holdfast.cli.services import House


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


def _session_opened(payload: SessionOpened, _: Event, dialect: StreamVocabulary) -> Word:
    return "session:started", {
        "agentRef": payload.agent,
        "model": payload.model or dialect.model,
        "context": context_data(payload.context),
    }


def _session_closed(payload: SessionClosed, event: Event, dialect: StreamVocabulary) -> Word:
    if payload.status is Status.CANCELLED:
        return "session:cancelled", {"reason": payload.reason}
    return _stored_event(payload, event, dialect)


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


def _turn_ended(payload: TurnEnded, event: Event, dialect: StreamVocabulary) -> Word:
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
    """Return the error of a failed turn; without a failure, its stop reason."""
    found = payload.failure
    error_code = found.code if found else code
    return {
        "code": error_code.value,
        "message": found.message if found else f"The turn ended with {payload.stop_reason.value}.",
        "retryable": error_code in events.RETRYABLE,
        **({"correlationId": found.correlation_id} if found and found.correlation_id else {}),
    }


def _step_delta(payload: StepDelta, event: Event, dialect: StreamVocabulary) -> Word:
    said = {"nodeId": dialect.agent, "model": dialect.model, "turn": event.turn}
    if payload.channel is Channel.REASONING:
        return "agent:reasoning", {**said, "text": payload.text}
    return "agent:token", {**said, "token": payload.text}


def _step_ended(payload: StepEnded, _: Event, dialect: StreamVocabulary) -> Word:
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


def _tool_started(payload: ToolStarted, _: Event, dialect: StreamVocabulary) -> Word:
    return "agent:tool_call", {
        "nodeId": dialect.agent,
        "callId": payload.call_id,
        "toolId": payload.name,
        "toolInput": {name: _cut(value) for name, value in payload.arguments.items()},
        "model": dialect.model,
    }


def _tool_ended(payload: ToolEnded, _: Event, dialect: StreamVocabulary) -> Word:
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


def _approval_requested(payload: ApprovalRequested, _: Event, dialect: StreamVocabulary) -> Word:
    return "agent:approval_requested", {
        "nodeId": dialect.agent,
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
    events.TurnEnded: _turn_ended,
    events.StepStarted: _stored_event,
    events.StepDelta: _step_delta,
    events.StepEnded: _step_ended,
    events.StepFailed: _stored_event,
    events.MessageAppended: _stored_event,
    events.ToolStarted: _tool_started,
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


PAGE = 10_000


class EventLines:
    """Formats the events of one session as lines, starting at a cursor."""

    def __init__(self, holdfast: "House", session: Session) -> None:
        self._holdfast = holdfast
        self._session = session
        self._models: dict[ModelId, str] = {}
        self._dialect = StreamVocabulary(session.agent.slug, self._models, "")
        # A gap has no time of its own; it gets the time of the event before it.
        self._last = session.created_at.astimezone(UTC)

    @classmethod
    async def behind(cls, holdfast: "House", session: Session, after: int) -> Self:
        """Return the lines after a cursor, with the data of the events before it."""
        lines = cls(holdfast, session)
        await lines._learn_models()
        lines._dialect.model = first_model(session, lines._models, holdfast.config.default_model)
        cursor = 0
        while cursor < after:
            page = await holdfast.events.list(
                holdfast.owner, session.id, after=cursor, limit=min(PAGE, after - cursor)
            )
            for item in page.items:
                cursor = item.to_sequence if isinstance(item, Gap) else item.sequence
                if isinstance(item, Event):
                    lines._note(item)
                    lines._dialect.note(item.payload)
            if page.next_cursor is None:
                break
        return lines

    async def line(self, item: Event | Gap) -> Data:
        """Return the line of an event or of a gap."""
        if isinstance(item, Gap):
            return gap_line(item, self._session.id, self._last)
        self._note(item)
        payload = item.payload
        if isinstance(payload, StepStarted) and payload.model_id not in self._models:
            await self._learn_models()
        return self._dialect.line(item)

    def _note(self, event: Event) -> None:
        self._last = event.at

    async def _learn_models(self) -> None:
        self._models |= await known_models(self._holdfast)


async def known_models(holdfast: "House") -> dict[ModelId, str]:
    """Return the references of all models that a session can use, by id."""
    # The default model can be used without being in the catalogue.
    default = model_of(holdfast.config.default_model)
    return {model.id: model.ref for model in (default, *await holdfast.models.list())}


def first_model(session: Session, models: Mapping[ModelId, str], default: str) -> str:
    """Return the reference of the model that a session uses first."""
    runtime = session.agent.runtime
    chain = runtime.models if isinstance(runtime, LlmRuntime) else ()
    wanted = session.model_id or (chain[0].model_id if chain else None)
    return default if wanted is None else models.get(wanted, wanted)
