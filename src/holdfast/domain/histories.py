"""Observed history as it is asked for and answered: queries, pages, and what became of a claim."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from holdfast.domain.entities import Entity
from holdfast.domain.entity_queries import EntityOrder
from holdfast.domain.entity_types import EntityType
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import EntityId, ObservationId
from holdfast.domain.observation_issues import SchemaWarning
from holdfast.domain.observations import Observation
from holdfast.domain.queries import require_limit
from holdfast.domain.timelines import EventType, TimelineEvent

PAGE: Final = 100
PAGE_MOST: Final = 500
OFFSET_MOST: Final = 2_000
# So many bytes a page has at most, unless its first item alone has more.
PAGE_BYTES: Final = 1 << 20


class Action(StrEnum):
    """Whether something was known already of what a claim is about."""

    CREATED = "created"
    MATCHED = "matched"


class Direction(StrEnum):
    """Which end of a listing comes first; what has no value to order by is last in both."""

    ASC = "asc"
    DESC = "desc"


class Submitted(Struct, frozen=True, kw_only=True):
    """What became of a claim; one that was made before is not written again."""

    entity_id: Annotated[EntityId, Meta(description="What the entity is always known by: ent_….")]
    observation_count: Annotated[int, Meta(description="How many observations there are of it.")]
    observation_id: Annotated[ObservationId, Meta(description="The observation: obs_….")]
    action: Annotated[Action, Meta(description="Whether the entity was known before.")]
    deduplicated: Annotated[bool, Meta(description="It was said before; nothing was written.")]
    warnings: Annotated[
        tuple[SchemaWarning, ...], Meta(description="What is odd about it; empty if nothing is.")
    ]


class Removal(Struct, frozen=True, kw_only=True):
    """That history was deleted, or restored."""

    entity_id: EntityId
    observation_id: ObservationId
    deleted: bool
    deduplicated: bool = False


class Correction(Struct, frozen=True, kw_only=True):
    """One field of a session's history, and what it should have been; judged when it is made."""

    session_id: Any
    field: Any
    value: Any
    reason: Any = None


class ImportMark(Struct, frozen=True, kw_only=True):
    """Where an imported claim was found, what it is known by, and when it was true."""

    source: str
    idempotency_key: str
    observed_at: datetime


class HistoryQuery(Struct, frozen=True, kw_only=True):
    """Which part of an owner's sessions, in which order, and as of when."""

    limit: int = PAGE
    offset: int = 0
    order_by: EntityOrder = EntityOrder.STARTED_AT
    order: Direction = Direction.DESC
    at: Any = None
    at_ingested: Any = None

    def __post_init__(self) -> None:
        require_limit(self.limit, most=PAGE_MOST)
        if not 0 <= self.offset <= OFFSET_MOST:
            raise Invalid(
                Code.INVALID_LIMIT,
                f"offset must be 0 to {OFFSET_MOST:,}; a cursor leads further.",
                {"field": "offset"},
            )


class EntityQuery(Struct, frozen=True, kw_only=True):
    """Which entities of a type; filters are paths into the snapshot, with a value or a range."""

    entity_type: EntityType
    filters: Any = None
    order_by: EntityOrder = EntityOrder.LAST_OBSERVATION_AT
    order: Direction = Direction.DESC
    limit: int = PAGE

    def __post_init__(self) -> None:
        require_limit(self.limit, most=PAGE_MOST)


class TimelineQuery(Struct, frozen=True, kw_only=True):
    """Which events of a timeline; both dates are part of it."""

    start_date: Any = None
    end_date: Any = None
    event_types: tuple[EventType, ...] = ()
    limit: int = PAGE

    def __post_init__(self) -> None:
        require_limit(self.limit, most=PAGE_MOST)


class History(Struct, frozen=True, kw_only=True):
    """What is known of a session, and the newest claims that it is known from."""

    entity: Entity
    observations: tuple[Observation, ...]
    observations_total: int


class EntityPage(Struct, frozen=True, kw_only=True):
    """A part of a listing of entities, and how many there are in all."""

    items: tuple[Entity, ...]
    total: int
    next_cursor: str | None = None


class ObservationPage(Struct, frozen=True, kw_only=True):
    """A part of the claims about a session, newest first."""

    items: tuple[Observation, ...]
    total: int
    next_cursor: str | None = None


class TimelinePage(Struct, frozen=True, kw_only=True):
    """A part of a timeline, and how many events it has in all."""

    events: tuple[TimelineEvent, ...]
    total: int
    next_cursor: str | None = None


class Rebuilt(Struct, frozen=True, kw_only=True):
    """What was computed anew, and where that differs from what was kept."""

    entities: int
    differences: tuple[str, ...] = ()
