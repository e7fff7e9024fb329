"""The readers' threads: started ahead, and sure to tell whoever waits for them."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, Final

from holdfast.domain.errors import Code, Unavailable
from holdfast.storage.jobs import (
    BREATH,
    PATIENCE,
    Job,
    Kind,
    Work,
    drive,
    tell_everywhere,
    unheard,
)

# More than cores, because readers also wait for the disk.
READERS: Final = 4


class Readers:
    """Threads that read; all of them run from the start, because later there may be none to have.

    Not the library's own pool: that one makes a lock for each piece of work, and forgets who waits
    for it when there is no memory.
    """

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        try:
            with threads_permitting():
                for number in range(READERS):
                    thread = threading.Thread(
                        target=self._run, name=f"holdfast-reader-{number}", daemon=True
                    )
                    thread.start()
                    self._threads.append(thread)
        except BaseException:
            self.end()
            raise

    async def answer(self, work: Work) -> Any:
        """Do work in one of the threads, and return or raise what it does."""
        job = Job(work, Kind.LOOK)
        self._jobs.put(job)
        return await job.future

    async def close(self) -> None:
        """Finish what was asked for."""
        try:
            await asyncio.to_thread(self.end)
        except RuntimeError:
            # No thread can be had to wait in; readers need nothing of this loop.
            self.end()

    def end(self) -> None:
        """Finish what was asked for, and wait for it on this thread."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        told: list[Job] = []
        job = self._jobs.get()
        while job is not None:
            try:
                _answer(job)
                told = [*unheard(told), job]
                job = self._next(told)
            except MemoryError:
                time.sleep(BREATH)

    def _next(self, told: list[Job]) -> Job | None:
        """Wait for the next job, and meanwhile tell again whose loop has lost the word."""
        while unheard(told):
            with suppress(Empty):
                return self._jobs.get(timeout=PATIENCE)
            tell_everywhere(unheard(told))
        # What was read is not kept for longer than somebody may have to be told of it.
        told.clear()
        return self._jobs.get()


def _answer(job: Job) -> None:
    """Do a reader's work and tell whoever waits for it; nothing for those who wait no longer."""
    if job.future.done():
        return
    try:
        job.result = drive(job.work())
    except BaseException as error:  # noqa: BLE001 — the caller's own, told to the caller
        job.error = error
    tell_everywhere((job,))


@contextmanager
def threads_permitting() -> Iterator[None]:
    """Turn the refusal of a new thread into an error of ours."""
    try:
        yield
    except RuntimeError as error:
        raise Unavailable(
            Code.SYSTEM_LIMIT,
            "The system gives this process no more threads; free memory, end other processes, or "
            "raise the limit (`ulimit -u`).",
        ) from error
