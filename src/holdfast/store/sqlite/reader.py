"""Run read-only work in one snapshot; always ends the transaction, even without memory."""

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
from holdfast.ports.store import Tx
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
    """Run work in one snapshot of a read-only connection."""
    # A previous caller may have failed to end its transaction for lack of memory.
    if connection.raw.in_transaction:
        connection.query("ROLLBACK")
    connection.query("BEGIN")
    try:
        return drive(work(tables))
    except apsw.CorruptError:
        log.error("a page of the store is damaged; what is not on it is read by itself")
        connection.query("ROLLBACK")
    finally:
        # SQLite ends the transaction itself after some errors.
        if connection.raw.in_transaction:
            connection.query("COMMIT")
    # After a decryption error SQLite fails the transaction, so run each statement in its own.
    return drive(work(tables))


def looked(connection: Connection, work: ReadWork[T], tables: Tx) -> T:
    """Run work in a snapshot of a writable connection; raise if it writes.

    Does not wait for locks: a locked store raises at once.
    """
    raw = connection.raw
    connection.patience.is_off = True
    try:
        # A previous caller may have failed to end its transaction for lack of memory.
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
    """Return the findings of a check of the file."""
    # In one snapshot, because concurrent writes must not be reported as damage.
    connection.query("BEGIN")
    try:
        return look(connection)
    finally:
        # The rollback may fail because of the same damage.
        with suppress(apsw.Error):
            connection.query("ROLLBACK")


def emptied_log(connection: Connection) -> bool:
    """Truncate the write-ahead log; return `False` if a reader blocks it."""
    # Short timeout and no error: the rows are deleted, and a later attempt removes the traces.
    connection.raw.set_busy_timeout(SCRUB_WAIT_MS)
    try:
        connection.empty_log()
    except (apsw.Error, HoldfastError):
        return False
    finally:
        connection.raw.set_busy_handler(connection.patience)
    return True


# More than the number of cores, because readers also wait for the disk.
READERS: Final = 4


class Readers:
    """Reader threads, all started at once because a later start may fail at a system limit.

    Not a `ThreadPoolExecutor`: it allocates a lock per job and loses waiters on a MemoryError.
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
        """Run work in a reader thread; return its result or raise its error."""
        job = Job(work, Kind.LOOK)
        self._jobs.put(job)
        return await job.future

    async def close(self) -> None:
        """Finish queued work and stop the threads."""
        try:
            await asyncio.to_thread(self.end)
        except RuntimeError:
            # No thread is available to wait in; blocking is safe, because readers do not use this
            # loop.
            self.end()

    def end(self) -> None:
        """Finish queued work and block this thread until the readers stop."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        informed: list[Job] = []
        job = self._jobs.get()
        while job is not None:
            try:
                _answer(job)
                informed = [*unheard(informed), job]
                job = self._next(informed)
            except MemoryError:
                time.sleep(BREATH)

    def _next(self, informed: list[Job]) -> Job | None:
        """Wait for the next job; meanwhile repeat results that an event loop dropped."""
        while unheard(informed):
            with suppress(Empty):
                return self._jobs.get(timeout=PATIENCE)
            tell_everywhere(unheard(informed))
        # Drop delivered jobs, so that their results are freed.
        informed.clear()
        return self._jobs.get()


def _answer(job: Job) -> None:
    """Run the work of a job and deliver the result; skipped if the caller was cancelled."""
    if job.future.done():
        return
    try:
        job.result = drive(job.work())
    except BaseException as error:  # noqa: BLE001 — raised again in the caller
        job.error = error
    tell_everywhere((job,))


@contextmanager
def threads_permitting() -> Iterator[None]:
    """Translate a failed thread start into a Holdfast error."""
    try:
        yield
    except RuntimeError as error:
        raise Unavailable(
            Code.SYSTEM_LIMIT,
            "The system gives this process no more threads; free memory, end other processes, or "
            "raise the limit (`ulimit -u`).",
        ) from error
