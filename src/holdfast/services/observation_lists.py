"""Listings of observed history: sessions, ours among them, and entities of the other types."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from holdfast.domain.canonical import canonical_text
from holdfast.domain.entities import Entity
from holdfast.domain.entity_listings import Listed, Listing, is_behind
from holdfast.domain.entity_queries import matches, require_filters
from holdfast.domain.entity_types import EntityType
from holdfast.domain.errors import Code, Internal, Invalid
from holdfast.domain.histories import EntityPage, EntityQuery, HistoryQuery
from holdfast.domain.horizons import EVERYTHING, Horizon, horizon
from holdfast.domain.ids import Owner
from holdfast.ports import Store, Tx
from holdfast.services.observation_cursors import decode_place, encode_place
from holdfast.services.observation_past import listed_as_of
from holdfast.services.observation_resolving import Resolver, as_of, claims_of, found_in_list
from holdfast.services.page_sizes import EntitySheet

log = logging.getLogger(__name__)

_EVERY: Final = 1 << 31


class ObservationLists:
    """Listings, for their owner."""

    def __init__(self, store: Store, resolver: Resolver) -> None:
        self._store = store
        self._resolver = resolver

    async def query(
        self, owner: Owner, query: HistoryQuery | None = None, *, cursor: str | None = None
    ) -> EntityPage:
        """Return the owner's sessions, observed ones and ours, in order."""
        wanted = query or HistoryQuery()
        seen = horizon(wanted.at, wanted.at_ingested)
        if cursor is not None and wanted.offset:
            told = "offset and cursor exclude each other; a cursor alone leads on."
            raise Invalid(Code.INVALID_INPUT, told, {"field": "offset"})
        marks = ("history", owner, wanted.order_by, wanted.order, wanted.at, wanted.at_ingested)
        listing = Listing(
            owner=owner,
            entity_type=EntityType.AGENT_SESSION,
            order=wanted.order_by,
            direction=wanted.order,
            after=decode_place(cursor, marks, wanted.order_by),
            limit=wanted.offset + wanted.limit + 1,
        )

        async def look(tx: Tx) -> EntityPage:
            found, total = await self._listed(tx, listing, seen)
            sheet = EntitySheet(wanted.limit)
            await self._fill(tx, sheet, found[wanted.offset :], (owner, seen))
            has_more = sheet.is_full or len(found) == listing.limit
            return _page(sheet, total, marks, has_more=has_more)

        return await self._store.read(look)

    async def entities(
        self, owner: Owner, query: EntityQuery, *, cursor: str | None = None
    ) -> EntityPage:
        """Return the owner's entities of a type whose snapshots are as they are asked for."""
        filters = require_filters(query.filters)
        told = canonical_text(dict(filters))
        marks = ("entities", owner, query.entity_type, query.order_by, query.order, told)
        listing = Listing(
            owner=owner,
            entity_type=query.entity_type,
            order=query.order_by,
            direction=query.order,
            after=decode_place(cursor, marks, query.order_by),
            limit=query.limit + 1,
        )

        async def look(tx: Tx) -> EntityPage:
            sheet = EntitySheet(query.limit)
            if filters:
                total = await self._fill_filtered(tx, sheet, listing, filters)
                return _page(sheet, total, marks, has_more=sheet.is_full)
            found, total = await self._listed(tx, listing, EVERYTHING)
            await self._fill(tx, sheet, found, (owner, EVERYTHING))
            has_more = sheet.is_full or len(found) == listing.limit
            return _page(sheet, total, marks, has_more=has_more)

        return await self._store.read(look)

    async def _fill(
        self, tx: Tx, sheet: EntitySheet, found: Sequence[Listed], asked: tuple[Owner, Horizon]
    ) -> None:
        """Put entities on a page until it is full."""
        for each in found:
            sheet.put(each, await self._resolved(tx, each, asked))
            if sheet.is_full:
                break

    async def _fill_filtered(
        self, tx: Tx, sheet: EntitySheet, listing: Listing, filters: Mapping[str, Any]
    ) -> int:
        """Put those on a page that are as they are asked for; return how many there are in all."""
        total = 0
        # What snapshots say is known only when they are read, all of them.
        for each in await tx.projections.page(replace(listing, after=None, limit=_EVERY)):
            entity = await self._resolved(tx, each, (listing.owner, EVERYTHING))
            if entity is not None and matches(entity.snapshot, filters):
                total += 1
                if is_behind(each, listing):
                    sheet.put(each, entity)
        return total

    async def _listed(
        self, tx: Tx, listing: Listing, seen: Horizon
    ) -> tuple[Sequence[Listed], int]:
        """Return a part of a listing, and how many there are in all."""
        if seen == EVERYTHING:
            found = await tx.projections.page(listing)
            return found, await tx.projections.count(listing.owner, listing.entity_type)
        every = await listed_as_of(tx, listing, seen)
        behind = [each for each in every if is_behind(each, listing)]
        return behind[: listing.limit], len(every)

    async def _resolved(
        self, tx: Tx, listed: Listed, asked: tuple[Owner, Horizon]
    ) -> Entity | None:
        """Return what is known of one; nothing where it is damaged, which hides no neighbours."""
        owner, seen = asked
        try:
            found = await found_in_list(tx, owner, listed)
            if seen == EVERYTHING:
                return await self._resolver.entity(tx, found)
            return await as_of(tx, found, await claims_of(tx, found), seen)
        except Internal as error:
            log.error("%s", error.message)
            return None


def _page(
    sheet: EntitySheet, total: int, marks: tuple[object, ...], *, has_more: bool
) -> EntityPage:
    last = sheet.last if has_more else None
    return EntityPage(
        items=tuple(sheet.items),
        total=total,
        next_cursor=None if last is None else encode_place(last, marks),
    )
