"""The `observations` table and the entities that its rows are about: appended, and read again."""

import hashlib
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from holdfast.domain.canonical import reading
from holdfast.domain.histories import PAGE_BYTES
from holdfast.domain.ids import Owner
from holdfast.domain.observations import Kind, Observation, Subject, observation_id
from holdfast.domain.timestamps import milliseconds, moment
from holdfast.ports.observations import Known, Newest
from holdfast.storage.database import Database, Row, checksum, corrupt, encode, sound
from holdfast.storage.entity_rows import NOTHING_COMPUTED, columns_of, known_of, proven_of
from holdfast.storage.observation_sql import (
    ADD,
    APPEND,
    BACKWARDS,
    BY_ID,
    BY_KEY,
    COUNTED,
    ENTITY,
    KEYED,
    KEYS,
    NAMED,
    SINCE,
)

_KINDS: Final = {each.value: each for each in Kind}
_WIDTH: Final = 10
# Behind every place that a claim can have.
_LAST: Final = (1 << 62, 1 << 62)


class Observations:
    """Claims in the store."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def entity(self, subject: Subject) -> Known | None:
        asked = {"owner": subject.owner, "name": subject.key, "entity_type": subject.entity_type}
        return _first(await self._db.fetch(ENTITY, asked))

    async def by_id(self, owner: Owner, entity_id: str) -> Known | None:
        return _first(await self._db.fetch(BY_ID, {"owner": owner, "id": entity_id}))

    async def by_key(self, key: int) -> Known | None:
        return _first(await self._db.fetch(BY_KEY, {"key": key}))

    async def named(self, owner: Owner, name: str) -> list[Known]:
        rows = await self._db.fetch(NAMED, {"owner": owner, "name": name})
        return [known_of(row) for row in rows]

    async def keys(self, after: int, limit: int) -> list[int]:
        return [row[0] for row in await self._db.fetch(KEYS, {"after": after, "limit": limit})]

    async def proven(self, key: int) -> Known:
        (row,) = await self._db.fetch(BY_KEY, {"key": key})
        known = proven_of(row)
        rows = await self._db.fetch(COUNTED, {"entity_key": known.key})
        count, first_ms, last_ms, known_ms = rows[0]
        # An entity begins with its first claim.
        if not count:
            raise corrupt(f"the observations of {known.entity_id}")
        return replace(known, count=count, first_ms=first_ms, last_ms=last_ms, known_ms=known_ms)

    async def keyed(self, owner: Owner, idempotency_key: str) -> Observation | None:
        asked = {"owner": owner, "idempotency_key": idempotency_key}
        rows = await self._db.fetch(KEYED, asked)
        if not rows:
            return None
        return _observation(rows[0][:_WIDTH], known_of(rows[0][_WIDTH:]))

    async def add(self, subject: Subject, at_ms: int) -> Known:
        known = Known(
            key=0,
            entity_id=subject.entity_id,
            subject=subject,
            session_key=None,
            count=0,
            first_ms=at_ms,
            last_ms=at_ms,
            known_ms=at_ms,
            is_deleted=False,
        )
        rows = await self._db.fetch(ADD, columns_of(known, NOTHING_COMPUTED))
        key, session_key = rows[0]
        return replace(known, key=key, session_key=session_key)

    async def append(self, known: Known, observation: Observation, content: bytes) -> Known:
        observed_ms = milliseconds(observation.observed_at)
        created_ms = milliseconds(observation.created_at)
        columns = {
            "ordinal": observation.ordinal,
            "owner": observation.subject.owner,
            "kind": observation.kind.value,
            "source": observation.source,
            "observed_ms": observed_ms,
            "created_ms": created_ms,
            "idempotency_key": observation.idempotency_key,
            "content_hash": bytes.fromhex(observation.content_hash),
        }
        # What it says is proven by its hash, and the hash by the sum.
        columns["checksum"] = checksum(encode(tuple(columns.values())))
        await self._db.execute(APPEND, {**columns, "entity_key": known.key, "content": content})
        return replace(
            known,
            count=observation.ordinal,
            first_ms=min(known.first_ms, observed_ms) if known.count else observed_ms,
            last_ms=max(known.last_ms, observed_ms) if known.count else observed_ms,
            known_ms=max(known.known_ms, created_ms) if known.count else created_ms,
            newest=Newest(observation.kind, observation.content_hash, created_ms),
        )

    async def since(self, known: Known, ordinal: int) -> list[Observation]:
        rows = await self._db.fetch(SINCE, {"entity_key": known.key, "ordinal": ordinal})
        # Numbers are dense: one that is missing would change what is known without a word.
        if [row[0] for row in rows] != list(range(ordinal, known.count + 1)):
            raise corrupt(f"the observations of {known.entity_id}")
        return [_observation(row, known) for row in rows]

    async def newest(
        self, known: Known, *, before: tuple[int, int] | None, limit: int
    ) -> tuple[list[Observation], tuple[int, int] | None]:
        observed_ms, ordinal = before or _LAST
        asked = {
            "entity_key": known.key,
            "observed_ms": observed_ms,
            "ordinal": ordinal,
            "limit": limit + 1,
            "bytes": PAGE_BYTES,
        }
        rows = await self._db.fetch(BACKWARDS, asked)
        # What does not fit comes without what it says.
        fitting = [row for row in rows[:limit] if row[-1] is not None]
        last = (fitting[-1][4], fitting[-1][0]) if len(fitting) < len(rows) else None
        return list(sound(fitting, lambda row: _observation(row, known))), last


def _first(rows: Sequence[Row]) -> Known | None:
    return known_of(rows[0]) if rows else None


def _observation(row: Row, known: Known) -> Observation:
    """Return a claim as it was made, or refuse a damaged row."""
    ordinal, _, kind, source, observed_ms, created_ms, key, content_hash, stored, content = row
    if checksum(encode(row[:8])) != stored or hashlib.sha256(content).digest() != content_hash:
        raise corrupt(f"observation {ordinal} of {known.entity_id}")
    told = content_hash.hex()
    return Observation(
        id=observation_id(known.subject, ordinal, told),
        subject=known.subject,
        entity_id=known.entity_id,
        ordinal=ordinal,
        fields=reading(content),
        content_hash=told,
        kind=_KINDS[kind],
        source=source,
        observed_at=moment(observed_ms),
        created_at=moment(created_ms),
        idempotency_key=key,
    )
