"""Observed history as every surface shows it: the same members, described once.

What a surface calls a page of sessions is its own.
"""

from typing import Annotated, Any

from msgspec import Meta, Struct

from holdfast.domain.time import format_iso8601, milliseconds
from holdfast.observations.claims import Observation, ObservationKind
from holdfast.observations.issues import SchemaWarning
from holdfast.observations.model import Entity, EntityType
from holdfast.observations.queries import (
    EntityPage,
    History,
    ObservationPage,
    Removal,
    TimelinePage,
)
from holdfast.observations.timeline import TimelineEvent

_INSTANT = {"format": "date-time"}
EntityIdForm = Annotated[str, Meta(description="What the entity is always known by: ent_….")]
References = Annotated[
    tuple[str, ...], Meta(description="Observations, or journal:… of a session hosted here.")
]
Total = Annotated[int, Meta(description="How many there are in all, whatever the page shows.")]
NextCursor = Annotated[
    str | None, Meta(description="Where the next page begins; null where there is none.")
]


class ObservationForm(Struct, frozen=True, kw_only=True):
    """One claim, as it was made."""

    id: Annotated[str, Meta(description="The observation: obs_….")]
    owner: Annotated[str, Meta(description="Whose it is.")]
    entity_type: Annotated[EntityType, Meta(description="What it is about.")]
    entity_id: EntityIdForm
    session_key: Annotated[str, Meta(description="What the entity is called by its owner.")]
    ordinal: Annotated[int, Meta(description="The how-manieth claim about the entity.")]
    fields: Annotated[dict[str, Any], Meta(description="What was claimed, as it was sent.")]
    content_hash: Annotated[str, Meta(description="SHA-256 of the canonical fields.")]
    kind: Annotated[ObservationKind, Meta(description="How it came about.")]
    priority: Annotated[int, Meta(description="What it weighs against others.")]
    source: Annotated[str, Meta(description="Through whom: a client's name, or a file.")]
    observed_at: Annotated[str, Meta(description="When it was true.", extra_json_schema=_INSTANT)]
    created_at: Annotated[
        str, Meta(description="When it was written down.", extra_json_schema=_INSTANT)
    ]
    idempotency_key: Annotated[str | None, Meta(description="The key it was sent with.")]


class EntityForm(Struct, frozen=True, kw_only=True):
    """What all claims about an entity come to, and which of them each part of it is from."""

    entity_id: EntityIdForm
    entity_type: Annotated[EntityType, Meta(description="What it is.")]
    schema_version: Annotated[str, Meta(description="The version of its schema.")]
    snapshot: Annotated[
        dict[str, Any], Meta(description="Its fields; of a session always the lists as well.")
    ]
    provenance: Annotated[
        dict[str, References], Meta(description="Which claims each field is made of.")
    ]
    provenance_items: Annotated[
        dict[str, tuple[References, ...]],
        Meta(description="Which claims each item of a list is made of."),
    ]
    observation_count: Annotated[int, Meta(description="How many observations there are of it.")]
    last_observation_at: Annotated[
        Annotated[str, Meta(extra_json_schema=_INSTANT)] | None,
        Meta(description="When the last one was made."),
    ]
    hosted: Annotated[bool, Meta(description="Whether Holdfast plays the session itself.")]
    warnings: Annotated[
        tuple[SchemaWarning, ...], Meta(description="What is odd about it; empty if nothing is.")
    ]


class HistoryForm(EntityForm, frozen=True, kw_only=True):
    """What is known of a session, and the newest claims about it."""

    observations: Annotated[
        tuple[ObservationForm, ...],
        Meta(description="The newest claims first, at most 100, and as many as fit."),
    ]
    observations_total: Total


class EntityList(Struct, frozen=True, kw_only=True):
    """A page of entities of a type."""

    entities: Annotated[tuple[EntityForm, ...], Meta(description="The entities, in order.")]
    total: Total
    next_cursor: NextCursor


class ObservationList(Struct, frozen=True, kw_only=True):
    """A page of the claims about a session."""

    observations: Annotated[tuple[ObservationForm, ...], Meta(description="Newest first.")]
    total: Total
    next_cursor: NextCursor


class TimelineForm(Struct, frozen=True, kw_only=True):
    """A part of a timeline, and how many events it has in all."""

    events: Annotated[tuple[TimelineEvent, ...], Meta(description="What happened, earliest first.")]
    total: Total
    next_cursor: NextCursor


class RemovalForm(Struct, frozen=True, kw_only=True):
    """What became of a deletion or a restoration."""

    entity_id: EntityIdForm
    observation_id: Annotated[str, Meta(description="The observation that says so: obs_….")]
    deleted: Annotated[bool, Meta(description="Whether the history is deleted now.")]


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
        observed_at=format_iso8601(milliseconds(observation.observed_at)),
        created_at=format_iso8601(milliseconds(observation.created_at)),
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
        "last_observation_at": None if last is None else format_iso8601(milliseconds(last)),
        "hosted": entity.hosted,
        "warnings": entity.warnings,
    }


def entity_list(page: EntityPage) -> EntityList:
    """Return a page of entities as it is shown."""
    entities = tuple(map(entity_form, page.items))
    return EntityList(entities=entities, total=page.total, next_cursor=page.next_cursor)


def observation_list(page: ObservationPage) -> ObservationList:
    """Return a page of claims as it is shown."""
    shown = tuple(map(observation_form, page.items))
    return ObservationList(observations=shown, total=page.total, next_cursor=page.next_cursor)


def timeline_form(page: TimelinePage) -> TimelineForm:
    """Return a page of a timeline as it is shown."""
    return TimelineForm(events=page.events, total=page.total, next_cursor=page.next_cursor)


def removal_form(removal: Removal) -> RemovalForm:
    """Return what became of a deletion or a restoration."""
    return RemovalForm(
        entity_id=removal.entity_id,
        observation_id=removal.observation_id,
        deleted=removal.deleted,
    )
