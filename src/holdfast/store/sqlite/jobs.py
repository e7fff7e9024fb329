"""Jobs of the writer and reader threads: work of a caller, and delivery of its result."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import Context
from enum import Enum, auto
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")
Work = Callable[..., Coroutine[Any, Any, Any]]

# Seconds to wait after a MemoryError before retrying.
BREATH: Final = 0.01
# Seconds to wait for a loop to deliver results; usually it takes less than 1 ms.
PATIENCE: Final = 1.0


class Kind(Enum):
    """Kind of a job: a transaction, a transaction that may use the disk reserve, or a read."""

    ORDINARY = auto()
    URGENT = auto()
    LOOK = auto()


class Answer(asyncio.Future[Any]):
    """A future that remembers its callbacks, to repeat a wake-up lost to a MemoryError."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._waiting: list[tuple[Callable[[Any], object], Context | None]] = []

    def add_done_callback(
        self, callback: Callable[[Any], object], /, *, context: Context | None = None
    ) -> None:
        self._waiting.append((callback, context))
        super().add_done_callback(callback, context=context)

    def wake(self) -> None:
        """Schedule all callbacks again, because the first attempt failed for all of them."""
        for callback, context in self._waiting:
            self.get_loop().call_soon(callback, self, context=context)


class Job:
    """Work of one caller and the future for its result; brief work may run on the event loop."""

    __slots__ = ("error", "future", "is_brief", "kind", "loop", "result", "work")

    def __init__(self, work: Work, kind: Kind, *, is_brief: bool = False) -> None:
        self.work = work
        self.kind = kind
        self.is_brief = is_brief
        self.loop = asyncio.get_running_loop()
        self.future = Answer(self.loop)
        self.result: Any = None
        self.error: BaseException | None = None

    def tell(self) -> None:
        """Deliver the result to the caller, unless the future is already done."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that only awaits its transaction, which never suspends on SQLite."""
    try:
        work.send(None)
    except StopIteration as done:
        return cast("T", done.value)
    work.close()
    raise RuntimeError("work inside a transaction awaited something other than the transaction")


def tell_everywhere(jobs: Sequence[Job]) -> None:
    """Deliver results to all callers, with retries, because an undelivered caller waits forever."""
    # Allocate nothing outside the `try`, because any allocation may raise MemoryError.
    while True:
        try:
            _wake(jobs)
            return
        except MemoryError:
            time.sleep(BREATH)


def unheard(jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs whose results were sent but not delivered.

    An event loop without memory for a callback drops it, and then the caller is never woken.
    """
    return [job for job in jobs if not (job.future.done() or job.loop.is_closed())]


def _wake(jobs: Sequence[Job]) -> None:
    """Wake all callers, with one call per event loop."""
    loops: dict[asyncio.AbstractEventLoop, list[Job]] = {}
    for job in jobs:
        loops.setdefault(job.loop, []).append(job)
    for loop, waiting in loops.items():
        # A closed event loop has no waiting callers.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_tell, waiting)


def _tell(jobs: Sequence[Job]) -> None:
    for job in jobs:
        try:
            job.tell()
        except MemoryError:
            _tell_again(job)


def _tell_again(job: Job) -> None:
    """Wake a caller whose future is done but whose callbacks were not scheduled."""
    while True:
        try:
            if job.future.done():
                job.future.wake()
            else:
                job.tell()
            return
        except MemoryError:
            time.sleep(BREATH)
