"""The `foreign_sessions` and `foreign_records` tables: what frameworks wrote into sessions."""

from collections.abc import Iterable

from holdfast.domain.ids import MessageId, Owner, SessionId, SessionKey
from holdfast.domain.recordings import Disposition, ForeignRecord, ForeignSession
from holdfast.store.database import Database, Row, checksum, format_id, require_sound

NAME = """
-- The id that a framework gives to a session.
INSERT INTO foreign_sessions (session_key, owner, framework, native_id)
VALUES (:session_key, :owner, :framework, :native_id)
"""
NAMED = """
-- The session of an owner that a framework knows by an id.
SELECT s.id
  FROM foreign_sessions f
  JOIN sessions s ON s.key = f.session_key
 WHERE f.owner = :owner
   AND f.framework = :framework
   AND f.native_id = :native_id
"""
BEGINNING = """
-- The sessions whose ids of a framework begin with a text.
SELECT f.native_id, s.id, f.state
  FROM foreign_sessions f
  JOIN sessions s ON s.key = f.session_key
 WHERE f.owner = :owner
   AND f.framework = :framework
   AND f.native_id >= :start
   AND substr(f.native_id, 1, length(:start)) = :start
 ORDER BY f.native_id
"""
STATE = """
-- What a framework keeps about a session.
SELECT state
  FROM foreign_sessions
 WHERE session_key = :session_key
"""
SET_STATE = """
-- What a framework keeps about a session from now on.
UPDATE foreign_sessions
   SET state = :state, changed = :changed
 WHERE session_key = :session_key
"""
CHANGED = """
-- The newest of the times that a framework has seen.
SELECT coalesce(max(o.changed), 0)
  FROM foreign_sessions f
  JOIN foreign_sessions o ON o.owner = f.owner AND o.framework = f.framework
 WHERE f.session_key = :session_key
"""
ADD = """
-- A record, after the last one of its stream.
INSERT INTO foreign_records
       (session_key, stream, ordinal, key, kind, raw, disposition, message_id, checksum)
VALUES (:session_key, :stream, :ordinal, :key, :kind, :raw, :disposition, :message_id, :checksum)
"""
LAST = """
-- The number of the last record of a stream.
SELECT coalesce(max(ordinal), 0)
  FROM foreign_records
 WHERE session_key = :session_key
   AND stream = :stream
"""
AFTER = """
-- The records of a stream after a number.
SELECT ordinal, key, kind, raw, disposition, message_id, checksum
  FROM foreign_records
 WHERE session_key = :session_key
   AND stream = :stream
   AND ordinal > :after
 ORDER BY ordinal
"""
OF_KEY = """
-- The records of a stream with one key.
SELECT ordinal, key, kind, raw, disposition, message_id, checksum
  FROM foreign_records
 WHERE session_key = :session_key
   AND stream = :stream
   AND key = :key
 ORDER BY ordinal
"""


class ForeignRows:
    """Foreign sessions and records in the store."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def name(self, key: SessionKey, owner: Owner, framework: str, native_id: str) -> None:
        row = {"session_key": key, "owner": owner, "framework": framework, "native_id": native_id}
        await self._db.execute(NAME, row)

    async def named(self, owner: Owner, framework: str, native_id: str) -> SessionId | None:
        asked = {"owner": owner, "framework": framework, "native_id": native_id}
        rows = await self._db.fetch(NAMED, asked)
        return SessionId(format_id(rows[0][0])) if rows else None

    async def beginning(self, owner: Owner, framework: str, start: str) -> list[ForeignSession]:
        asked = {"owner": owner, "framework": framework, "start": start}
        return [
            ForeignSession(native_id=native_id, id=SessionId(format_id(found)), state=state)
            for native_id, found, state in await self._db.fetch(BEGINNING, asked)
        ]

    async def state(self, key: SessionKey) -> bytes | None:
        rows = await self._db.fetch(STATE, {"session_key": key})
        return rows[0][0] if rows else None

    async def set_state(self, key: SessionKey, state: bytes, changed: int) -> None:
        row = {"session_key": key, "state": state, "changed": changed}
        await self._db.execute(SET_STATE, row)

    async def changed(self, key: SessionKey) -> int:
        rows = await self._db.fetch(CHANGED, {"session_key": key})
        return int(rows[0][0])

    async def add(self, key: SessionKey, stream: str, records: Iterable[ForeignRecord]) -> None:
        rows = [
            {
                "session_key": key,
                "stream": stream,
                "ordinal": each.ordinal,
                "key": each.key,
                "kind": each.kind,
                "raw": each.raw,
                "disposition": each.disposition.value,
                "message_id": each.message_id,
                "checksum": checksum(each.raw),
            }
            for each in records
        ]
        await self._db.execute_many(ADD, rows)

    async def last(self, key: SessionKey, stream: str) -> int:
        rows = await self._db.fetch(LAST, {"session_key": key, "stream": stream})
        return int(rows[0][0])

    async def after(self, key: SessionKey, stream: str, after: int = 0) -> list[ForeignRecord]:
        asked = {"session_key": key, "stream": stream, "after": after}
        return [_record(row) for row in await self._db.fetch(AFTER, asked)]

    async def of_key(self, key: SessionKey, stream: str, record_key: str) -> list[ForeignRecord]:
        asked = {"session_key": key, "stream": stream, "key": record_key}
        return [_record(row) for row in await self._db.fetch(OF_KEY, asked)]


def _record(row: Row) -> ForeignRecord:
    ordinal, key, kind, raw, disposition, message_id, stored = row
    require_sound(stored, raw, what=f"the foreign record {key}")
    return ForeignRecord(
        ordinal=ordinal,
        key=key,
        kind=kind,
        raw=raw,
        disposition=Disposition(disposition),
        message_id=None if message_id is None else MessageId(message_id),
    )
