"""Connection pool for reads on Postgres, with one snapshot per read.

A snapshot is ended in the same round trip that begins the next one on its connection. A snapshot
that is not followed soon is ended separately.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from holdfast.domain.errors import Code, Unavailable
from holdfast.ports.store import Tx
from holdfast.store.postgres.connect import Link
from holdfast.store.postgres.connection import PostgresConnection
from holdfast.store.postgres.errors import LostError
from holdfast.store.sqlite.store import Tables

# More than the number of cores, because readers also wait for the network.
READERS: Final = 8
_FIRST: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_NEXT: Final = f"END; {_FIRST}"
# Seconds that a snapshot may stay open, because an open snapshot blocks vacuum.
_SOON: Final = 0.05

Reader = tuple[PostgresConnection, Tx]


class Readers:
    """Pool of up to `READERS` read-only connections."""

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
            reader = await self._taken()
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

    async def _taken(self) -> Reader:
        while self._idle:
            connection, tables = self._idle.pop()
            if not connection.raw.is_closed():
                return connection, tables
        connection = await self._link.patient()
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
            await asyncio.sleep(_SOON)
            for reader in open_ones:
                if reader in self._idle:
                    self._idle.remove(reader)
                    await self._end(reader)


def _is_open(reader: Reader) -> bool:
    raw = reader[0].raw
    return bool(not raw.is_closed() and raw.is_in_transaction())
