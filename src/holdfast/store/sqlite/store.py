"""The embedded store: one writer, several readers, one SQLite file."""

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, TypeVar, cast

import apsw

from holdfast.domain.commits import SessionCommit
from holdfast.domain.errors import Code, HoldfastError, Internal, StorageFull, Unavailable
from holdfast.observations.tables import ObservationTables, SnapshotTables
from holdfast.ports.store import Brief, Tx
from holdfast.search.index import IndexUpkeep
from holdfast.search.tables import SearchTables
from holdfast.store.agent_processes import AgentProcessRows
from holdfast.store.agents import AgentRows
from holdfast.store.approvals import ApprovalRows
from holdfast.store.calls import CallRows
from holdfast.store.children import ChildRows
from holdfast.store.client_requests import ClientRequestRows
from holdfast.store.costs import CostRows
from holdfast.store.database import Database
from holdfast.store.events import EventRows
from holdfast.store.foreign_records import ForeignRows
from holdfast.store.graph_checkpoints import GraphRows
from holdfast.store.held_turns import HeldTurnRows
from holdfast.store.media import MediaRows
from holdfast.store.messages import MessageRows
from holdfast.store.models import ModelRows
from holdfast.store.repos import RepoRows
from holdfast.store.sessions import SessionRows
from holdfast.store.sqlite import checks as sqlite_checks
from holdfast.store.sqlite.checks import is_filled
from holdfast.store.sqlite.connection import (
    Connection,
    connect,
    drive,
    ending_without_memory,
    is_plain,
    translate_error,
    translate_errors,
)
from holdfast.store.sqlite.disk_reserve import DiskReserve, disk_full_error
from holdfast.store.sqlite.files import private_file, require_suitable
from holdfast.store.sqlite.integrity import FaultyRows, FaultyTable, doubtful, find_faulty_rows
from holdfast.store.sqlite.migrate import newest, require_current, up, version
from holdfast.store.sqlite.writer import RECHECK_SECONDS, Job, Writer
from holdfast.store.tokens import TokenRows
from holdfast.store.waits import WaitRows
from holdfast.workers.tables import WorkerRows
from holdfast.zones.tables import ZoneTables

log = logging.getLogger(__name__)
T = TypeVar("T")
Work = Callable[[Tx], Coroutine[Any, Any, T]]
SCRUB_WAIT_MS: Final = 250


def snapshot(connection: Connection, work: Work[T], tables: Tx) -> T:
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
        # SQLite ends the transaction itself after some errors. Not by COMMIT, which raises if a
        # page was damaged, even if the work has read around it.
        if connection.raw.in_transaction:
            connection.query("ROLLBACK")
    # After a decryption error SQLite fails the transaction, so run each statement in its own.
    return drive(work(tables))


def read_without_lock(connection: Connection, work: Work[T], tables: Tx) -> T:
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


def _read_again(connection: Connection, work: Work[T], tables: Tx) -> T:
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


class _Read:
    """Work for a reader thread, and its outcome.

    A thread that finds no memory loses no read: the outcome is stored without an allocation, and
    the caller looks for it once a second, because its event loop may drop the callback.
    """

    __slots__ = ("error", "is_done", "is_wanted", "loop", "result", "woken", "work")

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.loop = asyncio.get_running_loop()
        self.woken: asyncio.Future[None] | None = None
        self.is_wanted = True
        self.is_done = False
        self.result: Any = None
        self.error: BaseException | None = None

    def finish(self) -> None:
        """Wake the caller; runs in the reader thread."""
        self.is_done = True
        if self.woken is not None:
            self.loop.call_soon_threadsafe(_wake, self.woken)

    async def wait(self) -> None:
        """Return when the work is done."""
        while True:
            self.woken = self.loop.create_future()
            if self.is_done:
                return
            timer = self.loop.call_later(RECHECK_SECONDS, _wake, self.woken)
            try:
                await self.woken
            finally:
                timer.cancel()


def _wake(woken: asyncio.Future[None]) -> None:
    with ending_without_memory():
        if not woken.done():
            woken.set_result(None)


class Readers:
    """Reader threads; the first reads start one each."""

    def __init__(self) -> None:
        self._reads: SimpleQueue[_Read | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._is_closed = False

    async def run(self, work: Callable[[], T]) -> T:
        """Run work in a reader thread; return its result or raise its error."""
        read = _Read(work)
        with self._lock:
            if self._is_closed:
                raise Unavailable(Code.STORE_CLOSED, "The store is closed.")
            if len(self._threads) < READERS:
                self._start_thread()
            self._reads.put(read)
        try:
            await read.wait()
            if read.error is not None:
                raise read.error
            return cast("T", read.result)
        finally:
            read.is_wanted = False
            # The error's traceback refers to this frame.
            read.error = None

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._serve, name="holdfast-reader", daemon=True)
        with threads_permitting():
            thread.start()
        self._threads.append(thread)

    def _serve(self) -> None:
        while True:
            try:
                read = self._reads.get()
            except MemoryError:
                continue
            if read is None:
                return
            try:
                if read.is_wanted:
                    read.result = read.work()
            except BaseException as error:  # noqa: BLE001 — raised again in the caller
                read.error = error
            # A closed event loop has no waiting caller; others look again.
            try:
                read.finish()
            except (RuntimeError, MemoryError):
                read.is_done = True
            del read

    def end(self) -> None:
        """Finish queued work and block this thread until the readers stop; they use no loop."""
        with self._lock:
            self._is_closed = True
            for _ in self._threads:
                self._reads.put(None)
        for thread in self._threads:
            thread.join()


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


class Tables:
    """The tables of one connection; inconsistent tables are wrapped by `FaultyTable`."""

    def __init__(self, database: Database, faulty: FaultyRows) -> None:
        self.agents = AgentRows(database)
        self.models = ModelRows(database)
        self.repos = RepoRows(database)
        self.sessions = SessionRows(database, trusts_indexes=database.is_sealed)
        self.messages = MessageRows(database)
        self.events = EventRows(database)
        self.calls = CallRows(database)
        self.approvals = ApprovalRows(database)
        self.media = MediaRows(database)
        self.costs = CostRows(database)
        self.programs = AgentProcessRows(database)
        self.tokens = TokenRows(database)
        self.waits = WaitRows(database)
        self.held_turns = HeldTurnRows(database)
        self.foreign = ForeignRows(database)
        self.children = ChildRows(database)
        self.graphs = GraphRows(database)
        self.client_requests = ClientRequestRows(database)
        self.workers = WorkerRows(database)
        self.zones = ZoneTables(database)
        self.observations = ObservationTables(database)
        self.projections = SnapshotTables(database)
        self.search = SearchTables(database)
        self._database = database
        self._is_faulty = is_read_only(faulty)
        known = set(vars(self)) - {"_database", "_is_faulty"}
        # A table without an attribute here may affect any answer, so then all are wrapped.
        for name in known if faulty.keys() - known else faulty:
            rows = faulty.get(name, frozenset())
            setattr(self, name, FaultyTable(getattr(self, name), name, rows))

    async def append(self, commit: SessionCommit) -> None:
        """Write a commit; a store that contradicts itself is read-only."""
        if self._is_faulty:
            raise doubtful("sessions")
        await self._database.append(commit)


def is_read_only(faulty: FaultyRows) -> bool:
    """Return whether sessions must not be written, because their rows contradict each other."""
    return bool(faulty.keys() - _FEATURES)


# Tables that do not hold sessions.
_FEATURES: Final = frozenset({"search", "zones", "observations", "projections"})


class _OccupiedError(Exception):
    """Another event loop is reading on the shared connection."""


class SqliteStore:
    """Implements the `Store` port on one SQLite file."""

    def __init__(self, path: Path, key: bytes | None, *, vfs: str | None = None) -> None:
        """Open or create the store; `key` is ignored for an unencrypted file."""
        require_suitable(path.parent)
        reserve = DiskReserve(path.with_name(f"{path.name}-reserve"))
        fresh = private_file(path) or path.stat().st_size == 0
        if fresh and reserve.is_held:
            raise Internal(
                Code.CORRUPT_STORE, f"{path} is empty, but was in use before; restore a backup."
            )
        self.path = path
        self.key = key if fresh or not is_plain(path) else None
        self._vfs = vfs
        # Opening needs memory, descriptors and threads; undo partial work if one is missing.
        with ExitStack() as begun, translate_errors():
            self._open(begun, reserve)
            begun.pop_all()
        self._near = threading.Lock()
        self._closed = False
        self._upkeep = IndexUpkeep(self.read, self._write)
        self.is_scrubbed = True

    def _open(self, cleanup: ExitStack, reserve: DiskReserve) -> None:
        connection = self._open_file(reserve)
        cleanup.callback(connection.close)
        self._faulty = _find_faulty(connection)
        self._is_faulty = is_read_only(self._faulty)
        self._tables = Tables(connection, self._faulty)
        # After the checks, so that no file is created beside a refused store.
        reserve.take()
        self._reserve = reserve
        # Open the first reader in advance, because opening takes longer than most reads.
        self._idle: deque[tuple[Connection, Tx]] = deque([self._reader()])
        cleanup.callback(self._idle[0][0].close)
        # Connection for brief reads on the calling thread; it never waits for locks.
        self._nearest = self._reader()
        cleanup.callback(self._nearest[0].close)
        self._nearest[0].patience.is_off = True
        self._readers = Readers()
        cleanup.callback(self._readers.end)
        # Last, because only its own `close` stops the writer thread.
        with threads_permitting():
            self._writer = Writer(connection, self._connect, reserve)

    async def write(self, work: Work[T], *, urgent: bool = False) -> T:
        """Run work in a transaction; returns after the commit is durable on disk."""
        done = await self._write(work, urgent=urgent)
        self._upkeep.count()
        return done

    def commit(self, commit: SessionCommit) -> asyncio.Future[None]:
        """Queue a commit; the future completes when it is on disk."""
        if self._is_faulty:
            raise doubtful("sessions")
        future = self._writer.submit(Job(commit=commit))
        self._upkeep.count()
        return future

    async def require_writable(self) -> None:
        """Raise if the store cannot be written now."""
        await self._write(_nothing)
        # An empty transaction writes nothing and therefore does not detect a full disk.
        self._reserve.require_room()

    async def _write(self, work: Work[T], *, urgent: bool = False) -> T:
        try:
            done = await self._writer.run(
                lambda: work(self._writer_tables()),
                is_urgent=urgent,
                is_brief=isinstance(work, Brief),
            )
        except MemoryError as error:
            # Submitting a job and waiting for it also allocate memory.
            raise translate_error(error) from error
        return cast("T", done)

    async def read(self, work: Work[T]) -> T:
        """Run work in one consistent snapshot."""
        try:
            # Runs on this thread, because a thread switch takes longer than brief work.
            if isinstance(work, Brief) and not self._closed:
                found: T = self._read_here(work)
                return found
        except (apsw.BusyError, apsw.CorruptError, _OccupiedError):
            log.debug("a lock or damage prevents a short read")
        except (apsw.Error, MemoryError) as error:
            raise translate_error(error) from error
        with translate_errors():
            return await self._in_reader(
                lambda connection, tables: snapshot(connection, work, tables)
            )

    def version_now(self) -> tuple[int, int] | None:
        """Return the version at once, or `None` while the connection is in use."""
        connection = None if self._closed else self._writer.borrow()
        if connection is None:
            return None
        try:
            return self._writer.generation, connection.data_version()
        except apsw.Error:
            return None
        finally:
            self._writer.give_back()

    async def version(self) -> tuple[int, int]:
        """Return a value that changes when another process has written to the store."""
        # On the writer's connection: its data version ignores its own commits. Versions of two
        # connections are not comparable, so a reopened connection counts as a change.
        if (now := self.version_now()) is not None:
            return now
        with translate_errors():
            return await self._writer.inspect(
                lambda connection: (self._writer.generation, connection.data_version())
            )

    async def check(self) -> list[str]:
        """Return the faults found in the file, one sentence each."""
        return await self._in_reader(
            lambda connection, _: findings(connection, sqlite_checks.faults)
        )

    async def missing_events(self) -> list[str]:
        """Return unexplained gaps in the event logs, one sentence each."""
        read_gaps = partial(sqlite_checks.check_rows, checks=(sqlite_checks.missing_events,))
        return await self._in_reader(lambda connection, _: findings(connection, read_gaps))

    async def scrub(self) -> bool:
        """Remove deleted rows from the log file as well; return `False` if a retry is needed."""
        is_forgotten = await self._upkeep.remove_deleted()
        is_emptied = await self._in_reader(lambda connection, _: truncate_log(connection))
        self.is_scrubbed = is_forgotten and is_emptied
        return self.is_scrubbed

    async def close(self) -> None:
        """Close the store and its threads."""
        if self._closed:
            return
        await self._upkeep.close()
        self._closed = True
        await self._writer.close()
        self._readers.end()
        for reader, _ in (*self._idle, self._nearest):
            # Closing may checkpoint the log and fail; acknowledged commits do not depend on it.
            try:
                reader.close()
            except apsw.Error as error:
                log.warning("the store was not closed cleanly: %s", error)

    def _read_here(self, work: Work[T]) -> T:
        """Run brief work on this thread without waiting for locks."""
        # The writer's page cache is current; another connection must read and decrypt pages again.
        connection = self._writer.borrow()
        if connection is None:
            return self._read_beside(work)
        try:
            return read_without_lock(connection, work, self._writer_tables())
        finally:
            self._writer.give_back()

    def _read_beside(self, work: Work[T]) -> T:
        if not self._near.acquire(blocking=False):
            raise _OccupiedError
        try:
            return snapshot(self._nearest[0], work, self._nearest[1])
        finally:
            self._near.release()

    def _open_file(self, reserve: DiskReserve) -> Connection:
        """Open the file; releases the disk reserve if the log does not fit on the disk."""
        try:
            return self._prepare()
        except (StorageFull, Unavailable) as error:
            if error.code not in _NO_SPACE_ERRORS:
                raise
            if not reserve.is_held:
                raise disk_full_error() if _has_no_room(self.path) else error from error
        reserve.give_up()
        return self._prepare()

    def _prepare(self) -> Connection:
        connection = self._connect()
        try:
            with translate_errors():
                before = version(connection)
                # The store is empty: its creation was interrupted, or is running in another
                # process.
                if 0 < before < newest() and not is_filled(connection):
                    up(connection)
                require_current(connection)
                # Without the schema, nothing can be salvaged from beside a damaged first log.
                if before < newest():
                    truncate_log(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect(self) -> Connection:
        return connect(self.path, self.key, vfs=self._vfs)

    def _writer_tables(self) -> Tx:
        # Table objects are bound to a connection, so a reopened connection needs new ones.
        if self._tables.agents._db is not self._writer.connection:
            self._tables = Tables(self._writer.connection, self._faulty)
        return self._tables

    async def _in_reader(self, work: Callable[[Connection, Tx], T]) -> T:
        if self._closed:
            raise Unavailable(Code.STORE_CLOSED, "The store is closed.")

        def run() -> T:
            reader = self._take_connection()
            try:
                return work(*reader)
            finally:
                self._idle.append(reader)

        # Queueing a job allocates memory as well.
        with translate_errors():
            return await self._readers.run(run)

    def _take_connection(self) -> tuple[Connection, Tx]:
        try:
            return self._idle.pop()
        except IndexError:
            return self._reader()

    def _reader(self) -> tuple[Connection, Tx]:
        connection = self._connect()
        # Only the writer may write; this makes a write on a reader fail.
        connection.pragma("query_only", 1)
        return connection, Tables(connection, self._faulty)


async def _nothing(_: Tx) -> None:
    """Start a transaction that changes nothing."""


_NO_SPACE_ERRORS: Final = frozenset({Code.STORAGE_FULL, Code.STORE_POISONED, Code.STORE_UNWRITABLE})


def _has_no_room(path: Path) -> bool:
    return os.statvfs(path.parent).f_bavail == 0


def _find_faulty(connection: Connection) -> FaultyRows:
    """Check the consistency of an unencrypted store; encrypted pages are authenticated."""
    faulty = {} if connection.is_sealed else find_faulty_rows(connection)
    if faulty:
        log.error("the store contradicts itself: %s; see `holdfast doctor`", sorted(faulty))
    return faulty
