"""The `messages` table; every row is verified against the hash chain before it is returned."""

import sys
from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256
from typing import Final
from zlib import crc32

import msgspec

from holdfast.domain.ids import MessageId, SessionId, is_uuid
from holdfast.domain.messages import CHAIN_START, Message, Role, decode_parts
from holdfast.domain.sessions import SessionState
from holdfast.ports.store import Segment
from holdfast.store.database import (
    DAMAGE,
    Database,
    Parameters,
    Row,
    corrupt,
    format_id,
    pack_id,
    paused_collector,
    row_key,
    take_within,
)

BY_ID = """
-- One row by its id, and the hash of the row before it.
SELECT m.sequence, m.id, m.turn, m.role, m.parts, m.model_id, m.created_at, m.hash,
       (SELECT p.hash
          FROM messages p
         WHERE p.key = m.key - 1)
  FROM messages m
 WHERE m.session_key = :session_key
   AND m.id = :id
"""

HASH_AT = """
-- The hash of one row.
SELECT hash
  FROM messages
 WHERE key = :key
"""

NUMBER_OF = """
-- The number of a row by its id, without the index.
SELECT sequence
  FROM messages NOT INDEXED
 WHERE session_key = :session_key
   AND id = :id
"""

OLDEST = """
-- Rows of a range, oldest first.
SELECT sequence, id, turn, role, parts, model_id, created_at, hash
  FROM messages
 WHERE key BETWEEN :first AND :last
 ORDER BY key
 LIMIT :limit
"""

NEWEST = """
-- Rows of a range, newest first.
SELECT sequence, id, turn, role, parts, model_id, created_at, hash
  FROM messages
 WHERE key BETWEEN :first AND :last
 ORDER BY key DESC
 LIMIT :limit
"""

OLDEST_SIZES = """
-- Sizes of rows of a range, oldest first, without reading their contents.
SELECT length(parts)
  FROM messages
 WHERE key BETWEEN :first AND :last
 ORDER BY key
 LIMIT :limit
"""

NEWEST_SIZES = """
-- Sizes of rows of a range, newest first, without reading their contents.
SELECT length(parts)
  FROM messages
 WHERE key BETWEEN :first AND :last
 ORDER BY key DESC
 LIMIT :limit
"""

ANCHOR = """
-- The hash that the first row of a fork links to; its parent may have inherited that row.
WITH RECURSIVE line (key, sequence, depth) AS (
    SELECT forked_key, forked_at, 0
      FROM sessions
     WHERE key = :session_key
     UNION ALL
    SELECT s.forked_key, line.sequence, line.depth + 1
      FROM sessions s
      JOIN line ON s.key = line.key
)
SELECT p.hash
  FROM line
  JOIN messages p ON p.key = line.key << 32 | line.sequence
 ORDER BY line.depth
 LIMIT 1
"""

DEEDS = """
-- Results, notices and checkpoint calls of a session, each with the hash of the row before it.
SELECT m.sequence, m.id, m.turn, m.role, m.parts, m.model_id, m.created_at, m.hash,
       (SELECT p.hash
          FROM messages p
         WHERE p.key = m.key - 1)
  FROM messages m
 WHERE m.key BETWEEN :first AND :last
   AND (m.role IN ('tool_result', 'system')
        OR m.sequence IN (SELECT c.sequence
                            FROM calls c
                           WHERE c.session_key = :session_key
                             AND c.name = 'checkpoint'))
 ORDER BY m.key
"""

_ROLES = {role.value: role for role in Role}


class MessageRows:
    """Messages in the store."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def by_id(self, state: SessionState, message_id: MessageId) -> Message | None:
        if not is_uuid(message_id):
            return None
        parameters = {"session_key": state.key, "id": pack_id(message_id)}
        try:
            rows = await self._db.fetch(BY_ID, parameters)
        except DAMAGE:
            return await self._found_by_id(state, parameters)
        if not rows:
            return None
        *columns, previous = rows[0]
        if previous is None:
            previous = await self._hash_before(state.key, columns[0])
        return _read([tuple(columns)], state.session_id, previous, _only(columns[0]))[0]

    async def span(
        self,
        segment: Segment,
        *,
        limit: int,
        newest: bool = False,
        size: int | None = None,
        previous: bytes | None = None,
    ) -> list[Message]:
        wanted = _range_to_read(segment, limit, newest=newest)
        if not wanted:
            return []
        parameters = {
            "first": row_key(segment.key, segment.first),
            "last": row_key(segment.key, segment.last),
            "limit": limit,
        }
        try:
            if size is None:
                rows = await self._db.fetch(NEWEST if newest else OLDEST, parameters)
            elif newest:
                take = take_within(size)
                rows, _ = await self._db.fetch_within(NEWEST, NEWEST_SIZES, parameters, size, take)
                wanted = wanted[-max(1, len(rows)) :]
            else:
                before = previous or await self._hash_before(segment.key, wanted.start)
                return await self._db.fetch_within(
                    OLDEST,
                    OLDEST_SIZES,
                    parameters,
                    size,
                    lambda rows: _read(rows, segment.session_id, before, wanted, size),
                )
        except DAMAGE:
            # One row at a time if the size is bounded, because the size of a damaged row is
            # unknown.
            if size is not None:
                wanted = wanted[-1:] if newest else wanted[:1]
            rows = await self._fetch_around_damage(segment.key, wanted)
        else:
            if newest:
                rows.reverse()
        before = previous or await self._hash_before(segment.key, wanted.start)
        return _read(rows, segment.session_id, before, wanted)

    async def _fetch_around_damage(self, key: int, wanted: range) -> list[Row]:
        """Return the readable rows of a range, bisecting around damaged pages."""
        if not wanted:
            return []
        first, last = row_key(key, wanted.start), row_key(key, wanted.stop - 1)
        try:
            return await self._db.fetch(OLDEST, {"first": first, "last": last, "limit": -1})
        except DAMAGE:
            if len(wanted) == 1:
                return []
        middle = wanted.start + len(wanted) // 2
        return [
            *await self._fetch_around_damage(key, range(wanted.start, middle)),
            *await self._fetch_around_damage(key, range(middle, wanted.stop)),
        ]

    async def deeds(self, state: SessionState) -> list[Message]:
        parameters = {
            "session_key": state.key,
            "first": row_key(state.key, state.inherited + 1),
            "last": row_key(state.key, state.messages),
        }
        found = []
        for *columns, hash_ in await self._db.fetch(DEEDS, parameters):
            previous = hash_ or await self._hash_before(state.key, columns[0])
            found += _read([tuple(columns)], state.session_id, previous, _only(columns[0]))
        return found

    async def _found_by_id(self, state: SessionState, parameters: Parameters) -> Message | None:
        """Return a message when a damaged page prevents the normal lookup."""
        numbers = await self._db.fetch(NUMBER_OF, parameters)
        if not numbers:
            return None
        (number,) = numbers[0]
        segment = Segment(key=state.key, session_id=state.session_id, first=number, last=number)
        return (await self.span(segment, limit=1))[0]

    async def _hash_before(self, key: int, sequence: int) -> object:
        if sequence == 1:
            return CHAIN_START
        rows = await self._db.fetch(HASH_AT, {"key": row_key(key, sequence - 1)})
        if not rows:
            rows = await self._db.fetch(ANCHOR, {"session_key": key})
        return rows[0][0] if rows else b""


def _only(number: int) -> range:
    return range(number, number + 1)


def _range_to_read(segment: Segment, limit: int, *, newest: bool) -> range:
    """Return the message numbers that a query over the segment must return."""
    there = max(segment.last - segment.first + 1, 0)
    wanted = there if limit < 0 else min(limit, there)
    first = segment.last - wanted + 1 if newest else segment.first
    return range(first, first + wanted)


def event_checksum(event_row: Row) -> int:
    """Return the checksum of a message's event: event, turn, time, id, role and number."""
    event, turn, at, message_id, role, sequence = event_row
    id_ = format_id(message_id) if isinstance(message_id, bytes) else message_id
    return crc32(f"{event}|{turn}|{at}|{id_}|{role}|{sequence}".encode())


def _read(
    rows: Iterable[Row],
    session_id: SessionId,
    previous: object,
    numbers: range,
    size: int | None = None,
) -> list[Message]:
    """Verify and decode consecutive rows in one pass, up to a size, at least one.

    Raises at the first row that is missing or breaks the hash chain.
    """
    # A damaged anchor may have any type; with empty bytes the first row fails verification.
    before = previous if isinstance(previous, bytes) else b""
    left = sys.maxsize if size is None else size
    messages: list[Message] = []
    number = numbers.start
    try:
        with paused_collector():
            for sequence, id_, turn, role, parts, model, at, hash_ in rows:
                message_id = format_id(id_)
                model_id = None if model is None else _spelled(model)
                # As in `hash_row`, whose call for each row would take a tenth of the read time.
                text = f"{message_id}|{sequence}|{turn}|{role}|{model_id or ''}|{at}|"
                # Verify before decoding, so that unverified bytes are never parsed.
                if (
                    # Numbers are dense, so a gap is damage.
                    sequence != number
                    or type(parts) is not bytes
                    or sha256(before + text.encode() + parts).digest() != hash_
                ):
                    raise corrupt(f"message {number} of session {session_id}")
                left -= len(parts)
                if left < 0 and messages:
                    return messages
                before = hash_
                message = Message(
                    id=message_id,
                    session_id=session_id,
                    sequence=sequence,
                    turn=turn,
                    role=_ROLES[role],
                    parts=decode_parts(parts),
                    model_id=model_id,
                    at=at,
                    chain=hash_,
                )
                messages.append(message)
                number += 1
    except (msgspec.MsgspecError, KeyError, RecursionError, UnicodeDecodeError) as error:
        raise corrupt(f"message {number} of session {session_id}") from error
    # With a size, the rows that are missing here are missed by the next read.
    if not messages or (size is None and number < numbers.stop):
        raise corrupt(f"message {number} of session {session_id}")
    return messages


# Cached, because few model ids occur in many rows.
_spelled: Final = lru_cache(maxsize=256)(format_id)
