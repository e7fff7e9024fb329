"""Listings of observed history, current and as of a time."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from holdfast.domain.canonical_json import canonical_text
from holdfast.domain.errors import Code, Internal, Invalid
from holdfast.domain.ids import Owner
from holdfast.domain.time import instant, moment
from holdfast.observations.as_of import EVERYTHING, AsOf, parse_as_of
from holdfast.observations.claims import Subject
from holdfast.observations.cursors import EntityPageBuilder, decode_place, encode_place
from holdfast.observations.model import Entity, EntityType
from holdfast.observations.queries import (
    EntityListing,
    EntityOrder,
    EntityPage,
    EntityQuery,
    HistoryQuery,
    HostedSession,
    ListedEntity,
    hosted_value,
    in_order,
    is_behind,
    matches,
    order_value,
    require_filters,
)
from holdfast.observations.snapshots import FoundEntity, Resolver, as_of, claims_of, found_in_list
from holdfast.ports import KnownEntity, Store, Tx

_EVERY: Final = 1 << 31


async def list_as_of(tx: Tx, listing: EntityListing, seen: AsOf) -> list[ListedEntity]:
    """Return all entities visible at a time, in order; ignores the listing's cursor."""
    found: list[ListedEntity] = []
    every = await tx.projections.page(replace(listing, after=None, limit=_EVERY))
    now = {each.entity_id: each for each in every}
    for known in await tx.projections.entities(listing.owner, listing.entity_type):
        if _is_unchanged(known, seen):
            found += [] if known.is_deleted else [now[known.entity_id]]
            continue
        asked = FoundEntity(known.subject, known, known.session_key)
        entity = await as_of(tx, asked, await claims_of(tx, asked), seen)
        if entity.snapshot:
            found.append(
                ListedEntity(
                    value=order_value(entity, listing.order),
                    entity_id=known.entity_id,
                    key=known.key,
                    session_key=known.session_key,
                )
            )
    for hosted in await tx.projections.hosted(listing.owner):
        opened = instant(hosted.created_at)
        if seen.shows(opened, opened):
            found.append(await _opened(tx, listing, hosted, seen))
    return in_order(found, listing)


def _is_unchanged(known: KnownEntity, seen: AsOf) -> bool:
    """Return whether the current state was already known at that time."""
    is_seen = seen.shows(moment(known.last_ms), moment(known.known_ms))
    # A hosted session changes without new claims.
    return is_seen and known.session_key is None


async def _opened(
    tx: Tx, listing: EntityListing, hosted: HostedSession, seen: AsOf
) -> ListedEntity:
    """Return the listing row of a hosted session as of a time."""
    subject = Subject(listing.owner, listing.entity_type, hosted.id)
    listed = ListedEntity(value=None, entity_id=subject.entity_id, session_key=hosted.key)
    changed = instant(hosted.updated_at)
    if listing.order is EntityOrder.LAST_OBSERVATION_AT and not seen.shows(changed, changed):
        entity = await as_of(tx, FoundEntity(subject, None, hosted.key), (), seen)
        return replace(listed, value=order_value(entity, listing.order))
    ended = None if hosted.finished_at is None else instant(hosted.finished_at)
    if ended is not None and not seen.shows(ended, ended):
        hosted = replace(hosted, finished_at=None)
    return replace(listed, value=hosted_value(hosted, listing.order))


log = logging.getLogger(__name__)


class ObservationListings:
    """Listing queries, scoped to the owner."""

    def __init__(self, store: Store, resolver: Resolver) -> None:
        self._store = store
        self._resolver = resolver

    async def query(
        self, owner: Owner, query: HistoryQuery | None = None, *, cursor: str | None = None
    ) -> EntityPage:
        """Return one page of the owner's observed and hosted sessions."""
        wanted = query or HistoryQuery()
        seen = parse_as_of(wanted.at, wanted.at_ingested)
        if cursor is not None and wanted.offset:
            message = "offset and cursor exclude each other; a cursor alone leads on."
            raise Invalid(Code.INVALID_INPUT, message, {"field": "offset"})
        marks = ("history", owner, wanted.order_by, wanted.order, wanted.at, wanted.at_ingested)
        listing = EntityListing(
            owner=owner,
            entity_type=EntityType.AGENT_SESSION,
            order=wanted.order_by,
            direction=wanted.order,
            after=decode_place(cursor, marks, wanted.order_by),
            limit=wanted.offset + wanted.limit + 1,
        )

        async def look(tx: Tx) -> EntityPage:
            found, total = await self._listed(tx, listing, seen)
            sheet = EntityPageBuilder(wanted.limit)
            await self._fill(tx, sheet, found[wanted.offset :], (owner, seen))
            has_more = sheet.is_full or len(found) == listing.limit
            return _page(sheet, total, marks, has_more=has_more)

        return await self._store.read(look)

    async def entities(
        self, owner: Owner, query: EntityQuery, *, cursor: str | None = None
    ) -> EntityPage:
        """Return one page of the owner's entities of a type that match the filters."""
        filters = require_filters(query.filters)
        filter_text = canonical_text(dict(filters))
        marks = ("entities", owner, query.entity_type, query.order_by, query.order, filter_text)
        listing = EntityListing(
            owner=owner,
            entity_type=query.entity_type,
            order=query.order_by,
            direction=query.order,
            after=decode_place(cursor, marks, query.order_by),
            limit=query.limit + 1,
        )

        async def look(tx: Tx) -> EntityPage:
            sheet = EntityPageBuilder(query.limit)
            if filters:
                total = await self._fill_filtered(tx, sheet, listing, filters)
                return _page(sheet, total, marks, has_more=sheet.is_full)
            found, total = await self._listed(tx, listing, EVERYTHING)
            await self._fill(tx, sheet, found, (owner, EVERYTHING))
            has_more = sheet.is_full or len(found) == listing.limit
            return _page(sheet, total, marks, has_more=has_more)

        return await self._store.read(look)

    async def _fill(
        self,
        tx: Tx,
        sheet: EntityPageBuilder,
        found: Sequence[ListedEntity],
        asked: tuple[Owner, AsOf],
    ) -> None:
        """Add entities to a page until it is full."""
        for each in found:
            sheet.put(each, await self._resolved(tx, each, asked))
            if sheet.is_full:
                break

    async def _fill_filtered(
        self, tx: Tx, sheet: EntityPageBuilder, listing: EntityListing, filters: Mapping[str, Any]
    ) -> int:
        """Add matching entities to a page; return the total number of matches."""
        total = 0
        # Filters apply to snapshots, so all of them must be read.
        for each in await tx.projections.page(replace(listing, after=None, limit=_EVERY)):
            entity = await self._resolved(tx, each, (listing.owner, EVERYTHING))
            if entity is not None and matches(entity.snapshot, filters):
                total += 1
                if is_behind(each, listing):
                    sheet.put(each, entity)
        return total

    async def _listed(
        self, tx: Tx, listing: EntityListing, seen: AsOf
    ) -> tuple[Sequence[ListedEntity], int]:
        """Return one page of listing rows and the total count."""
        if seen == EVERYTHING:
            found = await tx.projections.page(listing)
            return found, await tx.projections.count(listing.owner, listing.entity_type)
        every = await list_as_of(tx, listing, seen)
        behind = [each for each in every if is_behind(each, listing)]
        return behind[: listing.limit], len(every)

    async def _resolved(
        self, tx: Tx, listed: ListedEntity, asked: tuple[Owner, AsOf]
    ) -> Entity | None:
        """Return an entity; None if it is damaged, so that the rest is still listed."""
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
    sheet: EntityPageBuilder, total: int, marks: tuple[object, ...], *, has_more: bool
) -> EntityPage:
    last = sheet.last if has_more else None
    return EntityPage(
        items=tuple(sheet.items),
        total=total,
        next_cursor=None if last is None else encode_place(last, marks),
    )
