"""JSON forms of observed history: submissions, corrections, queries, timelines and entities.

What is returned for a session or an observation is in `wire/observations.py`.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from holdfast.domain.canonical_json import canonical_text
from holdfast.domain.ids import EntityId, ObservationId, Owner
from holdfast.domain.time import format_iso8601, milliseconds
from holdfast.observations.claims import Observation, ObservationKind, Subject
from holdfast.observations.issues import SchemaWarning
from holdfast.observations.model import NAME_LONGEST, STRING_LONGEST, Entity, EntityType
from holdfast.observations.queries import (
    OFFSET_MOST,
    PAGE,
    PAGE_MOST,
    Direction,
    EntityOrder,
    EntityPage,
    EntityQuery,
    History,
    HistoryQuery,
    ObservationPage,
    Removal,
    TimelinePage,
    TimelineQuery,
    require_filters,
)
from holdfast.observations.timeline import EventType, TimelineEvent
from holdfast.wire.scalars import Cursor, parse_time, parse_time_or_none

PageLimit = Annotated[int, Meta(ge=1, le=PAGE_MOST)]
# A day, or a time with or without an offset; judged like the times of a submission.
Moment = Annotated[str, Meta(max_length=100)]
Key = Annotated[
    str,
    Meta(min_length=1, max_length=200, description="The same key is the same observation."),
]
Reason = Annotated[str, Meta(max_length=512, description="Why; for people.")]
EntityIdForm = Annotated[str, Meta(description="What the entity is always known by: ent_….")]
References = Annotated[
    tuple[str, ...], Meta(description="Observations, or journal:… of a session hosted here.")
]
_INSTANT = {"format": "date-time"}


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


class HistoryList(Struct, frozen=True, kw_only=True):
    """A page of sessions, and how many there are in all."""

    data: tuple[EntityForm, ...]
    total: int
    next_cursor: str | None


class HistoryPageQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which sessions, in which order, and as of when."""

    limit: PageLimit = PAGE
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

    limit: PageLimit = PAGE
    cursor: Cursor | None = None


class CheckpointQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which of several checkpoints of a name, else the latest; and as of when."""

    timestamp: Moment | None = None
    at: Moment | None = None


class RemovalQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why, and under which key."""

    reason: Reason | None = None
    idempotency_key: Key | None = None


def history_list(page: EntityPage) -> HistoryList:
    """Return a page of sessions as it is shown."""
    data = tuple(map(entity_form, page.items))
    return HistoryList(data=data, total=page.total, next_cursor=page.next_cursor)


Name = Annotated[str, Meta(min_length=1, max_length=NAME_LONGEST)]
TimeText = Annotated[
    str, Meta(description="A day or a time of ISO 8601; without an offset it is UTC.")
]
Text = Annotated[str, Meta(max_length=STRING_LONGEST)]
Details = dict[str, Any]


class ActionPart(Struct, frozen=True, kw_only=True):
    """Something that was done; other keys are kept as well."""

    type: Name
    result: Name
    details: Details | UnsetType | None = UNSET
    timestamp: TimeText | UnsetType | None = UNSET


class CheckpointPart(Struct, frozen=True, kw_only=True):
    """Something that was reached, and what it takes to go on from there."""

    name: Name
    timestamp: TimeText
    state: Details | UnsetType | None = UNSET


class OutcomePart(Struct, frozen=True, kw_only=True):
    """What came of it, and which entity it is about."""

    type: Name
    id: Text | UnsetType | None = UNSET
    details: Details | UnsetType | None = UNSET


class SubmissionPost(Struct, frozen=True, kw_only=True):
    """What happened in a session; null clears `duration` and `ended_at`."""

    session_id: Annotated[str, Meta(min_length=5, max_length=512)]
    actions: Annotated[tuple[ActionPart, ...], Meta(min_length=1, max_length=10_000)]
    started_at: TimeText
    checkpoints: (
        Annotated[tuple[CheckpointPart, ...], Meta(max_length=1_000)] | UnsetType | None
    ) = UNSET
    outcomes: Annotated[tuple[OutcomePart, ...], Meta(max_length=1_000)] | UnsetType | None = UNSET
    duration: Annotated[float, Meta(gt=0)] | UnsetType | None = UNSET
    ended_at: TimeText | UnsetType | None = UNSET
    idempotency_key: Key | UnsetType | None = UNSET


Correctable = Literal["actions", "checkpoints", "outcomes", "duration", "started_at", "ended_at"]


class CorrectionPost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One field, and what it should have been."""

    field: Correctable
    value: Any
    reason: Reason | None = None
    idempotency_key: Key | None = None


class RestorationPost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why, and under which key."""

    reason: Reason | None = None
    idempotency_key: Key | None = None


EntityTypeName = Literal["feature_unit", "release", "agent_decision", "validation_result"]


class EntityPost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of an entity that is no session, by the schema of its type."""

    entity_type: EntityTypeName
    fields: Details
    idempotency_key: Key | None = None


class EntityTimelineQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose events, and which; both dates are part of it, a day to its end."""

    entity_id: Annotated[
        str,
        Meta(
            min_length=1,
            # An outcome's id may be longer; who has such a one asks over MCP.
            max_length=8192,
            description="An entity's id, or what it is known by, or what outcomes name it by.",
        ),
    ]
    start_date: Moment | None = None
    end_date: Moment | None = None
    event_types: tuple[EventType, ...] = ()
    limit: PageLimit = PAGE
    cursor: Cursor | None = None


class EntitiesQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which entities, in which order."""

    entity_type: EntityType
    filters: (
        Annotated[
            str,
            Meta(
                max_length=8192,
                description="A JSON object: paths into the snapshot, each with a value, with "
                "`contains`, or with `gte` and `lte`.",
            ),
        ]
        | None
    ) = None
    order_by: EntityOrder = EntityOrder.LAST_OBSERVATION_AT
    order: Direction = Direction.DESC
    limit: PageLimit = PAGE
    cursor: Cursor | None = None


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
    return EntityForm(**_entity_fields(entity))


def history_form(history: History) -> HistoryForm:
    """Return what is known of a session, with its newest claims."""
    return HistoryForm(
        **_entity_fields(history.entity),
        observations=tuple(map(observation_form, history.observations)),
        observations_total=history.observations_total,
    )


def _entity_fields(entity: Entity) -> dict[str, Any]:
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


def history_query(query: HistoryQuery, cursor: str | None) -> HistoryPageQuery:
    """Return a query for sessions as it is sent."""
    return HistoryPageQuery(
        limit=query.limit,
        offset=query.offset,
        cursor=cursor,
        order_by=query.order_by,
        order=query.order,
        at=query.at,
        at_ingested=query.at_ingested,
    )


def entities_query(query: EntityQuery, cursor: str | None) -> EntitiesQuery:
    """Return a query for entities as it is sent."""
    filters = require_filters(query.filters)
    return EntitiesQuery(
        entity_type=query.entity_type,
        filters=canonical_text(filters) if filters else None,
        order_by=query.order_by,
        order=query.order,
        limit=query.limit,
        cursor=cursor,
    )


def timeline_query(entity_id: str, query: TimelineQuery, cursor: str | None) -> EntityTimelineQuery:
    """Return a query for a timeline as it is sent."""
    return EntityTimelineQuery(
        entity_id=entity_id,
        start_date=query.start_date,
        end_date=query.end_date,
        event_types=query.event_types,
        limit=query.limit,
        cursor=cursor,
    )


def entity_of(form: EntityForm, key: str | None = None) -> Entity:
    """Return the entity of a form; without a key, the one that its snapshot names."""
    last = form.last_observation_at
    named = form.snapshot.get("session_id", form.snapshot.get("id", ""))
    return Entity(
        entity_id=EntityId(form.entity_id),
        entity_type=form.entity_type,
        key=str(named) if key is None else key,
        schema_version=form.schema_version,
        snapshot=form.snapshot,
        provenance=form.provenance,
        provenance_items=form.provenance_items,
        observation_count=form.observation_count,
        last_observation_at=parse_time_or_none(last),
        hosted=form.hosted,
        warnings=form.warnings,
    )


def observation_of(form: ObservationForm) -> Observation:
    """Return the observation of a form."""
    return Observation(
        id=ObservationId(form.id),
        subject=Subject(Owner(form.owner), form.entity_type, form.session_key),
        entity_id=EntityId(form.entity_id),
        ordinal=form.ordinal,
        fields=form.fields,
        content_hash=form.content_hash,
        kind=form.kind,
        source=form.source,
        observed_at=parse_time(form.observed_at),
        created_at=parse_time(form.created_at),
        idempotency_key=form.idempotency_key,
    )


def history_of(form: HistoryForm, session_id: str) -> History:
    """Return the history of a form."""
    return History(
        entity=entity_of(form, session_id),
        observations=tuple(map(observation_of, form.observations)),
        observations_total=form.observations_total,
    )


def removal_of(form: RemovalForm) -> Removal:
    """Return the removal of a form."""
    return Removal(
        entity_id=EntityId(form.entity_id),
        observation_id=ObservationId(form.observation_id),
        deleted=form.deleted,
    )
