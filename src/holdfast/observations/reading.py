"""Read observed history: one entity with its claims, checkpoints and timeline."""

import logging
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.canonical_json import canonical
from holdfast.domain.errors import Internal
from holdfast.domain.ids import Owner, SessionId, SessionKey
from holdfast.domain.queries import encode_count, require_limit
from holdfast.domain.text import require_encodable
from holdfast.observations.as_of import EVERYTHING, AsOf, parse_as_of, parse_window
from holdfast.observations.claims import Subject, is_entity_id
from holdfast.observations.cursors import decode_claim, decode_event, encode_event, take_page
from holdfast.observations.listings import ObservationListings
from holdfast.observations.model import EntityType, entity_not_found
from holdfast.observations.queries import (
    PAGE,
    PAGE_MOST,
    CheckpointState,
    History,
    ObservationPage,
    TimelinePage,
    TimelineQuery,
    checkpoint_of,
)
from holdfast.observations.snapshots import FoundEntity, Resolver, as_of, claims_of, find
from holdfast.observations.timeline import TimelineEvent, events_of, timeline
from holdfast.ports import EventFilter, Store, Tx

log = logging.getLogger(__name__)


class _Sources(Struct, frozen=True):
    """The sources of a timeline: indexed names, and entities that are read separately.

    Each separate entity comes with the names that it mentions.
    """

    names: Mapping[int, str]
    apart: Sequence[tuple[FoundEntity, tuple[str, ...]]]


class ObservationTimelines:
    """Timeline queries, scoped to the owner."""

    _store: Store
    _resolver: Resolver

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
        stretch = parse_window(wanted.start_date, wanted.end_date)
        types = tuple(sorted(set(wanted.event_types)))
        marks = ("timeline", owner, entity_id, stretch.start, stretch.end, types)
        event_filter = EventFilter(
            window=stretch,
            types=types,
            after=decode_event(cursor, marks),
            limit=wanted.limit + 1,
        )

        async def look(tx: Tx) -> TimelinePage:
            sources = await _sources(tx, owner, entity_id)
            events, total = await self._read_events(tx, sources, event_filter)
            part = take_page(events[: wanted.limit], _size)
            last = part[-1] if len(part) < len(events) else None
            return TimelinePage(events=part, total=total, next_cursor=encode_event(last, marks))

        return await self._store.read(look)

    async def _read_events(
        self, tx: Tx, sources: _Sources, event_filter: EventFilter
    ) -> tuple[Sequence[TimelineEvent], int]:
        """Return one page of events after the cursor, and the total count."""
        found: list[TimelineEvent] = []
        total = 0
        whole = replace(event_filter, after=None)
        for asked, names in sources.apart:
            if asked.known is not None and asked.session_key is None:
                events = await tx.projections.events(asked.known.key, event_filter)
                total += await tx.projections.count_events(asked.known.key, whole)
            else:
                every = await self._computed(tx, asked, event_filter)
                events = [
                    each
                    for each in every
                    if not event_filter.after or each.place > event_filter.after
                ]
                total += len(every)
            found += _named(events, names)
        keys = [asked.known.key for asked, _ in sources.apart if asked.known is not None]
        for name_key, name in sources.names.items():
            others = replace(event_filter, apart=tuple(keys))
            found += _named(await tx.projections.mentioned(name_key, others), (name,))
            total += await tx.projections.count_mentioned(name_key, replace(others, after=None))
        return timeline(found)[: event_filter.limit], total

    async def _computed(
        self, tx: Tx, asked: FoundEntity, event_filter: EventFilter
    ) -> tuple[TimelineEvent, ...]:
        """Return computed events of an entity; none if it is damaged."""
        try:
            entity = await self._resolver.entity(tx, asked)
        except Internal as error:
            log.error("%s", error.message)
            return ()
        return timeline(
            events_of(entity), window=event_filter.window, event_types=event_filter.types
        )


async def _sources(tx: Tx, owner: Owner, entity_id: str) -> _Sources:
    """Return the sources of the timeline of an id."""
    own = await _meant(tx, owner, entity_id)
    texts = {entity_id}
    for found in own:
        texts |= {found.subject.entity_id, found.subject.key}
    names = {}
    for text in sorted(texts):
        name_key = await tx.projections.name_key(owner, text)
        if name_key is not None:
            names[name_key] = text
    apart = {found.subject.entity_id: found for found in own}
    for known in await tx.projections.apart(owner, list(names)) if names else ():
        apart.setdefault(known.entity_id, FoundEntity(known.subject, known, known.session_key))
    named_entities = []
    for found in apart.values():
        key = None if found.known is None else found.known.key
        named = await tx.projections.mentioned_by(key, list(names)) if key is not None else ()
        named_entities.append((found, tuple(names[each] for each in named)))
    return _Sources(names, named_entities)


async def _meant(tx: Tx, owner: Owner, entity_id: str) -> list[FoundEntity]:
    """Return the entity with this id, or else all entities with this key."""
    if is_entity_id(entity_id):
        known = await tx.observations.by_id(owner, entity_id)
        if known is not None:
            return [FoundEntity(known.subject, known, known.session_key)]
        hosted = await tx.projections.hosted_by_id(owner, entity_id)
        if hosted is not None:
            return [_hosted(owner, hosted.id, hosted.key)]
    known_by = await tx.observations.named(owner, entity_id)
    found = [FoundEntity(each.subject, each, each.session_key) for each in known_by]
    if not any(each.subject.entity_type is EntityType.AGENT_SESSION for each in found):
        head = await tx.sessions.head(owner, SessionId(entity_id))
        found += [] if head is None else [_hosted(owner, head.session_id, head.key)]
    return found


def _hosted(owner: Owner, session_id: SessionId, key: SessionKey) -> FoundEntity:
    return FoundEntity(Subject(owner, EntityType.AGENT_SESSION, session_id), None, key)


def _size(event: TimelineEvent) -> int:
    return len(msgspec.json.encode(event))


def _named(events: Iterable[TimelineEvent], names: tuple[str, ...]) -> list[TimelineEvent]:
    return [replace(each, related_to=names) for each in events] if names else list(events)


class ObservationReader(ObservationListings, ObservationTimelines):
    """Read access to observed history, scoped to the owner."""

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

        async def look(tx: Tx) -> History:
            found = await find(tx, owner, session_id)
            if seen != EVERYTHING:
                return await self._shown_as_of(tx, found, seen)
            _require_shown(found)
            entity = await self._resolver.entity(tx, found)
            if found.known is None:
                return History(entity=entity, observations=(), observations_total=0)
            newest, _ = await tx.observations.newest(found.known, before=None, limit=PAGE)
            total = found.known.count
            return History(entity=entity, observations=tuple(newest), observations_total=total)

        return await self._store.read(look)

    async def list_observations(
        self, owner: Owner, session_id: str, *, limit: int = PAGE, cursor: str | None = None
    ) -> ObservationPage:
        """Return one page of the claims about a session, newest first."""
        require_limit(limit, most=PAGE_MOST)
        marks = ("observations", owner, session_id)
        before = decode_claim(cursor, marks)

        async def look(tx: Tx) -> ObservationPage:
            found = await find(tx, owner, session_id)
            _require_shown(found)
            if found.known is None:
                return ObservationPage(items=(), total=0)
            rows, last = await tx.observations.newest(found.known, before=before, limit=limit)
            place = None if last is None else (last[0], str(last[1]))
            return ObservationPage(
                items=tuple(rows),
                total=found.known.count,
                next_cursor=encode_count(place, marks),
            )

        return await self._store.read(look)

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

    async def _shown_as_of(self, tx: Tx, found: FoundEntity, seen: AsOf) -> History:
        claims = await claims_of(tx, found)
        entity = await as_of(tx, found, claims, seen)
        visible = [each for each in claims if seen.shows(each.observed_at, each.created_at)]
        # The snapshot is empty if the history was deleted at that time; then no claims are shown.
        visible = sorted(visible, key=lambda each: each.place, reverse=True)
        visible = visible if entity.snapshot else []
        shown = take_page(visible[:PAGE], lambda each: len(canonical(each.fields)))
        return History(entity=entity, observations=shown, observations_total=len(visible))


def _require_shown(found: FoundEntity) -> None:
    if found.is_deleted:
        raise entity_not_found()
