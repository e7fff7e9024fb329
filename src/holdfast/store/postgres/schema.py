"""The schema of a database for who waits for it: the verbs of `holdfast migrate`."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import asyncpg

from holdfast.store.postgres import migrate
from holdfast.store.postgres.connect import Link
from holdfast.store.postgres.errors import translated
from holdfast.store.sqlite.migrate import Migration

T = TypeVar("T")


class DatabaseSchema:
    """How far the schema of a database is, and its way up and down."""

    def __init__(self, url: str) -> None:
        self._link = Link(url)

    def version(self) -> int:
        """Return the number of the last migration the database has seen."""
        return self._waited_for(migrate.version)

    def is_filled(self) -> bool:
        """Tell whether something of a person is in it."""
        return self._waited_for(migrate.is_filled)

    def up(self) -> list[Migration]:
        """Bring the database up to this program."""
        return self._waited_for(migrate.up)

    def down(self, to: int) -> list[Migration]:
        """Take migrations back."""
        return self._waited_for(lambda raw: migrate.down(raw, to))

    def _waited_for(self, work: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
        # On a thread of its own, because whoever waits may have a loop that runs.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(lambda: asyncio.run(self._done(work))).result()

    async def _done(self, work: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
        connection = await self._link.patient()
        try:
            with translated():
                return await work(connection.raw)
        finally:
            await connection.close()
