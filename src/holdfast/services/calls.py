"""Calls: list tool calls, answer those that a client runs, settle those with unknown outcome."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.agents import AcpRuntime, ExternalRuntime
from holdfast.domain.calls import (
    Call,
    CallState,
    ClientRequest,
    Settlement,
    is_open,
    retry_id,
    start_call,
)
from holdfast.domain.canonical_json import digest
from holdfast.domain.drafts import Draft, MessageDraft
from holdfast.domain.errors import Code, Conflict, Invalid, NotFound
from holdfast.domain.events import CallSettled, ToolEnded, ToolRequested
from holdfast.domain.ids import CallId, Owner, SessionId, SessionKey
from holdfast.domain.messages import (
    Notice,
    NoticeCode,
    ResultStatus,
    Role,
    ToolCall,
    ToolError,
    ToolResult,
)
from holdfast.domain.queries import (
    LIMIT_MOST,
    Page,
    WorkQuery,
    decode_count,
    encode_count,
    require_limit,
)
from holdfast.domain.sessions import Created, admit_turn, has_waiting_turn
from holdfast.domain.text import require_text, wrong_type
from holdfast.domain.time import instant
from holdfast.domain.tools import Effect, ResultCode
from holdfast.domain.waits import WaitReason
from holdfast.ports.runtime import Coordinator
from holdfast.ports.store import Store, Tx
from holdfast.ports.system import Clock
from holdfast.services.agents import find_agent
from holdfast.services.batches import fill_page, find_listed
from holdfast.services.journal import (
    Journal,
    SessionWriter,
    continue_turn,
    find_session_state,
)
from holdfast.services.stamping import IdFactory

NOTE_LONGEST: Final = 500
RESULT_LARGEST: Final = 16 << 10
ANSWER_LARGEST: Final = 16 << 20
ERROR_LONGEST: Final = 4_096
LATE_LONGEST: Final = 8_192
_ANSWERS: Final = frozenset({ResultStatus.OK, ResultStatus.ERROR, ResultStatus.UNKNOWN})
_UNKNOWN: Final = "outcome unknown: the client could not tell whether the call was run"


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


class CallAnswer(Struct, frozen=True, kw_only=True):
    """What a client says about a call that it was asked to run; `error` is a text.

    `claim` is the id of the claim under which it has run the call.
    """

    status: ResultStatus
    result: Any = None
    error: str | None = None
    claim: str | None = None

    def __post_init__(self) -> None:
        if self.status not in _ANSWERS:
            raise _invalid_answer("status", "status must be ok, error or unknown.")
        if self.result is not None and self.error is not None:
            raise _invalid_answer("error", "Give a result or an error, not both.")
        if self.result is not None and self.status is not ResultStatus.OK:
            raise _invalid_answer("result", "Only a call with the status ok has a result.")
        needs_error = self.status is ResultStatus.ERROR
        if self.status is not ResultStatus.UNKNOWN and needs_error != (self.error is not None):
            raise _invalid_answer("error", "The status error needs an error, and ok has none.")
        if self.error is not None:
            require_text(self.error, field="error", longest=ERROR_LONGEST)
        if _size(self.result) > ANSWER_LARGEST:
            raise Invalid(Code.TOO_LARGE, "A result may have at most 16 MiB.", {"field": "result"})

    @property
    def digest(self) -> str:
        """Return the digest that tells a repeated answer from another one."""
        return digest({"status": self.status, "result": self.result, "error": self.error})


def _invalid_answer(field: str, text: str) -> Invalid:
    return Invalid(Code.INVALID_INPUT, text, {"field": field})


# Returns a result without secrets and bounded, as a row of the session may hold it.
BoundResult = Callable[[Any, SessionKey], Awaitable[Any]]


class Calls:
    """Tool calls of an owner's sessions."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        coordinator: Coordinator,
        id_factory: IdFactory,
        *,
        lease_clock: Clock,
        bound_result: BoundResult,
    ) -> None:
        self._store = store
        self._journal = journal
        self._coordinator = coordinator
        self._id_factory = id_factory
        self._lease_clock = lease_clock
        self._bound_result = bound_result

    async def list(
        self,
        owner: Owner,
        session_id: SessionId | None = None,
        *,
        state: CallState | None = None,
        agent: str | None = None,
        tool: str | None = None,
        cursor: str | None = None,
        limit: int = LIMIT_MOST,
    ) -> Page[Call]:
        """Return the calls of one session or of all, in the order of calls within a session.

        `agent`, an id or a slug, and `tool` narrow them.
        """
        require_limit(limit)
        filters: tuple[object, ...] = ("calls", owner, session_id, state)
        filters += (agent, tool) if agent or tool else ()
        after = decode_count(cursor, filters)

        async def read(tx: Tx) -> tuple[tuple[Call, ...], bool]:
            key = await find_listed(tx, owner, session_id)
            states = (state,) if state is not None else ()
            agent_id = None if agent is None else (await find_agent(tx, owner, agent)).id
            query = WorkQuery(
                owner=owner, key=key, states=states, agent_id=agent_id, tool=tool, after=after
            )

            async def behind(last: Call | None, most: int) -> list[Call]:
                place = query.after if last is None else (last.sequence, last.session_id)
                page = await tx.calls.page(replace(query, after=place, limit=most))
                return await tx.client_requests.add_requests(owner, page)

            return await fill_page(behind, limit)

        shown, more = await self._store.read(read)
        last = (shown[-1].sequence, shown[-1].session_id) if more else None
        return Page(items=shown, next_cursor=encode_count(last, filters))

    async def get(self, owner: Owner, session_id: SessionId, call_id: str) -> Call:
        """Return one call."""

        async def read(tx: Tx) -> Call | None:
            state = await find_session_state(tx, owner, session_id)
            found = await tx.calls.by_id(state, CallId(call_id))
            return found and (await tx.client_requests.add_requests(owner, [found]))[0]

        return _require_call(await self._store.read(read))

    async def named(self, owner: Owner, call_id: str) -> tuple[Call, ...]:
        """Return every call of an id; models reuse ids across sessions."""
        query = WorkQuery(owner=owner, id=call_id)
        return tuple(await self._store.read(lambda tx: tx.calls.page(query)))

    async def answer(
        self, owner: Owner, session_id: SessionId, call_id: str, answer: CallAnswer
    ) -> Call:
        """Answer a call that a client was asked to run; the first answer counts."""
        if not isinstance(answer, CallAnswer):
            raise wrong_type(answer, field="answer", rule="answer must be a CallAnswer")
        return (await self.give_answer(owner, session_id, call_id, answer)).value

    async def give_answer(
        self, owner: Owner, session_id: SessionId, call_id: str, answer: CallAnswer
    ) -> Created[Call]:
        """Answer a call; `is_new` is false if an equal answer was given before."""

        async def read(tx: Tx) -> tuple[SessionKey, ClientRequest]:
            state = await find_session_state(tx, owner, session_id)
            call = _require_call(await tx.calls.by_id(state, CallId(call_id)))
            request = await tx.client_requests.of(state.key, call.id)
            if request is None:
                raise _not_open(call)
            return state.key, request

        key, known = await self._store.read(read)
        # Outside the transaction, because a large result is kept by a write of its own.
        is_needed = known.answer is None or answer.claim is not None
        result = await self._limit_result(answer.result, key) if is_needed else None

        async def write(writer: SessionWriter) -> tuple[Call, bool] | Conflict:
            await writer.load_turn()
            call = _require_call(await writer.load_call(CallId(call_id)))
            request = await writer.tx.client_requests.of(key, call.id)
            if request is None:
                return _not_open(call)
            bounded = replace(answer, result=result)
            if is_open(call):
                return await self._take_answer(writer, call, request, bounded, answer.digest)
            return await _take_late_answer(writer, call, request, bounded, answer.digest)

        written = await self._journal.write(owner, session_id, write)
        # Raised after the commit: a late answer is refused and kept nevertheless.
        if isinstance(written, Conflict):
            raise written
        call, is_new = written
        if is_new:
            self._coordinator.resume(key)
        return Created(value=call, is_new=is_new)

    async def _limit_result(self, result: Any, key: SessionKey) -> Any:
        try:
            return await self._bound_result(result, key)
        except (TypeError, ValueError, RecursionError, OverflowError, msgspec.MsgspecError):
            raise _invalid_answer("result", "A result must be plain JSON.") from None

    async def _take_answer(
        self,
        writer: SessionWriter,
        call: Call,
        request: ClientRequest,
        answer: CallAnswer,
        digest: str,
    ) -> tuple[Call, bool] | Conflict:
        """Write the result; the turn continues if no other call of it waits for a client."""
        fault = _claim_fault(call, request, answer.claim)
        if fault is not None:
            return fault
        answered = replace(request.without_claim(), answer=digest)
        await writer.tx.client_requests.save(writer.state.key, call.id, answered)
        if call.state is CallState.REQUESTED:
            # Only an answered call was run, as far as is known.
            writer.advance_call(call.id, lambda each: start_call(each, at=instant(writer.tick())))
        writer.add(_answer_drafts(call, answer), call.turn)
        await continue_unless_asked(writer, self._lease_clock)
        return _require_call(writer.known_call(call.id)), True

    async def settle(
        self, owner: Owner, session_id: SessionId, call_id: str, request: SettlementRequest
    ) -> Call:
        """Settle an unknown outcome; a retry runs as a turn of its own without a model request.

        If the retry is denied or stopped before it runs, the outcome is unknown again and can be
        settled again.
        """

        async def write(writer: SessionWriter) -> Call:
            call = _require_call(await writer.load_call(CallId(call_id)))
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
                await self._add_retry(writer, call)
                if request.how is SettlementAction.RETRY
                else None
            )
            writer.add_message(_notice(call, request, again), 0)
            writer.add_event(
                CallSettled(call_id=call.id, how=SETTLEMENTS[request.how], by=request.by)
            )
            return _require_call(writer.known_call(call.id))

        settled = await self._journal.write(owner, session_id, write)
        if request.how is SettlementAction.RETRY:
            state = await self._store.read(lambda tx: find_session_state(tx, owner, session_id))
            self._coordinator.wake(state.key, turn=state.turn)
        return settled

    async def _add_retry(self, writer: SessionWriter, call: Call) -> CallId:
        """Add the same call again, with the same idempotency key, in a turn of its own."""
        if has_waiting_turn(writer.state):
            raise Conflict(
                Code.TURN_RUNNING, "A turn is running or waiting; retry the call when it has ended."
            )
        found = await writer.tx.sessions.get_by_key(writer.state.key)
        foreign = AcpRuntime | ExternalRuntime
        if found is not None and isinstance(found[0].agent.runtime, foreign):
            raise Conflict(
                Code.CALL_NOT_OPEN,
                "A call made by a foreign agent cannot be run again by Holdfast; skip it, mark "
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


def has_answer(writer: SessionWriter, call_ids: Iterable[CallId]) -> bool:
    """Return whether a client has answered one of the calls while their turn ran."""
    return not all(is_open(_require_call(writer.known_call(each))) for each in call_ids)


async def request_calls(writer: SessionWriter, timeouts: Mapping[CallId, float]) -> list[datetime]:
    """Ask clients to run calls within so many seconds; return all deadlines of the turn.

    Calls that they were asked to run before stay as they are.
    """
    if not timeouts:
        return []
    now = instant(writer.tick())
    asked = {call.id: request async for call, request in requested_calls(writer)}
    for call_id in [each for each in timeouts if each not in asked]:
        asked[call_id] = ClientRequest(deadline_at=now + timedelta(seconds=timeouts[call_id]))
        await ask_client(writer, _require_call(writer.known_call(call_id)), asked[call_id])
    return [request.deadline_at for request in asked.values()]


async def ask_client(writer: SessionWriter, call: Call, request: ClientRequest) -> None:
    """Ask a client to run a call, for the first time or again."""
    event = ToolRequested(
        call_id=call.id,
        name=call.name,
        arguments=call.arguments,
        effect=call.effect,
        attempt=request.attempt,
        deadline_at=request.deadline_at,
    )
    writer.add_event(event, call.turn)
    await writer.tx.client_requests.save(writer.state.key, call.id, request)


async def requested_calls(writer: SessionWriter) -> AsyncIterator[tuple[Call, ClientRequest]]:
    """Yield the calls of the turn that wait for a client, or that a client runs."""
    for call in writer.turn_calls():
        if call.state in {CallState.REQUESTED, CallState.STARTED}:
            request = await writer.tx.client_requests.of(writer.state.key, call.id)
            if request is not None and (request.claim or call.state is CallState.REQUESTED):
                yield call, request


async def continue_unless_asked(writer: SessionWriter, lease_clock: Clock) -> None:
    """Continue the turn of a session unless another call of it waits for a client."""
    if not [pair async for pair in requested_calls(writer)]:
        await continue_turn(writer, WaitReason.CLIENT, lease_clock)


async def overdue_calls(writer: SessionWriter) -> list[Call]:
    """Return the calls of the turn whose client has not answered in time."""
    now = instant(writer.tick())
    return [call async for call, request in requested_calls(writer) if request.deadline_at <= now]


def _claim_fault(call: Call, request: ClientRequest, claim: str | None) -> Conflict | None:
    """Return why an answer is not taken: another client has claimed the call, or lost it."""
    if call.state is CallState.INTENDED:
        return _not_open(call)
    if claim == request.claim:
        return None
    # Running it twice does no harm, so the answer of an earlier attempt is as good.
    if claim in request.claims and call.effect is not Effect.UNSAFE:
        return None
    return call_claimed(call, request) if request.claim else lease_lost(call)


def call_claimed(call: Call, request: ClientRequest) -> Conflict:
    """Return the error for a call that another client runs."""
    by = request.holder.worker if request.holder is not None else "another client"
    text = f"The call {call.id} is claimed by {by}; it can only be answered with that claim."
    return Conflict(Code.CALL_CLAIMED, text, {"worker": by})


def lease_lost(call: Call) -> Conflict:
    """Return the error for a claim that is not one of the call any more."""
    text = f"The claim on the call {call.id} has run out or was given back; claim the call again."
    return Conflict(Code.LEASE_LOST, text, {"state": call.state})


async def _take_late_answer(
    writer: SessionWriter, call: Call, request: ClientRequest, answer: CallAnswer, digest: str
) -> tuple[Call, bool] | Conflict:
    """Take the answer to a call that has ended: it is a repeated one, or settles what is unknown.

    Any other answer is refused, and the first one is kept in a notice.
    """
    if request.answer == digest and not request.is_late:
        return call, False
    key, is_known = writer.state.key, answer.status is not ResultStatus.UNKNOWN
    if call.state is CallState.UNKNOWN and answer.claim in request.claims and is_known:
        by = request.holder.worker if request.holder is not None else "the client"
        done = SettlementRequest(
            how=SettlementAction.MARK_DONE, by=by, result=_settled_result(answer)
        )
        await writer.tx.client_requests.save(
            key, call.id, replace(request, answer=digest, is_late=False, claim=None)
        )
        writer.add_message(_notice(call, done, None), 0)
        writer.add_event(CallSettled(call_id=call.id, how=Settlement.MARKED_DONE, by=by))
        return _require_call(writer.known_call(call.id)), True
    if request.answer is None:
        late = replace(request, answer=digest, is_late=True)
        await writer.tx.client_requests.save(key, call.id, late)
        writer.add_message(_late_notice(call, answer, answer.result), 0)
    return _not_open(call)


def _settled_result(answer: CallAnswer) -> Any:
    """Return what a late answer says as the result of a settlement."""
    found = answer.result if answer.error is None else {"error": answer.error}
    is_short = found is not None and _size(found) <= RESULT_LARGEST
    return found if is_short else "The client has answered."


def _answer_drafts(call: Call, answer: CallAnswer) -> tuple[Draft, ...]:
    status, error = answer.status, None
    if status is not ResultStatus.OK:
        code = ResultCode.UNKNOWN if status is ResultStatus.UNKNOWN else ResultCode.FAILED
        error = ToolError(code=code, message=answer.error or _UNKNOWN)
    ended = ToolEnded(
        call_id=call.id, name=call.name, status=status, result=answer.result, failure=error
    )
    part = ToolResult(
        call_id=call.id, name=call.name, status=status, result=answer.result, error=error
    )
    return ended, MessageDraft(role=Role.TOOL_RESULT, parts=(part,))


def _late_notice(call: Call, answer: CallAnswer, result: Any) -> MessageDraft:
    """Return the row that keeps the first answer to a call that has ended without one."""
    said = answer.error or msgspec.json.encode(result).decode()
    text = f"{call.name} ({call.id}) had ended when its client answered {answer.status}: {said}"
    notice = Notice(code=NoticeCode.LATE_RESULT, text=text[:LATE_LONGEST])
    return MessageDraft(role=Role.SYSTEM, parts=(notice,))


def _not_open(call: Call) -> Conflict:
    is_early = call.state is CallState.INTENDED
    why = "no client was asked to run it yet" if is_early else "no other answer can be given"
    text = f"The call is {call.state}; {why}."
    return Conflict(Code.CALL_NOT_OPEN, text, {"state": call.state})


def _require_call(call: Call | None) -> Call:
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
