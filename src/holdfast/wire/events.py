"""JSON forms of events in the vocabulary of `/v1`, and of a page of events.

The table covers every event type of the domain. The vocabulary of `--json` streams is
`stream_events.py`.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct, UnsetType

from holdfast.domain import events
from holdfast.domain.costs import Usage
from holdfast.domain.events import (
    ApprovalAnswered,
    ApprovalRequested,
    CallSettled,
    Channel,
    Event,
    Gap,
    MessageAppended,
    Payload,
    PlanChanged,
    SessionClosed,
    StepDelta,
    StepEnded,
    StepFailed,
    StepStarted,
    ToolEnded,
    ToolProgressed,
    ToolRequested,
    ToolStarted,
    TurnEnded,
    TurnStarted,
    name_of,
)
from holdfast.domain.sessions import FAILED_STOPS, Status
from holdfast.wire.costs import cost_form, usage_form
from holdfast.wire.messages import error_text
from holdfast.wire.scalars import format_time

RESULT_LARGEST: Final = 64 << 10
Data = dict[str, Any]
Word = tuple[str, Data]


class Deltas(StrEnum):
    """Which event types a reader gets for a piece of text."""

    STEP = "step"
    MESSAGE = "message"
    BOTH = "both"
    NONE = "none"


class EventForm(Struct, frozen=True):
    """An event."""

    id: str
    session_id: str
    sequence: int
    event_type: str
    data: dict[str, Any]
    created_at: str


def event_forms(event: Event, deltas: Deltas = Deltas.BOTH) -> tuple[EventForm, ...]:
    """Return the forms of an event: one, or up to two for a piece of text."""
    words = TABLE[type(event.payload)](event.payload, event)
    return tuple(
        EventForm(
            id=event.id,
            session_id=event.session_id,
            sequence=event.sequence,
            event_type=name,
            data=data,
            created_at=format_time(event.at),
        )
        for name, data in words
        if name not in _UNWANTED[deltas]
    )


_UNWANTED: Final[Mapping[Deltas, frozenset[str]]] = {
    Deltas.STEP: frozenset({"message.delta"}),
    Deltas.MESSAGE: frozenset({"step.generating"}),
    Deltas.BOTH: frozenset(),
    Deltas.NONE: frozenset({"message.delta", "step.generating"}),
}


def _turn_started(_: TurnStarted, event: Event) -> tuple[Word, ...]:
    return (("session.started", {"turn": event.turn}),)


def _step_started(payload: StepStarted, event: Event) -> tuple[Word, ...]:
    data = {
        "turn": event.turn,
        "step": payload.step,
        "model_id": payload.model_id,
        "model": payload.model,
        "message_id": payload.message_id,
    }
    return (("step.started", data),)


def _delta(payload: StepDelta, event: Event) -> tuple[Word, ...]:
    piece = {"message_id": payload.message_id, "offset": payload.offset, "delta": payload.text}
    fields = {"turn": event.turn, "step": payload.step, "channel": payload.channel.value, **piece}
    generating = ("step.generating", fields)
    if payload.channel is Channel.TEXT:
        return (generating, ("message.delta", piece))
    return (generating,)


def _step_ended(payload: StepEnded, event: Event) -> tuple[Word, ...]:
    data = {
        "turn": event.turn,
        "step": payload.step,
        "message_id": payload.message_id,
        "usage": usage_form(payload.usage or Usage()),
        # A single request: without a price, its amount is the maximum cost.
        "cost": cost_form(
            payload.microcents, priced=payload.priced, estimated=payload.microcents > 0
        ),
    }
    return (("step.generated", data),)


def _step_failed(payload: StepFailed, event: Event) -> tuple[Word, ...]:
    data = {
        "turn": event.turn,
        "step": payload.step,
        "error": {"code": payload.failure.code, "message": payload.failure.message},
        "next_model_id": payload.next_model_id,
        "will_retry": payload.next_model_id is not None,
    }
    return (("step.error", data),)


def _message_appended(payload: MessageAppended, event: Event) -> tuple[Word, ...]:
    data = {
        "message_id": payload.message_id,
        "role": payload.role,
        "message_sequence": payload.sequence,
        "turn": event.turn or 0,
    }
    return (("message.created", data),)


def _tool_started(payload: ToolStarted, event: Event) -> tuple[Word, ...]:
    data: Data = {
        "turn": event.turn,
        "tool_call_id": payload.call_id,
        "name": payload.name,
        "arguments": payload.arguments,
    }
    if not isinstance(payload.by, UnsetType):
        data |= {"by": payload.by, "attempt": payload.attempt}
    return (("tool.started", data),)


def _tool_requested(payload: ToolRequested, event: Event) -> tuple[Word, ...]:
    data = {
        "turn": event.turn,
        "tool_call_id": payload.call_id,
        "name": payload.name,
        "arguments": payload.arguments,
        "effect": payload.effect,
        "attempt": payload.attempt,
        "deadline_at": format_time(payload.deadline_at),
    }
    return (("tool.requested", data),)


def _tool_progressed(payload: ToolProgressed, event: Event) -> tuple[Word, ...]:
    data: Data = {"turn": event.turn, "tool_call_id": payload.call_id, "text": payload.text}
    if payload.fraction is not None:
        data["fraction"] = payload.fraction
    return (("tool.progressed", data),)


def _tool_ended(payload: ToolEnded, event: Event) -> tuple[Word, ...]:
    data: Data = {
        "turn": event.turn,
        "tool_call_id": payload.call_id,
        "name": payload.name,
        "status": payload.status,
        "result": payload.result,
        "error": error_text(payload.status, payload.failure),
    }
    whole = msgspec.json.encode(payload.result)
    if len(whole) > RESULT_LARGEST:
        # As text, because truncated JSON is invalid; the message has the complete result.
        data["result"] = whole[:RESULT_LARGEST].decode("utf-8", "ignore")
        data["truncated"] = True
    # A call that was refused did not start, so it cannot complete.
    return (("tool.refused" if payload.has_run is False else "tool.completed", data),)


def _turn_ended(payload: TurnEnded, event: Event) -> tuple[Word, ...]:
    failure = payload.failure
    data: Data = {
        "turn": event.turn,
        "stop_reason": payload.stop_reason,
        "usage": usage_form(payload.usage),
        "cost": cost_form(payload.microcents, priced=payload.priced, estimated=payload.estimated),
        "closed": False,
        "reason": None,
        "more_turns": payload.more_turns,
    }
    if payload.stop_reason not in FAILED_STOPS:
        return (("session.completed", data),)
    error = {"code": failure.code, "message": failure.message} if failure else None
    return (("session.failed", {**data, "error": error}),)


def _session_closed(payload: SessionClosed, _: Event) -> tuple[Word, ...]:
    is_failed = payload.status is Status.FAILED
    data: Data = {
        "turn": None,
        "stop_reason": "error" if is_failed else None,
        "usage": usage_form(Usage()),
        "cost": cost_form(0, priced=True),
        "closed": True,
        "reason": payload.reason,
        "more_turns": False,
    }
    if is_failed:
        error = {"code": "agent_died", "message": payload.reason or "The agent's process was lost."}
        return (("session.failed", {**data, "error": error}),)
    return (("session.completed", data),)


def _call_settled(payload: CallSettled, _: Event) -> tuple[Word, ...]:
    data = {"tool_call_id": payload.call_id, "how": payload.how, "by": payload.by}
    return (("tool.settled", data),)


def _approval_requested(payload: ApprovalRequested, _: Event) -> tuple[Word, ...]:
    data = {
        "approval_id": payload.approval_id,
        "tool_call_id": payload.call_id,
        "question": payload.question,
        "options": options(is_for_session=payload.is_for_session),
        # The expiry is a setting of the reader; the approval itself contains it.
        "expires_at": None,
    }
    return (("tool.approval_requested", data),)


def options(*, is_for_session: bool) -> list[dict[str, str]]:
    """Return the options of a question that Holdfast asks itself."""
    once = {"id": "allow_once", "name": "Allow once", "kind": "allow_once"}
    always = {"id": "allow_session", "name": "Allow for this session", "kind": "allow_always"}
    never = {"id": "deny", "name": "Deny", "kind": "reject_once"}
    return [once, *([always] if is_for_session else []), never]


def _approval_answered(payload: ApprovalAnswered, _: Event) -> tuple[Word, ...]:
    data = {
        "approval_id": payload.approval_id,
        "tool_call_id": payload.call_id,
        "decision": payload.decision,
        "scope": payload.scope,
        "by": payload.by,
    }
    return (("tool.approval_answered", data),)


def _plan_changed(payload: PlanChanged, event: Event) -> tuple[Word, ...]:
    steps = [
        {"content": step.text, "priority": step.priority, "status": step.status}
        for step in payload.steps
    ]
    return (("plan.changed", {"turn": event.turn, "steps": steps}),)


def _own_name(payload: Payload, _: Event) -> tuple[Word, ...]:
    data = msgspec.to_builtins(payload)
    data.pop("type", None)
    return ((name_of(payload), data),)


def _own_name_and_turn(payload: Payload, event: Event) -> tuple[Word, ...]:
    ((name, data),) = _own_name(payload, event)
    return ((name, {"turn": event.turn, **data}),)


Translate = Callable[[Any, Event], tuple[Word, ...]]
TABLE: Final[Mapping[type[Payload], Translate]] = {
    ApprovalAnswered: _approval_answered,
    ApprovalRequested: _approval_requested,
    CallSettled: _call_settled,
    MessageAppended: _message_appended,
    PlanChanged: _plan_changed,
    SessionClosed: _session_closed,
    StepDelta: _delta,
    StepEnded: _step_ended,
    StepFailed: _step_failed,
    StepStarted: _step_started,
    ToolEnded: _tool_ended,
    ToolProgressed: _tool_progressed,
    ToolRequested: _tool_requested,
    ToolStarted: _tool_started,
    TurnEnded: _turn_ended,
    TurnStarted: _turn_started,
    # Listed one by one, so that a new event type must be added to this table explicitly.
    events.MessageWithdrawn: _own_name_and_turn,
    events.SessionCompacted: _own_name,
    events.SessionExported: _own_name,
    events.SessionForked: _own_name,
    events.SessionObserved: _own_name,
    events.SessionOpened: _own_name,
    events.SessionResumed: _own_name,
    events.TurnContinued: _own_name_and_turn,
    events.TurnPaused: _own_name_and_turn,
    events.ZoneArchived: _own_name,
}


class Words(StrEnum):
    """The event vocabulary: the names of `/v1`, or the internal names, as stored."""

    V1 = "v1"
    INTERNAL = "house"


Start = Annotated[
    str,
    Meta(
        pattern="^(?:[0-9]{1,18}|now|[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})?$",
        description="Start after this event: its sequence number, its id, or `now`.",
    ),
]


class EventsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Start position and format; a page and a stream each refuse the parameters of the other."""

    since: Start | None = None
    deltas: Deltas = Deltas.STEP
    words: Words = Words.V1
    until: Literal["settled"] | None = None
    format: Literal["json", "stream"] | None = None
    after: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=(1 << 63) - 1,
                description="Page only: return events after this sequence number.",
            ),
        ]
        | None
    ) = None
    limit: (
        Annotated[
            int,
            Meta(
                ge=1,
                le=1000,
                description="Page only: the maximum number of events; 100 by default.",
            ),
        ]
        | None
    ) = None
    cursor: (
        Annotated[str, Meta(description="Page only: continue after an earlier page.")] | None
    ) = None
    types: (
        Annotated[str, Meta(description="Only events of these types, separated by commas.")] | None
    ) = None


class GapForm(Struct, frozen=True, rename={"first": "from", "last": "to"}):
    """A range of events that are not available, and where to read the current state instead."""

    first: int
    last: int
    reason: str
    resync: str


class EventList(Struct, frozen=True):
    """A page of events, and the gaps in their sequence numbers."""

    data: tuple[EventForm, ...]
    gaps: tuple[GapForm, ...]
    next_cursor: str | None


class StoredEventList(Struct, frozen=True):
    """A page of events in their stored form, and the gaps in their sequence numbers."""

    data: tuple[Event, ...]
    gaps: tuple[Gap, ...]
    next_cursor: str | None
