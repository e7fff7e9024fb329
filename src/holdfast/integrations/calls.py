"""Durable calls of frameworks: an effect happens once, whatever is killed.

For every framework module:

- `run_durable_call` runs one tool call: the call is *started* on disk before `run` is called, its
  result is on disk before it is returned. It may be awaited on any event loop; the store is
  reached on its own.
- The id of the call is the framework's. Guarded again, a finished call returns what was recorded
  and nothing runs; a started one whose run is gone becomes *unknown*, and `UNKNOWN_OUTCOME` is what
  the model should read, unless it is pure or idempotent, which runs again with the same key.
- `run` returns the result as the framework will read it back, in bytes, and as JSON for people
  (`DurableResult`). Both are recorded; the bytes are in the stream `calls` under the call's id.
- `DurableCalls.enter` and `leave` bracket a run. The session's lease is taken by the first durable
  call in between and kept until the run is left; another process gets `session_busy`.
- `before` and `after` add records to the commits of the start and of the result, so that the
  framework's history has the call even if the framework never saves it.

The states are those of `domain/calls.py`, and recovery is that of every turn (`domain/turns.py`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Literal

from msgspec import Struct

from holdfast.domain.calls import Call, CallState, Settlement
from holdfast.domain.canonical_json import digest
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.errors import Code, Conflict, Invalid
from holdfast.domain.events import ToolStarted
from holdfast.domain.ids import CallId, SessionId, SessionKey
from holdfast.domain.leases import Lease
from holdfast.domain.messages import ResultStatus, Role, ToolCall, ToolError, ToolResult
from holdfast.domain.sessions import has_waiting_turn
from holdfast.domain.tools import Effect, ResultCode
from holdfast.execution.coordinator import LocalCoordinator
from holdfast.integrations.bridge import Bridge
from holdfast.integrations.records import ForeignEntry, ForeignSessions, ForeignWriter
from holdfast.services.journal import require_lease
from holdfast.services.leases import Leases, await_framework

# The stream of the results of durable calls, by the ids of the calls.
CALLS: Final = "calls"
_key: ContextVar[str] = ContextVar("holdfast_idempotency_key")
UNKNOWN_OUTCOME: Final = (
    "This call was started and its outcome is unknown: the program was stopped while it ran. "
    "Check whether it took effect before you call it again."
)
NOT_RUN: Final = "This call was not run: the program was stopped before. Call it again if needed."
Add = Callable[[ForeignWriter], Awaitable[object]]
OnUnknown = Literal["result", "raise"]


class DurableCall(Struct, frozen=True, kw_only=True):
    """A tool call that a framework is about to run."""

    id: str
    name: str
    arguments: dict[str, Any]
    effect: Effect = Effect.UNSAFE


class DurableResult(Struct, frozen=True, kw_only=True):
    """The result of a call: as the framework reads it back, and as JSON for everything else."""

    raw: bytes
    value: Any = None
    error: str | None = None


class DurableAnswer(Struct, frozen=True, kw_only=True):
    """What a guarded call returns; `raw` is missing where nothing but a text is known."""

    status: ResultStatus
    raw: bytes | None = None
    text: str = ""


class _Permit(Struct, frozen=True, kw_only=True):
    """The right to run a call that was started on disk."""

    call: Call
    lease: Lease


class _Run:
    """The lease of this process for one session, and the calls that run under it."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.calls: dict[CallId, asyncio.Future[None]] = {}
        self.cancels: dict[CallId, Callable[[], object]] = {}
        self.task = asyncio.ensure_future(self._wait())

    async def _wait(self) -> None:
        """Wait until the lease is lost or the turn is interrupted; then cancel the calls."""
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            for cancel in list(self.cancels.values()):
                cancel()


class DurableCalls:
    """Tool calls of frameworks; all of its methods run on the event loop of the store."""

    def __init__(
        self, sessions: ForeignSessions, leases: Leases, coordinator: LocalCoordinator
    ) -> None:
        self.sessions = sessions
        self._leases = leases
        self._coordinator = coordinator
        self._runs: dict[SessionKey, _Run] = {}
        # How many runs of this process are inside each session.
        self._inside: dict[SessionId, int] = {}
        # Taken while a lease is claimed or given back.
        self._claims: dict[SessionKey, asyncio.Lock] = {}

    async def enter(self, session_id: SessionId) -> None:
        """Note that a run has begun; its lease is kept until it is left."""
        self._inside[session_id] = self._inside.get(session_id, 0) + 1

    async def leave(self, session_id: SessionId) -> None:
        """Give the lease back if this was the last run in the session."""
        left = self._inside.get(session_id, 1) - 1
        if left > 0:
            self._inside[session_id] = left
            return
        self._inside.pop(session_id, None)
        await self._release(session_id)

    async def start(
        self,
        session_id: SessionId,
        request: DurableCall,
        cancel: Callable[[], object],
        before: Add | None = None,
    ) -> _Permit | DurableAnswer:
        """Start a call on disk, or return what is recorded about it."""
        key = await self.sessions.key_of(session_id)
        found: _Permit | DurableAnswer | None = None
        while found is None:
            async with self._claim_of(key):
                run = self._run_of(key)
                waits = None if run is None else run.calls.get(CallId(request.id))
                if waits is None:
                    found = await self._begin(session_id, key, request, before)
            if waits is not None:
                # The same call runs in this process.
                await asyncio.wait([waits])
        if isinstance(found, _Permit):
            self._runs[key].cancels[found.call.id] = cancel
        else:
            await self._release_if_left(session_id)
        return found

    async def _begin(
        self, session_id: SessionId, key: SessionKey, request: DurableCall, before: Add | None
    ) -> _Permit | DurableAnswer:
        known = self._run_of(key)

        async def begin(foreign: ForeignWriter) -> tuple[_Permit | DurableAnswer, Lease]:
            lease = await self._claim(foreign, known)
            return await self._start(foreign, request, lease, before), lease

        try:
            self._coordinator.announce_hold(key)
            found, lease = await self.sessions.write(session_id, begin, settles=False)
            run = self._hold(key, lease)
        finally:
            self._coordinator.clear_announcement(key)
        if isinstance(found, _Permit):
            run.calls[found.call.id] = asyncio.get_running_loop().create_future()
        return found

    def _claim_of(self, key: SessionKey) -> asyncio.Lock:
        return self._claims.setdefault(key, asyncio.Lock())

    async def end(
        self,
        session_id: SessionId,
        permit: _Permit,
        result: DurableResult | None,
        after: Add | None = None,
    ) -> None:
        """Record the result of a call; without one its outcome is unknown."""
        call = permit.call

        async def write(foreign: ForeignWriter) -> None:
            require_lease(foreign.writer.state, permit.lease)
            await foreign.writer.load_call(call.id)
            status, error = _outcome(call, result)
            value = result.value if result is not None and error is None else None
            part = ToolResult(
                call_id=call.id, name=call.name, status=status, result=value, error=error
            )
            draft = MessageDraft(role=Role.TOOL_RESULT, parts=(part,))
            await foreign.say(draft)
            if result is not None:
                await foreign.add(CALLS, [ForeignEntry(kind=status, raw=result.raw, key=call.id)])
            if after is not None:
                await after(foreign)

        try:
            await self.sessions.write(session_id, write, settles=False)
        finally:
            run = self._runs.get(permit.lease.key)
            if run is not None and run.lease == permit.lease:
                run.cancels.pop(call.id, None)
                done = run.calls.pop(call.id, None)
                if done is not None and not done.done():
                    done.set_result(None)
            await self._release_if_left(session_id)

    async def settle(self, session_id: SessionId) -> bool:
        """Decide the calls of a run that is gone; return whether no run is left.

        Calls that had begun and must not run twice become unknown.
        """
        key = await self.sessions.key_of(session_id)
        if self._run_of(key) is not None:
            return False

        async def write(foreign: ForeignWriter) -> bool:
            writer = foreign.writer
            if writer.state.holder is not None and has_waiting_turn(writer.state):
                if self._leases.is_live(writer.state):
                    return False
                await self._leases.claim_external(writer)
                await_framework(writer)
            return True

        return await self.sessions.write(session_id, write, settles=False)

    async def _start(
        self, foreign: ForeignWriter, request: DurableCall, lease: Lease, before: Add | None
    ) -> _Permit | DurableAnswer:
        writer = foreign.writer
        call = await writer.load_call(CallId(request.id))
        if call is not None:
            asked, known = digest(writer.redact(request.arguments)), digest(call.arguments)
            if (call.name, known) != (request.name, asked):
                raise Conflict(
                    Code.CALL_MISMATCH,
                    f"The call {call.id} is recorded as {call.name} with the arguments {known}; "
                    f"now it is {request.name} with {asked}. Use a new id for another call.",
                    {"recorded": known, "asked": asked},
                )
            answer = await _recorded(foreign, call)
            if answer is not None:
                return answer
        if before is not None:
            await before(foreign)
        if not has_waiting_turn(writer.state):
            holder, until = writer.state.holder, writer.state.until
            foreign.begin()
            writer.update(holder=holder, until=until)
        if call is None:
            part = ToolCall(id=CallId(request.id), name=request.name, arguments=request.arguments)
            draft = MessageDraft(role=Role.TOOL_CALL, parts=(part,), effect=request.effect)
            await foreign.say(draft)
            call = await writer.load_call(part.id)
        assert call is not None  # noqa: S101 — its row was just added
        number = writer.state.settled + 1
        started = ToolStarted(call_id=call.id, name=call.name, arguments=call.arguments)
        writer.add_event(started, number)
        return _Permit(call=call, lease=lease)

    async def _claim(self, foreign: ForeignWriter, run: "_Run | None") -> Lease:
        state = foreign.writer.state
        if run is not None and (state.epoch, state.holder) == (run.lease.epoch, run.lease.holder):
            return run.lease
        return await self._leases.claim_external(foreign.writer)

    def _hold(self, key: SessionKey, lease: Lease) -> _Run:
        run = self._runs.get(key)
        if run is None or run.lease != lease:
            run = self._runs[key] = _Run(lease)
            self._coordinator.hold(lease, run.task)
        return run

    def _run_of(self, key: SessionKey) -> _Run | None:
        run = self._runs.get(key)
        if run is not None and not self._coordinator.holds(run.lease):
            # It was interrupted, or the lease was lost.
            self._runs.pop(key)
            return None
        return run

    async def _release_if_left(self, session_id: SessionId) -> None:
        if not self._inside.get(session_id):
            await self._release(session_id)

    async def _release(self, session_id: SessionId) -> None:
        key = await self.sessions.key_of(session_id)
        async with self._claim_of(key):
            run = self._run_of(key)
            if run is not None and not run.calls:
                await self._give_back(session_id, key, run)

    async def _give_back(self, session_id: SessionId, key: SessionKey, run: _Run) -> None:
        async def give_back(foreign: ForeignWriter) -> None:
            state = foreign.writer.state
            if (state.epoch, state.holder) == (run.lease.epoch, run.lease.holder):
                await_framework(foreign.writer)

        await self.sessions.write(session_id, give_back, settles=False)
        self._runs.pop(key, None)
        self._coordinator.drop_lease(run.lease)
        run.task.cancel()


def _outcome(call: Call, result: DurableResult | None) -> tuple[ResultStatus, ToolError | None]:
    if result is not None and result.error is None:
        return ResultStatus.OK, None
    if result is not None:
        return ResultStatus.ERROR, ToolError(code=ResultCode.FAILED, message=result.error or "")
    if call.effect is Effect.UNSAFE:
        return ResultStatus.UNKNOWN, ToolError(code=ResultCode.UNKNOWN, message=UNKNOWN_OUTCOME)
    return ResultStatus.ERROR, ToolError(code=ResultCode.ABORTED, message=NOT_RUN)


async def _recorded(foreign: ForeignWriter, call: Call) -> DurableAnswer | None:
    """Return what is known about a call that must not run again; `None` if it may run."""
    if call.state is CallState.UNKNOWN:
        return DurableAnswer(status=ResultStatus.UNKNOWN, text=UNKNOWN_OUTCOME)
    if call.state is CallState.SETTLED:
        how = "executed" if call.settlement is Settlement.MARKED_DONE else "not executed"
        return DurableAnswer(status=ResultStatus.ERROR, text=f"This call was settled as {how}.")
    if call.state is not CallState.FINISHED:
        return None
    kept = await foreign.tx.foreign.of_key(foreign.key, CALLS, call.id)
    if not kept:
        return DurableAnswer(status=ResultStatus.SKIPPED, text=NOT_RUN)
    return DurableAnswer(status=ResultStatus(kept[-1].kind), raw=kept[-1].raw)


def idempotency_key() -> str:
    """Return the key of the durable call that runs here; equal for every attempt at it."""
    try:
        return _key.get()
    except LookupError:
        raise Invalid(Code.NO_SESSION, "No durable call runs here, so there is no key.") from None


@contextmanager
def cancelling(task: "asyncio.Task[Any] | None") -> Iterator[Callable[[], object]]:
    """Give a function that cancels a task from another thread; harmless once the block is left."""
    loop = asyncio.get_running_loop()
    is_over = False

    def cancel() -> None:
        if not is_over and task is not None:
            task.cancel()

    try:
        yield lambda: loop.call_soon_threadsafe(cancel)
    finally:
        is_over = True


async def run_durable_call(
    bridge: Bridge,
    session_id: SessionId,
    request: DurableCall,
    run: Callable[[str], Awaitable[DurableResult]],
    *,
    on_unknown: OnUnknown = "result",
    before: Add | None = None,
    after: Callable[[ForeignWriter, DurableResult | None], Awaitable[object]] | None = None,
) -> DurableAnswer:
    """Run a tool call so that it has its effect once; `run` gets the idempotency key.

    `run` turns what the tool raises into a `DurableResult`; only a cancellation passes through it.
    """
    calls: DurableCalls = bridge.parts.calls
    with cancelling(asyncio.current_task()) as cancel:
        found = await bridge.run(lambda: calls.start(session_id, request, cancel, before))
        if isinstance(found, DurableAnswer):
            if found.status is ResultStatus.UNKNOWN and on_unknown == "raise":
                raise Conflict(
                    Code.CALL_UNKNOWN,
                    f"The outcome of the call {request.id} is unknown; settle it before the run "
                    "goes on.",
                    {"call_id": request.id},
                )
            return found
        permit, result = found, None
        token = _key.set(permit.call.idempotency_key)
        try:
            result = await run(permit.call.idempotency_key)
        finally:
            _key.reset(token)
            add = None if after is None else _bound(after, result)
            try:
                await bridge.run(lambda: calls.end(session_id, permit, result, add))
            except Conflict as error:
                # Interrupted: the turn was ended, and with it this call.
                if result is not None or error.code is not Code.LEASE_LOST:
                    raise
        status = ResultStatus.OK if result.error is None else ResultStatus.ERROR
        return DurableAnswer(status=status, raw=result.raw)


def _bound(
    after: Callable[[ForeignWriter, DurableResult | None], Awaitable[object]],
    result: DurableResult | None,
) -> Add:
    return lambda foreign: after(foreign, result)
