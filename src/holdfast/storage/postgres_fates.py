"""What became of a commit whose answer was lost.

Every process has a row in which each of its commits notes its number. The name of a transaction
alone would not tell: a server that crashes gives out again whatever names it had not written down.
"""

import secrets
from typing import Final

import asyncpg

from holdfast.storage.postgres_connection import PostgresConnection

NOTE: Final = """
-- The number of this commit in the row of its process, and what the transaction is called.
WITH noted AS (
    INSERT INTO writers (name, number) VALUES ($1, $2)
        ON CONFLICT (name) DO UPDATE SET number = excluded.number, at = excluded.at
)
SELECT CAST(pg_current_xact_id() AS TEXT)
"""

# And one word to all who listen.
TELL: Final = NOTE.replace("SELECT CAST", "SELECT pg_notify($3, $4), CAST")

STATUS: Final = "SELECT pg_xact_status(CAST(CAST($1 AS TEXT) AS xid8))"
MADE: Final = "SELECT EXISTS (SELECT 1 FROM writers WHERE name = $1 AND number = $2)"
# Whoever lives notes again with the next commit, and asks within seconds.
SWEEP: Final = "DELETE FROM writers WHERE at < now() - INTERVAL '1 hour'"


class Fate:
    """The last commit of a process: whether it is on its way, and what became of it."""

    def __init__(self) -> None:
        self._writer = secrets.token_hex(8)
        self._number = 0
        self._transaction: str | None = None

    @property
    def is_open(self) -> bool:
        """Whether a commit may be on its way."""
        return self._transaction is not None

    async def note(self, connection: PostgresConnection, *word: str) -> None:
        """Note the next commit as part of it, with what is told to others if there is anything."""
        self._number += 1
        sql = TELL if word else NOTE
        self._transaction = await connection.value(sql, self._writer, self._number, *word)

    def settle(self) -> None:
        """Notice that no commit is on its way."""
        self._transaction = None

    async def is_made(self, connection: PostgresConnection) -> bool | None:
        """Tell whether the commit was made; nothing while Postgres is still at it."""
        try:
            status = await connection.value(STATUS, self._transaction)
        except asyncpg.InvalidParameterValueError:
            # It is yet to come: a crash was quicker than the log.
            status = None
        if status == "in progress":
            return None
        return bool(await connection.value(MADE, self._writer, self._number))
