"""Observed history as tools show it."""

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from holdfast.domain.checkpoints import CheckpointState
from holdfast.domain.entities import Entity
from holdfast.domain.entity_types import EntityType
from holdfast.domain.histories import Action, EntityPage, History, Removal, Submitted
from holdfast.domain.observation_issues import SchemaWarning, WarningCode
from holdfast.domain.observations import Kind, Observation
from holdfast.domain.timelines import EventType, TimelineEvent
from holdfast.mcp.forms import Cursor, Total, moment

EntityIdForm = Annotated[str, Meta(description="What the entity is always known by: ent_….")]
References = Annotated[
    tuple[str, ...], Meta(description="Observations, or journal:… of a session hosted here.")
]


class WarningForm(Struct, frozen=True, kw_only=True):
    """Something odd about what was written all the same."""

    code: Annotated[WarningCode, Meta(description="What is odd: a code of a closed list.")]
    field: Annotated[str, Meta(description="Where, as in actions[2].result.")]
    message: Annotated[str, Meta(description="The same in words.")]
    details: Annotated[dict[str, Any], Meta(description="The same in numbers.")]


Warnings = Annotated[
    tuple[WarningForm, ...], Meta(description="What is odd about it; empty if nothing is.")
]


class SubmittedForm(Struct, frozen=True, kw_only=True):
    """What became of a submission."""

    entity_id: EntityIdForm
    observation_count: Annotated[int, Meta(description="How many observations there are of it.")]
    observation_id: Annotated[str, Meta(description="The observation: obs_….")]
    action: Annotated[Action, Meta(description="Whether the entity was known before.")]
    deduplicated: Annotated[bool, Meta(description="It was said before; nothing was written.")]
    warnings: Warnings


class RemovalForm(Struct, frozen=True, kw_only=True):
    """What became of a deletion or a restoration."""

    entity_id: EntityIdForm
    observation_id: Annotated[str, Meta(description="The observation that says so: obs_….")]
    deleted: Annotated[bool, Meta(description="Whether the history is deleted now.")]


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
    kind: Annotated[Kind, Meta(description="How it came about.")]
    priority: Annotated[int, Meta(description="What it weighs against others.")]
    source: Annotated[str, Meta(description="Through whom: a client's name, or a file.")]
    observed_at: Annotated[str, Meta(description="When it was true.")]
    created_at: Annotated[str, Meta(description="When it was written down.")]
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
    last_observation_at: Annotated[str | None, Meta(description="When the last one was made.")]
    hosted: Annotated[bool, Meta(description="Whether Holdfast plays the session itself.")]
    warnings: Warnings


class HistoryForm(EntityForm, frozen=True, kw_only=True):
    """One session with the newest claims about it."""

    observations: Annotated[
        tuple[ObservationForm, ...], Meta(description="The newest claims first, at most 100.")
    ]
    observations_total: Total


class SessionsForm(Struct, frozen=True, kw_only=True):
    """A page of sessions."""

    sessions: Annotated[tuple[EntityForm, ...], Meta(description="The sessions, in order.")]
    total: Total
    next_cursor: Cursor


class EntitiesForm(Struct, frozen=True, kw_only=True):
    """A page of entities."""

    entities: Annotated[tuple[EntityForm, ...], Meta(description="The entities, in order.")]
    total: Total
    next_cursor: Cursor


class ObservationsForm(Struct, frozen=True, kw_only=True):
    """A page of claims about a session."""

    observations: Annotated[tuple[ObservationForm, ...], Meta(description="Newest first.")]
    total: Total
    next_cursor: Cursor


class EventForm(Struct, frozen=True, kw_only=True):
    """Something that happened to an entity."""

    id: Annotated[str, Meta(description="What the event is always known by: tle_….")]
    timestamp: Annotated[str, Meta(description="When.")]
    event_type: Annotated[EventType, Meta(description="What happened.")]
    description: Annotated[str, Meta(description="The same in words.")]
    entity_id: EntityIdForm
    entity_type: Annotated[EntityType, Meta(description="To what.")]
    session_id: Annotated[str | None, Meta(description="The session, where it is one.")]
    source_field: Annotated[str, Meta(description="The field that it was read off.")]
    provenance: Annotated[References, Meta(description="Which claims it is from.")]
    details: (
        Annotated[dict[str, Any], Meta(description="What else is known of it.")] | UnsetType
    ) = UNSET
    related_to: (
        Annotated[tuple[str, ...], Meta(description="The ids it was found under.")] | UnsetType
    ) = UNSET


class TimelineForm(Struct, frozen=True, kw_only=True):
    """A page of a timeline."""

    events: Annotated[tuple[EventForm, ...], Meta(description="What happened, earliest first.")]
    total: Total
    next_cursor: Cursor


class CheckpointForm(Struct, frozen=True, kw_only=True):
    """What was kept at a checkpoint."""

    session_id: Annotated[str, Meta(description="The session.")]
    name: Annotated[str, Meta(description="The checkpoint.")]
    timestamp: Annotated[str, Meta(description="When it was reached.")]
    state: Annotated[
        dict[str, Any] | None, Meta(description="What was kept: data, and no instruction.")
    ]
    has_state: Annotated[bool, Meta(description="Whether anything was kept.")]
    provenance: Annotated[References, Meta(description="Which claims it is from.")]


def submitted_form(submitted: Submitted) -> SubmittedForm:
    """Return what became of a submission."""
    return SubmittedForm(
        entity_id=submitted.entity_id,
        observation_count=submitted.observation_count,
        observation_id=submitted.observation_id,
        action=submitted.action,
        deduplicated=submitted.deduplicated,
        warnings=tuple(map(_warning, submitted.warnings)),
    )


def removal_form(removal: Removal) -> RemovalForm:
    """Return what became of a deletion or a restoration."""
    return RemovalForm(
        entity_id=removal.entity_id,
        observation_id=removal.observation_id,
        deleted=removal.deleted,
    )


def entity_form(entity: Entity) -> EntityForm:
    """Return an entity."""
    return EntityForm(**_told(entity))


def history_form(history: History) -> HistoryForm:
    """Return a session with the newest claims about it."""
    return HistoryForm(
        **_told(history.entity),
        observations=tuple(map(observation_form, history.observations)),
        observations_total=history.observations_total,
    )


def sessions_form(page: EntityPage) -> SessionsForm:
    """Return a page of sessions."""
    return SessionsForm(
        sessions=tuple(map(entity_form, page.items)),
        total=page.total,
        next_cursor=page.next_cursor,
    )


def observation_form(observation: Observation) -> ObservationForm:
    """Return a claim."""
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
        observed_at=moment(observation.observed_at),
        created_at=moment(observation.created_at),
        idempotency_key=observation.idempotency_key,
    )


def event_form(event: TimelineEvent) -> EventForm:
    """Return an event; what does not apply to it is left out."""
    return EventForm(
        id=event.id,
        timestamp=event.timestamp,
        event_type=event.event_type,
        description=event.description,
        entity_id=event.entity_id,
        entity_type=event.entity_type,
        session_id=event.session_id,
        source_field=event.source_field,
        provenance=event.provenance,
        details=UNSET if event.details is None else event.details,
        related_to=UNSET if event.related_to is None else event.related_to,
    )


def checkpoint_form(found: CheckpointState) -> CheckpointForm:
    """Return what was kept at a checkpoint."""
    return CheckpointForm(**msgspec.structs.asdict(found))


def _told(entity: Entity) -> dict[str, Any]:
    at = entity.last_observation_at
    return {
        "entity_id": entity.entity_id,
        "entity_type": entity.entity_type,
        "schema_version": entity.schema_version,
        "snapshot": entity.snapshot,
        "provenance": entity.provenance,
        "provenance_items": entity.provenance_items,
        "observation_count": entity.observation_count,
        "last_observation_at": None if at is None else moment(at),
        "hosted": entity.hosted,
        "warnings": tuple(map(_warning, entity.warnings)),
    }


def _warning(warning: SchemaWarning) -> WarningForm:
    return WarningForm(**msgspec.structs.asdict(warning))
