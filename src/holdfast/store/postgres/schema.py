"""Synchronous access to the schema of a Postgres database, for `holdfast migrate`."""

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
    """Schema version and migrations of a database."""

    def __init__(self, url: str) -> None:
        self._link = Link(url)

    def version(self) -> int:
        """Return the number of the last applied migration."""
        return self._waited_for(migrate.version)

    def is_filled(self) -> bool:
        """Return whether the database holds user data."""
        return self._waited_for(migrate.is_filled)

    def up(self) -> list[Migration]:
        """Apply all missing migrations."""
        return self._waited_for(migrate.up)

    def down(self, to: int) -> list[Migration]:
        """Revert migrations."""
        return self._waited_for(lambda raw: migrate.down(raw, to))

    def _waited_for(self, work: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
        # In a separate thread, because the caller may be inside a running event loop.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(lambda: asyncio.run(self._done(work))).result()

    async def _done(self, work: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
        connection = await self._link.patient()
        try:
            with translated():
                return await work(connection.raw)
        finally:
            await connection.close()
