"""SQL listings of entities and timelines."""

from collections.abc import Collection, Sequence
from typing import Any, Final

import msgspec

from holdfast.domain.ids import Owner
from holdfast.observations.model import EntityType, Subject
from holdfast.observations.projections import EventFilter, KnownEntity
from holdfast.observations.queries import (
    Direction,
    EntityListing,
    EntityOrder,
    HostedSession,
    ListedEntity,
    hosted_value,
    in_order,
    is_behind,
)
from holdfast.observations.rows import (
    COUNT_EVENTS,
    EVENTS,
    HOSTED_NAMING,
    MENTIONED,
    SELECTED,
    TYPES,
    StoredPosition,
    event_of,
    known_of,
    place_columns,
    stored_position,
)
from holdfast.observations.timeline import TimelineEvent
from holdfast.store.database import Database, Row, sound

_CLAIMED: Final = {
    EntityOrder.STARTED_AT: "e.started_ms",
    EntityOrder.ENDED_AT: "e.ended_ms",
    EntityOrder.DURATION: "e.duration",
    EntityOrder.LAST_OBSERVATION_AT: "e.last_ms",
    EntityOrder.SESSION_ID: "e.name",
}
# Same rule as `resolve`: higher priority wins, then the later time; the start is the earlier
# one. Ordinary claims and hosted sessions have priority 100.
_BOTH: Final = {
    EntityOrder.STARTED_AT: """
        CASE WHEN e.started_priority > 100 THEN e.started_ms
             WHEN e.started_priority = 100 AND e.started_ms < s.created_ms THEN e.started_ms
             ELSE s.created_ms
        END
    """,
    EntityOrder.ENDED_AT: """
        CASE WHEN s.finished_ms IS NULL
               OR e.ended_priority > 100
               OR (e.ended_priority = 100 AND e.ended_place >= s.finished_ms)
             THEN e.ended_ms
             ELSE s.finished_ms
        END
    """,
    EntityOrder.DURATION: """
        CASE WHEN s.finished_ms IS NULL
               OR s.finished_ms <= s.created_ms
               OR e.duration_priority > 100
               OR (e.duration_priority = 100 AND e.duration_place >= s.finished_ms)
             THEN e.duration
             ELSE (s.finished_ms - s.created_ms) / 1000.0
        END
    """,
    EntityOrder.LAST_OBSERVATION_AT: """
        CASE WHEN s.updated_ms > e.last_ms THEN s.updated_ms ELSE e.last_ms END
    """,
    EntityOrder.SESSION_ID: "e.name",
}
CLAIMED: Final = """
-- Entities without a hosted session, in order.
SELECT value, id, key, NULL
  FROM (SELECT {value} AS value, e.id, e.key
          FROM entities e
         WHERE e.owner = :owner
           AND e.entity_type = :entity_type
           AND e.is_deleted = 0
           AND e.session_key IS NULL) claimed
 WHERE {conditions}
 ORDER BY value {direction}, id
 LIMIT :limit
"""
BOTH: Final = """
-- Entities with a hosted session, in order.
SELECT value, id, key, session_key
  FROM (SELECT {value} AS value, e.id, e.key, e.session_key
          FROM entities e
          JOIN (SELECT key,
                       created_at / 1000 AS created_ms,
                       updated_at / 1000 AS updated_ms,
                       CASE WHEN status NOT IN ('pending', 'running', 'idle')
                            THEN finished_at / 1000 END AS finished_ms
                  FROM sessions) s ON s.key = e.session_key
         WHERE e.owner = :owner
           AND e.is_deleted = 0
           AND e.session_key IS NOT NULL) both_kinds
 WHERE {conditions}
 ORDER BY value {direction}, id
 LIMIT :limit
"""
# Sessions without a message of their own are not listed: there is nothing to continue in them.
HOSTED: Final = """
-- Hosted sessions without an observation, with at least a number of own messages.
SELECT s.key, s.id, s.created_at, s.updated_at,
       CASE WHEN s.status NOT IN ('pending', 'running', 'idle') THEN s.finished_at END
  FROM sessions s
 WHERE s.owner = :owner
   AND s.created_at BETWEEN :first AND :last
   AND s.messages - COALESCE(s.forked_at, 0) >= :least
   AND NOT EXISTS (SELECT 1 FROM entities e WHERE e.session_key = s.key)
"""
BOUND: Final = """
-- Creation time of the last of a number of sessions.
SELECT s.created_at
  FROM sessions s
 WHERE s.owner = :owner
   AND s.created_at BETWEEN :first AND :last
   AND s.messages > COALESCE(s.forked_at, 0)
   AND NOT EXISTS (SELECT 1 FROM entities e WHERE e.session_key = s.key)
 ORDER BY s.created_at {direction}
 LIMIT 1 OFFSET :limit - 1
"""
COUNT: Final = """
-- Number of entities without a hosted session.
SELECT count(*)
  FROM entities
 WHERE owner = :owner
   AND entity_type = :entity_type
   AND is_deleted = 0
   AND session_key IS NULL
"""
COUNT_HOSTED: Final = """
-- Number of sessions, without unused ones and those whose history was deleted.
SELECT count(*)
  FROM sessions s
  LEFT JOIN entities e ON e.session_key = s.key
 WHERE s.owner = :owner
   AND CASE WHEN e.key IS NULL THEN s.messages > COALESCE(s.forked_at, 0)
            ELSE e.is_deleted = 0
       END
"""
EVERY: Final = f"""
-- Every entity of a type.
SELECT {SELECTED}
  FROM entities e
 WHERE e.owner = :owner
   AND e.entity_type = :entity_type
"""  # noqa: S608 — the columns are a constant of another file


def _arms(listing: EntityListing, value: str, sql: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the statements of a listing: rows with a sort value, then rows without."""
    is_down = listing.direction is Direction.DESC
    having, lacking = dict[str, Any](), dict[str, Any]()
    conditions = {"value IS NOT NULL": having, "value IS NULL": lacking}
    if listing.after is not None:
        having["value"], having["id"] = listing.after
        # The comparison by value alone can use an index; the id breaks ties.
        conditions = {_BEHIND[listing.direction]: having, "value IS NULL": lacking}
        if listing.after[0] is None:
            conditions = {"value IS NULL AND id > :id": {"id": listing.after[1]}}
    direction = "DESC" if is_down else "ASC"
    return [
        (sql.format(value=value, conditions=condition, direction=direction), parameters)
        for condition, parameters in conditions.items()
    ]


_BEHIND: Final = {
    Direction.DESC: "value <= :value AND (value < :value OR id > :id)",
    Direction.ASC: "value >= :value AND (value > :value OR id > :id)",
}
_SESSION: Final = EntityType.AGENT_SESSION
_FIRST: Final = 0
_LAST: Final = 1 << 62


class EntityListings:
    """Sorted entities of one type and owner."""

    _db: Database

    async def page(self, listing: EntityListing) -> list[ListedEntity]:
        found = await self._fetch_arms(listing, _arms(listing, _CLAIMED[listing.order], CLAIMED))
        if listing.entity_type is _SESSION:
            found += await self._fetch_arms(listing, _arms(listing, _BOTH[listing.order], BOTH))
            found += await self._hosted_rows(listing)
        return in_order(found, listing)[: listing.limit]

    async def count(self, owner: Owner, entity_type: EntityType) -> int:
        parameters = {"owner": owner, "entity_type": entity_type.value}
        total = int((await self._db.fetch(COUNT, parameters))[0][0])
        if entity_type is _SESSION:
            total += int((await self._db.fetch(COUNT_HOSTED, {"owner": owner}))[0][0])
        return total

    async def entities(self, owner: Owner, entity_type: EntityType) -> list[KnownEntity]:
        parameters = {"owner": owner, "entity_type": entity_type.value}
        return [known_of(row) for row in await self._db.fetch(EVERY, parameters)]

    async def hosted(self, owner: Owner) -> list[HostedSession]:
        return await self._fetch_hosted(owner, _FIRST, _LAST)

    async def hosted_by_id(self, owner: Owner, entity_id: str) -> HostedSession | None:
        # A full scan, because the entity id of a session without claims is not stored.
        every = await self._fetch_hosted(owner, _FIRST, _LAST, least=0)
        return next(
            (each for each in every if Subject(owner, _SESSION, each.id).entity_id == entity_id),
            None,
        )

    async def _fetch_arms(
        self, listing: EntityListing, arms: Sequence[tuple[str, dict[str, Any]]]
    ) -> list[ListedEntity]:
        found: list[ListedEntity] = []
        parameters = {"owner": listing.owner, "entity_type": listing.entity_type.value}
        for sql, place in arms:
            left = listing.limit - len(found)
            if left > 0:
                rows = await self._db.fetch(sql, {**parameters, **place, "limit": left})
                found += map(_to_listed, rows)
        return found

    async def _hosted_rows(self, listing: EntityListing) -> list[ListedEntity]:
        """Return hosted sessions without claims, at least enough for a page."""
        if listing.order is EntityOrder.STARTED_AT:
            rows = await self._newest(listing)
        else:
            rows = await self.hosted(listing.owner)
        found = [
            ListedEntity(
                value=hosted_value(row, listing.order),
                entity_id=Subject(listing.owner, _SESSION, row.id).entity_id,
                session_key=row.key,
            )
            for row in rows
        ]
        return [each for each in found if is_behind(each, listing)]

    async def _fetch_hosted(
        self, owner: Owner, first: int, last: int, *, least: int = 1
    ) -> list[HostedSession]:
        parameters = {"owner": owner, "first": first, "last": last, "least": least}
        rows = await self._db.fetch(HOSTED, parameters)
        return [_to_hosted(row) for row in rows]

    async def _newest(self, listing: EntityListing) -> list[HostedSession]:
        """Return sessions by creation time, including all of the last millisecond."""
        is_down = listing.direction is Direction.DESC
        near, far = _FIRST, _LAST
        beyond = (near, far)
        if listing.after is not None:
            value, _ = listing.after
            if not isinstance(value, int):
                return []
            start = value * 1000
            # Not counted here: sessions of the cursor's own millisecond, which are ordered by id.
            near, far = (near, start + 999) if is_down else (start, far)
            beyond = (near, start - 1) if is_down else (start + 1000, far)
        sql = BOUND.format(direction="DESC" if is_down else "ASC")
        parameters = {"owner": listing.owner, "first": beyond[0], "last": beyond[1]}
        rows = await self._db.fetch(sql, {**parameters, "limit": listing.limit})
        if rows:
            bound = rows[0][0] // 1000 * 1000
            near, far = (bound, far) if is_down else (near, bound + 999)
        return await self._fetch_hosted(listing.owner, near, far)


def _to_listed(row: Row) -> ListedEntity:
    value, entity_id, key, session_key = row
    return ListedEntity(value=value, entity_id=entity_id, key=key, session_key=session_key)


def _to_hosted(row: Row) -> HostedSession:
    key, session_id, created_at, updated_at, finished_at = row
    return HostedSession(
        key=key,
        id=session_id,
        created_at=created_at,
        updated_at=updated_at,
        finished_at=finished_at,
    )


class Timelines:
    """Timeline events of entities and of those that mention an id."""

    _db: Database

    async def hosted_naming(self, owner: Owner, names: Sequence[str]) -> list[KnownEntity]:
        places, parameters = _placeholders(names)
        sql = HOSTED_NAMING.format(names=places)
        return list(sound(await self._db.fetch(sql, {**parameters, "owner": owner}), known_of))

    async def find_mentions(
        self, keys: Collection[int], names: Sequence[str]
    ) -> dict[int, tuple[str, ...]]:
        """Return which of these ids each entity mentions, if any."""
        places, parameters = _placeholders(names)
        sql = MENTIONED.format(names=places)
        found: dict[int, tuple[str, ...]] = {}
        for key, name in await self._db.fetch(sql, {**parameters, "keys": _json_list(keys)}):
            found[key] = (*found.get(key, ()), name)
        return found

    async def events(self, event_filter: EventFilter) -> list[tuple[int, TimelineEvent]]:
        """Return undamaged events with their entities; reads on to replace damaged ones."""
        found: list[tuple[int, TimelineEvent]] = []
        after = None if event_filter.after is None else stored_position(event_filter.after)
        while left := event_filter.limit - len(found):
            conditions, parameters = _conditions(event_filter, after)
            rows = await self._db.fetch(EVENTS.format(**conditions), {**parameters, "limit": left})
            found += sound(rows, _event_of)
            if len(rows) < left:
                break
            after = rows[-1][:3]
        return found

    async def count_events(self, event_filter: EventFilter) -> int:
        conditions, parameters = _conditions(event_filter)
        return int((await self._db.fetch(COUNT_EVENTS.format(**conditions), parameters))[0][0])


def _event_of(row: Row) -> tuple[int, TimelineEvent]:
    *columns, key = row
    return key, event_of(tuple(columns), f"an event of entity {key}")


def _conditions(
    event_filter: EventFilter, after: StoredPosition | None = None
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the SQL parts of a filter; they consist of constants, and values are bound."""
    conditions = ["TRUE"]
    places, named = _placeholders(event_filter.names)
    parameters: dict[str, Any] = {
        **named,
        "owner": event_filter.owner,
        "keys": _json_list(event_filter.keys),
        "apart": _json_list(event_filter.apart),
    }
    if event_filter.window.start is not None:
        conditions.append("t.ms >= :start")
        parameters["start"] = event_filter.window.start
    if event_filter.window.end is not None:
        conditions.append("t.ms <= :end")
        parameters["end"] = event_filter.window.end
    if after is not None:
        conditions.append("(t.ms, t.rank, t.id) > (:ms, :rank, :id)")
        parameters |= place_columns(after)
    if event_filter.types:
        conditions.append("t.type IN (SELECT value FROM json_each(:types))")
        parameters["types"] = _json_list([TYPES[each] for each in event_filter.types])
    return {"names": places, "conditions": " AND ".join(conditions)}, parameters


def _placeholders(texts: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Return a placeholder for each text, and the texts bound to them."""
    bound = {f"name_{number}": text for number, text in enumerate(texts)}
    return ", ".join(f":{name}" for name in bound), bound


def _json_list(numbers: Collection[int]) -> str:
    return msgspec.json.encode(list(numbers)).decode()
