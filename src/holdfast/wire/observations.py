"""JSON forms of observed history: submissions, corrections, queries, timelines and entities."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field
from msgspec.structs import asdict

from holdfast.domain.canonical_json import canonical_text
from holdfast.domain.ids import EntityId, ObservationId, Owner
from holdfast.domain.time import format_iso8601, milliseconds
from holdfast.observations.issues import SchemaWarning
from holdfast.observations.model import (
    NAME_LONGEST,
    STRING_LONGEST,
    Entity,
    EntityType,
    Observation,
    ObservationKind,
    Subject,
)
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
# A date, or a time with or without an offset; validated like the times of a submission.
Moment = Annotated[str, Meta(max_length=100)]
SessionName = Annotated[str, Meta(min_length=1, max_length=512)]
Key = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=200,
        description="Idempotency key: the same key identifies the same observation.",
    ),
]
Reason = Annotated[str, Meta(max_length=512, description="The reason, for people.")]
EntityIdForm = Annotated[str, Meta(description="The stable id of the entity: ent_….")]
References = Annotated[
    tuple[str, ...],
    Meta(description="Ids of observations, or journal:… for a session that Holdfast hosts."),
]
_INSTANT = {"format": "date-time"}


class EntityForm(Struct, frozen=True, kw_only=True):
    """An entity: the merged state of all observations of it, and their provenance."""

    entity_id: EntityIdForm
    entity_type: Annotated[EntityType, Meta(description="The type of the entity.")]
    schema_version: Annotated[str, Meta(description="The version of its schema.")]
    snapshot: Annotated[
        dict[str, Any], Meta(description="The merged fields; a session always has its list fields.")
    ]
    provenance: Annotated[
        dict[str, References], Meta(description="The observations behind each field.")
    ]
    provenance_items: Annotated[
        dict[str, tuple[References, ...]],
        Meta(description="The observations behind each item of a list."),
    ]
    observation_count: Annotated[int, Meta(description="Number of observations.")]
    last_observation_at: Annotated[
        Annotated[str, Meta(extra_json_schema=_INSTANT)] | None,
        Meta(description="The time of the latest observation."),
    ]
    hosted: Annotated[bool, Meta(description="Whether Holdfast hosts the session.")]
    warnings: Annotated[
        tuple[SchemaWarning, ...],
        Meta(description="Problems with the entity's data; empty if there are none."),
    ]


Total = Annotated[int, Meta(description="The total number, on all pages.")]
NextCursor = Annotated[
    str | None, Meta(description="Cursor of the next page; null on the last page.")
]


class EntityList(Struct, frozen=True, kw_only=True):
    """A page of entities, in order."""

    data: tuple[EntityForm, ...]
    total: Total
    next_cursor: NextCursor


class HistoryPageQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Page, order and point in time of a list of sessions."""

    limit: PageLimit = PAGE
    offset: Annotated[int, Meta(ge=0, le=OFFSET_MOST)] = 0
    cursor: Cursor | None = None
    order_by: EntityOrder = EntityOrder.STARTED_AT
    order: Direction = Direction.DESC
    at: Moment | None = None
    at_ingested: Moment | None = None


class PastStateQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A point in time: `at` for valid time, `at_ingested` for the time of recording."""

    at: Moment | None = None
    at_ingested: Moment | None = None


class ObservationsQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Page of a list of observations; `from` and `to` limit `observed_at`, both inclusive."""

    since: Moment | None = field(default=None, name="from")
    until: Moment | None = field(default=None, name="to")
    limit: PageLimit = PAGE
    cursor: Cursor | None = None


class CheckpointQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Selects one of several checkpoints of a name, by default the latest; and a point in time."""

    timestamp: Moment | None = None
    at: Moment | None = None


class RemovalQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reason of a deletion, and its idempotency key."""

    reason: Reason | None = None
    idempotency_key: Key | None = None


Name = Annotated[str, Meta(min_length=1, max_length=NAME_LONGEST)]
TimeText = Annotated[str, Meta(description="An ISO 8601 date or time; UTC if it has no offset.")]
Text = Annotated[str, Meta(max_length=STRING_LONGEST)]
Details = dict[str, Any]


class ActionPart(Struct, frozen=True, kw_only=True):
    """An action; additional keys are stored as well."""

    type: Name
    result: Name
    details: Details | UnsetType | None = UNSET
    timestamp: TimeText | UnsetType | None = UNSET


class CheckpointPart(Struct, frozen=True, kw_only=True):
    """A checkpoint, and the state that is needed to continue from it."""

    name: Name
    timestamp: TimeText
    state: Details | UnsetType | None = UNSET


class OutcomePart(Struct, frozen=True, kw_only=True):
    """An outcome, and the id of the entity that it is about."""

    type: Name
    id: Text | UnsetType | None = UNSET
    details: Details | UnsetType | None = UNSET


class SubmissionPost(Struct, frozen=True, kw_only=True):
    """A submission about a session; null clears `duration` and `ended_at`."""

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
    """The correction of one field."""

    field: Correctable
    value: Any
    reason: Reason | None = None
    idempotency_key: Key | None = None


class RestorationPost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The reason of a restoration, and its idempotency key."""

    reason: Reason | None = None
    idempotency_key: Key | None = None


EntityTypeName = Literal["feature_unit", "release", "agent_decision", "validation_result"]


class EntityPost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An observation of an entity other than a session; `fields` follow the schema of its type."""

    entity_type: EntityTypeName
    fields: Details
    idempotency_key: Key | None = None


class EntityTimelineQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Entity and filters of a timeline; both dates are inclusive, a date covers its whole day.

    Either `entity_id` or `session_id` is required. `start_date` and `end_date` are other names of
    `from` and `to`.
    """

    entity_id: (
        Annotated[
            str,
            Meta(
                min_length=1,
                # An outcome's id may be longer; such a timeline is available over MCP only.
                max_length=8192,
                description="The entity's id, its own key, or the id that outcomes use for it.",
            ),
        ]
        | None
    ) = None
    session_id: SessionName | None = None
    since: Moment | None = field(default=None, name="from")
    until: Moment | None = field(default=None, name="to")
    start_date: Moment | None = None
    end_date: Moment | None = None
    event_types: tuple[EventType, ...] = ()
    limit: PageLimit = PAGE
    cursor: Cursor | None = None


class EntitiesQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filters and order of a list of entities.

    With a `session_id`, only entities that the session refers to, or that refer to it. `from` and
    `to` limit `last_observation_at`, both inclusive.
    """

    entity_type: EntityType
    session_id: SessionName | None = None
    since: Moment | None = field(default=None, name="from")
    until: Moment | None = field(default=None, name="to")
    filters: (
        Annotated[
            str,
            Meta(
                max_length=8192,
                description=(
                    "A JSON object: dotted paths in the snapshot, each with a value, `contains`, "
                    "or `gte` and `lte`."
                ),
            ),
        ]
        | None
    ) = None
    order_by: EntityOrder = EntityOrder.LAST_OBSERVATION_AT
    order: Direction = Direction.DESC
    limit: PageLimit = PAGE
    cursor: Cursor | None = None


class ObservationForm(Struct, frozen=True, kw_only=True):
    """An observation, as it was submitted."""

    id: Annotated[str, Meta(description="The id of the observation: obs_….")]
    owner: Annotated[str, Meta(description="The owner.")]
    entity_type: Annotated[EntityType, Meta(description="The type of the entity.")]
    entity_id: EntityIdForm
    session_key: Annotated[str, Meta(description="The entity's own key, chosen by its owner.")]
    ordinal: Annotated[
        int,
        Meta(
            description="The number of this observation among those of its entity, starting at 1."
        ),
    ]
    fields: Annotated[dict[str, Any], Meta(description="The fields as they were sent.")]
    content_hash: Annotated[str, Meta(description="SHA-256 of the canonical fields.")]
    kind: Annotated[ObservationKind, Meta(description="The kind of observation.")]
    priority: Annotated[int, Meta(description="The priority when observations are merged.")]
    source: Annotated[str, Meta(description="The source: the name of a client, or a file.")]
    observed_at: Annotated[
        str, Meta(description="When the observation was valid.", extra_json_schema=_INSTANT)
    ]
    created_at: Annotated[
        str, Meta(description="When the observation was recorded.", extra_json_schema=_INSTANT)
    ]
    idempotency_key: Annotated[
        str | None, Meta(description="The idempotency key that was sent with it.")
    ]


class HistoryForm(EntityForm, frozen=True, kw_only=True):
    """The history of a session, and its newest observations."""

    observations: Annotated[
        tuple[ObservationForm, ...],
        Meta(description="The newest observations first: at most 100, or as many as fit."),
    ]
    observations_total: Total


class ObservationList(Struct, frozen=True, kw_only=True):
    """A page of the observations of a session, newest first."""

    data: tuple[ObservationForm, ...]
    total: Total
    next_cursor: NextCursor


class TimelineList(Struct, frozen=True, kw_only=True):
    """A page of a timeline, earliest events first."""

    data: tuple[TimelineEvent, ...]
    total: Total
    next_cursor: NextCursor


class RemovalForm(Struct, frozen=True, kw_only=True):
    """The result of a deletion or a restoration."""

    entity_id: EntityIdForm
    observation_id: Annotated[
        str, Meta(description="The id of the observation that records it: obs_….")
    ]
    deleted: Annotated[bool, Meta(description="Whether the history is deleted now.")]


def observation_form(observation: Observation) -> ObservationForm:
    """Return the form of an observation."""
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
        observed_at=format_iso8601(observation.observed_ms),
        created_at=format_iso8601(observation.created_ms),
        idempotency_key=observation.idempotency_key,
    )


def entity_form(entity: Entity) -> EntityForm:
    """Return the form of an entity."""
    return EntityForm(**_entity_fields(entity))


def history_form(history: History) -> HistoryForm:
    """Return the form of a session's history, with its newest observations."""
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
    """Return the form of a page of entities."""
    data = tuple(map(entity_form, page.items))
    return EntityList(data=data, total=page.total, next_cursor=page.next_cursor)


def observation_list(page: ObservationPage) -> ObservationList:
    """Return the form of a page of observations."""
    data = tuple(map(observation_form, page.items))
    return ObservationList(data=data, total=page.total, next_cursor=page.next_cursor)


def timeline_list(page: TimelinePage) -> TimelineList:
    """Return the form of a page of a timeline."""
    return TimelineList(data=page.events, total=page.total, next_cursor=page.next_cursor)


def removal_form(removal: Removal) -> RemovalForm:
    """Return the form of a deletion or a restoration."""
    return RemovalForm(
        entity_id=removal.entity_id,
        observation_id=removal.observation_id,
        deleted=removal.deleted,
    )


def history_query(query: HistoryQuery, cursor: str | None) -> HistoryPageQuery:
    """Return the query parameters of a query for sessions."""
    return HistoryPageQuery(**asdict(query), cursor=cursor)


def entities_query(query: EntityQuery, cursor: str | None) -> EntitiesQuery:
    """Return the query parameters of a query for entities."""
    filters = require_filters(query.entity_type, query.filters)
    return EntitiesQuery(
        entity_type=query.entity_type,
        filters=canonical_text(filters) if filters else None,
        session_id=query.session_id,
        since=query.start_date,
        until=query.end_date,
        order_by=query.order_by,
        order=query.order,
        limit=query.limit,
        cursor=cursor,
    )


def timeline_query(entity_id: str, query: TimelineQuery, cursor: str | None) -> EntityTimelineQuery:
    """Return the query parameters of a query for a timeline."""
    return EntityTimelineQuery(entity_id=entity_id, **asdict(query), cursor=cursor)


def entity_of(form: EntityForm, key: str | None = None) -> Entity:
    """Return the entity of a form; without a key, its key is taken from the snapshot."""
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
        observed_ms=milliseconds(parse_time(form.observed_at)),
        created_ms=milliseconds(parse_time(form.created_at)),
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
