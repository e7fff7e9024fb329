"""Calls: list tool calls, and settle those with an unknown outcome."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.agents import AcpRuntime
from holdfast.domain.calls import Call, CallState, Settlement, retry_id
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.errors import Code, Conflict, Invalid, NotFound
from holdfast.domain.events import CallSettled
from holdfast.domain.ids import CallId, Owner, SessionId
from holdfast.domain.messages import Notice, NoticeCode, Role, ToolCall
from holdfast.domain.queries import (
    LIMIT_MOST,
    Page,
    WorkQuery,
    decode_count,
    encode_count,
    require_limit,
)
from holdfast.domain.sessions import admit_turn, has_waiting_turn
from holdfast.domain.text import require_text
from holdfast.ports.runtime import Coordinator
from holdfast.ports.store import Store, Tx
from holdfast.services.batches import fill_page
from holdfast.services.journal import Journal, SessionWriter, find_session_state
from holdfast.services.stamping import IdFactory

NOTE_LONGEST: Final = 500
RESULT_LARGEST: Final = 16 << 10


class SettlementAction(StrEnum):
    """How a user settles an unknown outcome."""

    RETRY = "retry"
    SKIP = "skip"
    MARK_DONE = "mark_done"


SETTLEMENTS: Final[Mapping[SettlementAction, Settlement]] = {
    SettlementAction.RETRY: Settlement.RETRIED,
    SettlementAction.SKIP: Settlement.SKIPPED,
    SettlementAction.MARK_DONE: Settlement.MARKED_DONE,
}


class SettlementRequest(Struct, frozen=True, kw_only=True):
    """How to settle an unknown outcome, with its author and an optional result and note."""

    how: SettlementAction
    by: str
    result: Any = None
    note: str | None = None

    def __post_init__(self) -> None:
        if self.note is not None:
            require_text(self.note, field="note", longest=NOTE_LONGEST)
        if self.how is SettlementAction.MARK_DONE and self.result is None:
            raise Invalid(Code.INVALID_INPUT, "mark_done requires a result; pass one.")
        if _size(self.result) > RESULT_LARGEST:
            raise Invalid(Code.INVALID_INPUT, "A result may have at most 16 KiB.")


def _size(result: Any) -> int:
    try:
        return len(msgspec.json.encode(result))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        raise Invalid(Code.INVALID_INPUT, "A result must be plain JSON.") from None


class Calls:
    """Tool calls of an owner's sessions."""

    def __init__(
        self, store: Store, journal: Journal, coordinator: Coordinator, id_factory: IdFactory
    ) -> None:
        self._store = store
        self._journal = journal
        self._coordinator = coordinator
        self._id_factory = id_factory

    async def list(
        self,
        owner: Owner,
        session_id: SessionId | None = None,
        *,
        state: CallState | None = None,
        cursor: str | None = None,
        limit: int = LIMIT_MOST,
    ) -> Page[Call]:
        """Return the calls of one session or of all, in the order of calls within a session."""
        require_limit(limit)
        filters = ("calls", owner, session_id, state)
        after = decode_count(cursor, filters)

        async def read(tx: Tx) -> tuple[tuple[Call, ...], bool]:
            key = (
                (await find_session_state(tx, owner, session_id)).key
                if session_id is not None
                else None
            )
            states = (state,) if state is not None else ()
            query = WorkQuery(owner=owner, key=key, states=states, after=after)

            async def behind(last: Call | None, most: int) -> list[Call]:
                place = query.after if last is None else (last.sequence, last.session_id)
                return await tx.calls.page(replace(query, after=place, limit=most))

            return await fill_page(behind, limit)

        shown, more = await self._store.read(read)
        last = (shown[-1].sequence, shown[-1].session_id) if more else None
        return Page(items=shown, next_cursor=encode_count(last, filters))

    async def get(self, owner: Owner, session_id: SessionId, call_id: str) -> Call:
        """Return one call."""

        async def read(tx: Tx) -> Call | None:
            head = await find_session_state(tx, owner, session_id)
            return await tx.calls.by_id(head, CallId(call_id))

        return _found(await self._store.read(read))

    async def named(self, owner: Owner, call_id: str) -> tuple[Call, ...]:
        """Return every call of an id; models reuse ids across sessions."""
        query = WorkQuery(owner=owner, id=call_id)
        return tuple(await self._store.read(lambda tx: tx.calls.page(query)))

    async def settle(
        self, owner: Owner, session_id: SessionId, call_id: str, request: SettlementRequest
    ) -> Call:
        """Settle an unknown outcome; a retry runs as a turn of its own without a model request.

        If the retry is denied or stopped before it runs, the outcome is unknown again and can be
        settled again.
        """

        async def write(writer: SessionWriter) -> Call:
            call = _found(await writer.load_call(CallId(call_id)))
            # Idempotent: repeating the same settlement after a lost response returns the call.
            if call.settlement is SETTLEMENTS[request.how]:
                return call
            if call.state is not CallState.UNKNOWN:
                raise Conflict(
                    Code.CALL_NOT_OPEN,
                    f"The call is {call.state}; only a call with an unknown outcome can be "
                    "settled.",
                    {"state": call.state},
                )
            again = (
                await self._retried(writer, call) if request.how is SettlementAction.RETRY else None
            )
            writer.add_message(_notice(call, request, again), 0)
            writer.add_event(
                CallSettled(call_id=call.id, how=SETTLEMENTS[request.how], by=request.by)
            )
            return _found(writer.known_call(call.id))

        settled = await self._journal.write(owner, session_id, write)
        if request.how is SettlementAction.RETRY:
            head = await self._store.read(lambda tx: find_session_state(tx, owner, session_id))
            self._coordinator.wake(head.key, turn=head.turn)
        return settled

    async def _retried(self, writer: SessionWriter, call: Call) -> CallId:
        """Add the same call again, with the same idempotency key, in a turn of its own."""
        if has_waiting_turn(writer.state):
            raise Conflict(
                Code.TURN_RUNNING, "A turn is running or waiting; retry the call when it has ended."
            )
        found = await writer.tx.sessions.get_by_key(writer.state.key)
        if found is not None and isinstance(found[0].agent.runtime, AcpRuntime):
            raise Conflict(
                Code.CALL_NOT_OPEN,
                "A call made by an ACP agent cannot be run again by Holdfast; skip it, mark "
                "it as done, or ask the agent again.",
                {"state": call.state},
            )
        call_id = retry_id(self._id_factory.new())
        writer.state = admit_turn(writer.state)
        part = ToolCall(id=call_id, name=call.name, arguments=call.arguments)
        draft = MessageDraft(
            role=Role.TOOL_CALL,
            parts=(part,),
            effect=call.effect,
            idempotency_key=call.idempotency_key,
        )
        writer.add_message(draft, writer.state.turn)
        return call_id


def _found(call: Call | None) -> Call:
    if call is None:
        raise NotFound(Code.CALL_NOT_FOUND, "The session has no such call.")
    return call


_SETTLEMENT_TEXTS: Final[Mapping[SettlementAction, str]] = {
    SettlementAction.RETRY: "it will be run again",
    SettlementAction.SKIP: "it is treated as not executed",
    SettlementAction.MARK_DONE: "it is treated as executed",
}


def _notice(call: Call, request: SettlementRequest, again: CallId | None) -> MessageDraft:
    """Return the row that records for users and models how the call was settled."""
    how = _SETTLEMENT_TEXTS[request.how]
    said = [f"The unknown outcome of {call.name} ({call.id}) was settled: {how}"]
    if again is not None:
        said.append(f" as {again}")
    if request.result is not None:
        said.append(f", with the result {msgspec.json.encode(request.result).decode()}")
    if request.note:
        said.append(f". Note: {request.note}")
    notice = Notice(code=NoticeCode.CALL_SETTLED, text="".join(said))
    return MessageDraft(role=Role.SYSTEM, parts=(notice,))
