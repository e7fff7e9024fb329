"""The tables of observed history: claims, which are the truth, and what is computed from them."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from holdfast.domain.ids import EntityId, Owner, SessionKey
from holdfast.observations.as_of import TimeWindow
from holdfast.observations.claims import Observation, ObservationKind, Subject
from holdfast.observations.model import EntityType
from holdfast.observations.queries import EntityListing, HostedSession, ListedEntity
from holdfast.observations.timeline import EventType, TimelineEvent


class NewestClaim(Struct, frozen=True):
    """The claim that was written last about an entity, without what it says."""

    kind: ObservationKind
    content_hash: str
    created_ms: int


class KnownEntity(Struct, frozen=True, kw_only=True):
    """What is kept about an entity beside its claims.

    `session_key` leads to the session of ours that it is; the times are those of its claims.
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
    """A value by which entities are ordered, its weight, and where its claim stands in time."""

    value: float | None
    priority: int
    place_ms: int


class Projection(Struct, frozen=True, kw_only=True, gc=False):
    """What is computed from all claims about an entity, its snapshot aside."""

    is_deleted: bool
    started: Fact | None = None
    ended: Fact | None = None
    duration: Fact | None = None
    events: tuple[TimelineEvent, ...] = ()
    names: tuple[str, ...] = ()


# Where an event stands on a timeline: its time as it is spelled, its rank, its id.
EventPlace = tuple[str, int, str]


class EventFilter(Struct, frozen=True, kw_only=True):
    """Which events of one timeline, behind which place."""

    window: TimeWindow
    types: tuple[EventType, ...] = ()
    after: EventPlace | None = None
    limit: int
    # Entities that are told of elsewhere.
    apart: tuple[int, ...] = ()


class ObservationTable(Protocol):
    """Claims and what they are about. Rows are appended and read; nothing else can be done."""

    async def entity(self, subject: Subject) -> KnownEntity | None:
        """Return what is kept about an entity."""

    async def by_id(self, owner: Owner, entity_id: str) -> KnownEntity | None:
        """Return what is kept about the owner's entity of that id."""

    async def named(self, owner: Owner, name: str) -> list[KnownEntity]:
        """Return the owner's entities of any type that are known by a name."""

    async def by_key(self, key: int) -> KnownEntity | None:
        """Return what is kept about an entity, whoever owns it."""

    async def keyed(self, owner: Owner, idempotency_key: str) -> Observation | None:
        """Return the owner's claim that was made under a key."""

    async def add(self, subject: Subject, at_ms: int) -> KnownEntity:
        """Begin an entity that nobody has claimed anything about."""

    async def append(
        self, known: KnownEntity, observation: Observation, content: bytes
    ) -> KnownEntity:
        """Append a claim; its entity is written with what is computed from all of them."""

    async def since(self, known: KnownEntity, ordinal: int) -> list[Observation]:
        """Return the claims about an entity from a number on, each proven by its hash."""

    async def newest(
        self, known: KnownEntity, *, before: tuple[int, int] | None, limit: int
    ) -> tuple[list[Observation], tuple[int, int] | None]:
        """Return claims in time order, the newest first; behind a time in ms and a number.

        As many as fit on a page, damaged ones passed over, and behind which there are more.
        """

    async def keys(self, after: int, limit: int) -> list[int]:
        """Return the keys of everybody's entities, behind one."""

    async def proven(self, key: int) -> KnownEntity:
        """Return an entity that is what its id says, counted anew, whatever else is damaged."""


class ProjectionTable(Protocol):
    """What is computed from claims, for quick answers; all of it can be computed again."""

    async def save(
        self,
        known: KnownEntity,
        projection: Projection,
        body: bytes | None,
        *,
        before: Projection | None = None,
    ) -> None:
        """Write what one more claim has changed; a snapshot that would be too large is none.

        `before` is what stands there, for whoever knows it; otherwise it is looked up.
        """

    async def mend(self, known: KnownEntity, projection: Projection, body: bytes | None) -> bool:
        """Write what was computed anew, looking at all that is kept; tell whether it differed."""

    async def sweep(self) -> int:
        """Put right what belongs to no entity, or to another session; return how much it was."""

    async def body(self, known: KnownEntity) -> bytes | None:
        """Return the snapshot of an entity as it was encoded, if it is kept."""

    async def page(self, listing: EntityListing) -> list[ListedEntity]:
        """Return entities in order; sessions of ours are among them."""

    async def count(self, owner: Owner, entity_type: EntityType) -> int:
        """Return how many entities a listing has in all."""

    async def entities(self, owner: Owner, entity_type: EntityType) -> list[KnownEntity]:
        """Return every entity of a type that has claims, deleted ones too, in no order."""

    async def hosted(self, owner: Owner) -> list[HostedSession]:
        """Return the owner's sessions that nobody has claimed anything about."""

    async def hosted_by_id(self, owner: Owner, entity_id: str) -> HostedSession | None:
        """Return the owner's session of that id, if nobody has claimed anything about it."""

    async def name_key(self, owner: Owner, name: str) -> int | None:
        """Return what an id is kept under that entities name."""

    async def apart(self, owner: Owner, name_keys: Sequence[int]) -> list[KnownEntity]:
        """Return who names ids and has to be told of by itself.

        Those are sessions of ours, wide ones, and whoever names several of these ids.
        """

    async def mentioned_by(self, key: int, name_keys: Sequence[int]) -> list[int]:
        """Return which of these ids an entity names."""

    async def events(self, key: int, wish: EventFilter) -> list[TimelineEvent]:
        """Return an entity's own events in order; damaged ones are passed over."""

    async def count_events(self, key: int, wish: EventFilter) -> int:
        """Return how many events of its own an entity has."""

    async def mentioned(self, name_key: int, wish: EventFilter) -> list[TimelineEvent]:
        """Return the events of all who name an id, in order; damaged ones are passed over."""

    async def count_mentioned(self, name_key: int, wish: EventFilter) -> int:
        """Return how many events those who name an id have."""
