"""Postgres database as the source or target of a transfer."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Final

import asyncpg

from holdfast.domain.errors import Code, Invalid, Unavailable
from holdfast.search.documents import EMPTY
from holdfast.store.database import Row
from holdfast.store.database_url import FAULT, shown_url, url_fault
from holdfast.store.postgres.checks import faults
from holdfast.store.postgres.connect import Link
from holdfast.store.postgres.connection import PostgresConnection
from holdfast.store.postgres.errors import GONE, REFUSED, LostError, meaning
from holdfast.store.postgres.migrate import LOCK, up, version
from holdfast.store.sqlite.migrate import require_not_newer, require_not_older
from holdfast.store.transfer.files import BATCH_SIZE
from holdfast.store.transfer.run import insert_statement, lock_statement, sequence_statement

# No idle timeout, because the other side may be slow between two batches.
_BEGINNING: Final = (
    "SET LOCAL idle_in_transaction_session_timeout = 0; SET LOCAL lock_timeout = '30s'"
)
# Tables with generated keys; their sequences must continue after the copied keys.
_COUNTED: Final = ("zone_files", "zone_parts", "entities")

COLUMNS = """
-- Column names of a table, without computed columns.
SELECT attname
  FROM pg_attribute
 WHERE attrelid = to_regclass($1)
   AND attnum > 0
   AND attgenerated = ''
   AND NOT attisdropped
"""

SESSION_KEYS = """
-- Move the sequence of session keys past all used ones.
SELECT setval('session_keys', greatest(last, 1), last > 0)
  FROM (SELECT greatest((SELECT max(key) FROM sessions), (SELECT max(key) FROM tombstones), 0)
               AS last) used
"""


class DatabaseEnd:
    """Implements `TransferEnd` on one Postgres connection."""

    def __init__(self, connection: PostgresConnection, url: str) -> None:
        self._connection = connection
        self._raw = connection.raw
        self._url = url

    async def columns(self, table: str) -> list[str]:
        with translate_transfer_errors(self._url):
            return [row[0] for row in await self._raw.fetch(COLUMNS, table)]

    async def value(self, sql: str) -> int:
        with translate_transfer_errors(self._url):
            return int(await self._raw.fetchval(sql))

    async def rows(self, sql: str) -> AsyncIterator[Sequence[Row]]:
        with translate_transfer_errors(self._url):
            cursor = await self._raw.cursor(sql)
        while rows := await self._fetch(cursor):
            yield rows

    async def _fetch(self, cursor: Any) -> list[Row]:
        with translate_transfer_errors(self._url):
            return list(map(tuple, await cursor.fetch(BATCH_SIZE)))

    async def add(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        places = ", ".join(f"${number}" for number in range(1, len(columns) + 1))
        with translate_transfer_errors(self._url, table):
            await self._raw.executemany(insert_statement(table, columns, places), rows)

    async def settle(self) -> None:
        with translate_transfer_errors(self._url):
            for sql in EMPTY:
                await self._connection.execute(sql)
            await self._raw.execute(SESSION_KEYS)
            for table in _COUNTED:
                await self._raw.execute(sequence_statement(table))

    async def faults(self) -> list[str]:
        with translate_transfer_errors(self._url):
            return await faults(self._connection)


@asynccontextmanager
async def from_database(url: str) -> AsyncIterator[DatabaseEnd]:
    """Open a store for reading; holds table locks that block writers."""
    async with _connect(url) as connection:
        with translate_transfer_errors(url):
            found = await version(connection.raw)
            require_not_newer(found)
            require_not_older(found)
            await connection.raw.execute(lock_statement("SHARE"))
        yield DatabaseEnd(connection, url)


@asynccontextmanager
async def into_database(url: str, *, is_kept: bool = True) -> AsyncIterator[DatabaseEnd]:
    """Open a database as target; schema and rows are committed in one transaction."""
    async with _connect(url, is_kept=is_kept) as connection:
        with translate_transfer_errors(url):
            await connection.raw.execute(LOCK)
            await up(connection.raw)
            await connection.raw.execute(lock_statement("EXCLUSIVE"))
        yield DatabaseEnd(connection, url)


@asynccontextmanager
async def _connect(url: str, *, is_kept: bool = False) -> AsyncIterator[PostgresConnection]:
    """Connect and begin a transaction; commits on success if `is_kept` is set."""
    connection = await _open(url)
    transaction = connection.raw.transaction()
    try:
        with translate_transfer_errors(url):
            await transaction.start()
            await connection.raw.execute(_BEGINNING)
        yield connection
        if is_kept:
            with translate_transfer_errors(url):
                await transaction.commit()
    finally:
        # Closing the connection rolls back uncommitted changes.
        with suppress(*GONE, asyncpg.PostgresError):
            await connection.close()


async def _open(url: str) -> PostgresConnection:
    """Connect without retries, because a transfer is started manually."""
    try:
        if url_fault(url) is None:
            with translate_transfer_errors(url):
                return await Link(url).open()
    except Invalid:
        # That error names a setting, but the URL may come from the command line.
        pass
    raise Invalid(Code.INVALID_INPUT, f"The address of a database {FAULT}.", {"field": "to"})


@contextmanager
def translate_transfer_errors(url: str, table: str | None = None) -> Iterator[None]:
    """Translate Postgres errors for a transfer; messages never contain the password."""
    shown = shown_url(url)
    try:
        yield
    except REFUSED as error:
        raise Unavailable(
            Code.STORE_UNWRITABLE,
            f"{shown} rejected the connection: check the database, the user, the password and "
            "the rights.",
        ) from error
    except (LostError, *GONE) as error:
        raise Unavailable(
            Code.STORE_UNREACHABLE,
            f"{shown} cannot be reached, or the connection was lost. A copy is complete or "
            "absent: try again; a target that already has it is refused.",
        ) from error
    except asyncpg.CharacterNotInRepertoireError as error:
        raise Invalid(
            Code.INVALID_INPUT,
            f"A text in {table} holds the character U+0000, which Postgres cannot store; nothing "
            "was copied.",
            {"table": table},
        ) from error
    except asyncpg.PostgresError as error:
        raise meaning(error) from error
