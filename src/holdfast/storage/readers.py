"""The readers' threads: started ahead, and sure to tell whoever waits for them."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

from holdfast.domain.errors import Code, Unavailable
from holdfast.storage.jobs import BREATH, Job, Kind, Work, drive, tell_everywhere

# More than cores, because readers also wait for the disk.
READERS: Final = 4


def started_pool() -> ThreadPoolExecutor:
    """Return a pool whose threads run already: when memory is short, none can be started."""
    pool = ThreadPoolExecutor(READERS, thread_name_prefix="holdfast-reader")
    together = threading.Barrier(READERS + 1)
    try:
        with threads_permitting():
            for _ in range(READERS):
                pool.submit(together.wait)
            together.wait()
    except BaseException:
        # Those that were started would wait for the others, and the process for them.
        together.abort()
        pool.shutdown()
        raise
    return pool


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


async def answered(pool: ThreadPoolExecutor, work: Work) -> Any:
    """Do work in a thread of the pool, and return or raise what it does."""
    # Not by the loop's own means: those forget who waits when there is no memory.
    job = Job(work, Kind.LOOK)
    pool.submit(_answer, job)
    return await job.future


def _answer(job: Job) -> None:
    try:
        # Who has stopped waiting before the work began is spared it.
        if not job.future.cancelled():
            job.result = drive(job.work())
    except BaseException as error:  # noqa: BLE001 — the caller's own, told to the caller
        job.error = error
    while True:
        try:
            tell_everywhere((job,))
            return
        except MemoryError:
            time.sleep(BREATH)
