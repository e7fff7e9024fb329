"""Looks at the store: on one snapshot each, and over even where there was no memory to end one."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

import apsw

from holdfast.domain.errors import Code, HoldfastError, Unavailable
from holdfast.ports import Tx
from holdfast.store.sqlite.connection import Connection
from holdfast.store.sqlite.jobs import (
    BREATH,
    PATIENCE,
    Job,
    Kind,
    Work,
    drive,
    tell_everywhere,
    unheard,
)

log = logging.getLogger(__name__)
T = TypeVar("T")
ReadWork = Callable[[Tx], Coroutine[Any, Any, T]]
SCRUB_WAIT_MS: Final = 250


def snapshot(connection: Connection, work: ReadWork[T], tables: Tx) -> T:
    """Run work on one snapshot of a connection that cannot write."""
    # Left open by somebody who had no memory even for its end.
    if connection.raw.in_transaction:
        connection.query("ROLLBACK")
    connection.query("BEGIN")
    try:
        return drive(work(tables))
    except apsw.CorruptError:
        log.error("a page of the store is damaged; what is not on it is read by itself")
        connection.query("ROLLBACK")
    finally:
        # After some failures SQLite has ended the transaction itself.
        if connection.raw.in_transaction:
            connection.query("COMMIT")
    # Once a page cannot be deciphered a transaction has no others: each statement gets its own.
    return drive(work(tables))


def looked(connection: Connection, work: ReadWork[T], tables: Tx) -> T:
    """Run work on a snapshot of a connection that could write, and let it change nothing.

    It waits for nobody: who is in the way makes it raise.
    """
    raw = connection.raw
    connection.patience.is_off = True
    try:
        # Left open by somebody who had no memory even for its end.
        if raw.in_transaction:
            connection.query("ROLLBACK")
        before = raw.total_changes()
        connection.query("BEGIN")
        found = drive(work(tables))
        if raw.total_changes() != before:
            raise apsw.ReadOnlyError("work that was meant to read has written")
        return found
    finally:
        connection.patience.is_off = False
        if raw.in_transaction:
            connection.query("ROLLBACK")


def findings(connection: Connection, look: Callable[[Connection], list[str]]) -> list[str]:
    """Return what a look finds in the file, one sentence each."""
    # On one snapshot: what is being written meanwhile must not look like damage.
    connection.query("BEGIN")
    try:
        return look(connection)
    finally:
        # Ending it may meet the very damage that was just named.
        with suppress(apsw.Error):
            connection.query("ROLLBACK")


def emptied_log(connection: Connection) -> bool:
    """Empty the log file; `False` where somebody who reads is in the way."""
    # A short wait and no error: what was deleted is deleted, only its traces go later.
    connection.raw.set_busy_timeout(SCRUB_WAIT_MS)
    try:
        connection.empty_log()
    except (apsw.Error, HoldfastError):
        return False
    finally:
        connection.raw.set_busy_handler(connection.patience)
    return True


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
