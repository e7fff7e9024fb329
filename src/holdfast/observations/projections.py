"""Stored rows of observed history: entities, and what is computed from their claims."""

from msgspec import Struct

from holdfast.domain.ids import EntityId, Owner, SessionKey
from holdfast.observations.as_of import TimeWindow
from holdfast.observations.model import ObservationKind, Subject
from holdfast.observations.timeline import EventPlace, EventType, TimelineEvent


class NewestClaim(Struct, frozen=True):
    """The claim written last about an entity, without its content."""

    kind: ObservationKind
    content_hash: str
    created_ms: int


class KnownEntity(Struct, frozen=True, kw_only=True):
    """An entity: its stored row, or a hosted session without claims, which has none.

    `session_key` refers to the Holdfast session that this entity is; `count` is the number of its
    claims, and the times are theirs.
    """

    key: int = 0
    entity_id: EntityId
    subject: Subject
    session_key: SessionKey | None = None
    count: int = 0
    first_ms: int = 0
    last_ms: int = 0
    known_ms: int = 0
    is_deleted: bool = False
    newest: NewestClaim | None = None

    @property
    def names(self) -> tuple[str, str]:
        """Return the texts by which others mention it."""
        return self.entity_id, self.subject.key


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
    """Filter for the events of a timeline, with a position to start after.

    `keys` are entities, `names` ids that others mention, `apart` entities to leave out.
    """

    owner: Owner
    keys: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    apart: tuple[int, ...] = ()
    window: TimeWindow
    types: tuple[EventType, ...] = ()
    after: EventPlace | None = None
    limit: int
