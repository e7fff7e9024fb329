"""Observed history on the wire: what is known of sessions and entities, and from which claims."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from holdfast.domain.entities import Entity
from holdfast.domain.entity_queries import EntityOrder
from holdfast.domain.entity_types import EntityType
from holdfast.domain.histories import (
    OFFSET_MOST,
    PAGE,
    PAGE_MOST,
    Direction,
    EntityPage,
    History,
    ObservationPage,
    Removal,
)
from holdfast.domain.observation_issues import SchemaWarning
from holdfast.domain.observations import Kind, Observation
from holdfast.domain.timestamps import milliseconds, spelled
from holdfast.http.v1.scalars import Cursor, Instant

Some = Annotated[int, Meta(ge=1, le=PAGE_MOST)]
# A day, or a time with or without an offset; judged like the times of a submission.
Moment = Annotated[str, Meta(max_length=100)]
Key = Annotated[
    str,
    Meta(min_length=1, max_length=200, description="The same key is the same observation."),
]
Reason = Annotated[str, Meta(max_length=512, description="Why; for people.")]
References = tuple[str, ...]


class ObservationForm(Struct, frozen=True, kw_only=True):
    """One claim, as it was made."""

    id: str
    owner: str
    entity_type: EntityType
    entity_id: str
    session_key: str
    ordinal: int
    fields: dict[str, Any]
    content_hash: str
    kind: Kind
    priority: int
    source: str
    observed_at: Instant
    created_at: Instant
    idempotency_key: str | None


class EntityForm(Struct, frozen=True, kw_only=True):
    """What all claims about an entity come to; `provenance` names those each part is made of."""

    entity_id: str
    entity_type: EntityType
    schema_version: str
    snapshot: dict[str, Any]
    provenance: dict[str, References]
    provenance_items: dict[str, tuple[References, ...]]
    observation_count: int
    last_observation_at: Instant | None
    hosted: bool
    warnings: tuple[SchemaWarning, ...]


class HistoryForm(EntityForm, frozen=True, kw_only=True):
    """What is known of a session, and the newest claims about it, at most 100."""

    observations: tuple[ObservationForm, ...]
    observations_total: int


class HistoryList(Struct, frozen=True, kw_only=True):
    """A page of sessions, and how many there are in all."""

    data: tuple[EntityForm, ...]
    total: int
    next_cursor: str | None


class ObservationList(Struct, frozen=True, kw_only=True):
    """A page of the claims about a session, newest first."""

    observations: tuple[ObservationForm, ...]
    total: int
    next_cursor: str | None


class EntityList(Struct, frozen=True, kw_only=True):
    """A page of entities of a type."""

    entities: tuple[EntityForm, ...]
    total: int
    next_cursor: str | None


class RemovalForm(Struct, frozen=True, kw_only=True):
    """Whether the history of a session is deleted now, and the observation that says so."""

    entity_id: str
    observation_id: str
    deleted: bool


class HistoryPageQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which sessions, in which order, and as of when."""

    limit: Some = PAGE
    offset: Annotated[int, Meta(ge=0, le=OFFSET_MOST)] = 0
    cursor: Cursor | None = None
    order_by: EntityOrder = EntityOrder.STARTED_AT
    order: Direction = Direction.DESC
    at: Moment | None = None
    at_ingested: Moment | None = None


class PastQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As of when: what was true by then, and what was written down by then."""

    at: Moment | None = None
    at_ingested: Moment | None = None


class ClaimsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which part of the claims."""

    limit: Some = PAGE
    cursor: Cursor | None = None


class CheckpointQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which of several checkpoints of a name, else the latest; and as of when."""

    timestamp: Moment | None = None
    at: Moment | None = None


class RemovalQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why, and under which key."""

    reason: Reason | None = None
    idempotency_key: Key | None = None


def observation_form(observation: Observation) -> ObservationForm:
    """Return a claim as it is shown."""
    return ObservationForm(
        id=observation.id,
        owner=observation.subject.owner,
        entity_type=observation.subject.entity_type,
        entity_id=observation.entity_id,
        session_key=observation.subject.key,
        ordinal=observation.ordinal,
        fields=observation.fields,
        content_hash=observation.content_hash,
        kind=observation.kind,
        priority=observation.priority,
        source=observation.source,
        observed_at=spelled(milliseconds(observation.observed_at)),
        created_at=spelled(milliseconds(observation.created_at)),
        idempotency_key=observation.idempotency_key,
    )


def entity_form(entity: Entity) -> EntityForm:
    """Return what is known of an entity as it is shown."""
    return EntityForm(**_told(entity))


def history_form(history: History) -> HistoryForm:
    """Return what is known of a session, with its newest claims."""
    return HistoryForm(
        **_told(history.entity),
        observations=tuple(map(observation_form, history.observations)),
        observations_total=history.observations_total,
    )


def _told(entity: Entity) -> dict[str, Any]:
    last = entity.last_observation_at
    return {
        "entity_id": entity.entity_id,
        "entity_type": entity.entity_type,
        "schema_version": entity.schema_version,
        "snapshot": entity.snapshot,
        "provenance": entity.provenance,
        "provenance_items": entity.provenance_items,
        "observation_count": entity.observation_count,
        "last_observation_at": None if last is None else spelled(milliseconds(last)),
        "hosted": entity.hosted,
        "warnings": entity.warnings,
    }


def history_list(page: EntityPage) -> HistoryList:
    """Return a page of sessions as it is shown."""
    data = tuple(map(entity_form, page.items))
    return HistoryList(data=data, total=page.total, next_cursor=page.next_cursor)


def entity_list(page: EntityPage) -> EntityList:
    """Return a page of entities as it is shown."""
    entities = tuple(map(entity_form, page.items))
    return EntityList(entities=entities, total=page.total, next_cursor=page.next_cursor)


def observation_list(page: ObservationPage) -> ObservationList:
    """Return a page of claims as it is shown."""
    shown = tuple(map(observation_form, page.items))
    return ObservationList(observations=shown, total=page.total, next_cursor=page.next_cursor)


def removal_form(removal: Removal) -> RemovalForm:
    """Return what became of a deletion or a restoration."""
    return RemovalForm(
        entity_id=removal.entity_id,
        observation_id=removal.observation_id,
        deleted=removal.deleted,
    )
