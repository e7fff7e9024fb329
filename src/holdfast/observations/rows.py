"""Rows and SQL of claims, entities, snapshots and timeline events."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from holdfast.domain.ids import Owner
from holdfast.domain.time import instant_of
from holdfast.observations.model import EntityType, ObservationKind, Subject
from holdfast.observations.projections import Fact, KnownEntity, NewestClaim, Projection
from holdfast.observations.timeline import EventPlace, EventType, TimelineEvent
from holdfast.store.database import Row, checksum, corrupt, encode

# Columns of an entity.
SELECTED: Final = """
e.key, e.session_key, e.checksum, e.id, e.owner, e.entity_type, e.name, e.observations, e.first_ms,
       e.last_ms, e.known_ms, e.is_deleted, e.started_ms, e.started_priority, e.ended_ms,
       e.ended_priority, e.ended_place, e.duration, e.duration_priority, e.duration_place
""".strip()
# Columns of an entity and of its newest claim.
WITH_NEWEST: Final = f"{SELECTED}, o.kind, o.content_hash, o.created_ms"
NEWEST: Final = "LEFT JOIN observations o ON o.entity_key = e.key AND o.ordinal = e.observations"
_KNOWN: Final = f"""
SELECT {WITH_NEWEST}
  FROM entities e
  {NEWEST}
""".strip()  # noqa: S608 — the columns are a constant of this file
ENTITY = f"""
-- One entity by owner, type and name.
{_KNOWN}
 WHERE e.owner = :owner
   AND e.name = :name
   AND e.entity_type = :entity_type
"""
BY_ID = f"""
-- One entity by its id.
{_KNOWN}
 WHERE e.id = :id
   AND e.owner = :owner
"""
BY_KEY = f"""
-- One entity of any owner.
{_KNOWN}
 WHERE e.key = :key
"""
NAMED = f"""
-- An owner's entities of a name and any type.
{_KNOWN}
 WHERE e.owner = :owner
   AND e.name = :name
 ORDER BY e.entity_type
"""
KEYS = """
-- Entities of all owners, in batches.
SELECT key
  FROM entities
 WHERE key > :after
 ORDER BY key
 LIMIT :limit
"""
COUNTED = """
-- Number and times of the observations of an entity, as of a time.
SELECT count(*), min(observed_ms), max(observed_ms), max(created_ms)
  FROM observations
 WHERE entity_key = :entity_key
   AND observed_ms BETWEEN :start AND :end
"""
ADD = """
-- Insert an entity; a hosted session with its id is linked.
INSERT INTO entities (id, owner, entity_type, name, observations, first_ms, last_ms, known_ms,
                      is_deleted, started_ms, started_priority, ended_ms, ended_priority,
                      ended_place, duration, duration_priority, duration_place, session_key,
                      checksum)
VALUES (:id, :owner, :entity_type, :name, :observations, :first_ms, :last_ms, :known_ms,
        :is_deleted, :started_ms, :started_priority, :ended_ms, :ended_priority,
        :ended_place, :duration, :duration_priority, :duration_place,
        (SELECT key
           FROM sessions
          WHERE owner = :owner
            AND id = :name
            AND :entity_type = 'agent_session'),
        :checksum)
RETURNING key, session_key
"""
APPEND = """
-- Insert the next observation of an entity.
INSERT INTO observations (entity_key, ordinal, owner, kind, source, observed_ms, created_ms,
                          idempotency_key, content_hash, checksum, content)
VALUES (:entity_key, :ordinal, :owner, :kind, :source, :observed_ms, :created_ms,
        :idempotency_key, :content_hash, :checksum, :content)
"""
KEYED = f"""
-- The observation with an idempotency key, and its entity.
SELECT o.ordinal, o.owner, o.kind, o.source, o.observed_ms, o.created_ms, o.idempotency_key,
       o.content_hash, o.checksum, o.content, {SELECTED}
  FROM observations o
  JOIN entities e ON e.key = o.entity_key
 WHERE o.owner = :owner
   AND o.idempotency_key = :idempotency_key
"""  # noqa: S608 — the columns are a constant of this file
SINCE = """
-- Observations of an entity in a range of numbers.
SELECT ordinal, owner, kind, source, observed_ms, created_ms, idempotency_key, content_hash,
       checksum, content
  FROM observations
 WHERE entity_key = :entity_key
   AND ordinal BETWEEN :ordinal AND :last
 ORDER BY ordinal
"""
BACKWARDS = """
-- The newest observations of an entity as of a time, in time order; contents are read only of those
-- that fit.
SELECT o.ordinal, o.owner, o.kind, o.source, o.observed_ms, o.created_ms, o.idempotency_key,
       o.content_hash, o.checksum,
       CASE WHEN wanted.place = 1 OR wanted.size <= :bytes THEN o.content END
  FROM (SELECT ordinal,
               row_number() OVER newest_first AS place,
               sum(length(content)) OVER newest_first AS size
          FROM (SELECT ordinal, observed_ms, content
                  FROM observations
                 WHERE entity_key = :entity_key
                   AND (observed_ms, ordinal) < (:observed_ms, :ordinal)
                   AND observed_ms BETWEEN :start AND :end
                 ORDER BY observed_ms DESC, ordinal DESC
                 LIMIT :limit) nearest
        WINDOW newest_first AS (ORDER BY observed_ms DESC, ordinal DESC)) wanted
  JOIN observations o ON o.entity_key = :entity_key AND o.ordinal = wanted.ordinal
 ORDER BY o.observed_ms DESC, o.ordinal DESC
"""
SAVE = """
-- Update an entity; its type and name never change.
UPDATE entities
   SET observations = :observations, first_ms = :first_ms, last_ms = :last_ms,
       known_ms = :known_ms, is_deleted = :is_deleted, started_ms = :started_ms,
       started_priority = :started_priority, ended_ms = :ended_ms,
       ended_priority = :ended_priority, ended_place = :ended_place, duration = :duration,
       duration_priority = :duration_priority, duration_place = :duration_place,
       checksum = :checksum
 WHERE key = :key
"""
SAVE_IN_PLACE = """
-- Update an entity without its indexed columns: SQLite writes an index even for equal values.
UPDATE entities
   SET observations = :observations, first_ms = :first_ms, last_ms = :last_ms,
       known_ms = :known_ms, ended_ms = :ended_ms, ended_priority = :ended_priority,
       ended_place = :ended_place, duration = :duration, duration_priority = :duration_priority,
       duration_place = :duration_place, checksum = :checksum
 WHERE key = :key
"""
PUT_BODY = """
-- Insert or replace a snapshot.
INSERT INTO snapshots (entity_key, checksum, body)
VALUES (:key, :checksum, :body)
    ON CONFLICT (entity_key) DO UPDATE
   SET checksum = excluded.checksum, body = excluded.body
"""
DROP_BODY = """
-- Delete a snapshot that has become too large.
DELETE FROM snapshots
 WHERE entity_key = :key
"""
BODY = """
-- A snapshot.
SELECT body, checksum
  FROM snapshots
 WHERE entity_key = :key
"""
EVENT_SUMS = """
-- Positions and checksums of the events of an entity.
SELECT ms, rank, id, type, checksum, CASE WHEN :thorough THEN body END
  FROM timeline
 WHERE entity_key = :key
"""
PUT_EVENT = """
-- Insert or replace an event.
INSERT INTO timeline (entity_key, ms, rank, id, type, checksum, body)
VALUES (:key, :ms, :rank, :id, :type, :checksum, :body)
    ON CONFLICT (entity_key, ms, rank, id) DO UPDATE
   SET type = excluded.type, checksum = excluded.checksum, body = excluded.body
"""
DROP_EVENT = """
-- Delete an event.
DELETE FROM timeline
 WHERE entity_key = :key
   AND (ms, rank, id) = (:ms, :rank, :id)
"""
NAMES = """
-- Ids that an entity mentions.
SELECT name
  FROM mentioned_ids
 WHERE entity_key = :key
"""
PUT_NAME = """
-- Record that an entity mentions an id.
INSERT INTO mentioned_ids (owner, name, entity_key)
VALUES (:owner, :name, :key)
"""
DROP_NAME = """
-- Remove the record that an entity mentions an id.
DELETE FROM mentioned_ids
 WHERE owner = :owner
   AND name = :name
   AND entity_key = :key
"""
RELINK = """
-- Entities that refer to the wrong session, or lack a reference to theirs.
UPDATE entities
   SET session_key = (SELECT s.key
                        FROM sessions s
                       WHERE s.owner = entities.owner
                         AND s.id = entities.name
                         AND entities.entity_type = 'agent_session')
 WHERE session_key IS DISTINCT FROM (SELECT s.key
                                       FROM sessions s
                                      WHERE s.owner = entities.owner
                                        AND s.id = entities.name
                                        AND entities.entity_type = 'agent_session')
RETURNING 1
"""
HOSTED_NAMING = f"""
-- Hosted sessions that mention one of these ids; they are fewer than the entities.
SELECT {WITH_NEWEST}
  FROM entities e
  {NEWEST}
 WHERE e.owner = :owner
   AND e.session_key IS NOT NULL
   AND EXISTS (SELECT 1
                 FROM mentioned_ids m
                WHERE m.entity_key = e.key
                  AND m.name IN ({{names}}))
"""  # noqa: S608 — the columns are a constant of another file
MENTIONED = """
-- The ones of these ids that some entities mention.
SELECT entity_key, name
  FROM mentioned_ids
 WHERE entity_key IN (SELECT value FROM json_each(:keys))
   AND name IN ({names})
 ORDER BY entity_key, name
"""
# CROSS JOIN keeps this order of the tables, in which SQLite stops reading the events of an entity,
# which are sorted, behind the end of a full page.
_TIMELINE: Final = """
  FROM (SELECT value AS entity_key
          FROM json_each(:keys)
         UNION
        SELECT entity_key
          FROM mentioned_ids
         WHERE owner = :owner
           AND name IN ({names})
        EXCEPT
        SELECT value
          FROM json_each(:apart)) wanted
 CROSS JOIN timeline t ON t.entity_key = wanted.entity_key
 WHERE {conditions}
""".strip()
EVENTS = """
-- Events of some entities, and of those that mention some ids, in order; only those of the page are
-- read, of the others their positions.
SELECT p.ms, p.rank, p.id, e.type, e.checksum, e.body, p.entity_key
  FROM (SELECT t.ms, t.rank, t.id, t.entity_key
          :timeline
         ORDER BY t.ms, t.rank, t.id
         LIMIT :limit) p
  JOIN timeline e ON e.entity_key = p.entity_key
                 AND e.ms = p.ms AND e.rank = p.rank AND e.id = p.id
 ORDER BY p.ms, p.rank, p.id
""".replace(":timeline", _TIMELINE)
COUNT_EVENTS = """
-- Number of those events.
SELECT count(*)
  :timeline
""".replace(":timeline", _TIMELINE)
_TYPES: Final = {each.value: each for each in EntityType}
_KINDS: Final = {each.value: each for each in ObservationKind}
# In table order, without `session_key`.
COLUMNS: Final = (
    *("id", "owner", "entity_type", "name", "observations", "first_ms", "last_ms", "known_ms"),
    *("is_deleted", "started_ms", "started_priority", "ended_ms", "ended_priority", "ended_place"),
    *("duration", "duration_priority", "duration_place"),
)
WIDTH: Final = 3 + len(COLUMNS)
# The first columns identify the entity.
_IDENTITY: Final = 4
NOTHING_COMPUTED: Final = Projection(is_deleted=False)
_NO_FACT: Final = Fact(None, None, None)


def known_of(row: Row) -> KnownEntity:
    """Return an entity and, if selected, its newest claim; raise if the checksum is wrong."""
    key, session_key, _, entity_id, owner, entity_type, name, *numbers = row[:12]
    if not is_sound(row):
        raise corrupt(f"entity {entity_id}")
    count, first_ms, last_ms, known_ms, is_deleted = numbers
    newest = None
    if len(row) > WIDTH and row[WIDTH] is not None:
        kind, content_hash, created_ms = row[WIDTH:]
        newest = NewestClaim(_KINDS[kind], bytes(content_hash).hex(), created_ms)
    return KnownEntity(
        key=key,
        entity_id=entity_id,
        subject=Subject(owner, _TYPES[entity_type], name),
        session_key=session_key,
        count=count,
        first_ms=first_ms,
        last_ms=last_ms,
        known_ms=known_ms,
        is_deleted=bool(is_deleted),
        newest=newest,
    )


def verified_of(row: Row) -> KnownEntity:
    """Return an entity whose identity is verified, for recomputing everything else.

    The id is a hash of owner, type and name, so identity survives damage to other columns.
    """
    key, session_key, _, entity_id, owner, entity_type, name = row[: 3 + _IDENTITY]
    kind = _TYPES.get(entity_type)
    subject = None if kind is None else Subject(Owner(owner), kind, name)
    if subject is None or subject.entity_id != entity_id:
        raise corrupt(f"entity {entity_id}")
    return KnownEntity(
        key=key, entity_id=subject.entity_id, subject=subject, session_key=session_key
    )


def is_sound(row: Row) -> bool:
    """Return whether the checksum of an entity row matches."""
    return bool(checksum(encode(row[3:WIDTH])) == row[2])


def columns_of(known: KnownEntity, projection: Projection) -> dict[str, Any]:
    """Return the column values of an entity row, including its key."""
    started = projection.started or _NO_FACT
    ended, duration = projection.ended or _NO_FACT, projection.duration or _NO_FACT
    subject = known.subject
    values = (
        *(known.entity_id, subject.owner, subject.entity_type, subject.key),
        *(known.count, known.first_ms, known.last_ms, known.known_ms, int(projection.is_deleted)),
        *(started.value, started.priority),
        *(ended.value, ended.priority, ended.place_ms),
        *(duration.value, duration.priority, duration.place_ms),
    )
    columns = dict(zip(COLUMNS, values, strict=True))
    columns["checksum"] = checksum(encode(values))
    columns["key"] = known.key
    return columns


# Stored as numbers, because the table has many rows.
TYPES: Final = {each: number for number, each in enumerate(EventType)}
_PREFIX: Final = "tle_"
# Stored form of an event's position.
StoredPosition = tuple[int, int, bytes]
_decode: Final = msgspec.json.Decoder(TimelineEvent).decode


def change_from(
    before: Sequence[TimelineEvent], after: Sequence[TimelineEvent]
) -> tuple[set[StoredPosition], list[dict[str, Any]]]:
    """Return the places of removed events, and the columns of new and changed ones."""
    stood = {stored_position(event.place): event for event in before}
    stands = {stored_position(event.place): event for event in after}
    changed = [_columns(place, each) for place, each in stands.items() if stood.get(place) != each]
    return stood.keys() - stands.keys(), changed


def change_against(
    sums: Mapping[StoredPosition, int | None], after: Sequence[TimelineEvent]
) -> tuple[set[StoredPosition], list[dict[str, Any]]]:
    """Return the same if only the checksums of the stored events are known."""
    stands = {(place := stored_position(each.place)): _columns(place, each) for each in after}
    changed = [row for place, row in stands.items() if sums.get(place) != row["checksum"]]
    return sums.keys() - stands.keys(), changed


def _columns(position: StoredPosition, event: TimelineEvent) -> dict[str, Any]:
    """Return the columns of an event, without the entity."""
    kind, body = TYPES[event.event_type], encode(event)
    proof = {"type": kind, "checksum": _sum(position, kind, body), "body": body}
    return place_columns(position) | proof


def place_columns(position: StoredPosition) -> dict[str, Any]:
    """Return the columns of a position."""
    return dict(zip(("ms", "rank", "id"), position, strict=True))


def event_of(row: Row, what: str) -> TimelineEvent:
    """Return the event of a row, or raise if the row is damaged."""
    *_, stored, body = row
    if event_sum(row, body) != stored:
        raise corrupt(what)
    return _decode(body)


def event_sum(row: Row, body: bytes) -> int:
    """Return the checksum of an event row with this body."""
    ms, rank, id_, kind = row[:4]
    return _sum((ms, rank, id_), kind, body)


def stored_position(position: EventPlace) -> StoredPosition:
    """Return the stored form of an event's position."""
    timestamp, rank, event_id = position
    return instant_of(timestamp), rank, bytes.fromhex(event_id.removeprefix(_PREFIX))


def _sum(position: StoredPosition, kind: int, body: bytes) -> int:
    return checksum(encode((position, kind)), body)
