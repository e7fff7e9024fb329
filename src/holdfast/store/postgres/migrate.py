"""Migrations of a Postgres database: the same numbers as on SQLite, with their own SQL."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

import asyncpg
from msgspec.structs import replace

from holdfast.domain.errors import Code, Conflict
from holdfast.store.postgres.connect import Link
from holdfast.store.postgres.dialect import statement_of
from holdfast.store.postgres.errors import translate_errors
from holdfast.store.sqlite.checks import FILLED, OBSERVED, OBSERVING
from holdfast.store.sqlite.migrate import (
    MARK,
    UNMARK,
    Migration,
    migrations,
    newest,
    next_down,
    next_up,
    require_known,
    require_not_above,
    require_not_newer,
    require_not_older,
)

# Held during a migration, because several processes may start at once.
LOCK: Final = "SELECT pg_advisory_xact_lock(hashtext('holdfast migrations'))"

OURS = """
-- Columns of the table of migrations; ours has these four.
SELECT count(*) FILTER (WHERE attname IN ('number', 'name', 'checksum', 'applied_at')), count(*)
  FROM pg_attribute
 WHERE attrelid = (SELECT to_regclass(format('%I.migrations', schema))
                     FROM current_schema() schema
                    WHERE schema IS NOT NULL)
   AND attnum > 0
   AND NOT attisdropped
"""

FOREIGN_TABLES = """
-- Tables and views with the names of ours.
SELECT c.relname
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = current_schema()
   AND c.relname IN ('agents', 'sessions', 'messages', 'events', 'calls', 'costs', 'models',
                     'repos', 'media', 'tokens', 'observations', 'entities', 'migrations')
 ORDER BY c.relname
"""

VERSION = "SELECT coalesce(max(number), 0) FROM migrations"

T = TypeVar("T")
Walk = Callable[[int], Migration | None]
Step = Callable[[asyncpg.Connection, Migration], Awaitable[None]]


@cache
def postgres_migrations() -> dict[int, Migration]:
    """Return all migrations with their Postgres SQL, by number."""
    folder = Path(__file__).parents[1] / "migrations"
    return {
        each.number: replace(
            each,
            up=(folder / f"{each.number:04}_{each.name}.postgres.up.sql").read_text(),
            down=(folder / f"{each.number:04}_{each.name}.postgres.down.sql").read_text(),
        )
        for each in migrations()
    }


async def version(raw: asyncpg.Connection) -> int:
    """Return the number of the last applied migration; 0 for an empty database."""
    ours, columns = await raw.fetchrow(OURS)
    if (ours, columns) == (4, 4):
        return int(await raw.fetchval(VERSION))
    foreign = [row[0] for row in await raw.fetch(FOREIGN_TABLES)]
    if foreign:
        raise Conflict(
            Code.STORE_FOREIGN,
            f"The database has tables of another program ({', '.join(foreign)}); choose another "
            "database, or another schema by `?search_path=` in HOLDFAST_DATABASE_URL.",
        )
    return 0


async def require_current(raw: asyncpg.Connection) -> None:
    """Create the schema of an empty database; raise if an existing one is newer or older."""
    found = await version(raw)
    # The store is empty: its creation was interrupted, or is running in another process.
    if found < newest() and not await is_filled(raw):
        await up(raw)
        found = await version(raw)
    require_not_newer(found)
    require_not_older(found)


async def is_filled(raw: asyncpg.Connection) -> bool:
    """Return whether dropping the schema would delete user data."""
    found = await version(raw)
    statements = [FILLED, *([OBSERVED] if found >= OBSERVING else [])]
    return found > 0 and any([await raw.fetchval(each) for each in statements])


async def up(raw: asyncpg.Connection, to: int | None = None) -> list[Migration]:
    """Apply all missing migrations up to a number; safe with concurrent processes."""
    target = newest() if to is None else to
    require_known(target)
    return await _walk(raw, lambda found: next_up(found, target), _apply)


async def down(raw: asyncpg.Connection, to: int) -> list[Migration]:
    """Revert migrations until a number is the last one applied."""
    require_not_above(await version(raw), to)
    return await _walk(raw, lambda found: next_down(found, to), _take_back)


async def _walk(raw: asyncpg.Connection, choose: Walk, step: Step) -> list[Migration]:
    done: list[Migration] = []
    while True:
        async with raw.transaction():
            await raw.execute(LOCK)
            found = await version(raw)
            require_not_newer(found)
            # Choose under the lock, because another process may have migrated meanwhile.
            chosen = choose(found)
            if chosen is None:
                return done
            await step(raw, postgres_migrations()[chosen.number])
        done.append(chosen)


async def _apply(raw: asyncpg.Connection, migration: Migration) -> None:
    await raw.execute(migration.up)
    mark = (migration.number, migration.name, migration.checksum, time.time_ns() // 1000)
    await raw.execute(statement_of(MARK).sql, *mark)


async def _take_back(raw: asyncpg.Connection, migration: Migration) -> None:
    await raw.execute(statement_of(UNMARK).sql, migration.number)
    await raw.execute(migration.down)


class DatabaseSchema:
    """Synchronous access to the schema of a database, for `holdfast migrate`."""

    def __init__(self, url: str) -> None:
        self._link = Link(url)

    def version(self) -> int:
        """Return the number of the last applied migration."""
        return self._run_in_thread(version)

    def is_filled(self) -> bool:
        """Return whether the database holds user data."""
        return self._run_in_thread(is_filled)

    def up(self) -> list[Migration]:
        """Apply all missing migrations."""
        return self._run_in_thread(up)

    def down(self, to: int) -> list[Migration]:
        """Revert migrations."""
        return self._run_in_thread(lambda raw: down(raw, to))

    def _run_in_thread(self, work: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
        # In a separate thread, because the caller may be inside a running event loop.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(lambda: asyncio.run(self._connect_and_run(work))).result()

    async def _connect_and_run(self, work: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
        connection = await self._link.open_with_retries()
        try:
            with translate_errors():
                return await work(connection.raw)
        finally:
            await connection.close()
