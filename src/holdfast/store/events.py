"""The `events` table and its retention watermark; forwarded events are not decoded."""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cache
from itertools import chain, pairwise
from operator import itemgetter
from typing import Final

import msgspec

from holdfast.domain.errors import Internal
from holdfast.domain.events import (
    MISSING,
    PRUNED,
    RETENTION,
    Event,
    MessageAppended,
    StepDelta,
    decode_payload,
    encode_payload,
    event_id,
    event_id_at,
    name_of,
)
from holdfast.domain.ids import SessionKey
from holdfast.domain.sessions import SessionState
from holdfast.domain.time import instant, microseconds
from holdfast.ports import Frame
from holdfast.store.database import (
    APPENDED_FOUND,
    TOLD_OF_FOUND,
    Database,
    Row,
    checksum,
    corrupt,
    fetch_rows,
    format_id,
)
from holdfast.store.event_encoding import ID_BYTES, divided, joined, stored_payload
from holdfast.store.messages import told

log = logging.getLogger(__name__)
TOLD_OF = """
-- One message as news.
SELECT event, turn, created_at, id, role, sequence, told
  FROM messages
 WHERE session_key = :session_key
   AND sequence = :sequence
"""


async def first_message_after(
    database: Database, head: SessionState, event: int
) -> tuple[int, int, int]:
    """Return the first message that may be told after an event, the first that is, and when.

    They differ where damaged ones stand between. The stretch is halved, because an index that
    answers at once would cost every append a page that only readers need.
    """
    low, high = head.inherited + 1, head.messages + 1
    at = head.events + 1
    # Readers are mostly at the end, so the end is asked first.
    middle = high - 1
    while low < high:
        number, found = await _sound_near(database, head, range(low, high), middle)
        if number is None:
            break
        if found > event:
            high, at = number, found
        else:
            low = number + 1
        middle = (low + high) // 2
    return low, high, at


async def _sound_near(
    database: Database, head: SessionState, stretch: range, middle: int
) -> tuple[int | None, int]:
    """Return a message of a stretch that can be believed, and when it was told."""
    for number in chain(range(middle, stretch.start - 1, -1), range(middle + 1, stretch.stop)):
        row = {"session_key": head.key, "sequence": number}
        found = await fetch_rows(database, TOLD_OF, TOLD_OF_FOUND, row)
        if not found:
            raise corrupt(f"message {number} of session {head.session_id}")
        try:
            return number, message_event_at(found[0], head)
        except Internal as error:
            log.error("%s", error.message)
    return None, 0


def message_event_at(row: Row, head: SessionState) -> int:
    """Return the number of the event that tells of a message; 0 if none tells of it here."""
    event, stored = row[0], row[-1]
    is_told = event != 0 or stored != 0
    if not isinstance(event, int) or (is_told and told(row[:-1]) != stored):
        raise corrupt(f"event {event} of session {head.session_id}")
    return event


OUTDATED = """
-- Sessions whose first news are old, and where the last of their old turns ended.
SELECT s.key, (SELECT max(e.sequence)
                 FROM events e
                WHERE e.session_key = s.key
                  AND e.stays = 1
                  AND e.name = 'turn.ended'
                  AND e.turn <= s.settled
                  AND e.at < :before)
  FROM sessions s
 WHERE s.key > :after
   AND (SELECT e.at
          FROM events e
         WHERE e.session_key = s.key
           AND e.stays = 1
         ORDER BY e.sequence
         LIMIT 1) < :before
 ORDER BY s.key
 LIMIT :limit
"""
MARK = """
-- How far a log is forgotten; never less far than before.
INSERT INTO forgotten (session_key, through, checksum)
VALUES (:session_key, :through, :checksum)
    ON CONFLICT (session_key) DO UPDATE
   SET through = excluded.through, checksum = excluded.checksum
 WHERE excluded.through > forgotten.through
"""
REMOVE = """
-- The oldest news up to a number, a few at a time; messages are news of their own and stay.
DELETE FROM events
 WHERE (session_key, stays, sequence) IN (
       SELECT session_key, stays, sequence
         FROM events
        WHERE session_key = :session_key
          AND sequence <= :through
        ORDER BY stays, sequence
        LIMIT :limit)
RETURNING 1
"""
THROUGH = """
-- How far a log is forgotten.
SELECT through, checksum
  FROM forgotten
 WHERE session_key = :session_key
"""


async def outdated(
    database: Database, before: datetime, after: SessionKey, limit: int
) -> Sequence[tuple[SessionKey, int | None]]:
    """Return sessions with old news, in the order of their keys, and through what they may go."""
    asked = {"before": microseconds(before), "after": after, "limit": limit}
    return [(SessionKey(key), through) for key, through in await database.fetch(OUTDATED, asked)]


async def forget(database: Database, key: SessionKey, through: int, limit: int) -> int:
    """Remove some of a session's news up to a number; return how many."""
    mark = {"session_key": key, "through": through, "checksum": _watermark_checksum(key, through)}
    await database.execute(MARK, mark)
    asked = {"session_key": key, "through": through, "limit": limit}
    return len(await database.fetch(REMOVE, asked))


async def forgotten_through(database: Database, head: SessionState) -> int:
    """Return up to which number a log may lack anything; 0 if it is whole."""
    rows = await database.fetch(THROUGH, {"session_key": head.key})
    if not rows:
        return 0
    through, stored = rows[0]
    if _watermark_checksum(head.key, through) != stored:
        raise corrupt(f"what session {head.session_id} has forgotten")
    return int(through)


def _watermark_checksum(key: int, through: int) -> int:
    return checksum(f"{key}|{through}")


APPEND = """
-- The next pieces of news.
INSERT INTO events (session_key, stays, sequence, turn, at, name, ids, payload, checksum)
VALUES """
_ROW: Final = (
    "(:session_key, :stays_{0}, :sequence_{0}, :turn_{0}, :at_{0}, :name_{0}, :ids_{0},"
    " :payload_{0}, :checksum_{0})"
)
AFTER = """
-- News after a cursor, in the order it was written.
SELECT sequence, turn, at, name, ids, payload, checksum
  FROM news
 WHERE session_key = :session_key
   AND sequence > :after
 ORDER BY sequence
 LIMIT :limit
"""
AFTER_SIZES = """
-- How large news after a cursor is; it is not read.
SELECT length(payload)
  FROM news
 WHERE session_key = :session_key
   AND sequence > :after
 ORDER BY sequence
 LIMIT :limit
"""
APPENDED = """
-- Messages as news, in the order they were written.
SELECT event, turn, created_at, id, role, sequence, told
  FROM messages
 WHERE session_key = :session_key
   AND sequence >= :first
 ORDER BY sequence
 LIMIT :limit
"""
AT = """
-- One piece of news.
SELECT sequence, turn, at, name, ids, payload, checksum
  FROM news
 WHERE session_key = :session_key
   AND sequence = :sequence
"""
STEP_BEFORE = """
-- The last event of a step before a number.
SELECT name, turn, ids
  FROM news
 WHERE session_key = :session_key
   AND sequence < :sequence
   AND substr(name, 1, 5) = 'step.'
 ORDER BY sequence DESC
 LIMIT 1
"""
STEP_AFTER = """
-- The first event of a step after a number.
SELECT name, turn, ids
  FROM news
 WHERE session_key = :session_key
   AND sequence > :sequence
   AND substr(name, 1, 5) = 'step.'
 ORDER BY sequence
 LIMIT 1
"""
PRUNE = """
-- Deltas of turns that have ended some time ago: their messages hold the text.
DELETE FROM events
 WHERE (session_key, stays, sequence) IN (
       SELECT e.session_key, e.stays, e.sequence
         FROM events e
         JOIN sessions s ON s.key = e.session_key
        WHERE e.name = 'step.delta'
          AND e.at < :before
          AND e.turn <= s.settled
        ORDER BY e.at
        LIMIT :limit)
RETURNING 1
"""
# What a reader may hold at most, whatever the number of events.
PAGE_BYTES: Final = 1 << 20
# Between these two a delta can have stood, and nothing else goes from the middle of a log.
_OPENS_STEP: Final = frozenset({"step.started", "step.delta"})
_CLOSES_STEP: Final = frozenset({"step.delta", "step.ended", "step.failed"})
_APPENDED_NAME: Final = name_of(MessageAppended)
_DELTA_NAME: Final = name_of(StepDelta)
# In the place of a checksum, where a row was held against another one already.
_PROVEN: Final = object()
# Without a zone, because it is spelled `Z` and not as an offset.
_EPOCH: Final = datetime(1970, 1, 1)
_AT_ONCE: Final = 16


@cache
def _append_sql(count: int) -> str:
    """Return the statement for so many pieces of news; names come from here, values are bound."""
    return APPEND + ",\n       ".join(_ROW.format(place) for place in range(count))


class EventRows:
    """The news in the store."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def append(self, key: int, events: Sequence[Event]) -> None:
        # All in one statement, because to begin one takes longer than a row.
        for start in range(0, len(events), _AT_ONCE):
            rows = events[start : start + _AT_ONCE]
            parameters: dict[str, object] = {"session_key": key}
            for place, event in enumerate(rows):
                _bind(parameters, place, event)
            await self._db.execute(_append_sql(len(rows)), parameters)

    async def after(self, head: SessionState, sequence: int, *, limit: int) -> list[Frame]:
        asked = {"session_key": head.key, "after": sequence, "limit": limit}
        found, is_cut = await self._db.fetch_within(AFTER, AFTER_SIZES, asked, PAGE_BYTES)
        stored = [_whole(row) for row in found]
        appended = None if is_cut else await self._newest(head, sequence, limit, len(stored))
        if appended is None:
            appended = await self._appended(head, sequence, limit, stored)
        # Both come in order, and no number is in both.
        rows = _merged(stored, appended, head, after=sequence)[:limit]
        if is_cut:
            # What is behind the last row that was read may have others before it.
            rows = [row for row in rows if row[0] <= stored[-1][0]]
        frames: list[Frame] = []
        size = 0
        for row in rows:
            frame = _frame(row, head)
            size += len(frame.envelope)
            if frames and size > PAGE_BYTES:
                break
            frames.append(frame)
        return frames

    async def since(self, head: SessionState, sequence: int, names: Sequence[str]) -> list[Event]:
        rows = await self._rows(head, sequence - 1, -1)
        # All are checked, because damage may have hidden a name that is asked for.
        for row in rows:
            _require_sound(row, head)
        return [_event(row, head) for row in rows if row[3] in names]

    async def at(self, head: SessionState, sequence: int) -> Frame | None:
        place = {"session_key": head.key, "sequence": sequence}
        rows = [_whole(row) for row in await self._db.fetch(AT, place)]
        if not rows:
            rows = [
                row for row in await self._appended(head, sequence - 1, 1) if row[0] == sequence
            ]
        return _frame(rows[0], head) if rows else None

    async def damaged(self, head: SessionState) -> list[int]:
        """Return the numbers of all events that are not what was written."""
        stored = await self._rows(head, 0, -1)
        found = [row[0] for row in stored if not _is_sound(row)]
        everything = {"session_key": head.key, "first": head.inherited + 1, "limit": -1}
        for row in await self._db.fetch(APPENDED, everything):
            # Rows that a fork took over when it was detached tell nothing here.
            if (row[0] != 0 or row[-1] != 0) and told(row[:-1]) != row[-1]:
                found.append(row[0])
        # Damage may have made a number into anything.
        return sorted(found, key=str)

    async def missing(self, head: SessionState, first: int, last: int) -> str:
        if await self._is_inside_step(head, first, last):
            return PRUNED
        return RETENTION if last <= await forgotten_through(self._db, head) else MISSING

    async def _is_inside_step(self, head: SessionState, first: int, last: int) -> bool:
        before = await self._db.fetch(STEP_BEFORE, {"session_key": head.key, "sequence": first})
        after = await self._db.fetch(STEP_AFTER, {"session_key": head.key, "sequence": last})
        return bool(before and after) and _are_of_one_step(before[0], after[0])

    async def prune(self, before: datetime, *, limit: int) -> int:
        rows = await self._db.fetch(PRUNE, {"before": microseconds(before), "limit": limit})
        return len(rows)

    async def outdated(
        self, before: datetime, *, after: SessionKey, limit: int
    ) -> Sequence[tuple[SessionKey, int | None]]:
        return await outdated(self._db, before, after, limit)

    async def forget(self, key: SessionKey, through: int, *, limit: int) -> int:
        return await forget(self._db, key, through, limit)

    async def _rows(self, head: SessionState, after: int, limit: int) -> list[Row]:
        parameters = {"session_key": head.key, "after": after, "limit": limit}
        return [_whole(row) for row in await self._db.fetch(AFTER, parameters)]

    async def _newest(
        self, head: SessionState, after: int, limit: int, stored: int
    ) -> list[Row] | None:
        """Return the messages up to the log's end; nothing where only a search can tell.

        Numbers are dense: what is not stored as news is a message, unless something was pruned.
        """
        missing = head.events - after - stored
        first = head.messages - missing + 1
        is_whole = head.events > after and 0 <= missing <= limit and stored < limit
        if not is_whole or first <= head.inherited:
            return None
        rows = await self._told(head, first, missing) if missing else []
        # If one is told too early, so many messages there are not, and others were pruned.
        return rows if not rows or rows[0][0] > after else None

    async def _appended(
        self, head: SessionState, after: int, limit: int, stored: Sequence[Row] = ()
    ) -> list[Row]:
        """Return messages as rows of news; `stored` is the other news behind the same number."""
        first, proven, event = await first_message_after(self._db, head, after)
        # Numbers are dense: where all of them are taken, no damaged message is told of here.
        others = range(after + 1, event)[: max(limit, 0)]
        if first < proven and {row[0] for row in stored}.issuperset(others):
            first = proven
        return await self._told(head, first, limit) if first <= head.messages else []

    async def _told(self, head: SessionState, first: int, limit: int) -> list[Row]:
        parameters = {"session_key": head.key, "first": first, "limit": limit}
        rows = await fetch_rows(self._db, APPENDED, APPENDED_FOUND, parameters)
        # Messages are dense: one that is missing here must not pass for something pruned.
        for number, row in enumerate(rows, start=first):
            if row[5] != number:
                raise corrupt(f"message {number} of session {head.session_id}")
        if len(rows) < min(limit, head.messages - first + 1):
            raise corrupt(f"message {first + len(rows)} of session {head.session_id}")
        return [_news(row, head) for row in rows]


def _are_of_one_step(before: Row, after: Row) -> bool:
    """Tell whether only deltas can have stood between two events of steps."""
    opens, turn, ids = before
    closes, later_turn, later_ids = after
    # Not every event of a step names its message; where both do, it is the same one.
    is_same = not ids or not later_ids or ids[:ID_BYTES] == later_ids[:ID_BYTES]
    return opens in _OPENS_STEP and closes in _CLOSES_STEP and turn == later_turn and is_same


def _bind(parameters: dict[str, object], place: int, event: Event) -> None:
    at = microseconds(event.at)
    payload = stored_payload(event.payload)
    name = name_of(event.payload)
    ids, rest = divided(name, payload)
    parameters[f"stays_{place}"] = int(name != _DELTA_NAME)
    parameters[f"sequence_{place}"] = event.sequence
    parameters[f"turn_{place}"] = event.turn
    parameters[f"at_{place}"] = at
    parameters[f"name_{place}"] = name
    parameters[f"ids_{place}"] = ids
    parameters[f"payload_{place}"] = rest
    # Of all that it says, wherever that is kept.
    parameters[f"checksum_{place}"] = _sum((event.sequence, event.turn, at, name), payload)


def _whole(row: Row) -> Row:
    """Return a stored row with all that its event says; what is damaged beyond that, as it is."""
    sequence, turn, at, name, ids, rest, stored = row
    has_ids = ids is None or isinstance(ids, bytes)
    is_whole = has_ids and isinstance(name, str) and isinstance(rest, bytes)
    return sequence, turn, at, name, joined(name, ids, rest) if is_whole else None, stored


def _merged(stored: list[Row], appended: list[Row], head: SessionState, *, after: int) -> list[Row]:
    """Return both kinds of news in one order; a number that stands twice or too early is damage."""
    try:
        rows = sorted(stored + appended, key=itemgetter(0))
        numbers = [after, *(row[0] for row in stored)]
        in_order = all(one < next_one for one, next_one in pairwise(numbers))
        doubled = any(one[0] == next_one[0] for one, next_one in pairwise(rows))
    except TypeError as error:
        # Only damage makes a number that is none.
        raise corrupt(f"an event of session {head.session_id}") from error
    if not in_order or doubled:
        raise corrupt(f"an event of session {head.session_id}")
    return rows


def _news(row: Row, head: SessionState) -> Row:
    message_event_at(row, head)
    event, turn, at, message_id, role, sequence, _ = row
    told_of = MessageAppended(message_id=format_id(message_id), role=role, sequence=sequence)
    payload = encode_payload(told_of)
    # Proven just now, and in other words; so there is no sum of these.
    return event, turn or None, at, _APPENDED_NAME, payload, _PROVEN


def _sum(columns: Row, payload: bytes) -> int:
    """Return the checksum of an event: sequence, turn, time, name, and what it says."""
    sequence, turn, at, name = columns
    return checksum(f"{sequence}|{turn}|{at}|{name}", payload)


def _is_sound(row: Row) -> bool:
    return isinstance(row[4], bytes) and _sum(row[:4], row[4]) == row[5]


def _require_sound(row: Row, head: SessionState) -> None:
    if row[5] is not _PROVEN and not _is_sound(row):
        raise corrupt(f"event {row[0]} of session {head.session_id}")


def _frame(row: Row, head: SessionState) -> Frame:
    """Build the envelope around the stored payload without decoding it."""
    _require_sound(row, head)
    sequence, turn, at, _, payload, _ = row
    shown_turn = "null" if turn is None else turn
    id_ = event_id_at(head.session_id, sequence, at // 1000)
    # The form of `msgspec.json.encode(Event(…))` around what is kept of its payload.
    start = (
        f'{{"id":"{id_}","session_id":"{head.session_id}",'
        f'"sequence":{sequence},"turn":{shown_turn},"at":"{_iso(at)}","payload":'
    )
    return Frame(sequence, start.encode() + payload + b"}")


def _iso(at: int) -> str:
    return (_EPOCH + timedelta(0, 0, at)).isoformat() + "Z"


def _event(row: Row, head: SessionState) -> Event:
    sequence, turn, at, _, payload, _ = row
    when = instant(at)
    try:
        return Event(
            id=event_id(head.session_id, sequence, when),
            session_id=head.session_id,
            sequence=sequence,
            turn=turn,
            at=when,
            payload=decode_payload(payload),
        )
    except (msgspec.MsgspecError, RecursionError) as error:
        raise corrupt(f"event {sequence} of session {head.session_id}") from error
