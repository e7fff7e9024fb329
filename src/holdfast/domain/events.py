"""Events: the log of a session, stamped by the journal and followed by readers.

Events are not the source of truth: without them no conversation is lost, because messages are
stored separately.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, get_args

import msgspec
from msgspec import UNSET, Struct, UnsetType

from holdfast.domain.approvals import ApprovalScope
from holdfast.domain.calls import Settlement
from holdfast.domain.costs import Usage
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import (
    ApprovalId,
    CallId,
    EventId,
    MessageId,
    ModelId,
    SessionId,
    is_uuid,
    uuid7,
)
from holdfast.domain.messages import PlanStep, ResultStatus, Role, ToolError
from holdfast.domain.sessions import SessionContext, Status, StopReason
from holdfast.domain.time import microseconds
from holdfast.domain.tools import Effect, ToolClass
from holdfast.domain.waits import WaitReason


class FailureCode(StrEnum):
    """Why a turn or a step failed: one closed list."""

    INVALID_REQUEST = "invalid_request"
    OUTPUT_INVALID = "output_invalid"
    CONTEXT_OVERFLOW = "context_overflow"
    CONTENT_FILTER = "content_filter"
    PROVIDER_AUTH = "provider_auth"
    PROVIDER_RATE_LIMIT = "provider_rate_limit"
    PROVIDER_UNAVAILABLE = "provider_unavailable"
    TOOL_FAILED = "tool_failed"
    TURN_LIMIT = "turn_limit"
    BUDGET_EXCEEDED = "budget_exceeded"
    INTERRUPTED = "interrupted"
    INTERNAL = "internal"
    LOOP_FAILED = "loop_failed"
    REPLAY_MISMATCH = "replay_mismatch"
    AGENT_UNAVAILABLE = "agent_unavailable"
    AGENT_START_TIMEOUT = "agent_start_timeout"
    AGENT_AUTH_REQUIRED = "agent_auth_required"
    AGENT_VERSION = "agent_version"
    AGENT_PROTOCOL = "agent_protocol"
    AGENT_ERROR = "agent_error"
    AGENT_DIED = "agent_died"
    AGENT_STUCK = "agent_stuck"
    AGENT_FLOOD = "agent_flood"
    AGENT_LINE_TOO_LONG = "agent_line_too_long"


# The other codes fail again in the same way until the cause is fixed.
RETRYABLE: Final = frozenset(
    {FailureCode.PROVIDER_RATE_LIMIT, FailureCode.PROVIDER_UNAVAILABLE, FailureCode.INTERRUPTED}
)


class Failure(Struct, frozen=True, kw_only=True):
    """A failure as data: safe to show, with a remedy in its message."""

    code: FailureCode
    message: str
    correlation_id: str | None = None

    @property
    def retryable(self) -> bool:
        """Return whether the same turn may succeed later."""
        return self.code in RETRYABLE


class Channel(StrEnum):
    """What a delta contains."""

    TEXT = "text"
    REASONING = "reasoning"


class SessionOpened(Struct, frozen=True, kw_only=True, tag="session.opened"):
    """A session was opened."""

    agent: str
    model: str | None = None
    context: SessionContext


class SessionResumed(Struct, frozen=True, kw_only=True, tag="session.resumed"):
    """A closed session was resumed."""


class SessionClosed(Struct, frozen=True, kw_only=True, tag="session.closed"):
    """A session ended."""

    status: Status
    reason: str | None = None


class SessionForked(Struct, frozen=True, kw_only=True, tag="session.forked"):
    """A session was forked from a row of this one."""

    target: SessionId
    sequence: int


class SessionCompacted(Struct, frozen=True, kw_only=True, tag="session.compacted"):
    """A summary replaces the earlier rows in model requests; the rows are not deleted."""

    message_id: MessageId
    kept: int
    dropped_through: int
    reason: str = "auto"
    summary: str = ""
    usage: Usage | None = None


class SessionExported(Struct, frozen=True, kw_only=True, tag="session.exported"):
    """The session was exported as a workflow."""

    target: str


class SessionObserved(Struct, frozen=True, kw_only=True, tag="session.observed"):
    """A claim about this session was recorded."""

    target: str


class TurnStarted(Struct, frozen=True, kw_only=True, tag="turn.started"):
    """A turn started; `runner` is set if a program holds it with `hf.turn`."""

    runner: str | UnsetType = UNSET


class TurnPaused(Struct, frozen=True, kw_only=True, tag="turn.paused"):
    """The turn waits, and no process runs it until `turn.continued` or `turn.ended`."""

    reason: WaitReason
    text: str
    until: datetime | None = None
    needs: tuple[str, ...] = ()
    call_ids: tuple[CallId, ...] = ()
    approval_id: ApprovalId | None = None
    children: tuple[SessionId, ...] = ()


class TurnContinued(Struct, frozen=True, kw_only=True, tag="turn.continued"):
    """What the turn waited for has come, or its time is over."""

    reason: WaitReason


class TurnEnded(Struct, frozen=True, kw_only=True, tag="turn.ended"):
    """A turn ended; exactly one for every `turn.started`."""

    stop_reason: StopReason
    usage: Usage = Usage()
    microcents: int = 0
    priced: bool = True
    more_turns: bool = False
    failure: Failure | None = None
    # Whether `microcents` is an upper bound; only if not `priced`.
    estimated: bool = False
    # Set for a turn that was played elsewhere and recorded here.
    recorded: bool | UnsetType = UNSET


class StepStarted(Struct, frozen=True, kw_only=True, tag="step.started"):
    """A model was called; `message_id` is reserved for its answer."""

    message_id: MessageId
    model_id: ModelId
    step: int
    # Also by name, because a reader of the events should not need a lookup.
    model: str = ""
    # Maximum cost of the request in micro-cents; 0 without a budget or a known price.
    bound: int = 0


class StepDelta(Struct, frozen=True, kw_only=True, tag="step.delta"):
    """A chunk of text; pruned some time after its turn, because the message contains the text."""

    message_id: MessageId | None = None
    step: int
    channel: Channel
    offset: int
    text: str


class StepEnded(Struct, frozen=True, kw_only=True, tag="step.ended"):
    """A model answered."""

    message_id: MessageId | None = None
    step: int
    usage: Usage | None = None
    microcents: int = 0
    priced: bool = False


class StepFailed(Struct, frozen=True, kw_only=True, tag="step.failed"):
    """A model did not answer; names the next model of the fallback chain, if any."""

    step: int
    failure: Failure
    next_model_id: ModelId | None = None


class MessageAppended(Struct, frozen=True, kw_only=True, tag="message.appended"):
    """A message was appended."""

    message_id: MessageId
    role: Role
    sequence: int


class MessageWithdrawn(Struct, frozen=True, kw_only=True, tag="message.withdrawn"):
    """A framework removed messages from its history; the row `message_id` names them."""

    message_id: MessageId
    count: int
    reason: str


class ToolStarted(Struct, frozen=True, kw_only=True, tag="tool.started"):
    """A tool call started; `by` and `attempt` are set if a client runs it."""

    call_id: CallId
    name: str
    arguments: dict[str, Any]
    by: str | UnsetType = UNSET
    attempt: int | UnsetType = UNSET


class ToolRequested(Struct, frozen=True, kw_only=True, tag="tool.requested"):
    """A client is asked to run a call, and to answer by `deadline_at`."""

    call_id: CallId
    name: str
    arguments: dict[str, Any]
    effect: Effect
    attempt: int = 1
    deadline_at: datetime


class ToolProgressed(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="tool.progressed"):
    """A running tool call reported its progress; `fraction` is from 0 to 1."""

    call_id: CallId
    text: str
    fraction: float | None = None


class ToolEnded(Struct, frozen=True, kw_only=True, tag="tool.ended"):
    """A tool call has its result; `has_run` is set only for a call that was never started."""

    call_id: CallId
    name: str
    status: ResultStatus
    result: Any = None
    failure: ToolError | None = None
    has_run: bool | UnsetType = UNSET


class CallSettled(Struct, frozen=True, kw_only=True, tag="call.settled"):
    """A call with an unknown outcome was settled."""

    call_id: CallId
    how: Settlement
    by: str


class ApprovalRequested(Struct, frozen=True, kw_only=True, tag="approval.requested"):
    """An approval request was stored and waits for its answer."""

    approval_id: ApprovalId
    call_id: CallId | None = None
    tool: str
    tool_class: ToolClass
    question: str
    preview: dict[str, str] = {}
    # Whether one answer may apply to the rest of the session.
    is_for_session: bool = False


class ApprovalAnswered(Struct, frozen=True, kw_only=True, tag="approval.answered"):
    """An approval request was answered."""

    approval_id: ApprovalId
    call_id: CallId | None = None
    decision: str
    scope: ApprovalScope = ApprovalScope.ONCE
    by: str


class PlanChanged(Struct, frozen=True, kw_only=True, tag="plan.changed"):
    """The agent changed its plan."""

    steps: tuple[PlanStep, ...]


class ZoneArchived(Struct, frozen=True, kw_only=True, tag="zone.archived"):
    """The agent's active zone was moved into an archive."""

    zone: str


Payload = (
    SessionOpened
    | SessionResumed
    | SessionClosed
    | SessionForked
    | SessionCompacted
    | SessionExported
    | SessionObserved
    | TurnStarted
    | TurnPaused
    | TurnContinued
    | TurnEnded
    | StepStarted
    | StepDelta
    | StepEnded
    | StepFailed
    | MessageAppended
    | MessageWithdrawn
    | ToolStarted
    | ToolRequested
    | ToolProgressed
    | ToolEnded
    | CallSettled
    | ApprovalRequested
    | ApprovalAnswered
    | PlanChanged
    | ZoneArchived
)


class Event(Struct, frozen=True, kw_only=True):
    """A stamped event; sequences are dense per session and start at 1."""

    id: EventId
    session_id: SessionId
    sequence: int
    turn: int | None = None
    at: datetime
    payload: Payload


def event_id(session_id: SessionId, sequence: int, at: datetime) -> EventId:
    """Return the id of an event, computed from its session and sequence, which are unique."""
    return event_id_at(session_id, sequence, microseconds(at) // 1000)


def event_id_at(session_id: SessionId, sequence: int, milliseconds: int) -> EventId:
    """Return the id of an event at a Unix time in milliseconds."""
    # 42 bits of the session and 32 of the sequence fill the 74 random bits of a UUIDv7.
    own_bits = int(session_id[-12:], 16) & 0x3FF_FFFF_FFFF
    return EventId(uuid7(milliseconds, own_bits << 32 | sequence & 0xFFFF_FFFF))


def sequence_in(id_: str, session_id: SessionId) -> int | None:
    """Return the sequence encoded in an event id; `None` if it belongs to another session."""
    if not is_uuid(id_):
        return None
    # The inverse of `event_id`: twelve bits are before the variant, the others after it.
    whole = int(id_.replace("-", ""), 16)
    bits = (whole & 0x3FFF_FFFF_FFFF_FFFF) << 12 | whole >> 64 & 0xFFF
    own_bits = int(session_id[-12:], 16) & 0x3FF_FFFF_FFFF
    return bits & 0xFFFF_FFFF if bits >> 32 == own_bits else None


class NewEvent(Struct, frozen=True, gc=False):
    """An event to append, with its encoded payload; `at` is in microseconds."""

    sequence: int
    turn: int | None
    at: int
    name: str
    content: bytes


def encode_envelope(
    session_id: SessionId, sequence: int, turn: int | None, at: int, content: bytes
) -> bytes:
    """Return an encoded `Event` around an encoded payload; `at` is in microseconds."""
    return encode_envelopes(session_id, (NewEvent(sequence, turn, at, "", content),))[0]


def encode_envelopes(session_id: SessionId, events: Iterable[NewEvent]) -> list[bytes]:
    """Return each event as an encoded `Event` around its encoded payload."""
    own_bits = 1 << 63 | (int(session_id[-12:], 16) & 0x3FF_FFFF_FFFF) << 20
    envelopes = []
    millisecond = block = second = -1
    start = end = clock = ""
    for event in events:
        sequence, at = event.sequence, event.at
        # Events of one commit are of the same second, and mostly of the same millisecond.
        if at // 1000 != millisecond:
            millisecond = at // 1000
            start = f"{millisecond & 0xFFFF_FFFF_FFFF:012x}"
            if millisecond // 1000 != second:
                second = millisecond // 1000
                clock = (_EPOCH + timedelta(0, second)).isoformat()
        if sequence >> 12 != block:
            block = sequence >> 12
            end = f"{own_bits | block & 0xF_FFFF:016x}"
        turn = "null" if event.turn is None else event.turn
        micros = at % 1_000_000
        fraction = f".{micros:06}" if micros else ""
        # Same bytes as `msgspec.json.encode(Event(…))`, without decoding the payload. The id is
        # that of `event_id_at`.
        head = (
            f'{{"id":"{start[:8]}-{start[8:]}-7{sequence & 0xFFF:03x}-{end[:4]}-{end[4:]}",'
            f'"session_id":"{session_id}","sequence":{sequence},"turn":{turn},'
            f'"at":"{clock}{fraction}Z","payload":'
        )
        envelopes.append(head.encode() + event.content + b"}")
    return envelopes


# Naive, because the time is formatted with `Z` and not with an offset.
_EPOCH: Final = datetime(1970, 1, 1)


# Why numbers are missing: deltas whose text is now a message; events past their retention; or
# events removed by something other than Holdfast, which `holdfast doctor` reports.
PRUNED: Final = "pruned"
RETENTION: Final = "retention"
MISSING: Final = "missing"


class Gap(Struct, frozen=True, kw_only=True):
    """Sequence numbers that will not be delivered, and what to read instead."""

    from_sequence: int
    to_sequence: int
    reason: str = PRUNED
    resync: str = "messages"


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Payload] = msgspec.json.Decoder(Payload)


def encode_payload(payload: Payload) -> bytes:
    """Return an event's payload with all its fields."""
    return _encoder.encode(payload)


# Stored forms without defaults, because most fields of a turn are zero or empty. Decoding fills
# them in, so the defaults below must never change.
class KeptUsage(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Stored form of `Usage`."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0


class KeptStepStarted(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="step.started"):
    """Stored form of `StepStarted`."""

    message_id: MessageId
    model_id: ModelId
    step: int
    model: str = ""
    bound: int = 0


class KeptStepEnded(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="step.ended"):
    """Stored form of `StepEnded`."""

    message_id: MessageId | None = None
    step: int
    usage: KeptUsage | None = None
    microcents: int = 0
    priced: bool = False


class KeptTurnEnded(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="turn.ended"):
    """Stored form of `TurnEnded`."""

    stop_reason: StopReason
    usage: KeptUsage = KeptUsage()
    microcents: int = 0
    priced: bool = True
    more_turns: bool = False
    failure: Failure | None = None
    estimated: bool = False
    recorded: bool | UnsetType = UNSET


def encode_stored(payload: Payload) -> bytes:
    """Return the stored bytes of an event's payload; frequent events omit their defaults."""
    match payload:
        case StepStarted():
            return _encoder.encode(
                KeptStepStarted(
                    message_id=payload.message_id,
                    model_id=payload.model_id,
                    step=payload.step,
                    model=payload.model,
                    bound=payload.bound,
                )
            )
        case StepEnded():
            usage = None if payload.usage is None else _keep_usage(payload.usage)
            return _encoder.encode(
                KeptStepEnded(
                    step=payload.step,
                    message_id=payload.message_id,
                    usage=usage,
                    microcents=payload.microcents,
                    priced=payload.priced,
                )
            )
        case TurnEnded():
            return _encoder.encode(
                KeptTurnEnded(
                    stop_reason=payload.stop_reason,
                    usage=_keep_usage(payload.usage),
                    microcents=payload.microcents,
                    priced=payload.priced,
                    more_turns=payload.more_turns,
                    failure=payload.failure,
                    estimated=payload.estimated,
                    recorded=payload.recorded,
                )
            )
        case _:
            return _encoder.encode(payload)


def _keep_usage(usage: Usage) -> KeptUsage:
    return KeptUsage(
        input=usage.input,
        output=usage.output,
        cache_read=usage.cache_read,
        cache_write=usage.cache_write,
        reasoning=usage.reasoning,
    )


def decode_payload(stored: bytes) -> Payload:
    """Return the payload decoded from stored bytes; raises `msgspec.ValidationError`."""
    return _decoder.decode(stored)


# Decodes an event from its envelope.
decode_event: Final = msgspec.json.Decoder(Event).decode


def name_of(payload: Payload | type[Payload]) -> str:
    """Return the event's name, in the form `noun.past_tense`."""
    return str(payload.__struct_config__.tag)


# The names of all events by their type.
NAME_BY_TYPE: Final[Mapping[type, str]] = {kind: name_of(kind) for kind in get_args(Payload)}
NAMES: Final = frozenset(NAME_BY_TYPE.values())


def require_names(types: Collection[str]) -> None:
    """Raise if one of the types is not the name of an event."""
    unknown = sorted(set(types) - NAMES)
    if unknown:
        raise Invalid(
            Code.INVALID_FILTER,
            f"There is no such event type; the types are {', '.join(sorted(NAMES))}.",
            {"types": unknown},
        )
