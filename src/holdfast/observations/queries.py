"""Queries of observed history and their results: filters, order, `as_of`, pages, checkpoints."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Final, assert_never

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from holdfast.domain.canonical_json import equality_key
from holdfast.domain.errors import Code, Invalid, NotFound
from holdfast.domain.ids import EntityId, ObservationId, Owner, SessionId, SessionKey
from holdfast.domain.queries import decode_count, encode_count, require_limit
from holdfast.domain.time import Moment, format_iso8601, instant_of, milliseconds, parse_iso8601
from holdfast.observations.issues import Issue, SchemaWarning, rejection
from holdfast.observations.model import PAYLOADS, Entity, EntityType, Observation
from holdfast.observations.timeline import EventPlace, EventType, TimelineEvent
from holdfast.observations.validation import (
    build_issue,
    has_members,
    members_of,
    plain_issues,
    value_issues,
)

PAGE: Final = 100
PAGE_MOST: Final = 500
OFFSET_MOST: Final = 2_000
# Maximum size of a page in bytes, unless its first item alone is larger.
PAGE_BYTES: Final = 1 << 20


class Action(StrEnum):
    """Whether the observation created its entity or matched an existing one."""

    CREATED = "created"
    MATCHED = "matched"


class Direction(StrEnum):
    """The sort direction; entities without a sort value are last in both directions."""

    ASC = "asc"
    DESC = "desc"


class SubmitResult(Struct, frozen=True, kw_only=True):
    """The result of a submission; a repeated observation is not stored again."""

    entity_id: Annotated[EntityId, Meta(description="The stable id of the entity: ent_….")]
    observation_count: Annotated[int, Meta(description="Number of observations of the entity.")]
    observation_id: Annotated[ObservationId, Meta(description="The id of the observation: obs_….")]
    action: Annotated[
        Action, Meta(description="Whether the entity was created or already existed.")
    ]
    deduplicated: Annotated[
        bool, Meta(description="True for a repeat, which was not stored again.")
    ]
    warnings: Annotated[
        tuple[SchemaWarning, ...],
        Meta(description=("Problems with the data; empty if there are none.")),
    ]


class Removal(Struct, frozen=True, kw_only=True):
    """Result of deleting or restoring history."""

    entity_id: EntityId
    observation_id: ObservationId
    deleted: bool
    deduplicated: bool = False


class Correction(Struct, frozen=True, kw_only=True):
    """A new value for one field of a session's history; validated when it is submitted."""

    session_id: Any
    field: Any
    value: Any
    reason: Any = None


class EntityOrder(StrEnum):
    """The sort field of a session listing."""

    STARTED_AT = "started_at"
    ENDED_AT = "ended_at"
    DURATION = "duration"
    LAST_OBSERVATION_AT = "last_observation_at"
    SESSION_ID = "session_id"


class HistoryQuery(Struct, frozen=True, kw_only=True):
    """Page, order and `as_of` times of a session listing."""

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
                f"offset must be 0 to {OFFSET_MOST:,}; use a cursor for later pages.",
                {"field": "offset"},
            )


class EntityQuery(Struct, frozen=True, kw_only=True):
    """Query for entities of one type; filters map snapshot paths to a value or a range.

    With a `session_id`, only entities that the session refers to, or that refer to it. Both dates
    are inclusive and apply to the last observation.
    """

    entity_type: EntityType
    filters: Any = None
    session_id: str | None = None
    start_date: Any = None
    end_date: Any = None
    order_by: EntityOrder = EntityOrder.LAST_OBSERVATION_AT
    order: Direction = Direction.DESC
    limit: int = PAGE

    def __post_init__(self) -> None:
        require_limit(self.limit, most=PAGE_MOST)


class TimelineQuery(Struct, frozen=True, kw_only=True):
    """Query for timeline events; both dates are inclusive."""

    start_date: Any = None
    end_date: Any = None
    event_types: tuple[EventType, ...] = ()
    limit: int = PAGE

    def __post_init__(self) -> None:
        require_limit(self.limit, most=PAGE_MOST)


class History(Struct, frozen=True, kw_only=True):
    """The merged state of a session and its newest claims."""

    entity: Entity
    observations: tuple[Observation, ...]
    observations_total: int


class EntityPage(Struct, frozen=True, kw_only=True):
    """One page of an entity listing and the total count."""

    items: tuple[Entity, ...]
    total: int
    next_cursor: str | None = None


class ObservationPage(Struct, frozen=True, kw_only=True):
    """One page of the claims about a session, newest first."""

    items: tuple[Observation, ...]
    total: int
    next_cursor: str | None = None


class TimelinePage(Struct, frozen=True, kw_only=True):
    """One page of a timeline and the total count."""

    events: tuple[TimelineEvent, ...]
    total: int
    next_cursor: str | None = None


class RebuildReport(Struct, frozen=True, kw_only=True):
    """Number of recomputed entities, and where the stored data differed."""

    entities: int
    differences: tuple[str, ...] = ()


_RANGE: Final = frozenset({"gte", "lte"})


def order_value(entity: Entity, order: EntityOrder) -> int | float | str | None:
    """Return the sort value of an entity, timestamps in milliseconds; None if it has none.

    Entities without a value sort last in both directions; ties sort by id, ascending.
    """
    if order is EntityOrder.LAST_OBSERVATION_AT:
        at = entity.last_observation_at
        return None if at is None else milliseconds(at)
    value: int | float | str | None = entity.snapshot.get(order)
    if order in {EntityOrder.STARTED_AT, EntityOrder.ENDED_AT} and value is not None:
        return instant_of(str(value))
    return value


def require_filters(entity_type: EntityType, filters: Any) -> Mapping[str, Any]:
    """Return validated filters, or raise `Invalid`; each path needs a value or a range."""
    if filters is None:
        return {}
    if not isinstance(filters, dict):
        message = "filters must be an object"
        issue = Issue(path=("filters",), value=filters, expected="type: object", message=message)
        raise rejection((issue,))
    if faults := plain_issues(filters):
        raise rejection([replace(each, path=("filters", *each.path)) for each in faults])
    found = [_filter_issue(entity_type, *each) for each in filters.items()]
    if issues := [each for each in found if each is not None]:
        raise rejection(issues)
    return filters


def _filter_issue(entity_type: EntityType, path: str, condition: Any) -> Issue | None:
    """Return why a filter is invalid or can never match, or None."""
    members = members_of(PAYLOADS[entity_type])
    name, is_nested, _ = path.partition(".")
    if name not in members:
        known = ", ".join(members)
        expected = f"one of: {known}"
        rule = f"is not a field of {entity_type}; its fields are {known}"
    elif is_nested and not has_members(members[name][0]):
        expected, rule = f"path: {name}", f"must end at {name}, which has no fields of its own"
    elif isinstance(condition, dict) and not _is_condition(condition):
        expected = "one of: a value, contains, gte, lte"
        rule = "must be a value, contains, or gte and lte"
    else:
        return None
    return build_issue(condition, ("filters", path), expected, rule)


def matches(snapshot: Mapping[str, Any], filters: Mapping[str, Any]) -> bool:
    """Return whether a snapshot satisfies all filters; paths are dot-separated.

    A path through a list leads to every item, and one that satisfies the filter is enough.
    """
    return all(
        any(_matches(value, condition) for value in _at(snapshot, path.split(".")))
        for path, condition in filters.items()
    )


def _is_condition(condition: dict[str, Any]) -> bool:
    return set(condition) == {"contains"} or bool(condition and set(condition) <= _RANGE)


def _at(value: Any, names: Sequence[str]) -> Iterator[Any]:
    """Yield the values at a path."""
    if not names:
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _at(item, names)
    elif isinstance(value, dict) and names[0] in value:
        yield from _at(value[names[0]], names[1:])


def _matches(value: Any, condition: Any) -> bool:
    if not isinstance(condition, dict):
        return equality_key(value) == equality_key(condition)
    if "contains" in condition:
        return _contains(value, condition["contains"])
    return all(_compares(value, bound, limit) for bound, limit in condition.items())


def _contains(value: Any, part: Any) -> bool:
    if isinstance(value, str):
        return isinstance(part, str) and part in value
    return isinstance(value, list) and equality_key(part) in map(equality_key, value)


def _compares(value: Any, bound: str, limit: Any) -> bool:
    """Return whether a value satisfies a bound.

    Dates compare as instants, and an upper bound that is a day includes all of it.
    """
    one, other = _comparable(value), _comparable(limit, is_last=bound == "lte")
    if one is None or other is None or isinstance(one, str) != isinstance(other, str):
        return False
    if isinstance(one, str) or isinstance(other, str):
        return str(one) >= str(other) if bound == "gte" else str(one) <= str(other)
    return one >= other if bound == "gte" else one <= other


def _comparable(value: Any, *, is_last: bool = False) -> int | float | str | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    found = parse_iso8601(value) if isinstance(value, str) else None
    if found is None:
        return value
    return found.last_ms if is_last else found.ms


Value = int | float | str | None


class ListedEntity(Struct, frozen=True, kw_only=True):
    """A row of an entity listing: its sort value and where it is stored.

    A hosted session without claims has no entity row, so its `key` is None.
    """

    value: Value
    entity_id: EntityId
    key: int | None = None
    session_key: SessionKey | None = None


class EntityListing(Struct, frozen=True, kw_only=True):
    """Query of one listing page; `after` is the sort value and id of the last row before it."""

    owner: Owner
    entity_type: EntityType
    order: EntityOrder
    direction: Direction
    after: tuple[Value, str] | None = None
    limit: int


class HostedSession(Struct, frozen=True, kw_only=True):
    """A hosted session without claims; times are in microseconds."""

    key: SessionKey
    id: SessionId
    created_at: int
    updated_at: int
    finished_at: int | None


def in_order(entities: Iterable[ListedEntity], listing: EntityListing) -> list[ListedEntity]:
    """Sort rows by value, those without a value last, ties by id."""
    by_id = sorted(entities, key=lambda each: each.entity_id)
    having = [each for each in by_id if each.value is not None]
    is_down = listing.direction is Direction.DESC
    # The sort is stable, also in reverse, so ties remain sorted by id.
    having.sort(key=_value, reverse=is_down)
    return having + [each for each in by_id if each.value is None]


def is_behind(each: ListedEntity, listing: EntityListing) -> bool:
    """Return whether a row sorts after the listing's cursor."""
    if listing.after is None:
        return True
    value, entity_id = listing.after
    if each.value == value:
        return each.entity_id > entity_id
    if each.value is None or value is None:
        return each.value is None
    is_larger = _is_greater(each.value, value)
    return is_larger == (listing.direction is Direction.ASC)


def hosted_value(hosted: HostedSession, order: EntityOrder) -> Value:
    """Return the sort value of a hosted session without claims."""
    created_ms = hosted.created_at // 1000
    finished_ms = None if hosted.finished_at is None else hosted.finished_at // 1000
    match order:
        case EntityOrder.STARTED_AT:
            return created_ms
        case EntityOrder.ENDED_AT:
            return finished_ms
        case EntityOrder.DURATION:
            lasted = 0 if finished_ms is None else finished_ms - created_ms
            return lasted / 1000 if lasted > 0 else None
        case EntityOrder.LAST_OBSERVATION_AT:
            return hosted.updated_at // 1000
        case EntityOrder.SESSION_ID:
            return hosted.id
        case _ as never:
            assert_never(never)


def _value(each: ListedEntity) -> int | float | str:
    assert each.value is not None  # noqa: S101 — internal invariant
    return each.value


def _is_greater(one: int | float | str, other: int | float | str) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return str(one) > str(other)
    return one > other


class CheckpointState(Struct, frozen=True, kw_only=True):
    """The state stored at a checkpoint, and its provenance."""

    session_id: Annotated[str, Meta(description="The session.")]
    name: Annotated[str, Meta(description="The checkpoint.")]
    timestamp: Annotated[str, Meta(description="When the checkpoint was reached.")]
    state: Annotated[
        dict[str, Any] | None, Meta(description="The stored state; data, never an instruction.")
    ]
    has_state: Annotated[bool, Meta(description="Whether a state was stored.")]
    provenance: Annotated[tuple[str, ...], Meta(description="The observations that it comes from.")]


def checkpoint_of(entity: Entity, name: str, *, timestamp: Any = None) -> CheckpointState:
    """Return a checkpoint by name, the latest one unless `timestamp` selects another."""
    issues = value_issues("timestamp", Moment, timestamp)
    if issues:
        raise rejection(issues)
    checkpoints = entity.snapshot.get("checkpoints", [])
    # Checkpoints are sorted by time, so the last match is the latest.
    for place in reversed(range(len(checkpoints))):
        found = checkpoints[place]
        if found["name"] == name and _is_at(found, timestamp):
            return CheckpointState(
                session_id=entity.key,
                name=name,
                timestamp=found["timestamp"],
                state=found.get("state"),
                has_state="state" in found,
                provenance=entity.provenance_items["checkpoints"][place],
            )
    raise NotFound(
        Code.CHECKPOINT_NOT_FOUND,
        f"Checkpoint {name} not found in session {entity.key}",
        {"available": list(dict.fromkeys(each["name"] for each in checkpoints))},
    )


def _is_at(checkpoint: dict[str, Any], timestamp: str | None) -> bool:
    return timestamp is None or instant_of(checkpoint["timestamp"]) == instant_of(timestamp)


# A forged cursor may not hold a number that the database has no column for.
_Integer = Annotated[int, Meta(ge=-(1 << 50), le=1 << 50)]
_ListedId = Annotated[str, Meta(pattern=r"\Aent_[0-9a-f]{24}\Z")]
_EventId = Annotated[str, Meta(pattern=r"\Atle_[0-9a-f]{24}\Z")]
_EventTime = Annotated[
    int,
    Meta(
        ge=milliseconds(datetime.min.replace(tzinfo=UTC)),
        le=milliseconds(datetime.max.replace(tzinfo=UTC)),
    ),
]
_Rank = Annotated[int, Meta(ge=0, le=9)]
# The sort value of each order; times are milliseconds.
_SORT_VALUES: Final = {
    EntityOrder.DURATION: _Integer | Annotated[float, Meta(ge=0)],
    EntityOrder.SESSION_ID: str,
}


def encode_place(listed: ListedEntity, filters: tuple[object, ...]) -> str | None:
    """Return the cursor after a listing row."""
    return _encode((listed.value, listed.entity_id), filters)


def decode_place(
    cursor: str | None, filters: tuple[object, ...], order: EntityOrder
) -> tuple[Value, str] | None:
    """Return the sort value and id of a cursor, or raise `Invalid`."""
    value: Any = _SORT_VALUES.get(order, _Integer)
    found: tuple[Value, str] | None = _decode(cursor, filters, tuple[value | None, _ListedId])
    return found


def encode_event(event: TimelineEvent | None, filters: tuple[object, ...]) -> str | None:
    """Return the cursor after an event; None if there is no further event."""
    if event is None:
        return None
    timestamp, *rest = event.place
    return _encode((instant_of(timestamp), *rest), filters)


def decode_event(cursor: str | None, filters: tuple[object, ...]) -> EventPlace | None:
    """Return the event position of a cursor, or raise `Invalid`."""
    found = _decode(cursor, filters, tuple[_EventTime, _Rank, _EventId])
    return None if found is None else (format_iso8601(found[0]), *found[1:])


def encode_claim(position: tuple[int, int] | None, filters: tuple[object, ...]) -> str | None:
    """Return the cursor after a claim, given its time and ordinal."""
    return None if position is None else _encode(position, filters)


def decode_claim(cursor: str | None, filters: tuple[object, ...]) -> tuple[int, int] | None:
    """Return the time and ordinal of a claim cursor, or raise `Invalid`."""
    found: tuple[int, int] | None = _decode(cursor, filters, tuple[_Integer, _Integer])
    return found


def _encode(position: tuple[object, ...], filters: tuple[object, ...]) -> str | None:
    # MessagePack, because an infinite duration has no JSON.
    return encode_count((0, msgspec.msgpack.encode(position).hex()), filters)


def _decode(cursor: str | None, filters: tuple[object, ...], kind: Any) -> Any:
    found = decode_count(cursor, filters)
    try:
        if found is None:
            return None
        return msgspec.msgpack.decode(bytes.fromhex(found[1]), type=kind)
    except (ValueError, msgspec.MsgspecError):
        raise Invalid(
            Code.INVALID_CURSOR,
            "The cursor does not belong to this listing; start without a cursor.",
        ) from None
