"""The `waits` table: what the paused turn of a session waits for.

A row counts only while its session is paused; a later pause replaces it.
"""

from collections.abc import Collection

import msgspec

from holdfast.domain.ids import SessionKey
from holdfast.domain.waits import Wait, WaitReason
from holdfast.store.database import Database, Row, checksum, encode, require_sound, sound

SAVE = """
-- Insert or replace what a session waits for.
INSERT INTO waits (session_key, reason, body, checksum)
VALUES (:session_key, :reason, :body, :checksum)
ON CONFLICT (session_key)
DO UPDATE SET reason = excluded.reason, body = excluded.body, checksum = excluded.checksum
"""
OF = """
-- What a session waits for now or waited for last.
SELECT session_key, body, checksum
  FROM waits
 WHERE session_key = :session_key
"""
PAUSED = """
-- Paused sessions that wait for one capability.
SELECT w.session_key, w.body, w.checksum
  FROM waits w
  JOIN sessions s ON s.key = w.session_key
 WHERE w.reason = :reason
   AND s.until < 0
   AND s.status IN ('pending', 'running', 'idle')
 ORDER BY w.session_key
"""

# Created at import because msgspec prepares a type on first use, which is not thread-safe.
_decoder = msgspec.json.Decoder(Wait)


class WaitRows:
    """Waits in the store."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def save(self, key: SessionKey, wait: Wait) -> None:
        body = encode(wait)
        row = {"session_key": key, "reason": wait.reason.value, "body": body}
        await self._db.execute(SAVE, row | {"checksum": checksum(body)})

    async def of(self, key: SessionKey) -> Wait | None:
        rows = await self._db.fetch(OF, {"session_key": key})
        return _wait_of(rows[0])[1] if rows else None

    async def paused(self, reasons: Collection[WaitReason]) -> list[tuple[SessionKey, Wait]]:
        found: list[tuple[SessionKey, Wait]] = []
        for reason in reasons:
            found += sound(await self._db.fetch(PAUSED, {"reason": reason.value}), _wait_of)
        return found


def _wait_of(row: Row) -> tuple[SessionKey, Wait]:
    require_sound(row[2], row[1], what="a wait")
    return SessionKey(row[0]), _decoder.decode(row[1])
