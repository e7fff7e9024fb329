"""JSON forms of observed history: submissions, corrections, queries, timelines and entities.

What is returned for a session or an observation is in `services/history_forms.py`.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from holdfast.observations.model import NAME_LONGEST, STRING_LONGEST, EntityType
from holdfast.observations.queries import (
    OFFSET_MOST,
    PAGE,
    PAGE_MOST,
    Direction,
    EntityOrder,
    EntityPage,
)
from holdfast.observations.timeline import EventType
from holdfast.services.history_forms import EntityForm, entity_form
from holdfast.wire.scalars import Cursor

Some = Annotated[int, Meta(ge=1, le=PAGE_MOST)]
# A day, or a time with or without an offset; judged like the times of a submission.
Moment = Annotated[str, Meta(max_length=100)]
Key = Annotated[
    str,
    Meta(min_length=1, max_length=200, description="The same key is the same observation."),
]
Reason = Annotated[str, Meta(max_length=512, description="Why; for people.")]


class HistoryList(Struct, frozen=True, kw_only=True):
    """A page of sessions, and how many there are in all."""

    data: tuple[EntityForm, ...]
    total: int
    next_cursor: str | None


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


def history_list(page: EntityPage) -> HistoryList:
    """Return a page of sessions as it is shown."""
    data = tuple(map(entity_form, page.items))
    return HistoryList(data=data, total=page.total, next_cursor=page.next_cursor)


Name = Annotated[str, Meta(min_length=1, max_length=NAME_LONGEST)]
Told = Annotated[str, Meta(description="A day or a time of ISO 8601; without an offset it is UTC.")]
Text = Annotated[str, Meta(max_length=STRING_LONGEST)]
Details = dict[str, Any]


class ActionPart(Struct, frozen=True, kw_only=True):
    """Something that was done; other keys are kept as well."""

    type: Name
    result: Name
    details: Details | UnsetType | None = UNSET
    timestamp: Told | UnsetType | None = UNSET


class CheckpointPart(Struct, frozen=True, kw_only=True):
    """Something that was reached, and what it takes to go on from there."""

    name: Name
    timestamp: Told
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
    started_at: Told
    checkpoints: (
        Annotated[tuple[CheckpointPart, ...], Meta(max_length=1_000)] | UnsetType | None
    ) = UNSET
    outcomes: Annotated[tuple[OutcomePart, ...], Meta(max_length=1_000)] | UnsetType | None = UNSET
    duration: Annotated[float, Meta(gt=0)] | UnsetType | None = UNSET
    ended_at: Told | UnsetType | None = UNSET
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


Sibling = Literal["feature_unit", "release", "agent_decision", "validation_result"]


class EntityPost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of an entity that is no session, by the schema of its type."""

    entity_type: Sibling
    fields: Details
    idempotency_key: Key | None = None


class EventsOfQuery(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
    limit: Some = PAGE
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
    limit: Some = PAGE
    cursor: Cursor | None = None
