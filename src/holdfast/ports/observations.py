"""Tables of observed history: claims, which are authoritative, and their projections."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from holdfast.domain.ids import EntityId, Owner, SessionKey
from holdfast.observations.as_of import TimeWindow
from holdfast.observations.model import EntityType, Observation, ObservationKind, Subject
from holdfast.observations.queries import EntityListing, HostedSession, ListedEntity
from holdfast.observations.timeline import EventPlace, EventType, TimelineEvent


class NewestClaim(Struct, frozen=True):
    """The claim written last about an entity, without its content."""

    kind: ObservationKind
    content_hash: str
    created_ms: int


class KnownEntity(Struct, frozen=True, kw_only=True):
    """The stored row of an entity, beside its claims.

    `session_key` refers to the Holdfast session that this entity is; the times are those of its
    claims.
    """

    key: int
    entity_id: EntityId
    subject: Subject
    session_key: SessionKey | None
    count: int
    first_ms: int
    last_ms: int
    known_ms: int
    is_deleted: bool
    newest: NewestClaim | None = None


class Fact(Struct, frozen=True, gc=False):
    """A value by which entities are sorted, its priority, and the time of its claim."""

    value: float | None
    priority: int | None
    place_ms: int | None


class Projection(Struct, frozen=True, kw_only=True, gc=False):
    """Everything computed from all claims about an entity, except its snapshot."""

    is_deleted: bool
    started: Fact | None = None
    ended: Fact | None = None
    duration: Fact | None = None
    events: tuple[TimelineEvent, ...] = ()
    names: tuple[str, ...] = ()


class EventFilter(Struct, frozen=True, kw_only=True):
    """Filter for the events of one timeline, with a position to start after."""

    window: TimeWindow
    types: tuple[EventType, ...] = ()
    after: EventPlace | None = None
    limit: int
    # Entities whose events are queried separately.
    apart: tuple[int, ...] = ()


class ObservationTable(Protocol):
    """Claims and the entities they describe. Append-only: rows are never updated or deleted."""

    async def entity(self, subject: Subject) -> KnownEntity | None:
        """Return the stored row of an entity."""

    async def by_id(self, owner: Owner, entity_id: str) -> KnownEntity | None:
        """Return the stored row of the owner's entity with that id."""

    async def named(self, owner: Owner, name: str) -> list[KnownEntity]:
        """Return the owner's entities of any type that have this name."""

    async def by_key(self, key: int) -> KnownEntity | None:
        """Return the stored row of an entity, for any owner."""

    async def keyed(self, owner: Owner, idempotency_key: str) -> Observation | None:
        """Return the owner's claim with this idempotency key."""

    async def add(self, subject: Subject, at_ms: int) -> KnownEntity:
        """Add an entity that has no claims yet."""

    async def append(
        self, known: KnownEntity, observation: Observation, content: bytes
    ) -> KnownEntity:
        """Append a claim, and update the entity row with values computed from all its claims."""

    async def since(self, known: KnownEntity, ordinal: int) -> list[Observation]:
        """Return the claims about an entity from a number on, each verified by its hash."""

    async def newest(
        self, known: KnownEntity, *, before: tuple[int, int] | None, limit: int
    ) -> tuple[list[Observation], tuple[int, int] | None]:
        """Return claims in time order, newest first, after a position (time in ms and number).

        Returns one page, skipping damaged claims, and the position of the next page if there is
        one.
        """

    async def keys(self, after: int, limit: int) -> list[int]:
        """Return the keys of all owners' entities after a given key."""

    async def proven(self, key: int) -> KnownEntity:
        """Return an entity verified against its id, its counts recomputed despite damage."""


class ProjectionTable(Protocol):
    """Projections of claims, for fast queries; all of them can be recomputed."""

    async def save(
        self,
        known: KnownEntity,
        projection: Projection,
        body: bytes | None,
        *,
        before: Projection | None = None,
    ) -> None:
        """Write what one more claim has changed; a snapshot that is too large is not stored.

        `before` is the stored projection, if the caller has it; otherwise it is read.
        """

    async def mend(self, known: KnownEntity, projection: Projection, body: bytes | None) -> bool:
        """Write the recomputed rows after comparing them all; return whether any differed."""

    async def sweep(self) -> int:
        """Repair rows that belong to no entity or to another session; return how many."""

    async def body(self, known: KnownEntity) -> bytes | None:
        """Return the encoded snapshot of an entity, if it is stored."""

    async def body_to_extend(self, known: KnownEntity) -> tuple[bytes, dict[str, int]] | None:
        """Return the encoded snapshot of an entity if all its claims are submissions.

        Also returns the times of the last claims about its end and its duration. None if it is
        not stored or damaged.
        """

    async def page(self, listing: EntityListing) -> list[ListedEntity]:
        """Return entities in order, including Holdfast sessions that were used."""

    async def count(self, owner: Owner, entity_type: EntityType) -> int:
        """Return the total number of entities in a listing."""

    async def entities(self, owner: Owner, entity_type: EntityType) -> list[KnownEntity]:
        """Return every entity of a type that has claims, including deleted ones, unordered."""

    async def hosted(self, owner: Owner) -> list[HostedSession]:
        """Return the owner's sessions that were used and have no claims."""

    async def hosted_by_id(self, owner: Owner, entity_id: str) -> HostedSession | None:
        """Return the owner's session with that id, if it has no claims."""

    async def name_key(self, owner: Owner, name: str) -> int | None:
        """Return the key of an id that entities reference."""

    async def apart(self, owner: Owner, name_keys: Sequence[int]) -> list[KnownEntity]:
        """Return the entities that reference these ids and must be queried separately.

        These are Holdfast sessions, entities with many references, and entities that reference
        several of these ids.
        """

    async def mentioned_by(self, key: int, name_keys: Sequence[int]) -> list[int]:
        """Return which of these ids an entity references."""

    async def events(self, key: int, event_filter: EventFilter) -> list[TimelineEvent]:
        """Return an entity's own events in order, skipping damaged ones."""

    async def count_events(self, key: int, event_filter: EventFilter) -> int:
        """Return the number of an entity's own events."""

    async def mentioned(self, name_key: int, event_filter: EventFilter) -> list[TimelineEvent]:
        """Return the events of all entities that reference an id, in order; skip damaged ones."""

    async def count_mentioned(self, name_key: int, event_filter: EventFilter) -> int:
        """Return the number of events of the entities that reference an id."""
