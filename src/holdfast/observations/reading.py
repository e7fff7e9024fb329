"""Reads observed history: one entity, lists of entities, and timelines."""

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.canonical_json import canonical, canonical_text
from holdfast.domain.errors import Code, Internal, Invalid, NotFound
from holdfast.domain.ids import Owner, SessionId
from holdfast.domain.queries import require_limit
from holdfast.domain.text import require_encodable
from holdfast.domain.time import instant, milliseconds, moment
from holdfast.observations.as_of import (
    ALWAYS,
    EVERYTHING,
    AsOf,
    TimeWindow,
    parse_as_of,
    parse_window,
)
from holdfast.observations.model import (
    Entity,
    EntityType,
    Subject,
    entity_not_found,
    is_entity_id,
)
from holdfast.observations.projections import EventFilter, KnownEntity
from holdfast.observations.queries import (
    PAGE,
    PAGE_BYTES,
    PAGE_MOST,
    CheckpointState,
    EntityListing,
    EntityPage,
    EntityQuery,
    History,
    HistoryQuery,
    ListedEntity,
    ObservationPage,
    TimelinePage,
    TimelineQuery,
    checkpoint_of,
    decode_claim,
    decode_event,
    decode_place,
    encode_claim,
    encode_event,
    encode_place,
    in_order,
    is_behind,
    matches,
    order_value,
    require_filters,
)
from holdfast.observations.snapshots import (
    Resolver,
    as_of,
    claims_of,
    compute_as_of,
    encode_entity,
    entity_of_row,
    find,
    hosted_entity,
)
from holdfast.observations.timeline import TimelineEvent, events_of, references
from holdfast.ports.store import Store, Tx

log = logging.getLogger(__name__)
T = TypeVar("T")


def take_page(items: Sequence[T], size_of: Callable[[T], int]) -> tuple[T, ...]:
    """Return the first items that fit into the page size; at least one."""
    size = 0
    for count, item in enumerate(items):
        size += size_of(item)
        if count and size > PAGE_BYTES:
            return tuple(items[:count])
    return tuple(items)


class EntityPageBuilder:
    """Collects entities until a page is full; `last` is the row for the next cursor.

    Damaged entities are skipped and take no space.
    """

    def __init__(self, limit: int) -> None:
        self.items: list[Entity] = []
        self.last: ListedEntity | None = None
        self.is_full = False
        self._limit = limit
        self._size = 0

    def add(self, listed: ListedEntity, entity: Entity | None) -> None:
        """Add an entity, or mark the page as full if it does not fit."""
        size = self._size + (0 if entity is None else len(encode_entity(entity)))
        is_heavy = bool(self.items) and size > PAGE_BYTES
        self.is_full = self.is_full or len(self.items) == self._limit or is_heavy
        if not self.is_full:
            self.items += [] if entity is None else [entity]
            self.last, self._size = listed, size


class _EntityFilter(Struct, frozen=True, kw_only=True):
    """The limits of an entity listing."""

    filters: Mapping[str, Any] = {}
    window: TimeWindow = ALWAYS
    session_id: str | None = None

    def takes(self, entity: Entity) -> bool:
        """Return whether an entity is within the limits, apart from its session."""
        at = entity.last_observation_at
        is_within = self.window == ALWAYS or (
            at is not None and self.window.holds(milliseconds(at))
        )
        return is_within and matches(entity.snapshot, self.filters)


_NO_FILTER: Final = _EntityFilter()


class ObservationReader:
    """Read access to observed history, scoped to the owner."""

    def __init__(self, store: Store, resolver: Resolver) -> None:
        self._store = store
        self._resolver = resolver

    async def show(
        self,
        owner: Owner,
        session_id: str,
        *,
        at: str | None = None,
        at_ingested: str | None = None,
    ) -> History:
        """Return the state of a session, now or as of a time, with its newest claims."""
        seen = parse_as_of(at, at_ingested)

        async def read(tx: Tx) -> History:
            found = await find(tx, owner, session_id)
            if seen != EVERYTHING:
                return await self._history_as_of(tx, found, seen)
            _require_not_deleted(found)
            entity = await self._resolver.entity(tx, found)
            newest, _ = await tx.observations.newest(found, limit=PAGE)
            total = found.count
            return History(entity=entity, observations=tuple(newest), observations_total=total)

        return await self._store.read(read)

    async def list_observations(
        self,
        owner: Owner,
        session_id: str,
        *,
        start_date: str | None = None,
        end_date: str | None = None,
        limit: int = PAGE,
        cursor: str | None = None,
    ) -> ObservationPage:
        """Return one page of the claims about a session, newest first; both dates are inclusive."""
        require_limit(limit, most=PAGE_MOST)
        window = parse_window(start_date, end_date)
        filters = ("observations", owner, session_id, *(() if window == ALWAYS else (window,)))
        before = decode_claim(cursor, filters)

        async def read(tx: Tx) -> ObservationPage:
            found = await find(tx, owner, session_id)
            _require_not_deleted(found)
            rows, last = await tx.observations.newest(
                found, before=before, limit=limit, window=window
            )
            total = await tx.observations.count(found, window)
            return ObservationPage(
                items=tuple(rows), total=total, next_cursor=encode_claim(last, filters)
            )

        return await self._store.read(read)

    async def checkpoint(
        self,
        owner: Owner,
        session_id: str,
        name: str,
        *,
        timestamp: str | None = None,
        at: str | None = None,
    ) -> CheckpointState:
        """Return the state saved at a checkpoint; the latest one if the name repeats."""
        require_encodable(name, field="name")
        entity = (await self.show(owner, session_id, at=at)).entity
        return checkpoint_of(entity, name, timestamp=timestamp)

    async def _history_as_of(self, tx: Tx, known: KnownEntity, seen: AsOf) -> History:
        claims = await claims_of(tx, known)
        entity = await as_of(tx, known, claims, seen)
        visible = [each for each in claims if seen.shows(each.observed_at, each.created_at)]
        # The snapshot is empty if the history was deleted at that time; then no claims are shown.
        visible = sorted(visible, key=lambda each: each.place, reverse=True)
        visible = visible if entity.snapshot else []
        shown = take_page(visible[:PAGE], lambda each: len(canonical(each.fields)))
        return History(entity=entity, observations=shown, observations_total=len(visible))

    async def query(
        self, owner: Owner, query: HistoryQuery | None = None, *, cursor: str | None = None
    ) -> EntityPage:
        """Return one page of the owner's observed and hosted sessions."""
        wanted = query or HistoryQuery()
        seen = parse_as_of(wanted.at, wanted.at_ingested)
        if cursor is not None and wanted.offset:
            message = "Use either offset or cursor, not both."
            raise Invalid(Code.INVALID_INPUT, message, {"field": "offset"})
        filters = ("history", owner, wanted.order_by, wanted.order, wanted.at, wanted.at_ingested)
        listing = EntityListing(
            owner=owner,
            entity_type=EntityType.AGENT_SESSION,
            order=wanted.order_by,
            direction=wanted.order,
            after=decode_place(cursor, filters, wanted.order_by),
            limit=wanted.offset + wanted.limit + 1,
        )
        return await self._list(listing, filters, seen=seen, offset=wanted.offset)

    async def entities(
        self, owner: Owner, query: EntityQuery, *, cursor: str | None = None
    ) -> EntityPage:
        """Return one page of the owner's entities of a type that match the filters."""
        wanted = _EntityFilter(
            filters=require_filters(query.entity_type, query.filters),
            window=parse_window(query.start_date, query.end_date),
            session_id=query.session_id,
        )
        limits = (canonical_text(dict(wanted.filters)), query.session_id, wanted.window)
        filters = ("entities", owner, query.entity_type, query.order_by, query.order, *limits)
        listing = EntityListing(
            owner=owner,
            entity_type=query.entity_type,
            order=query.order_by,
            direction=query.order,
            after=decode_place(cursor, filters, query.order_by),
            limit=query.limit + 1,
        )
        return await self._list(listing, filters, entity_filter=wanted)

    async def _list(
        self,
        listing: EntityListing,
        filters: tuple[object, ...],
        *,
        seen: AsOf = EVERYTHING,
        offset: int = 0,
        entity_filter: _EntityFilter = _NO_FILTER,
    ) -> EntityPage:
        """Return a page of a listing, which asks for one row more than the page has."""

        async def read(tx: Tx) -> EntityPage:
            page = EntityPageBuilder(listing.limit - offset - 1)
            if entity_filter != _NO_FILTER:
                total = await self._fill_filtered(tx, page, listing, entity_filter)
                has_more = page.is_full
            else:
                found, total = await self._list_page(tx, listing, seen)
                for each in found[offset:]:
                    page.add(each, await self._resolve(tx, listing.owner, each, seen))
                    if page.is_full:
                        break
                has_more = page.is_full or len(found) == listing.limit
            last = page.last if has_more else None
            return EntityPage(
                items=tuple(page.items),
                total=total,
                next_cursor=None if last is None else encode_place(last, filters),
            )

        return await self._store.read(read)

    async def _fill_filtered(
        self, tx: Tx, page: EntityPageBuilder, listing: EntityListing, entity_filter: _EntityFilter
    ) -> int:
        """Add matching entities to a page; return the total number of matches."""
        total = 0
        session = entity_filter.session_id
        related = (
            None if session is None else await self._relation_filter(tx, listing.owner, session)
        )
        # Filters apply to snapshots, so all of them must be read.
        for each in await tx.projections.page(replace(listing, after=None, limit=_EVERY)):
            entity = await self._resolve(tx, listing.owner, each)
            is_related = entity is not None and (related is None or related(entity))
            if entity is not None and is_related and entity_filter.takes(entity):
                total += 1
                if is_behind(each, listing):
                    page.add(each, entity)
        return total

    async def _relation_filter(
        self, tx: Tx, owner: Owner, session_id: str
    ) -> Callable[[Entity], bool]:
        """Return what decides whether an entity and a session refer to each other."""
        require_encodable(session_id, field="session_id")
        session = {session_id, Subject(owner, EntityType.AGENT_SESSION, session_id).entity_id}
        named = set(session)
        # A session that was never reported may be referred to as well.
        with suppress(NotFound):
            found = await find(tx, owner, session_id)
            named.update(references(await self._resolver.entity(tx, found)))
        return lambda entity: (
            not named.isdisjoint((entity.key, entity.entity_id))
            or not session.isdisjoint(references(entity))
        )

    async def _list_page(
        self, tx: Tx, listing: EntityListing, seen: AsOf
    ) -> tuple[Sequence[ListedEntity], int]:
        """Return one page of listing rows and the total count."""
        if seen == EVERYTHING:
            found = await tx.projections.page(listing)
            return found, await tx.projections.count(listing.owner, listing.entity_type)
        every = await list_as_of(tx, listing, seen)
        behind = [each for each in every if is_behind(each, listing)]
        return behind[: listing.limit], len(every)

    async def _resolve(
        self, tx: Tx, owner: Owner, listed: ListedEntity, seen: AsOf = EVERYTHING
    ) -> Entity | None:
        """Return an entity; None if it is damaged, so that the rest is still listed."""

        async def resolve() -> Entity:
            known = await entity_of_row(tx, owner, listed)
            if seen == EVERYTHING:
                return await self._resolver.entity(tx, known)
            return await compute_as_of(tx, known, seen)

        return await _skip_damaged(resolve())

    async def timeline(
        self,
        owner: Owner,
        entity_id: str,
        query: TimelineQuery | None = None,
        *,
        cursor: str | None = None,
    ) -> TimelinePage:
        """Return the events of an entity, and of others that mention it; takes an id or a key."""
        require_encodable(entity_id, field="entity_id")
        wanted = query or TimelineQuery()
        window = parse_window(wanted.start_date, wanted.end_date)
        types = tuple(sorted(set(wanted.event_types)))
        filters = ("timeline", owner, entity_id, window.start, window.end, types)
        event_filter = EventFilter(
            owner=owner,
            window=window,
            types=types,
            after=decode_event(cursor, filters),
            limit=wanted.limit + 1,
        )

        async def read(tx: Tx) -> TimelinePage:
            events, total = await self._read_events(tx, entity_id, event_filter)
            part = take_page(events[: wanted.limit], _size)
            last = part[-1] if len(part) < len(events) else None
            return TimelinePage(events=part, total=total, next_cursor=encode_event(last, filters))

        return await self._store.read(read)

    async def _read_events(
        self, tx: Tx, entity_id: str, event_filter: EventFilter
    ) -> tuple[Sequence[TimelineEvent], int]:
        """Return one page of events after the cursor, and the total count."""
        own = await _find_entities(tx, event_filter.owner, entity_id)
        names = tuple(sorted({entity_id, *(text for each in own for text in each.names)}))
        naming = await tx.projections.hosted_naming(event_filter.owner, names)
        # The events of hosted sessions follow from their rows, and are not stored.
        hosted = {each.entity_id: each for each in (*own, *naming) if each.session_key is not None}
        stored = replace(
            event_filter,
            keys=tuple(each.key for each in own if each.session_key is None),
            names=names,
            apart=tuple(each.key for each in hosted.values()),
        )
        found = await tx.projections.events(stored)
        total = await tx.projections.count_events(stored)
        for known in hosted.values():
            entity = await _skip_damaged(self._resolver.entity(tx, known))
            window, types, after = event_filter.window, event_filter.types, event_filter.after
            every = events_of(entity, window=window, types=types) if entity is not None else ()
            total += len(every)
            found += [(known.key, each) for each in every if not after or each.place > after]
        found = sorted(found, key=lambda each: each[1].place)[: event_filter.limit]
        related = await tx.projections.find_mentions({key for key, _ in found}, names)
        events = [
            replace(event, related_to=related[key]) if key in related else event
            for key, event in found
        ]
        return events, total


async def _find_entities(tx: Tx, owner: Owner, entity_id: str) -> list[KnownEntity]:
    """Return the entity with this id, or else all entities with this key."""
    if is_entity_id(entity_id):
        known = await tx.observations.by_id(owner, entity_id)
        if known is not None:
            return [known]
        hosted = await tx.projections.hosted_by_id(owner, entity_id)
        if hosted is not None:
            return [hosted_entity(owner, hosted.id, hosted.key)]
    found = await tx.observations.by_name(owner, entity_id)
    if not any(each.subject.entity_type is EntityType.AGENT_SESSION for each in found):
        state = await tx.sessions.state(owner, SessionId(entity_id))
        found += [] if state is None else [hosted_entity(owner, state.session_id, state.key)]
    return found


def _size(event: TimelineEvent) -> int:
    return len(msgspec.json.encode(event))


def _require_not_deleted(known: KnownEntity) -> None:
    if known.is_deleted:
        raise entity_not_found()


_EVERY: Final = 1 << 31


async def list_as_of(tx: Tx, listing: EntityListing, seen: AsOf) -> list[ListedEntity]:
    """Return all sessions visible at a time, in order; ignores the listing's cursor."""
    every = await tx.projections.page(replace(listing, after=None, limit=_EVERY))
    now = {each.entity_id: each for each in every}
    found: list[ListedEntity] = []
    changed: list[KnownEntity] = []
    for known in await tx.projections.entities(listing.owner, listing.entity_type):
        # A hosted session changes without new claims.
        is_same = seen.shows(moment(known.last_ms), moment(known.known_ms))
        if known.session_key is not None or not is_same:
            changed.append(known)
        elif not known.is_deleted:
            found.append(now[known.entity_id])
    for hosted in await tx.projections.hosted(listing.owner):
        known, updated = hosted_entity(listing.owner, hosted.id, hosted.key), hosted.updated_at
        if seen.shows(instant(updated), instant(updated)):
            found.append(now[known.entity_id])
        elif seen.shows(instant(hosted.created_at), instant(hosted.created_at)):
            changed.append(known)
    for known in changed:
        entity = await _skip_damaged(compute_as_of(tx, known, seen))
        if entity is not None and entity.snapshot:
            found.append(
                ListedEntity(
                    value=order_value(entity, listing.order),
                    entity_id=known.entity_id,
                    key=known.key or None,
                    session_key=known.session_key,
                )
            )
    return in_order(found, listing)


async def _skip_damaged(read: Coroutine[Any, Any, T]) -> T | None:
    """Return what was read; None if it is damaged, which is logged."""
    try:
        return await read
    except Internal as error:
        log.error("%s", error.message)
        return None
