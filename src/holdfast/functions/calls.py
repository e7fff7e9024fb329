"""Runs functions: async ones in a task, others in a thread; both can outlive their call.

Every end of a function is an outcome. Whether a call may run is decided before.
"""

import asyncio
import contextvars
import inspect
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from queue import SimpleQueue
from typing import Any, Final
from weakref import WeakKeyDictionary

from holdfast.domain.messages import ResultStatus, ToolError
from holdfast.domain.text import is_small, storable
from holdfast.domain.tools import Effect, ResultCode
from holdfast.functions.context import (
    CallControl,
    OutcomeUnknown,
    ToolCallContext,
    ToolFailed,
)
from holdfast.functions.results import UnrecordableError, plain
from holdfast.functions.tool import APPROVALS, Ask, Tool
from holdfast.ports.tools import CallOutcome, PlannedCall, RequestedCall, ToolWorkspace

log = logging.getLogger(__name__)

TEXT_LARGEST: Final = 4 << 10
# Seconds that an approval function may take, and a cancelled function for its own cleanup.
APPROVAL_SECONDS: Final = 1.0
GRACE_SECONDS: Final = 1.0

# Settles the unknown call of a function that returned after all: owner, session, call, result.
SettleLate = Callable[[str, str, str, Any], Awaitable[None]]


class Limit:
    """A number of places; those who wait get one in their order. Belongs to one event loop."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: deque[asyncio.Future[None]] = deque()

    def try_take(self) -> bool:
        """Take a place if one is free."""
        if self._free <= 0 or self._waiting:
            return False
        self._free -= 1
        return True

    async def take(self) -> None:
        """Take a place; waits until one is free."""
        if self.try_take():
            return
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(ready)
        try:
            await ready
        except asyncio.CancelledError:
            # Race: the place may have been given just before the cancellation.
            if ready.done() and not ready.cancelled():
                self.release()
            else:
                with suppress(ValueError):
                    self._waiting.remove(ready)
            raise

    def release(self) -> None:
        """Give a place back."""
        while self._waiting:
            ready = self._waiting.popleft()
            if not ready.done():
                ready.set_result(None)
                return
        self._free += 1


class Threads:
    """Daemon threads that are reused; a function that never returns does not keep the process."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._count = 0

    def run(self, work: Callable[[], None]) -> None:
        """Run work in a thread; the caller limits how many run at once."""
        with self._lock:
            is_new = self._idle == 0
            self._idle -= 0 if is_new else 1
            self._count += is_new
        self._work.put(work)
        if is_new:
            threading.Thread(target=self._serve, name="holdfast-function", daemon=True).start()

    def close(self) -> None:
        """End the threads as soon as each has nothing to do."""
        for _ in range(self._count):
            self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            with self._lock:
                self._idle += 1


class FunctionSlot:
    """The place of one run: within the tool's own limit, and a thread if it needs one.

    It is given back when the function ends, which may be after the end of its call.
    """

    def __init__(self, limits: list[Limit], *, name: str, timeout: float) -> None:
        self._limits = limits
        self._held: list[Limit] = []
        self._name = name
        self._timeout = timeout
        self.is_running = False

    def try_take(self) -> bool:
        """Take the place if it is free."""
        for limit in self._limits:
            if not limit.try_take():
                self._give_back()
                return False
            self._held.append(limit)
        return True

    async def take(self) -> CallOutcome | None:
        """Wait for the place; an outcome means that the call cannot run."""
        try:
            async with asyncio.timeout(self._timeout):
                for limit in self._limits:
                    await limit.take()
                    self._held.append(limit)
        except TimeoutError:
            self._give_back()
            text = f"{self._name} was not started: too many functions are running."
            return _error(ResultCode.UNAVAILABLE, text)
        except asyncio.CancelledError:
            self._give_back()
            raise
        return None

    def release(self) -> None:
        """Give the place back, unless the function still runs."""
        if not self.is_running:
            self._give_back()

    def end(self) -> None:
        """Give the place back, because the function has ended."""
        self.is_running = False
        self._give_back()

    def _give_back(self) -> None:
        while self._held:
            self._held.pop().release()


@dataclass(frozen=True, kw_only=True)
class FunctionCall:
    """One planned call of a function, with its converted arguments."""

    tool: Tool[..., Any]
    values: Mapping[str, Any]
    workspace: ToolWorkspace
    planned: PlannedCall


class FunctionRunner:
    """Runs the functions of one process."""

    def __init__(self, *, threads: int, settle_late: SettleLate | None = None) -> None:
        self.settle_late = settle_late
        self._thread_limit = Limit(threads)
        self._threads = Threads()
        self._limits: WeakKeyDictionary[Tool[..., Any], Limit] = WeakKeyDictionary()
        # Held, because the loop itself keeps only weak references.
        self._late: set[asyncio.Task[None]] = set()

    def slot(self, tool: Tool[..., Any]) -> FunctionSlot | None:
        """Return the place that a call has to take before it starts, if it needs one."""
        limits = []
        if tool.concurrency is not None:
            limits.append(self._limits.setdefault(tool, Limit(tool.concurrency)))
        if not tool.is_async:
            limits.append(self._thread_limit)
        return FunctionSlot(limits, name=tool.name, timeout=tool.timeout) if limits else None

    async def approval(self, tool: Tool[..., Any], arguments: dict[str, Any]) -> str | Ask:
        """Return what the tool says about a call; a function that fails denies it."""
        rule = tool.approval
        if not callable(rule):
            return str(rule)
        try:
            said = await asyncio.wait_for(self._in_thread(rule, arguments), APPROVAL_SECONDS)
        # Denied, because the program cannot say whether the call may run.
        except (Exception, KeyboardInterrupt, SystemExit):
            log.exception("the approval of %s could not be decided", tool.name)
            return "deny"
        if isinstance(said, Ask):
            return said
        if isinstance(said, str) and said in APPROVALS:
            return said
        log.error("the approval of %s returned neither a rule nor Ask", tool.name)
        return "deny"

    async def run(self, call: FunctionCall) -> CallOutcome:
        """Run the function to its end, its timeout or its cancellation."""
        asked, tool, slot = call.planned.asked, call.tool, call.planned.slot
        state = CallControl(
            loop=asyncio.get_running_loop(),
            report=asked.report or (lambda *_: None),
            keep=lambda content, mime: call.workspace.shelf.keep(content, mime_type=mime),
        )
        ended = self._start(call, state)
        if isinstance(slot, FunctionSlot):
            slot.is_running = True
            ended.add_done_callback(lambda _: slot.end())
        try:
            await asyncio.wait((ended,), timeout=tool.timeout)
        except asyncio.CancelledError:
            await self._stop(call, state, ended)
            # Not the result: an interrupt has already recorded how the call ended.
            raise
        if not ended.done():
            await self._stop(call, state, ended)
        # An async function may have ended with a result although it was cancelled.
        if not ended.done() or (state.stopped.is_set() and ended.cancelled()):
            return _stopped(tool, call.planned.effect)
        outcome = _outcome(tool, ended)
        if state.stores:
            await asyncio.gather(*state.stores)
        return outcome

    def close(self) -> None:
        """End the idle threads."""
        self._threads.close()

    def _start(self, call: FunctionCall, state: CallControl) -> "asyncio.Future[CallOutcome]":
        tool = call.tool
        context = _context(call, state)
        positional, keywords = tool.signature.bind(call.values, context)
        if tool.is_async:
            return asyncio.ensure_future(
                _await_function(tool, tool.function(*positional, **keywords))
            )
        work = contextvars.copy_context().run
        return self._in_thread(lambda: work(_call_function, tool, positional, keywords))

    def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> "asyncio.Future[Any]":
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Any] = loop.create_future()

        def work() -> None:
            try:
                end = (True, function(*arguments))
            # Also the end of a process: it must not end a thread that others use.
            except BaseException as error:  # noqa: BLE001
                end = (False, error)
            # A closed loop waits for nothing any more.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_set_end, ended, *end)

        self._threads.run(work)
        return ended

    async def _stop(
        self, call: FunctionCall, state: CallControl, ended: "asyncio.Future[CallOutcome]"
    ) -> None:
        """Ask the function to stop; one that does not is left behind."""
        state.stopped.set()
        if call.tool.is_async:
            ended.cancel()
            await asyncio.wait((ended,), timeout=GRACE_SECONDS)
        if not ended.done():
            ended.add_done_callback(lambda _: self._end_late(call, ended))

    def _end_late(self, call: FunctionCall, ended: "asyncio.Future[CallOutcome]") -> None:
        if ended.cancelled() or ended.exception() is not None or self.settle_late is None:
            return
        outcome, asked, place = ended.result(), call.planned.asked, call.workspace
        if outcome.status is not ResultStatus.OK or call.planned.effect is not Effect.UNSAFE:
            return
        settling = self._settle(asked, place, outcome.result)
        task = asyncio.get_running_loop().create_task(settling)
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _settle(self, asked: RequestedCall, place: ToolWorkspace, result: Any) -> None:
        if self.settle_late is None:
            return
        try:
            await self.settle_late(place.owner, place.session_id, asked.id, result)
        # The call stays unknown, and a person settles it.
        except Exception:
            log.exception("%s returned late, and its call could not be settled", asked.name)


def _context(call: FunctionCall, state: CallControl) -> ToolCallContext:
    asked = call.planned.asked
    return ToolCallContext(
        call_id=asked.id,
        name=call.tool.name,
        session_id=call.workspace.session_id,
        turn=asked.turn,
        owner=call.workspace.owner,
        attempt=asked.attempt,
        idempotency_key=asked.idempotency_key,
        deadline=datetime.now(UTC) + timedelta(seconds=call.tool.timeout),
        _state=state,
    )


def _set_end(ended: "asyncio.Future[Any]", is_value: bool, value: Any) -> None:
    if ended.done():
        return
    if is_value:
        ended.set_result(value)
    elif isinstance(value, Exception) and not isinstance(value, StopIteration):
        ended.set_exception(value)
    else:
        # A future refuses the others.
        ended.set_exception(RuntimeError(type(value).__name__))


async def _await_function(tool: Tool[..., Any], running: Coroutine[Any, Any, Any]) -> CallOutcome:
    try:
        value = await running
    except (asyncio.CancelledError, GeneratorExit):
        raise
    # Also `SystemExit`: raised from a task it would end the event loop with all its turns.
    except BaseException as error:  # noqa: BLE001
        return _failure(tool, error)
    # A large result is converted in a thread, because it would block the event loop.
    return (
        _success(tool, value) if is_small(value) else await asyncio.to_thread(_success, tool, value)
    )


def _call_function(
    tool: Tool[..., Any], positional: list[Any], keywords: dict[str, Any]
) -> CallOutcome:
    try:
        value = tool.function(*positional, **keywords)
    except BaseException as error:  # noqa: BLE001 — as above: a thread is used again
        return _failure(tool, error)
    return _success(tool, value)


def _success(tool: Tool[..., Any], value: Any) -> CallOutcome:
    try:
        return CallOutcome(status=ResultStatus.OK, result=plain(value))
    except Exception as error:
        if inspect.iscoroutine(value):
            value.close()
        if not isinstance(error, UnrecordableError):
            log.exception("the result of %s could not be converted", tool.name)
        why = f": {error}" if isinstance(error, UnrecordableError) else ""
        text = f"{tool.name} was run, but its result cannot be recorded{why}."
        return _error(ResultCode.FAILED, text)


def _failure(tool: Tool[..., Any], error: BaseException) -> CallOutcome:
    """Return the outcome of a function that raised; the text of an exception is only logged."""
    if isinstance(error, OutcomeUnknown):
        text = _cut(str(error)) or f"The outcome of {tool.name} is unknown."
        return _error(ResultCode.UNKNOWN, text, ResultStatus.UNKNOWN)
    if isinstance(error, ToolFailed):
        return _error(ResultCode.FAILED, _cut(str(error)) or f"{tool.name} failed.")
    log.error("the function %s failed", tool.name, exc_info=error)
    if tool.on_error is not None:
        try:
            chosen = tool.on_error(error)
            if isinstance(chosen, str):
                return _error(ResultCode.FAILED, _cut(chosen))
        # The exception itself is in the log already.
        except Exception:
            log.exception("on_error of %s failed", tool.name)
    text = f"{tool.name} failed with {type(error).__name__}; see the log of Holdfast for details."
    return _error(ResultCode.FAILED, text)


def _outcome(tool: Tool[..., Any], ended: "asyncio.Future[CallOutcome]") -> CallOutcome:
    # The function raised the cancellation itself.
    if ended.cancelled():
        return _failure(tool, asyncio.CancelledError())
    return ended.result()


def _stopped(tool: Tool[..., Any], effect: Effect) -> CallOutcome:
    text = f"{tool.name} did not end within {tool.timeout:g} seconds"
    if effect is Effect.UNSAFE:
        text = f"{text}; whether it had its effect is unknown."
        return _error(ResultCode.UNKNOWN, text, ResultStatus.UNKNOWN)
    return _error(ResultCode.TIMEOUT, f"{text}.")


def _error(code: ResultCode, text: str, status: ResultStatus = ResultStatus.ERROR) -> CallOutcome:
    return CallOutcome(status=status, error=ToolError(code=code, message=text))


def _cut(text: str) -> str:
    return storable(text).encode()[:TEXT_LARGEST].decode(errors="ignore")
