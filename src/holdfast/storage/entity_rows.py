"""Rows of entities: what they are, what is kept about them, and what is computed from claims."""

from typing import Any, Final

from holdfast.domain.entity_types import EntityType
from holdfast.domain.ids import EntityId, Owner, SessionKey
from holdfast.domain.observations import Kind, Subject
from holdfast.ports.observations import Fact, Known, Newest, Projection
from holdfast.storage.database import Row, checksum, corrupt, encode

_TYPES: Final = {each.value: each for each in EntityType}
_KINDS: Final = {each.value: each for each in Kind}
# In the order of the table, which session it is aside.
COLUMNS: Final = (
    *("id", "owner", "entity_type", "name", "observations", "first_ms", "last_ms", "known_ms"),
    *("is_deleted", "started_ms", "started_priority", "ended_ms", "ended_priority", "ended_place"),
    *("duration", "duration_priority", "duration_place"),
)
WIDTH: Final = 3 + len(COLUMNS)
# The first of them say what it is.
_IDENTITY: Final = 4
NOTHING_COMPUTED: Final = Projection(is_deleted=False)


def known_of(row: Row) -> Known:
    """Return what is kept about an entity, or refuse a damaged row; its newest claim may follow."""
    key, session_key, _, *columns = row[:WIDTH]
    if not is_sound(row):
        raise corrupt(f"entity {columns[0]}")
    entity_id, owner, entity_type, name, count, first_ms, last_ms, known_ms, is_deleted = columns[
        :9
    ]
    newest = row[WIDTH:]
    return Known(
        key=key,
        entity_id=EntityId(entity_id),
        subject=Subject(Owner(owner), _TYPES[entity_type], name),
        session_key=None if session_key is None else SessionKey(session_key),
        count=count,
        first_ms=first_ms,
        last_ms=last_ms,
        known_ms=known_ms,
        is_deleted=bool(is_deleted),
        newest=_newest(newest) if newest and newest[0] is not None else None,
    )


def proven_of(row: Row) -> Known:
    """Return an entity that is what its id says, for whoever computes all the rest anew.

    Its id is the hash of what it is, so a row can prove that much with whatever else damaged.
    """
    key, session_key, _, entity_id, owner, entity_type, name = row[: 3 + _IDENTITY]
    kind = _TYPES.get(entity_type)
    subject = None if kind is None else Subject(Owner(owner), kind, name)
    if subject is None or subject.entity_id != entity_id:
        raise corrupt(f"entity {entity_id}")
    return Known(
        key=key,
        entity_id=subject.entity_id,
        subject=subject,
        session_key=None if session_key is None else SessionKey(session_key),
        count=0,
        first_ms=0,
        last_ms=0,
        known_ms=0,
        is_deleted=False,
    )


def is_sound(row: Row) -> bool:
    """Tell whether an entity's row is what was written."""
    return bool(checksum(encode(row[3:WIDTH])) == row[2])


def _newest(columns: Row) -> Newest:
    kind, content_hash, created_ms = columns
    return Newest(_KINDS[kind], bytes(content_hash).hex(), created_ms)


def columns_of(known: Known, projection: Projection) -> dict[str, Any]:
    """Return the columns of an entity's row, with the key it has."""
    started, ended, duration = projection.started, projection.ended, projection.duration
    values = (
        known.entity_id,
        known.subject.owner,
        known.subject.entity_type.value,
        known.subject.key,
        known.count,
        known.first_ms,
        known.last_ms,
        known.known_ms,
        int(projection.is_deleted),
        *_fact(started)[:2],
        *_fact(ended),
        *_fact(duration),
    )
    columns = dict(zip(COLUMNS, values, strict=True))
    columns["checksum"] = checksum(encode(values))
    columns["key"] = known.key
    return columns


def _fact(fact: Fact | None) -> tuple[float | None, int | None, int | None]:
    return (None, None, None) if fact is None else (fact.value, fact.priority, fact.place_ms)
