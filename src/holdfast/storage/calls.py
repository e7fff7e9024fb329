"""The `calls` table."""

import msgspec

from holdfast.domain.calls import Call, CallState, Settlement
from holdfast.domain.ids import CallId
from holdfast.domain.sessions import Head
from holdfast.domain.tools import Effect
from holdfast.storage.database import Database, Row, checksum, encode, require_sound

SAVE = """
-- A call as it is now; its place in the turn is that of its first writing.
INSERT INTO calls (session_key, id, turn, position, name, arguments, state, effect,
                   idempotency_key, settlement, checksum)
VALUES (:session_key, :id, :turn,
        (SELECT count(*) FROM calls c WHERE c.session_key = :session_key),
        :name, :arguments, :state, :effect, :idempotency_key, :settlement, :checksum)
ON CONFLICT (session_key, id)
DO UPDATE SET state = excluded.state, settlement = excluded.settlement,
              checksum = excluded.checksum
"""

BY_ID = """
-- One call of a session.
SELECT id, turn, name, arguments, state, effect, idempotency_key, settlement, checksum
  FROM calls
 WHERE session_key = :session_key
   AND id = :id
"""

OF_SESSION = """
-- The calls of a session in the order they were intended.
SELECT id, turn, name, arguments, state, effect, idempotency_key, settlement, checksum
  FROM calls
 WHERE session_key = :session_key
 ORDER BY position
"""

OF_TURN = """
-- The calls of a turn in the order they were intended.
SELECT id, turn, name, arguments, state, effect, idempotency_key, settlement, checksum
  FROM calls
 WHERE session_key = :session_key
   AND turn = :turn
 ORDER BY position
"""


class Calls:
    """Tool calls in the store."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def save(self, key: int, call: Call) -> None:
        arguments = encode(call.arguments)
        columns = {
            "session_key": key,
            "id": call.id,
            "turn": call.turn,
            "name": call.name,
            "arguments": arguments,
            "state": call.state.value,
            "effect": call.effect.value,
            "idempotency_key": call.idempotency_key,
            "settlement": call.settlement.value if call.settlement else None,
        }
        # The session's key is left out: a row proves what it says, not where it stands.
        columns["checksum"] = checksum(encode(list(columns.values())[1:]))
        await self._db.execute(SAVE, columns)

    async def by_id(self, head: Head, call_id: CallId) -> Call | None:
        rows = await self._db.fetch(BY_ID, {"session_key": head.key, "id": call_id})
        return _call(rows[0], head) if rows else None

    async def of_session(self, head: Head) -> list[Call]:
        rows = await self._db.fetch(OF_SESSION, {"session_key": head.key})
        return [_call(row, head) for row in rows]

    async def of_turn(self, head: Head, turn: int) -> list[Call]:
        rows = await self._db.fetch(OF_TURN, {"session_key": head.key, "turn": turn})
        return [_call(row, head) for row in rows]


def _call(row: Row, head: Head) -> Call:
    call_id, turn, name, arguments, state, effect, key, settlement, stored = row
    require_sound(stored, encode(row[:-1]), what=f"call {call_id}")
    return Call(
        id=call_id,
        session_id=head.session_id,
        turn=turn,
        name=name,
        arguments=msgspec.json.decode(arguments),
        state=CallState(state),
        effect=Effect(effect),
        idempotency_key=key,
        settlement=Settlement(settlement) if settlement else None,
    )
