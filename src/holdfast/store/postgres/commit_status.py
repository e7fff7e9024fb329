"""Find out whether a commit was applied when its acknowledgement was lost.

Every process has a row in `writers`, in which each commit stores its number. The transaction id
alone is not sufficient: after a crash the server may assign ids again that were not in its log.
"""

import secrets
from typing import Final

import asyncpg

from holdfast.store.postgres.connection import PostgresConnection

STATUS: Final = "SELECT pg_xact_status(CAST(CAST($1 AS TEXT) AS xid8))"
MADE: Final = "SELECT EXISTS (SELECT 1 FROM writers WHERE name = $1 AND number = $2)"
# Waits for a running commit. A later one finds a higher number and writes nothing.
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
# A live process inserts its row again with the next commit, and resolves a lost one within seconds.
SWEEP: Final = "DELETE FROM writers WHERE at < now() - INTERVAL '1 hour'"


class Fate:
    """The last commit of a process: whether it is pending, and whether it was applied."""

    def __init__(self) -> None:
        self._writer = secrets.token_hex(8)
        self._number = 0
        self._transaction: str | None = None
        self._is_drafted = False

    @property
    def is_open(self) -> bool:
        """Return whether a commit may be pending."""
        return self._is_drafted or self._transaction is not None

    async def note(self, connection: PostgresConnection, channel: str, word: str | None) -> None:
        """Store the number of the next commit in its transaction; sends a notification if given."""
        self._number += 1
        self._transaction = await connection.note(self._writer, self._number, channel, word)

    def draft(self) -> tuple[str, int]:
        """Start a commit made by a single statement; return the writer name and commit number."""
        # Two numbers: one for the commit, one reserved to cancel it.
        self._number += 2
        self._is_drafted = True
        return self._writer, self._number - 1

    def settle(self) -> None:
        """Record that no commit is pending."""
        self._transaction = None
        self._is_drafted = False

    async def is_made(self, connection: PostgresConnection) -> bool | None:
        """Return whether the commit was applied; None while it is in progress."""
        if self._is_drafted:
            return await self._is_draft_made(connection)
        try:
            status = await connection.value(STATUS, self._transaction)
        except asyncpg.InvalidParameterValueError:
            # The server crashed before it logged the id, so the id is in its future.
            status = None
        if status == "in progress":
            return None
        return bool(await connection.value(MADE, self._writer, self._number))

    async def _is_draft_made(self, connection: PostgresConnection) -> bool | None:
        """Return whether a draft was committed; otherwise prevent a later commit of it."""
        asked = self._number - 1
        try:
            found = await connection.value(SETTLE, self._writer, asked)
        except asyncpg.LockNotAvailableError:
            return None
        return bool(found == asked)
