"""Find out whether a commit was applied when its acknowledgement was lost.

Every connection that writes has a row in `writers`, in which each commit stores its number. The
transaction id would not be sufficient: after a crash the server may assign ids again.
"""

import secrets
from typing import Final

import asyncpg

from holdfast.store.postgres.connection import PostgresConnection

NOTE: Final = """
-- The number of a commit, in its transaction, and the notification of it.
WITH noted AS (
    INSERT INTO writers (name, number) VALUES ($1, $2)
        ON CONFLICT (name) DO UPDATE SET number = excluded.number, at = now()
)
SELECT CASE WHEN CAST($4 AS TEXT) IS NOT NULL THEN pg_notify($3, $4) END
"""
# Waits for a running commit. A commit that arrives later finds a higher number and writes nothing.
SETTLE: Final = """
-- The number of a commit that was applied; otherwise the next one, so that it never is.
INSERT INTO writers (name, number) VALUES ($1, $2 + 1)
    ON CONFLICT (name) DO UPDATE
   SET number = CASE WHEN writers.number = $2 THEN $2 ELSE $2 + 1 END, at = now()
RETURNING number
"""
# A live process inserts its row again with the next commit, and resolves a lost one within seconds.
SWEEP: Final = "DELETE FROM writers WHERE at < now() - INTERVAL '1 hour'"


class CommitStatus:
    """The last commit of a connection: whether it is pending, and whether it was applied."""

    def __init__(self) -> None:
        self._writer = secrets.token_hex(8)
        self._number = 0
        self.is_pending = False

    def begin(self) -> tuple[str, int]:
        """Start a commit; return the writer name and the commit number."""
        # Two numbers: one for the commit, one reserved to prevent it.
        self._number += 2
        self.is_pending = True
        return self._writer, self._number

    def settle(self) -> None:
        """Record that no commit is pending."""
        self.is_pending = False

    async def is_applied(self, connection: PostgresConnection) -> bool | None:
        """Return whether the commit was applied, and prevent it otherwise; None if in progress."""
        try:
            number = await connection.value(SETTLE, self._writer, self._number)
        except asyncpg.LockNotAvailableError:
            return None
        return bool(number == self._number)
