"""Run read-only work in one snapshot; always ends the transaction, even without memory."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, TypeVar

import apsw

from holdfast.domain.errors import Code, HoldfastError, Unavailable
from holdfast.ports.store import Tx
from holdfast.store.sqlite.connection import Connection, drive, ending_without_memory

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
        log.error("a page of the store is damaged; reading the other pages without a snapshot")
        connection.query("ROLLBACK")
    finally:
        # SQLite ends the transaction itself after some errors.
        if connection.raw.in_transaction:
            connection.query("COMMIT")
    # After a decryption error SQLite fails the transaction, so run each statement in its own.
    return drive(work(tables))


def read_without_lock(connection: Connection, work: ReadWork[T], tables: Tx) -> T:
    """Run work in a snapshot of a writable connection; raise if it writes.

    Does not wait for locks: a locked store raises at once.
    """
    raw = connection.raw
    connection.patience.is_off = True
    try:
        # Only here: in the writer's thread a hook would wait for the interpreter in every COMMIT.
        raw.set_commit_hook(_refuse)
        # A previous caller may have failed to end its transaction for lack of memory.
        if raw.in_transaction:
            connection.query("ROLLBACK")
        before, version = raw.total_changes(), raw.data_version()
        try:
            # Without a transaction, because other processes seldom write at the same time.
            found = drive(work(tables))
        except Exception:
            if raw.data_version() == version:
                raise
            found = _read_again(connection, work, tables)
        else:
            if raw.data_version() != version:
                found = _read_again(connection, work, tables)
        if raw.total_changes() != before:
            raise apsw.ReadOnlyError("a read-only job has written")
        return found
    except apsw.ConstraintError as error:
        raise apsw.ReadOnlyError("a read-only job has tried to write") from error
    finally:
        connection.patience.is_off = False
        raw.set_commit_hook(None)
        if raw.in_transaction:
            connection.query("ROLLBACK")


def _read_again(connection: Connection, work: ReadWork[T], tables: Tx) -> T:
    """Run work in a transaction: another process wrote, so it may have read two states."""
    connection.query("BEGIN")
    return drive(work(tables))


def _refuse() -> bool:
    """Have SQLite roll a statement back that writes without a transaction."""
    return True


def findings(connection: Connection, check: Callable[[Connection], list[str]]) -> list[str]:
    """Return the findings of a check of the file."""
    # In one snapshot, because concurrent writes must not be reported as damage.
    connection.query("BEGIN")
    try:
        return check(connection)
    finally:
        # The rollback may fail because of the same damage.
        with suppress(apsw.Error):
            connection.query("ROLLBACK")


def truncate_log(connection: Connection) -> bool:
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
    """Reader threads; each starts when it is first needed."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="holdfast-reader")

    async def run(self, work: Callable[[], T]) -> T:
        """Run work in a reader thread; return its result or raise its error."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        with threads_permitting():
            self._pool.submit(_answer, loop, done, work)
        return await done

    async def close(self) -> None:
        """Finish queued work and stop the threads."""
        # Blocking is safe, because readers do not use this loop.
        self.end()

    def end(self) -> None:
        """Finish queued work and block this thread until the readers stop."""
        self._pool.shutdown()


def _answer(
    loop: asyncio.AbstractEventLoop, done: asyncio.Future[T], work: Callable[[], T]
) -> None:
    """Run work in this thread and deliver its result; skipped if the caller was cancelled."""
    if done.cancelled():
        return
    with ending_without_memory():
        try:
            resolve = partial(_set_result, done, work())
        except BaseException as error:  # noqa: BLE001 — raised again in the caller
            resolve = partial(_set_error, done, error)
        # A closed event loop has no waiting caller.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(resolve)


def _set_result(done: asyncio.Future[T], result: T) -> None:
    with ending_without_memory():
        if not done.done():
            done.set_result(result)


def _set_error(done: asyncio.Future[Any], error: BaseException) -> None:
    with ending_without_memory():
        if not done.done():
            done.set_exception(error)


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
