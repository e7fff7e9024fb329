"""The readers of a store on Postgres: a few connections, and a snapshot for each who asks.

A snapshot is ended together with the beginning of the next one over its connection, because to ask
for the one costs as much as to ask for both. What nobody follows soon is ended by itself.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from holdfast.domain.errors import Code, Unavailable
from holdfast.ports import Tx
from holdfast.store.postgres.connect import Link
from holdfast.store.postgres.connection import PostgresConnection
from holdfast.store.postgres.errors import LostError
from holdfast.store.sqlite.store import Tables

# More than a machine has cores, because readers also wait for the network.
READERS: Final = 8
_FIRST: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_NEXT: Final = f"END; {_FIRST}"
# Seconds for which a snapshot may be left open: as long as it is, nothing it sees is vacuumed.
_SOON: Final = 0.05

Reader = tuple[PostgresConnection, Tx]


class Readers:
    """Gives out connections that may not write; `READERS` is how many there are."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._room = asyncio.Semaphore(READERS)
        self._idle: list[Reader] = []
        self._tidying: asyncio.Task[None] | None = None
        self._closed = False

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Reader]:
        """Give out a reader that sees one instant."""
        if self._closed:
            raise Unavailable(Code.STORE_CLOSED, "The store is closed.")
        async with self._room:
            reader = await self._taken()
            try:
                await reader[0].command(_NEXT if _is_open(reader) else _FIRST)
                yield reader
            except Exception:
                # It may have failed in the middle of a statement.
                await self._end(reader)
                raise
            except BaseException:
                # Whatever it was doing is not waited for; another one is opened when needed.
                reader[0].raw.terminate()
                raise
            await self._give_back(reader)

    async def close(self) -> None:
        """Let go of every connection."""
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
            # It is still open, and nobody will end it.
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
        """End the snapshots that nobody followed, for as long as there are any."""
        while open_ones := [each for each in self._idle if _is_open(each)]:
            await asyncio.sleep(_SOON)
            for reader in open_ones:
                if reader in self._idle:
                    self._idle.remove(reader)
                    await self._end(reader)


def _is_open(reader: Reader) -> bool:
    raw = reader[0].raw
    return bool(not raw.is_closed() and raw.is_in_transaction())
