"""Listings of observed history: sessions, ours among them, and entities of the other types."""

import logging
from collections.abc import Sequence
from typing import Final

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
            after=decode_place(cursor, marks),
            limit=wanted.offset + wanted.limit + 1,
        )

        async def look(tx: Tx) -> EntityPage:
            found, total = await self._listed(tx, listing, seen)
            part = found[wanted.offset : wanted.offset + wanted.limit]
            items = await self._resolved(tx, listing, part, seen)
            is_last = len(found) < listing.limit
            return EntityPage(
                items=tuple(entity for _, entity in items),
                total=total,
                next_cursor=None if is_last else encode_place(part[-1], marks),
            )

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
            after=decode_place(cursor, marks),
            limit=query.limit + 1,
        )

        async def look(tx: Tx) -> EntityPage:
            if filters:
                # What snapshots say is known only when they are read, all of them.
                every = await tx.projections.page(replace(listing, after=None, limit=_EVERY))
                items = await self._resolved(tx, listing, every, EVERYTHING)
                fitting = [each for each in items if matches(each[1].snapshot, filters)]
                total = len(fitting)
                behind = [each for each in fitting if is_behind(each[0], listing)]
            else:
                found, total = await self._listed(tx, listing, EVERYTHING)
                behind = await self._resolved(tx, listing, found, EVERYTHING)
            part = behind[: query.limit]
            is_last = len(behind) <= query.limit
            return EntityPage(
                items=tuple(entity for _, entity in part),
                total=total,
                next_cursor=None if is_last else encode_place(part[-1][0], marks),
            )

        return await self._store.read(look)

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
        self, tx: Tx, listing: Listing, part: Sequence[Listed], seen: Horizon
    ) -> list[tuple[Listed, Entity]]:
        """Return what is known of each; one that is damaged does not hide its neighbours."""
        items = []
        for each in part:
            try:
                found = await found_in_list(tx, listing.owner, each)
                if seen == EVERYTHING:
                    items.append((each, await self._resolver.entity(tx, found)))
                else:
                    claims = await claims_of(tx, found)
                    items.append((each, await as_of(tx, found, claims, seen)))
            except Internal as error:
                log.error("%s", error.message)
        return items
