"""Listings of entities: what has claims and what is a session of ours, merged into one order."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from holdfast.domain.entity_listings import (
    Hosted,
    Listed,
    Listing,
    hosted_value,
    in_order,
    is_behind,
)
from holdfast.domain.entity_queries import EntityOrder
from holdfast.domain.entity_types import EntityType
from holdfast.domain.histories import Direction
from holdfast.domain.ids import EntityId, Owner, SessionId, SessionKey
from holdfast.domain.observations import Subject
from holdfast.ports.observations import Known
from holdfast.storage.database import Database, Row
from holdfast.storage.entity_list_sql import (
    BOUND,
    COUNT,
    COUNT_HOSTED,
    EVERY,
    HOSTED,
    both_arms,
    claimed_arms,
)
from holdfast.storage.entity_rows import known_of

_SESSION: Final = EntityType.AGENT_SESSION
_FIRST: Final = 0
_LAST: Final = 1 << 62


class EntityLists:
    """Entities of one type and owner, in order."""

    _db: Database

    async def page(self, listing: Listing) -> list[Listed]:
        found = await self._claimed(listing, claimed_arms(listing))
        if listing.entity_type is _SESSION:
            found += await self._claimed(listing, both_arms(listing))
            found += await self._hosted(listing)
        return in_order(found, listing)[: listing.limit]

    async def count(self, owner: Owner, entity_type: EntityType) -> int:
        asked = {"owner": owner, "entity_type": entity_type.value}
        total = int((await self._db.fetch(COUNT, asked))[0][0])
        if entity_type is _SESSION:
            total += int((await self._db.fetch(COUNT_HOSTED, {"owner": owner}))[0][0])
        return total

    async def entities(self, owner: Owner, entity_type: EntityType) -> list[Known]:
        asked = {"owner": owner, "entity_type": entity_type.value}
        return [known_of(row) for row in await self._db.fetch(EVERY, asked)]

    async def hosted(self, owner: Owner) -> list[Hosted]:
        return await self._opened(owner, _FIRST, _LAST)

    async def hosted_by_id(self, owner: Owner, entity_id: str) -> Hosted | None:
        # No index leads here, because such an id is kept nowhere until somebody claims something.
        every = await self.hosted(owner)
        return next((each for each in every if entity_id_of(owner, each.id) == entity_id), None)

    async def _claimed(
        self, listing: Listing, arms: Sequence[tuple[str, dict[str, Any]]]
    ) -> list[Listed]:
        found: list[Listed] = []
        asked = {"owner": listing.owner, "entity_type": listing.entity_type.value}
        for sql, place in arms:
            left = listing.limit - len(found)
            if left > 0:
                rows = await self._db.fetch(sql, {**asked, **place, "limit": left})
                found += map(_listed, rows)
        return found

    async def _hosted(self, listing: Listing) -> list[Listed]:
        """Return sessions of ours that nobody has claimed anything about, enough for a page."""
        if listing.order is EntityOrder.STARTED_AT:
            rows = await self._newest(listing)
        else:
            rows = await self.hosted(listing.owner)
        found = [
            Listed(
                value=hosted_value(row, listing.order),
                entity_id=entity_id_of(listing.owner, row.id),
                session_key=row.key,
            )
            for row in rows
        ]
        return [each for each in found if is_behind(each, listing)]

    async def _opened(self, owner: Owner, first: int, last: int) -> list[Hosted]:
        rows = await self._db.fetch(HOSTED, {"owner": owner, "first": first, "last": last})
        return [_hosted(row) for row in rows]

    async def _newest(self, listing: Listing) -> list[Hosted]:
        """Return sessions by when they were opened; of the last millisecond all of them."""
        is_down = listing.direction is Direction.DESC
        near, far = _FIRST, _LAST
        beyond = (near, far)
        if listing.after is not None:
            value, _ = listing.after
            if not isinstance(value, int):
                return []
            start = value * 1000
            # Those of the very millisecond are told apart by their ids, and not counted here.
            near, far = (near, start + 999) if is_down else (start, far)
            beyond = (near, start - 1) if is_down else (start + 1000, far)
        sql = BOUND.format(direction="DESC" if is_down else "ASC")
        asked = {"owner": listing.owner, "first": beyond[0], "last": beyond[1]}
        rows = await self._db.fetch(sql, {**asked, "limit": listing.limit})
        if rows:
            bound = rows[0][0] // 1000 * 1000
            near, far = (bound, far) if is_down else (near, bound + 999)
        return await self._opened(listing.owner, near, far)


# Listings ask for the ids of the same sessions again and again.
@lru_cache(maxsize=1 << 15)
def entity_id_of(owner: Owner, session_id: SessionId) -> EntityId:
    """Return the id that a session of ours has as an entity."""
    return Subject(owner, _SESSION, session_id).entity_id


def _listed(row: Row) -> Listed:
    value, entity_id, key, session_key = row
    return Listed(
        value=value,
        entity_id=EntityId(entity_id),
        key=key,
        session_key=None if session_key is None else SessionKey(session_key),
    )


def _hosted(row: Row) -> Hosted:
    key, session_id, created_at, updated_at, finished_at = row
    return Hosted(
        key=SessionKey(key),
        id=SessionId(session_id),
        created_at=created_at,
        updated_at=updated_at,
        finished_at=finished_at,
    )
