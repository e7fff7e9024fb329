"""Jobs of the writer: one caller's work, and how the caller learns what became of it."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import Context
from enum import Enum, auto
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")
Work = Callable[..., Coroutine[Any, Any, Any]]

# Seconds, until there may be memory again.
BREATH: Final = 0.01
# Seconds; a loop mostly comes within a thousandth of one.
PATIENCE: Final = 1.0


class Kind(Enum):
    """What a job needs: a transaction, one even on a full disk, or only a look."""

    ORDINARY = auto()
    URGENT = auto()
    LOOK = auto()


class Answer(asyncio.Future[Any]):
    """A future that does not forget who waits when there is no memory to wake them up."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._waiting: list[tuple[Callable[[Any], object], Context | None]] = []

    def add_done_callback(
        self, callback: Callable[[Any], object], /, *, context: Context | None = None
    ) -> None:
        self._waiting.append((callback, context))
        super().add_done_callback(callback, context=context)

    def wake(self) -> None:
        """Wake up, once more, who waits: the first time it has failed for all of them."""
        for callback, context in self._waiting:
            self.get_loop().call_soon(callback, self, context=context)


class Job:
    """One caller's work and where its fate is told; brief work may be played on a loop."""

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
        """Tell the caller, unless it has stopped waiting."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that awaits nothing but its transaction, which on SQLite never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        return cast(T, done.value)
    work.close()
    raise RuntimeError("work inside a transaction awaited something other than the transaction")


def tell_everywhere(jobs: Sequence[Job]) -> None:
    """Tell all callers, however long it takes: whoever is not told waits for ever."""
    # Nothing is made out here, not even a function: what is made outside may find no memory.
    while True:
        try:
            _wake(jobs)
            return
        except MemoryError:
            time.sleep(BREATH)


def unheard(jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs whose callers were told and still wait.

    A loop that finds no memory for a callback drops it, and whoever waits for its word with it.
    """
    return [job for job in jobs if not (job.future.done() or job.loop.is_closed())]


def _wake(jobs: Sequence[Job]) -> None:
    """Wake all callers up; once for each loop, however many callers it has."""
    loops: dict[asyncio.AbstractEventLoop, list[Job]] = {}
    for job in jobs:
        loops.setdefault(job.loop, []).append(job)
    for loop, waiting in loops.items():
        # A loop that is closed has nobody left who waits.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_tell, waiting)


def _tell(jobs: Sequence[Job]) -> None:
    for job in jobs:
        try:
            job.tell()
        except MemoryError:
            _tell_again(job)


def _tell_again(job: Job) -> None:
    """Wake up a caller that the loop would forget: its future is settled, and nobody was told."""
    while True:
        try:
            if job.future.done():
                job.future.wake()
            else:
                job.tell()
            return
        except MemoryError:
            time.sleep(BREATH)
