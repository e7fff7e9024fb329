"""SQL tables of claims, entities, snapshots and entity references."""

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from holdfast.domain.canonical_json import decode_exact
from holdfast.domain.ids import Owner
from holdfast.observations import rows as sql
from holdfast.observations.as_of import ALWAYS, TimeWindow
from holdfast.observations.listing_tables import EntityListings, Timelines
from holdfast.observations.model import Observation, ObservationKind, Subject, observation_id
from holdfast.observations.projections import KnownEntity, NewestClaim, Projection
from holdfast.observations.queries import PAGE_BYTES
from holdfast.store.database import (
    Database,
    Row,
    checksum,
    corrupt,
    encode,
    require_sound,
    sound,
    with_row_lock,
)

_KINDS: Final = {each.value: each for each in ObservationKind}
_WIDTH: Final = 10
# Sorts after the position of every claim.
_LAST: Final = (1 << 62, 1 << 62)


class ObservationTables:
    """Tables of claims and entities."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def entity(self, subject: Subject) -> KnownEntity | None:
        parameters = {
            "owner": subject.owner,
            "name": subject.key,
            "entity_type": subject.entity_type,
        }
        return _first(await self._db.fetch(with_row_lock(self._db, sql.ENTITY, "e"), parameters))

    async def by_id(self, owner: Owner, entity_id: str) -> KnownEntity | None:
        return _first(
            await self._db.fetch(
                with_row_lock(self._db, sql.BY_ID, "e"), {"owner": owner, "id": entity_id}
            )
        )

    async def by_key(self, key: int) -> KnownEntity | None:
        return _first(await self._db.fetch(with_row_lock(self._db, sql.BY_KEY, "e"), {"key": key}))

    async def by_name(self, owner: Owner, name: str) -> list[KnownEntity]:
        rows = await self._db.fetch(sql.NAMED, {"owner": owner, "name": name})
        return [sql.known_of(row) for row in rows]

    async def keys(self, after: int, limit: int) -> list[int]:
        return [row[0] for row in await self._db.fetch(sql.KEYS, {"after": after, "limit": limit})]

    async def verified(self, key: int) -> KnownEntity:
        (row,) = await self._db.fetch(with_row_lock(self._db, sql.BY_KEY, "e"), {"key": key})
        known = sql.verified_of(row)
        count, first_ms, last_ms, known_ms = await self._count_range(known, ALWAYS)
        # An entity is created with its first claim, so it has at least one.
        if not count:
            raise corrupt(f"the observations of {known.entity_id}")
        return replace(known, count=count, first_ms=first_ms, last_ms=last_ms, known_ms=known_ms)

    async def by_idempotency_key(self, owner: Owner, idempotency_key: str) -> Observation | None:
        parameters = {"owner": owner, "idempotency_key": idempotency_key}
        rows = await self._db.fetch(sql.KEYED, parameters)
        if not rows:
            return None
        return _observation(rows[0][:_WIDTH], sql.known_of(rows[0][_WIDTH:]))

    async def add(self, subject: Subject, at_ms: int) -> KnownEntity:
        known = KnownEntity(
            entity_id=subject.entity_id,
            subject=subject,
            first_ms=at_ms,
            last_ms=at_ms,
            known_ms=at_ms,
        )
        rows = await self._db.fetch(sql.ADD, sql.columns_of(known, sql.NOTHING_COMPUTED))
        key, session_key = rows[0]
        return replace(known, key=key, session_key=session_key)

    async def append(
        self, known: KnownEntity, observation: Observation, content: bytes
    ) -> KnownEntity:
        observed_ms, created_ms = observation.observed_ms, observation.created_ms
        columns = {
            "ordinal": observation.ordinal,
            "owner": observation.subject.owner,
            "kind": observation.kind,
            "source": observation.source,
            "observed_ms": observed_ms,
            "created_ms": created_ms,
            "idempotency_key": observation.idempotency_key,
            "content_hash": bytes.fromhex(observation.content_hash),
        }
        # The content hash protects the content, and the checksum protects the hash.
        columns["checksum"] = checksum(encode(tuple(columns.values())))
        await self._db.execute(sql.APPEND, {**columns, "entity_key": known.key, "content": content})
        return replace(
            known,
            count=observation.ordinal,
            first_ms=min(known.first_ms, observed_ms) if known.count else observed_ms,
            last_ms=max(known.last_ms, observed_ms) if known.count else observed_ms,
            known_ms=max(known.known_ms, created_ms) if known.count else created_ms,
            newest=NewestClaim(observation.kind, observation.content_hash, created_ms),
        )

    async def since(
        self, known: KnownEntity, ordinal: int, last: int | None = None
    ) -> list[Observation]:
        end = known.count if last is None else last
        parameters = {"entity_key": known.key, "ordinal": ordinal, "last": end}
        rows = await self._db.fetch(sql.SINCE, parameters)
        # Ordinals are dense; a missing claim would silently change the result.
        if [row[0] for row in rows] != list(range(ordinal, end + 1)):
            raise corrupt(f"the observations of {known.entity_id}")
        return [_observation(row, known) for row in rows]

    async def count(self, known: KnownEntity, window: TimeWindow) -> int:
        return known.count if window == ALWAYS else int((await self._count_range(known, window))[0])

    async def _count_range(self, known: KnownEntity, window: TimeWindow) -> Row:
        parameters = {"entity_key": known.key, **_bounds(window)}
        return (await self._db.fetch(sql.COUNTED, parameters))[0]

    async def newest(
        self,
        known: KnownEntity,
        *,
        limit: int,
        before: tuple[int, int] | None = None,
        window: TimeWindow = ALWAYS,
    ) -> tuple[list[Observation], tuple[int, int] | None]:
        observed_ms, ordinal = before or _LAST
        parameters = {
            "entity_key": known.key,
            "observed_ms": observed_ms,
            "ordinal": ordinal,
            **_bounds(window),
            "limit": limit + 1,
            "bytes": PAGE_BYTES,
        }
        rows = await self._db.fetch(sql.BACKWARDS, parameters)
        # The query returns NULL content for rows beyond the page size.
        fitting = [row for row in rows[:limit] if row[-1] is not None]
        last = (fitting[-1][4], fitting[-1][0]) if len(fitting) < len(rows) else None
        return list(sound(fitting, lambda row: _observation(row, known))), last


def _bounds(window: TimeWindow) -> dict[str, int]:
    start, end = window.start, window.end
    return {"start": -_LAST[0] if start is None else start, "end": _LAST[0] if end is None else end}


def _first(rows: Sequence[Row]) -> KnownEntity | None:
    return sql.known_of(rows[0]) if rows else None


def _observation(row: Row, known: KnownEntity) -> Observation:
    """Return the claim of a row, or raise if the row is damaged."""
    ordinal, _, kind, source, observed_ms, created_ms, key, content_hash, stored, content = row
    if checksum(encode(row[:8])) != stored or hashlib.sha256(content).digest() != content_hash:
        raise corrupt(f"observation {ordinal} of {known.entity_id}")
    digest = content_hash.hex()
    return Observation(
        id=observation_id(known.subject, ordinal, digest),
        subject=known.subject,
        entity_id=known.entity_id,
        ordinal=ordinal,
        fields=decode_exact(content),
        content_hash=digest,
        kind=_KINDS[kind],
        source=source,
        observed_ms=observed_ms,
        created_ms=created_ms,
        idempotency_key=key,
    )


# Never equal to a valid checksum.
_WRONG: Final = -1


class SnapshotTables(EntityListings, Timelines):
    """Tables of data computed from claims."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def save(
        self,
        known: KnownEntity,
        projection: Projection,
        body: bytes | None,
        *,
        before: Projection | None = None,
    ) -> None:
        await self._db.execute(
            _update_statement(projection, before), sql.columns_of(known, projection)
        )
        await self._save_body(known.key, body)
        if before is None:
            found = await self._db.fetch(sql.EVENT_SUMS, {"key": known.key, "thorough": False})
            sums = {row[:3]: row[4] for row in found}
            await self._save_events(known.key, *sql.change_against(sums, projection.events))
        elif before.events != projection.events:
            change = sql.change_from(before.events, projection.events)
            await self._save_events(known.key, *change)
        if before is None or before.names != projection.names:
            await self._save_names(known, projection.names)

    async def mend(self, known: KnownEntity, projection: Projection, body: bytes | None) -> bool:
        columns = sql.columns_of(known, projection)
        sums = (columns["checksum"], None if body is None else checksum(body))
        is_otherwise = await self._sums(known.key) != sums
        if is_otherwise:
            await self._db.execute(sql.SAVE, columns)
            await self._save_body(known.key, body)
        found = await self._db.fetch(sql.EVENT_SUMS, {"key": known.key, "thorough": True})
        stood = {
            row[:3]: _verified_sum(row[4], row[5], partial(sql.event_sum, row)) for row in found
        }
        gone, changed = sql.change_against(stood, projection.events)
        await self._save_events(known.key, gone, changed)
        named_otherwise = await self._save_names(known, projection.names)
        return is_otherwise or named_otherwise or bool(gone or changed)

    async def relink(self) -> int:
        return len(await self._db.fetch(sql.RELINK))

    async def body(self, known: KnownEntity) -> bytes | None:
        rows = await self._db.fetch(sql.BODY, {"key": known.key})
        if not rows:
            return None
        body, stored = rows[0]
        require_sound(stored, body, what=f"the snapshot of {known.entity_id}")
        return bytes(body)

    async def _sums(self, key: int) -> tuple[int, int | None]:
        """Return the checksums of an entity and its snapshot; `_WRONG` for a damaged one."""
        (row,) = await self._db.fetch(with_row_lock(self._db, sql.BY_KEY, "e"), {"key": key})
        bodies = await self._db.fetch(sql.BODY, {"key": key})
        body, stored = bodies[0] if bodies else (None, None)
        return row[2] if sql.is_sound(row) else _WRONG, _verified_sum(stored, body, checksum)

    async def _save_body(self, key: int, body: bytes | None) -> None:
        if body is None:
            await self._db.execute(sql.DROP_BODY, {"key": key})
        else:
            columns = {"key": key, "checksum": checksum(body), "body": body}
            await self._db.execute(sql.PUT_BODY, columns)

    async def _save_events(
        self, key: int, gone: set[sql.StoredPosition], changed: list[dict[str, Any]]
    ) -> None:
        for place in gone:
            await self._db.execute(sql.DROP_EVENT, {"key": key, **sql.place_columns(place)})
        for columns in changed:
            await self._db.execute(sql.PUT_EVENT, {"key": key, **columns})

    async def _save_names(self, known: KnownEntity, names: Sequence[str]) -> bool:
        """Save the ids that an entity mentions; return whether anything changed."""
        stood = {row[0] for row in await self._db.fetch(sql.NAMES, {"key": known.key})}
        changed = stood.symmetric_difference(names)
        for name in sorted(changed):
            columns = {"owner": known.subject.owner, "name": name, "key": known.key}
            await self._db.execute(sql.DROP_NAME if name in stood else sql.PUT_NAME, columns)
        return bool(changed)


def _update_statement(projection: Projection, before: Projection | None) -> str:
    """Return the cheaper UPDATE if no indexed column changes, which is the usual case."""
    is_listed_alike = before is not None and (before.is_deleted, before.started) == (
        projection.is_deleted,
        projection.started,
    )
    return sql.SAVE_IN_PLACE if is_listed_alike else sql.SAVE


def _verified_sum(
    stored: int | None, body: bytes | None, sum_of: Callable[[bytes], int]
) -> int | None:
    """Return a stored checksum; `_WRONG` if the body was read and does not match."""
    is_wrong = body is not None and sum_of(body) != stored
    return _WRONG if is_wrong else stored
