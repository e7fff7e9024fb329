"""What became of a commit whose answer was lost.

Every process has a row in which each of its commits notes its number. The name of a transaction
alone would not tell: a server that crashes gives out again whatever names it had not written
down.
"""

import secrets
from typing import Final

import asyncpg

from holdfast.store.postgres.connection import PostgresConnection

STATUS: Final = "SELECT pg_xact_status(CAST(CAST($1 AS TEXT) AS xid8))"
MADE: Final = "SELECT EXISTS (SELECT 1 FROM writers WHERE name = $1 AND number = $2)"
# Waits for whoever is at it. What comes later finds a higher number, and does nothing.
SETTLE: Final = """
WITH noted AS (SELECT name, number FROM writers WHERE name = $1 FOR UPDATE), settled AS (
    UPDATE writers
       SET number = $2 + 1
      FROM noted
     WHERE writers.name = noted.name
       AND noted.number < $2
)
SELECT coalesce(max(number), 0) FROM noted
"""
# Whoever lives notes again with the next commit, and asks within seconds.
SWEEP: Final = "DELETE FROM writers WHERE at < now() - INTERVAL '1 hour'"


class Fate:
    """The last commit of a process: whether it is on its way, and what became of it."""

    def __init__(self) -> None:
        self._writer = secrets.token_hex(8)
        self._number = 0
        self._transaction: str | None = None
        self._is_drafted = False

    @property
    def is_open(self) -> bool:
        """Whether a commit may be on its way."""
        return self._is_drafted or self._transaction is not None

    async def note(self, connection: PostgresConnection, channel: str, word: str | None) -> None:
        """Note the next commit as part of it, with what is told to others if there is anything."""
        self._number += 1
        self._transaction = await connection.note(self._writer, self._number, channel, word)

    def draft(self) -> tuple[str, int]:
        """Begin a commit that a statement makes by itself; return by what it is known."""
        # Two: its own, and the one that it is given up by, which nothing else may ever be called.
        self._number += 2
        self._is_drafted = True
        return self._writer, self._number - 1

    def settle(self) -> None:
        """Notice that no commit is on its way."""
        self._transaction = None
        self._is_drafted = False

    async def is_made(self, connection: PostgresConnection) -> bool | None:
        """Tell whether the commit was made; nothing while Postgres is still at it."""
        if self._is_drafted:
            return await self._is_draft_made(connection)
        try:
            status = await connection.value(STATUS, self._transaction)
        except asyncpg.InvalidParameterValueError:
            # It is yet to come: a crash was quicker than the log.
            status = None
        if status == "in progress":
            return None
        return bool(await connection.value(MADE, self._writer, self._number))

    async def _is_draft_made(self, connection: PostgresConnection) -> bool | None:
        """Tell whether a draft was written, and see to it that otherwise it never is."""
        asked = self._number - 1
        try:
            found = await connection.value(SETTLE, self._writer, asked)
        except asyncpg.LockNotAvailableError:
            return None
        return bool(found == asked)
