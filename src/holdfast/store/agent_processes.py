"""The `programs` table: the agent process record of each session."""

from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.domain.agent_processes import ProcessRecord
from holdfast.domain.ids import SessionKey
from holdfast.store.database import (
    Database,
    Row,
    checksum,
    encode,
    require_sound,
    sound,
    with_row_lock,
)

SAVE = """
-- Insert or replace the agent process of a session.
INSERT INTO programs (session_key, state, body, checksum)
VALUES (:session_key, :state, :body, :checksum)
ON CONFLICT (session_key)
DO UPDATE SET state = excluded.state, body = excluded.body, checksum = excluded.checksum
"""

GET = """
-- The agent process of a session.
SELECT session_key, body, checksum
  FROM programs
 WHERE session_key = :session_key
"""

ALIVE = """
-- Agent processes that were started and have not ended, as far as is known.
SELECT session_key, body, checksum
  FROM programs
 WHERE state IN ('starting', 'ready', 'busy')
 ORDER BY session_key
"""

# Created at import because msgspec prepares a type on first use, which is not thread-safe.
_decoder = msgspec.json.Decoder(ProcessRecord)


class AgentProcessRows:
    """Agent process records in the store."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def save(self, key: SessionKey, process_record: ProcessRecord) -> None:
        body = encode(process_record)
        columns = {"session_key": key, "state": process_record.state.value, "body": body}
        await self._db.execute(SAVE, {**columns, "checksum": checksum(body)})

    async def get(self, key: SessionKey) -> ProcessRecord | None:
        rows = await self._db.fetch(with_row_lock(self._db, GET), {"session_key": key})
        return record_of(rows[0][1], rows[0][2]) if rows else None

    async def alive(self) -> list[tuple[SessionKey, ProcessRecord]]:
        return list(sound(await self._db.fetch(ALIVE), _record_of_row))


def record_of(body: bytes, stored: int) -> ProcessRecord:
    """Decode the record of an agent process; raise for a damaged row."""
    require_sound(stored, body, what="a program")
    process_record = _decoder.decode(body)
    if b'"about":' in body:
        return process_record
    # Before schema 13 `about` had another name, the only one that is not a field.
    former: dict[str, Any] = msgspec.json.decode(body)
    names = former.keys() - set(ProcessRecord.__struct_fields__)
    return replace(process_record, about=former[names.pop()]) if names else process_record


def _record_of_row(row: Row) -> tuple[SessionKey, ProcessRecord]:
    return SessionKey(row[0]), record_of(row[1], row[2])
