"""The store on Postgres: one writer and several readers per process, any number of processes.

The tables are shared with the embedded store. The other modules of this folder hold the
differences: SQL dialect, group commit, notifications and the clock for leases.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

import asyncpg

from holdfast.domain.commits import SessionCommit
from holdfast.domain.ids import SessionKey
from holdfast.ports.store import Tx
from holdfast.ports.system import Clock
from holdfast.search.index import IndexUpkeep
from holdfast.store.postgres.checks import faults, lacking
from holdfast.store.postgres.clock import DatabaseClock
from holdfast.store.postgres.commit_status import SWEEP
from holdfast.store.postgres.connect import Link
from holdfast.store.postgres.errors import LostError, described, meaning, translated
from holdfast.store.postgres.listen import PostgresNews
from holdfast.store.postgres.migrate import require_current
from holdfast.store.postgres.readers import READERS, Readers
from holdfast.store.postgres.writer import PostgresWriter

log = logging.getLogger(__name__)

T = TypeVar("T")
Work = Callable[[Tx], Coroutine[Any, Any, T]]


class PostgresStore:
    """Implements the `Store` port on a database shared with other processes."""

    def __init__(self, url: str) -> None:
        self._link = Link(url)
        self._news = PostgresNews(self._link)
        self._writer = PostgresWriter(self._link, self._news.word)
        self._readers = Readers(self._link)
        self._upkeep = IndexUpkeep(self.read, self._writer.transact)
        self._listening: asyncio.Task[None] | None = None
        self._closed = False
        self.is_scrubbed = True

    @classmethod
    async def open(cls, url: str) -> Self:
        """Open the store; creates the schema in an empty database."""
        store = cls(url)
        connection = await store._link.patient()
        try:
            with translated():
                await require_current(connection.raw)
                await connection.command(SWEEP)
        finally:
            await connection.close()
        store._listening = asyncio.get_running_loop().create_task(store._news.listen())
        return store

    async def clock(self, inner: Clock) -> Clock:
        """Return a clock that measures leases in database time."""
        clock = DatabaseClock(inner)
        with translated():
            async with self._readers.snapshot() as (connection, _):
                await clock.learn(connection)
        self._news.learn = clock.learn
        return clock

    def tell(self, ring: Callable[[SessionKey], None]) -> None:
        """Set the callback for sessions that another process has written to."""
        self._news.ring = ring

    async def write(self, work: Work[T], *, urgent: bool = False) -> T:
        """Run work in a transaction; returns after the commit is durable on disk.

        `urgent` has no effect, because a store on Postgres has no disk reserve.
        """
        done = await self._writer.transact(work)
        self._upkeep.count()
        return done

    def commit(self, commit: SessionCommit) -> asyncio.Future[None]:
        """Queue a commit; the future completes when it is durable on disk."""
        future = self._writer.commit(commit)
        future.add_done_callback(self._count)
        return future

    async def require_writable(self) -> None:
        """Raise if the store cannot be written now."""

        async def nothing(_: Tx) -> None:
            return None

        await self._writer.transact(nothing)

    def _count(self, written: asyncio.Future[None]) -> None:
        if not written.cancelled() and written.exception() is None:
            self._upkeep.count()

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
                log.error("a statement was refused: %s", described(error))
                raise meaning(error) from error
        raise AssertionError("a read ends in its last try")

    async def version(self) -> tuple[int, int]:
        """Return a value that changes when another process may have written to the store."""
        return 0, self._news.count

    async def check(self) -> list[str]:
        """Return the faults found in the rows, one sentence each."""
        with translated():
            async with self._readers.snapshot() as (connection, _):
                return await faults(connection)

    async def missing_events(self) -> list[str]:
        """Return unexplained gaps in the event logs, one sentence each."""
        with translated():
            async with self._readers.snapshot() as (connection, _):
                return await lacking(connection)

    async def scrub(self) -> bool:
        """Remove deleted words from the search index; deleted rows are removed by vacuum."""
        self.is_scrubbed = await self._upkeep.has_forgotten()
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
