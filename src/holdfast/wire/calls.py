"""JSON forms of tool calls and of their settlement."""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from holdfast.domain.calls import Call, CallState, Settlement
from holdfast.domain.tools import Effect
from holdfast.services.calls import SettlementAction, SettlementRequest
from holdfast.wire.scalars import Cursor, Instant, Limit, Uuid, format_time_or_none

StateWord = Literal["intended", "started", "finished", "unknown"]


class CallForm(Struct, frozen=True, kw_only=True):
    """A call as `/v1` shows it; an unknown outcome that was put right says how in `settled`."""

    id: str
    session_id: Uuid
    turn: int
    name: str
    arguments: dict[str, Any]
    effect: Effect
    state: StateWord
    settled: Settlement | None
    idempotency_key: str
    started_at: Instant | None
    ended_at: Instant | None
    message_sequence: int
    result_sequence: int | None


class CallList(Struct, frozen=True):
    """A page of calls, each session's in the order of its calls."""

    data: tuple[CallForm, ...]
    next_cursor: str | None


class CallsQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Which calls; `unknown` are those not settled yet, `settled` the others."""

    state: CallState | None = None
    limit: Limit = 100
    cursor: Cursor | None = None


class SettlePost(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How an unknown outcome is put right."""

    how: SettlementAction
    result: Any = None
    note: Annotated[str, Meta(max_length=500)] | None = None


def call_form(call: Call) -> CallForm:
    """Return a call as it is shown."""
    return CallForm(
        id=call.id,
        session_id=call.session_id,
        turn=call.turn,
        name=call.name,
        arguments=call.arguments,
        effect=call.effect,
        state=_state_word(call.state),
        settled=call.settlement,
        idempotency_key=call.idempotency_key,
        started_at=format_time_or_none(call.started_at),
        ended_at=format_time_or_none(call.ended_at),
        message_sequence=call.sequence,
        result_sequence=call.result_sequence,
    )


def _state_word(state: CallState) -> StateWord:
    match state:
        case CallState.INTENDED:
            return "intended"
        case CallState.STARTED:
            return "started"
        case CallState.FINISHED:
            return "finished"
        case CallState.UNKNOWN | CallState.SETTLED:
            # The outcome stays unknown, however it was settled.
            return "unknown"


def settlement_of(body: SettlePost, *, by: str) -> SettlementRequest:
    """Return how a call is to be put right."""
    return SettlementRequest(how=body.how, by=by, result=body.result, note=body.note)
