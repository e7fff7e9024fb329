"""The `events` table and its retention watermark; forwarded events are not decoded."""

import logging
import re
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache, partial
from itertools import chain, pairwise
from operator import itemgetter
from typing import Final

import msgspec
from msgspec.structs import replace

from holdfast.domain.errors import Internal
from holdfast.domain.events import (
    MISSING,
    PRUNED,
    RETENTION,
    Event,
    Gap,
    MessageAppended,
    decode_payload,
    encode_envelope,
    encode_payload,
    event_id,
    name_of,
)
from holdfast.domain.ids import SessionKey
from holdfast.domain.sessions import SessionState
from holdfast.domain.time import instant, microseconds
from holdfast.ports.system import Frame, Item, end_of
from holdfast.store.database import (
    LAST_NUMBER,
    UUID,
    Database,
    Row,
    checksum,
    corrupt,
    format_id,
    row_key,
    take_within,
)
from holdfast.store.messages import event_checksum

log = logging.getLogger(__name__)
APPENDED = """
-- Messages as events, in the order they were written.
SELECT event, turn, created_at, id, role, sequence, event_checksum
  FROM messages
 WHERE key BETWEEN :first AND :last
 ORDER BY key
 LIMIT :limit
"""


async def first_message_after(
    database: Database, state: SessionState, event: int
) -> tuple[int, int, int]:
    """Return the first candidate message after an event, the first verified one, and its event.

    The two messages differ if damaged messages lie between them. This is a binary search, because
    an index would cost an extra page write on every append and only readers need it.
    """
    low, high = state.inherited + 1, state.messages + 1
    at = state.events + 1
    # Readers are usually near the end, so probe the last message first.
    middle = high - 1
    while low < high:
        number, found = await _sound_near(database, state, range(low, high), middle)
        if number is None:
            break
        if found > event:
            high, at = number, found
        else:
            low = number + 1
        middle = (low + high) // 2
    return low, high, at


async def _sound_near(
    database: Database, state: SessionState, stretch: range, middle: int
) -> tuple[int | None, int]:
    """Return an undamaged message of a range near `middle`, and the number of its event."""
    for number in chain(range(middle, stretch.start - 1, -1), range(middle + 1, stretch.stop)):
        key = row_key(state.key, number)
        found = await database.fetch(APPENDED, {"first": key, "last": key, "limit": 1})
        if not found:
            raise corrupt(f"message {number} of session {state.session_id}")
        try:
            return number, message_event_at(found[0], state)
        except Internal as error:
            log.error("%s", error.message)
    return None, 0


def message_event_at(row: Row, state: SessionState) -> int:
    """Return the event number of a message; 0 if the message has no event in this session."""
    event, stored = row[0], row[-1]
    is_stored = event != 0 or stored != 0
    if not isinstance(event, int) or (is_stored and event_checksum(row[:-1]) != stored):
        raise corrupt(f"event {event} of session {state.session_id}")
    return event


OUTDATED = """
-- Sessions with events past their retention, and the last event of their last expired turn.
SELECT s.key, (SELECT max(e.sequence)
                 FROM events e
                WHERE e.key BETWEEN s.key << 32 AND s.key << 32 | 4294967295
                  AND e.name = 'turn.ended'
                  AND e.turn <= s.settled
                  AND e.at < :before)
  FROM sessions s
 WHERE s.key > :after
   AND (SELECT e.at
          FROM events e
         WHERE e.key BETWEEN s.key << 32 AND s.key << 32 | 4294967295
         ORDER BY e.key
         LIMIT 1) < :before
 ORDER BY s.key
 LIMIT :limit
"""
MARK = """
-- Retention watermark of a log; it never decreases.
INSERT INTO forgotten (session_key, through, checksum)
VALUES (:session_key, :through, :checksum)
    ON CONFLICT (session_key) DO UPDATE
   SET through = excluded.through, checksum = excluded.checksum
 WHERE excluded.through > forgotten.through
"""
REMOVE = """
-- Delete the oldest events up to a number, in batches; messages are stored elsewhere and stay.
DELETE FROM events
 WHERE key IN (SELECT key
                 FROM events
                WHERE key BETWEEN :first AND :last
                ORDER BY key
                LIMIT :limit)
RETURNING 1
"""
REMOVE_DELTAS = REMOVE.replace("FROM events", "FROM deltas")
THROUGH = """
-- Retention watermark of a log.
SELECT through, checksum
  FROM forgotten
 WHERE session_key = :session_key
"""


async def find_outdated(
    database: Database, before: datetime, after: SessionKey, limit: int
) -> Sequence[tuple[SessionKey, int | None]]:
    """Return sessions with expired events in key order, and the last event to delete in each."""
    parameters = {"before": microseconds(before), "after": after, "limit": limit}
    return [
        (SessionKey(key), through) for key, through in await database.fetch(OUTDATED, parameters)
    ]


async def forget(database: Database, key: SessionKey, through: int, limit: int) -> int:
    """Delete some of a session's events up to a number; return how many."""
    mark = {"session_key": key, "through": through, "checksum": _watermark_checksum(key, through)}
    await database.execute(MARK, mark)
    parameters = {"first": row_key(key, 0), "last": row_key(key, through), "limit": limit}
    removed = len(await database.fetch(REMOVE_DELTAS, parameters))
    rest = {**parameters, "limit": limit - removed}
    return removed + len(await database.fetch(REMOVE, rest))


async def forgotten_through(database: Database, state: SessionState) -> int:
    """Return the number up to which events may have been deleted; 0 if the log is complete."""
    rows = await database.fetch(THROUGH, {"session_key": state.key})
    if not rows:
        return 0
    through, stored = rows[0]
    if _watermark_checksum(state.key, through) != stored:
        raise corrupt(f"the event retention record of session {state.session_id}")
    return int(through)


def _watermark_checksum(key: int, through: int) -> int:
    return checksum(f"{key}|{through}")


AFTER = """
-- Events after a cursor, in the order they were written.
SELECT key, turn, at, name, ids, payload, checksum
  FROM stored_events
 WHERE key BETWEEN :first AND :last
 ORDER BY key
 LIMIT :limit
"""
AFTER_SIZES = """
-- Size of the events after a cursor, without reading them.
SELECT length(payload), key
  FROM stored_events
 WHERE key BETWEEN :first AND :last
 ORDER BY key
 LIMIT :limit
"""
AT = """
-- One event.
SELECT key, turn, at, name, ids, payload, checksum
  FROM stored_events
 WHERE key = :key
"""
STEP_BEFORE = """
-- The last event of a step before a number.
SELECT name, turn, ids, key
  FROM stored_events
 WHERE key BETWEEN :first AND :last
   AND substr(name, 1, 5) = 'step.'
 ORDER BY key DESC
 LIMIT 1
"""
STEP_AFTER = """
-- The first event of a step after a number.
SELECT name, turn, ids, key
  FROM stored_events
 WHERE key BETWEEN :first AND :last
   AND substr(name, 1, 5) = 'step.'
 ORDER BY key
 LIMIT 1
"""
PRUNE = """
-- Delete the deltas of turns that ended some time ago: their messages have the text.
DELETE FROM deltas
 WHERE key IN (SELECT d.key
                 FROM deltas d
                 JOIN sessions s ON s.key = d.session_key
                WHERE d.at < :before
                  AND d.turn <= s.settled
                ORDER BY d.at
                LIMIT :limit)
RETURNING 1
"""
# Memory limit of a page, independent of the number of events.
PAGE_BYTES: Final = 1 << 20
# A gap between these two can only be pruned deltas: nothing else is deleted mid-log.
_OPENS_STEP: Final = frozenset({"step.started", "step.delta"})
_CLOSES_STEP: Final = frozenset({"step.delta", "step.ended", "step.failed"})
_APPENDED_NAME: Final = name_of(MessageAppended)
# Replaces the checksum of rows that were already verified, or whose pages are authenticated.
_PROVEN: Final = object()


# Ids that may follow the event name in a payload; each is stored as 16 bytes.
_IDS: Final = re.compile(f',"message_id":"({UUID})"(?:,"model_id":"({UUID})")?'.encode())
ID_BYTES: Final = 16
# Every turn has these. Their frequent fields are stored as one byte each, which JSON never has; the
# view `session_events` has the same list.
_SHORTENED: Final = frozenset({"step.started", "step.ended", "turn.ended"})
_FIELDS: Final = (
    (b',"step":', b"\1"),
    (b',"model":"', b"\2"),
    (b',"stop_reason":"stop"', b"\3"),
    (b',"usage":{"input":', b"\4"),
    (b',"output":', b"\5"),
    (b',"cache_read":', b"\6"),
    (b',"microcents":', b"\7"),
    (b',"priced":', b"\10"),
)


def split_payload(name: str, payload: bytes) -> tuple[bytes | None, bytes]:
    """Split a payload into its leading ids and the stored rest after the event name and the ids."""
    start = len(_payload_start(name))
    found = _IDS.match(payload, start)
    ids = None
    if found is not None:
        ids = bytes.fromhex(b"".join(found.groups(b"")).replace(b"-", b"").decode())
        start = found.end()
    rest = payload[start:]
    if name in _SHORTENED:
        for field, short in _FIELDS:
            rest = rest.replace(field, short)
    return ids, rest


def join_payload(name: str, ids: bytes | None, rest: bytes) -> bytes:
    """Rebuild the payload that `split_payload` has split."""
    if name in _SHORTENED:
        for field, short in _FIELDS:
            rest = rest.replace(short, field)
    if not ids:
        return _payload_start(name) + rest
    fields = f',"message_id":"{format_id(ids[:ID_BYTES])}"'
    if len(ids) > ID_BYTES:
        fields += f',"model_id":"{format_id(ids[ID_BYTES:])}"'
    return _payload_start(name) + fields.encode() + rest


@lru_cache(maxsize=256)
def _payload_start(name: str) -> bytes:
    return b'{"type":"%b"' % name.encode()


class EventRows:
    """Events in the store."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._whole = partial(_whole, checks=database.checks_rows)

    async def after(self, state: SessionState, sequence: int, *, limit: int) -> list[Frame]:
        parameters = _range(state, sequence + 1) | {"limit": limit}
        found, is_all = await self._db.fetch_within(
            AFTER, AFTER_SIZES, parameters, PAGE_BYTES, take_within(PAGE_BYTES)
        )
        stored = [self._whole(row) for row in found]
        appended = await self._newest(state, sequence, limit, len(stored)) if is_all else None
        if appended is None:
            appended = await self._messages_as_events(state, sequence, limit, stored)
        # Both lists are sorted, and no event number is in both.
        rows = _merge(stored, appended, state, after=sequence)[:limit]
        if not is_all:
            # Events after the last row read may be preceded by rows that were left out.
            rows = [row for row in rows if row[0] <= stored[-1][0]]
        frames: list[Frame] = []
        size = 0
        for row in rows:
            frame = _frame(row, state)
            size += len(frame.envelope)
            if frames and size > PAGE_BYTES:
                break
            frames.append(frame)
        return frames

    async def items(self, state: SessionState, after: int, limit: int) -> list[Item]:
        """Return the events after a number; a gap with its reason replaces missing ones."""
        if state.events <= after:
            return []
        frames = await self.after(state, after, limit=limit)
        items = _cover(frames, after, state.events)
        last = end_of(items[-1])
        # A page ends early at its size limit, or where all later events were pruned.
        is_early = last < state.events and len(frames) < limit
        if is_early and not await self.after(state, last, limit=1):
            items.append(Gap(from_sequence=last + 1, to_sequence=state.events))
        for place, item in enumerate(items):
            if isinstance(item, Gap):
                reason = await self.missing(state, item.from_sequence, item.to_sequence)
                items[place] = replace(item, reason=reason)
        return items

    async def since(self, state: SessionState, sequence: int, names: Sequence[str]) -> list[Event]:
        rows = await self._rows(state, sequence - 1, -1)
        # Check all rows, because damage may have changed a name that the caller asks for.
        for row in rows:
            _require_sound(row, state)
        return [_event(row, state) for row in rows if row[3] in names]

    async def at(self, state: SessionState, sequence: int) -> Frame | None:
        place = {"key": row_key(state.key, sequence)}
        rows = [self._whole(row) for row in await self._db.fetch(AT, place)]
        if not rows:
            rows = [
                row
                for row in await self._messages_as_events(state, sequence - 1, 1)
                if row[0] == sequence
            ]
        return _frame(rows[0], state) if rows else None

    async def damaged(self, state: SessionState) -> list[int]:
        """Return the numbers of all damaged events."""
        stored = await self._rows(state, 0, -1)
        found = [row[0] for row in stored if not _is_sound(row)]
        everything = _range(state, state.inherited + 1) | {"limit": -1}
        for row in await self._db.fetch(APPENDED, everything):
            # Rows copied into a fork when it was detached have no event in this session.
            if (row[0] != 0 or row[-1] != 0) and event_checksum(row[:-1]) != row[-1]:
                found.append(row[0])
        # Sort as strings, because a damaged number may have any type.
        return sorted(found, key=str)

    async def missing(self, state: SessionState, first: int, last: int) -> str:
        if await self._is_inside_step(state, first, last):
            return PRUNED
        return RETENTION if last <= await forgotten_through(self._db, state) else MISSING

    async def _is_inside_step(self, state: SessionState, first: int, last: int) -> bool:
        before = await self._db.fetch(STEP_BEFORE, _range(state, 0, first - 1))
        after = await self._db.fetch(STEP_AFTER, _range(state, last + 1))
        return bool(before and after) and _are_of_one_step(before[0], after[0])

    async def prune(self, before: datetime, *, limit: int) -> int:
        rows = await self._db.fetch(PRUNE, {"before": microseconds(before), "limit": limit})
        return len(rows)

    async def outdated(
        self, before: datetime, *, after: SessionKey, limit: int
    ) -> Sequence[tuple[SessionKey, int | None]]:
        return await find_outdated(self._db, before, after, limit)

    async def forget(self, key: SessionKey, through: int, *, limit: int) -> int:
        return await forget(self._db, key, through, limit)

    async def _rows(self, state: SessionState, after: int, limit: int) -> list[Row]:
        parameters = _range(state, after + 1) | {"limit": limit}
        return [self._whole(row) for row in await self._db.fetch(AFTER, parameters)]

    async def _newest(
        self, state: SessionState, after: int, limit: int, stored: int
    ) -> list[Row] | None:
        """Return the messages up to the end of the log, or None if a search is required.

        Event numbers are dense: a number without a stored event is a message, unless it was pruned.
        """
        missing = state.events - after - stored
        first = state.messages - missing + 1
        is_whole = state.events > after and 0 <= missing <= limit and stored < limit
        if not is_whole or first <= state.inherited:
            return None
        rows = await self._read_message_events(state, first, missing) if missing else []
        # If the first event is too old, the count included pruned events; fall back to the search.
        return rows if not rows or rows[0][0] > after else None

    async def _messages_as_events(
        self, state: SessionState, after: int, limit: int, stored: Sequence[Row] = ()
    ) -> list[Row]:
        """Return messages as event rows; `stored` holds the other events after the same number."""
        first, proven, event = await first_message_after(self._db, state, after)
        # Numbers are dense: if all of them are taken, no damaged message has an event here.
        others = range(after + 1, event)[: max(limit, 0)]
        if first < proven and {row[0] for row in stored}.issuperset(others):
            first = proven
        return (
            await self._read_message_events(state, first, limit) if first <= state.messages else []
        )

    async def _read_message_events(self, state: SessionState, first: int, limit: int) -> list[Row]:
        rows = await self._db.fetch(APPENDED, _range(state, first) | {"limit": limit})
        # Message numbers are dense: a missing message must not be reported as pruned.
        for number, row in enumerate(rows, start=first):
            if row[5] != number:
                raise corrupt(f"message {number} of session {state.session_id}")
        if len(rows) < min(limit, state.messages - first + 1):
            raise corrupt(f"message {first + len(rows)} of session {state.session_id}")
        return [_message_event(row, state) for row in rows]


def _range(state: SessionState, first: int, last: int = LAST_NUMBER) -> dict[str, int]:
    """Return the first and the last key for a range of numbers of a session."""
    return {"first": row_key(state.key, first), "last": row_key(state.key, last)}


def _are_of_one_step(before: Row, after: Row) -> bool:
    """Return whether only deltas can have been between two events of steps."""
    opens, turn, ids, _ = before
    closes, later_turn, later_ids, _ = after
    # Not every event of a step names its message; if both do, the ids must be equal.
    is_same = not ids or not later_ids or ids[:ID_BYTES] == later_ids[:ID_BYTES]
    return opens in _OPENS_STEP and closes in _CLOSES_STEP and turn == later_turn and is_same


def _whole(row: Row, *, checks: bool) -> Row:
    """Return a stored row with its number and its payload, which is None if a column is damaged."""
    key, turn, at, name, ids, rest, stored = row
    has_ids = ids is None or isinstance(ids, bytes)
    is_whole = has_ids and isinstance(name, str) and isinstance(rest, bytes)
    payload = join_payload(name, ids, rest) if is_whole else None
    return key & LAST_NUMBER, turn, at, name, payload, stored if checks else _PROVEN


def _merge(stored: list[Row], appended: list[Row], state: SessionState, *, after: int) -> list[Row]:
    """Merge both kinds of events in order; raise for a duplicate or out-of-order number."""
    try:
        rows = sorted(stored + appended, key=itemgetter(0))
        numbers = [after, *(row[0] for row in stored)]
        in_order = all(one < next_one for one, next_one in pairwise(numbers))
        doubled = any(one[0] == next_one[0] for one, next_one in pairwise(rows))
    except TypeError as error:
        # Only damage can give a number that is not an integer.
        raise corrupt(f"an event of session {state.session_id}") from error
    if not in_order or doubled:
        raise corrupt(f"an event of session {state.session_id}")
    return rows


def _message_event(row: Row, state: SessionState) -> Row:
    message_event_at(row, state)
    event, turn, at, message_id, role, sequence, _ = row
    payload_value = MessageAppended(message_id=format_id(message_id), role=role, sequence=sequence)
    payload = encode_payload(payload_value)
    # Verified above from other columns, so this payload has no checksum of its own.
    return event, turn or None, at, _APPENDED_NAME, payload, _PROVEN


def event_sum(columns: Row, payload: bytes) -> int:
    """Return the checksum of an event over sequence, turn, time, name and payload."""
    sequence, turn, at, name = columns
    return checksum(f"{sequence}|{turn}|{at}|{name}", payload)


def _is_sound(row: Row) -> bool:
    return isinstance(row[4], bytes) and (row[5] is _PROVEN or event_sum(row[:4], row[4]) == row[5])


def _require_sound(row: Row, state: SessionState) -> None:
    if not _is_sound(row):
        raise corrupt(f"event {row[0]} of session {state.session_id}")


def _frame(row: Row, state: SessionState) -> Frame:
    """Build the envelope around the stored payload without decoding it."""
    _require_sound(row, state)
    sequence, turn, at, _, payload, _ = row
    return Frame(sequence, encode_envelope(state.session_id, sequence, turn, at, payload))


def _event(row: Row, state: SessionState) -> Event:
    sequence, turn, at, _, payload, _ = row
    when = instant(at)
    try:
        return Event(
            id=event_id(state.session_id, sequence, when),
            session_id=state.session_id,
            sequence=sequence,
            turn=turn,
            at=when,
            payload=decode_payload(payload),
        )
    except (msgspec.MsgspecError, RecursionError) as error:
        raise corrupt(f"event {sequence} of session {state.session_id}") from error


def _cover(frames: list[Frame], after: int, last: int) -> list[Item]:
    """Return the events with a gap in place of all missing numbers."""
    items: list[Item] = []
    for frame in frames:
        if frame.sequence > after + 1:
            items.append(Gap(from_sequence=after + 1, to_sequence=frame.sequence - 1))
        items.append(frame)
        after = frame.sequence
    if not frames and last > after:
        items.append(Gap(from_sequence=after + 1, to_sequence=last))
    return items
