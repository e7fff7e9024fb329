"""The store on Postgres: one writer and several readers per process, any number of processes.

The tables are shared with the embedded store. The other modules of this folder hold the
differences: SQL dialect, connections and group commit.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final, Self, TypeVar

import asyncpg

from holdfast.domain.commits import SessionCommit
from holdfast.domain.errors import Code, HoldfastError, Unavailable
from holdfast.domain.ids import SessionKey
from holdfast.ports.store import Tx
from holdfast.ports.system import Clock
from holdfast.search.index import IndexUpkeep
from holdfast.store.postgres.checks import faults, find_missing_events
from holdfast.store.postgres.connect import Link
from holdfast.store.postgres.connection import PostgresConnection
from holdfast.store.postgres.errors import GONE, LostError, describe, meaning, translate_errors
from holdfast.store.postgres.migrate import require_current
from holdfast.store.postgres.writer import SWEEP, PostgresWriter
from holdfast.store.sqlite.store import Tables

log = logging.getLogger(__name__)
T = TypeVar("T")
Work = Callable[[Tx], Coroutine[Any, Any, T]]

# More than the number of cores, because readers also wait for the network.
READERS: Final = 8
_FIRST: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_NEXT: Final = f"END; {_FIRST}"
# Seconds that a snapshot may stay open, because an open snapshot blocks vacuum.
_SNAPSHOT_SECONDS: Final = 0.05
CHANNEL: Final = "holdfast"
# Seconds between two polls.
INTERVAL: Final = 1.0
# A payload is limited to about 8,000 bytes; with more keys it means any session.
_KEYS_MOST: Final = 300
_ANY: Final = "*"

CURRENT_TRANSACTION = """
-- A number that every writing transaction increases.
SELECT CAST(pg_snapshot_xmax(pg_current_snapshot()) AS TEXT)
"""


class ChangeListener:
    """Publishes the writes of this process, and receives those of other processes."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._me = secrets.token_hex(8)
        self._seen: str | None = None
        # Increases when any session may have changed.
        self.count = 0
        self.ring: Callable[[SessionKey], None] = lambda _: None
        # Called on each new connection and once a minute.
        self.learn: Callable[[PostgresConnection], Awaitable[None]] = _nothing

    def notification(self, keys: set[int]) -> tuple[str, str | None]:
        """Return the channel and the payload for sessions with new events; None for no sessions."""
        if not keys:
            return CHANNEL, None
        listed = _ANY if len(keys) > _KEYS_MOST else ",".join(map(str, sorted(keys)))
        return CHANNEL, f"{self._me}:{listed}"

    async def listen(self) -> None:
        """Receive notifications of other processes until cancelled."""
        while True:
            connection = None
            try:
                connection = await self._link.open_with_retries()
                await self._receive(connection)
            except (*GONE, asyncpg.PostgresError, LostError, HoldfastError) as error:
                why = error.__cause__ or error
                log.warning("notifications are not received at the moment: %r", why)
            finally:
                if connection is not None:
                    connection.raw.terminate()
            await asyncio.sleep(INTERVAL)

    async def _receive(self, connection: PostgresConnection) -> None:
        await connection.raw.add_listener(CHANNEL, self._on_notification)
        for round_ in range(1 << 62):
            if round_ % 60 == 0:
                await self.learn(connection)
            async with asyncio.timeout(INTERVAL * 10):
                seen = await connection.value(CURRENT_TRANSACTION)
            if seen != self._seen:
                self._seen = seen
                self.count += 1
            await asyncio.sleep(INTERVAL)

    def _on_notification(self, _: Any, __: int, ___: str, payload: str) -> None:
        origin, _, keys = payload.partition(":")
        if origin == self._me:
            return
        if keys == _ANY:
            self.count += 1
            return
        for key in filter(None, keys.split(",")):
            self.ring(SessionKey(int(key)))


async def _nothing(_: PostgresConnection) -> None:
    pass


NOW: Final = "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"


class DatabaseClock:
    """Implements the `Clock` port: leases are measured in milliseconds of database time.

    It follows the boot clock of the machine; the offset to the database is measured again every
    minute, because clocks drift.
    """

    def __init__(self, inner: Clock) -> None:
        self._inner = inner
        self._ahead = 0

    def now(self) -> datetime:
        """Return the wall-clock time in UTC; never used for ordering."""
        return self._inner.now()

    def lease_clock_ms(self) -> int:
        """Return the database time in milliseconds."""
        return self._inner.lease_clock_ms() + self._ahead

    async def learn(self, connection: PostgresConnection) -> None:
        """Measure the offset to the database time."""
        before = self._inner.lease_clock_ms()
        now = await connection.value(NOW)
        self._ahead = now - (before + self._inner.lease_clock_ms()) // 2


Reader = tuple[PostgresConnection, Tx]


class PostgresStore:
    """Implements the `Store` port on a database shared with other processes."""

    def __init__(self, url: str) -> None:
        self._link = Link(url)
        self._listener = ChangeListener(self._link)
        self._writer = PostgresWriter(self._link, self._listener.notification)
        self._readers = Readers(self._link)
        self._upkeep = IndexUpkeep(self.read, self._writer.transact)
        self._writer.count = self._upkeep.count
        self._listening: asyncio.Task[None] | None = None
        self._closed = False
        self.is_scrubbed = True

    @classmethod
    async def open(cls, url: str) -> Self:
        """Open the store; creates the schema in an empty database."""
        store = cls(url)
        connection = await store._link.open_with_retries()
        try:
            with translate_errors():
                await require_current(connection.raw)
                await connection.command(SWEEP)
        finally:
            await connection.close()
        store._listening = asyncio.get_running_loop().create_task(store._listener.listen())
        return store

    async def clock(self, inner: Clock) -> Clock:
        """Return a clock that measures leases in database time."""
        clock = DatabaseClock(inner)
        with translate_errors():
            async with self._readers.snapshot() as (connection, _):
                await clock.learn(connection)
        self._listener.learn = clock.learn
        return clock

    def tell(self, ring: Callable[[SessionKey], None]) -> None:
        """Set the callback for sessions that another process has written to."""
        self._listener.ring = ring

    async def write(self, work: Work[T], *, urgent: bool = False) -> T:
        """Run work in a transaction; returns after the commit is durable on disk.

        `urgent` has no effect, because a store on Postgres has no disk reserve.
        """
        done = await self._writer.transact(work)
        self._upkeep.count()
        return done

    def commit(self, commit: SessionCommit) -> asyncio.Future[None]:
        """Queue a commit; the future completes when it is durable on disk."""
        return self._writer.commit(commit)

    async def require_writable(self) -> None:
        """Raise if the store cannot be written now."""

        async def nothing(_: Tx) -> None:
            return None

        await self._writer.transact(nothing)

    async def read(self, work: Work[T]) -> T:
        """Run work in one consistent snapshot."""
        # Every pooled connection may be dead, so retry until a new one is opened.
        for left in reversed(range(READERS + 1)):
            try:
                async with self._readers.snapshot() as (_, tables):
                    return await work(tables)
            except LostError as error:
                # A read changes nothing, so it can be retried.
                if not left:
                    raise meaning(error) from error
            except asyncpg.PostgresError as error:
                log.error("a statement was refused: %s", describe(error))
                raise meaning(error) from error
        raise AssertionError("a read ends in its last try")

    def version_now(self) -> tuple[int, int] | None:
        """Return `None`, because a notification may be on its way."""
        return None

    async def version(self) -> tuple[int, int]:
        """Return a value that changes when another process may have written to the store."""
        return 0, self._listener.count

    async def check(self) -> list[str]:
        """Return the faults found in the rows, one sentence each."""
        with translate_errors():
            async with self._readers.snapshot() as (connection, _):
                return await faults(connection)

    async def missing_events(self) -> list[str]:
        """Return unexplained gaps in the event logs, one sentence each."""
        with translate_errors():
            async with self._readers.snapshot() as (connection, _):
                return await find_missing_events(connection)

    async def scrub(self) -> bool:
        """Remove deleted words from the search index; deleted rows are removed by vacuum."""
        self.is_scrubbed = await self._upkeep.remove_deleted()
        return self.is_scrubbed

    async def close(self) -> None:
        """Close all connections."""
        if self._closed:
            return
        await self._upkeep.close()
        self._closed = True
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait((self._listening,))
        await self._writer.close()
        await self._readers.close()


class Readers:
    """Pool of up to `READERS` read-only connections, with one snapshot per read.

    A snapshot is ended in the same round trip that begins the next one on its connection. A
    snapshot that is not followed soon is ended separately.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._room = asyncio.Semaphore(READERS)
        self._idle: list[Reader] = []
        self._tidying: asyncio.Task[None] | None = None
        self._closed = False

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Reader]:
        """Yield a reader in a new snapshot."""
        if self._closed:
            raise Unavailable(Code.STORE_CLOSED, "The store is closed.")
        async with self._room:
            reader = await self._take_reader()
            try:
                await reader[0].command(_NEXT if _is_open(reader) else _FIRST)
                yield reader
            except Exception:
                # The transaction may be aborted.
                await self._end(reader)
                raise
            except BaseException:
                # On cancellation, close the connection without waiting; a new one is opened when
                # needed.
                reader[0].raw.terminate()
                raise
            await self._give_back(reader)

    async def close(self) -> None:
        """Close all connections."""
        self._closed = True
        if self._tidying is not None:
            await asyncio.wait((self._tidying,))
        while self._idle:
            await self._idle.pop()[0].close()

    async def _take_reader(self) -> Reader:
        while self._idle:
            connection, tables = self._idle.pop()
            if not connection.raw.is_closed():
                return connection, tables
        connection = await self._link.open_with_retries()
        return connection, Tables(connection, {})

    async def _end(self, reader: Reader) -> None:
        try:
            if _is_open(reader):
                await reader[0].command("ROLLBACK")
        except LostError:
            return
        except BaseException:
            # The transaction is still open and would never end.
            reader[0].raw.terminate()
            raise
        await self._give_back(reader)

    async def _give_back(self, reader: Reader) -> None:
        connection = reader[0]
        if connection.raw.is_closed():
            return
        if self._closed:
            await connection.close()
            return
        self._idle.append(reader)
        if self._tidying is None or self._tidying.done():
            self._tidying = asyncio.get_running_loop().create_task(self._tidy())

    async def _tidy(self) -> None:
        """End idle snapshots until none is open."""
        while open_ones := [each for each in self._idle if _is_open(each)]:
            await asyncio.sleep(_SNAPSHOT_SECONDS)
            for reader in open_ones:
                if reader in self._idle:
                    self._idle.remove(reader)
                    await self._end(reader)


def _is_open(reader: Reader) -> bool:
    raw = reader[0].raw
    return bool(not raw.is_closed() and raw.is_in_transaction())
