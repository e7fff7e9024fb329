"""The `costs` table: the ledger, one entry for every request a provider was sent."""

import msgspec

from holdfast.domain.costs import CostEntry, Usage
from holdfast.domain.sessions import Head
from holdfast.domain.times import instant, microseconds
from holdfast.storage.database import Database, Row, checksum, encode, require_sound

ADD = """
-- What a request cost; a request that is in the ledger stays as it is.
INSERT INTO costs (request_id, session_key, turn, model_id, usage, microcents, priced, at, checksum)
VALUES (:request_id, :session_key, :turn, :model_id, :usage, :microcents, :priced, :at, :checksum)
ON CONFLICT DO NOTHING
RETURNING 1
"""

OF_TURN = """
-- The ledger of a turn.
SELECT request_id, turn, model_id, usage, microcents, priced, at, checksum
  FROM costs
 WHERE session_key = :session_key
   AND turn = :turn
 ORDER BY at, request_id
"""

OF_SESSION = """
-- The ledger of a session.
SELECT request_id, turn, model_id, usage, microcents, priced, at, checksum
  FROM costs
 WHERE session_key = :session_key
 ORDER BY at, request_id
"""

NEWEST = """
-- The last entry of the session's newest turn; what was spent aside belongs to no turn.
SELECT request_id, turn, model_id, usage, microcents, priced, at, checksum
  FROM costs
 WHERE session_key = :session_key
   AND turn = (SELECT max(turn) FROM costs WHERE session_key = :session_key)
   AND turn > 0
 ORDER BY at DESC, request_id DESC
 LIMIT 1
"""

ENGAGED = """
-- In how many turns a provider was asked.
SELECT count(DISTINCT turn)
  FROM costs
 WHERE session_key = :session_key
   AND turn > 0
"""

# Made here because msgspec prepares a type at its first use and crashes when two threads do so.
_decoder = msgspec.json.Decoder(Usage)


class Costs:
    """The ledger in the store."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def add(self, key: int, entry: CostEntry) -> bool:
        columns = {
            "request_id": entry.request_id,
            "turn": entry.turn,
            "model_id": entry.model_id,
            "usage": encode(entry.usage),
            "microcents": entry.microcents,
            "priced": int(entry.priced),
            "at": microseconds(entry.at),
        }
        columns["checksum"] = checksum(encode(list(columns.values())))
        return bool(await self._db.fetch(ADD, {"session_key": key, **columns}))

    async def of_turn(self, head: Head, turn: int) -> list[CostEntry]:
        rows = await self._db.fetch(OF_TURN, {"session_key": head.key, "turn": turn})
        return [_entry(row, head) for row in rows]

    async def newest(self, head: Head) -> CostEntry | None:
        rows = await self._db.fetch(NEWEST, {"session_key": head.key})
        return _entry(rows[0], head) if rows else None

    async def engaged(self, head: Head) -> int:
        rows = await self._db.fetch(ENGAGED, {"session_key": head.key})
        return int(rows[0][0])

    async def of_session(self, head: Head) -> list[CostEntry]:
        rows = await self._db.fetch(OF_SESSION, {"session_key": head.key})
        return [_entry(row, head) for row in rows]


def _entry(row: Row, head: Head) -> CostEntry:
    request_id, turn, model_id, usage, microcents, priced, at, stored = row
    require_sound(stored, encode(row[:-1]), what=f"cost entry {request_id}")
    return CostEntry(
        request_id=request_id,
        session_id=head.session_id,
        turn=turn,
        model_id=model_id,
        usage=_decoder.decode(usage),
        microcents=microcents,
        priced=bool(priced),
        at=instant(at),
    )
