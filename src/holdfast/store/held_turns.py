"""The `held_turns` table: turns that a program holds with a loop of its own.

A row counts only while its turn is open; a later turn replaces it.
"""

import msgspec

from holdfast.domain.ids import SessionKey
from holdfast.domain.turns import HeldTurn
from holdfast.store.database import Database, checksum, encode, require_sound

SAVE = """
-- Insert or replace the turn of a session that an application holds.
INSERT INTO held_turns (session_key, turn, body, checksum)
VALUES (:session_key, :turn, :body, :checksum)
ON CONFLICT (session_key)
DO UPDATE SET turn = excluded.turn, body = excluded.body, checksum = excluded.checksum
"""
OF = """
-- The turn of a session that an application holds.
SELECT body, checksum
  FROM held_turns
 WHERE session_key = :session_key
   AND turn = :turn
"""

# Created at import because msgspec prepares a type on first use, which is not thread-safe.
_decoder = msgspec.json.Decoder(HeldTurn)


class HeldTurnRows:
    """Held turns in the store."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def save(self, key: SessionKey, held: HeldTurn) -> None:
        body = encode(held)
        row = {"session_key": key, "turn": held.turn, "body": body}
        await self._db.execute(SAVE, row | {"checksum": checksum(body)})

    async def of(self, key: SessionKey, turn: int) -> HeldTurn | None:
        rows = await self._db.fetch(OF, {"session_key": key, "turn": turn})
        if not rows:
            return None
        require_sound(rows[0][1], rows[0][0], what="a held turn")
        return _decoder.decode(rows[0][0])
