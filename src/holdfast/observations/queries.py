"""Queries of observed history and their results: filters, order, `as_of`, pages, checkpoints."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final, assert_never

from msgspec import Meta, Struct
from msgspec.structs import replace

from holdfast.domain.canonical_json import equality_key
from holdfast.domain.errors import Code, Invalid, NotFound
from holdfast.domain.ids import EntityId, ObservationId, Owner, SessionId, SessionKey
from holdfast.domain.queries import require_limit
from holdfast.domain.time import instant_of, milliseconds, parse_iso8601
from holdfast.observations.claims import Observation
from holdfast.observations.issues import Issue, SchemaWarning, rejection
from holdfast.observations.model import INSTANT, Entity, EntityType, FieldShape
from holdfast.observations.timeline import EventType, TimelineEvent
from holdfast.observations.validation import member_faults, plain_faults

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


class SubmitResult(Struct, frozen=True, kw_only=True):
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


class EntityOrder(StrEnum):
    """By what sessions are listed."""

    STARTED_AT = "started_at"
    ENDED_AT = "ended_at"
    DURATION = "duration"
    LAST_OBSERVATION_AT = "last_observation_at"
    SESSION_ID = "session_id"


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


class RebuildReport(Struct, frozen=True, kw_only=True):
    """What was computed anew, and where that differs from what was kept."""

    entities: int
    differences: tuple[str, ...] = ()


_RANGE: Final = frozenset({"gte", "lte"})
_MISSING: Final = object()


def order_value(entity: Entity, order: EntityOrder) -> int | float | str | None:
    """Return what an entity is ordered by, instants in milliseconds; nothing where it has none.

    Entities without come last in both directions, and equal ones by id, ascending.
    """
    if order is EntityOrder.LAST_OBSERVATION_AT:
        at = entity.last_observation_at
        return None if at is None else milliseconds(at)
    value: int | float | str | None = entity.snapshot.get(order)
    if order in {EntityOrder.STARTED_AT, EntityOrder.ENDED_AT} and value is not None:
        return instant_of(str(value))
    return value


def require_filters(filters: Any) -> Mapping[str, Any]:
    """Return filters as they can be asked, or refuse them: paths, each with a value or a range."""
    if filters is None:
        return {}
    if not isinstance(filters, dict):
        message = "filters must be an object"
        issue = Issue(path=("filters",), value=filters, expected="type: object", message=message)
        raise rejection((issue,))
    if faults := plain_faults(filters):
        raise rejection([replace(each, path=("filters", *each.path)) for each in faults])
    issues = [
        Issue(
            path=("filters", path),
            value=wish,
            expected="one of: a value, contains, gte, lte",
            message=f"filters.{path} must be a value, contains, or gte and lte",
        )
        for path, wish in filters.items()
        if isinstance(wish, dict) and not _is_wish(wish)
    ]
    if issues:
        raise rejection(issues)
    return filters


def matches(snapshot: Mapping[str, Any], filters: Mapping[str, Any]) -> bool:
    """Tell whether a snapshot is what the filters ask for, all of them; paths have dots."""
    return all(_matches(_at(snapshot, path), wish) for path, wish in filters.items())


def _is_wish(wish: dict[str, Any]) -> bool:
    return set(wish) == {"contains"} or bool(wish and set(wish) <= _RANGE)


def _at(snapshot: Any, path: str) -> Any:
    for name in path.split("."):
        if not isinstance(snapshot, dict) or name not in snapshot:
            return _MISSING
        snapshot = snapshot[name]
    return snapshot


def _matches(value: Any, wish: Any) -> bool:
    if value is _MISSING:
        return False
    if not isinstance(wish, dict):
        return equality_key(value) == equality_key(wish)
    if "contains" in wish:
        return _contains(value, wish["contains"])
    return all(_compares(value, bound, limit) for bound, limit in wish.items())


def _contains(value: Any, part: Any) -> bool:
    if isinstance(value, str):
        return isinstance(part, str) and part in value
    return isinstance(value, list) and equality_key(part) in map(equality_key, value)


def _compares(value: Any, bound: str, limit: Any) -> bool:
    """Tell whether a value is within a bound; dates as instants, a day to its end, else as such."""
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
    """An entity in a listing: what it is ordered by, and where it is found.

    One that nobody has claimed anything about is a session of ours and has no key of its own.
    """

    value: Value
    entity_id: EntityId
    key: int | None = None
    session_key: SessionKey | None = None


class EntityListing(Struct, frozen=True, kw_only=True):
    """What is listed, how, behind which value and id, and how much of it."""

    owner: Owner
    entity_type: EntityType
    order: EntityOrder
    direction: Direction
    after: tuple[Value, str] | None = None
    limit: int


class HostedSession(Struct, frozen=True, kw_only=True):
    """A session of ours that nobody has claimed anything about; times are in microseconds."""

    key: SessionKey
    id: SessionId
    created_at: int
    updated_at: int
    finished_at: int | None


def in_order(found: Iterable[ListedEntity], listing: EntityListing) -> list[ListedEntity]:
    """Return entities as they are listed: those without a value last, equal ones by their ids."""
    by_id = sorted(found, key=lambda each: each.entity_id)
    having = [each for each in by_id if each.value is not None]
    is_down = listing.direction is Direction.DESC
    # Sorting keeps the order of equals, also where it is reversed.
    having.sort(key=_value, reverse=is_down)
    return having + [each for each in by_id if each.value is None]


def is_behind(each: ListedEntity, listing: EntityListing) -> bool:
    """Tell whether an entity comes behind the place from which on is listed."""
    if listing.after is None:
        return True
    value, entity_id = listing.after
    if each.value == value:
        return each.entity_id > entity_id
    if each.value is None or value is None:
        return each.value is None
    is_larger = _compared(each.value, value)
    return is_larger == (listing.direction is Direction.ASC)


def hosted_value(hosted: HostedSession, order: EntityOrder) -> Value:
    """Return what a session's journal alone is ordered by."""
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
    assert each.value is not None  # noqa: S101 — a fault of ours
    return each.value


def _compared(one: int | float | str, other: int | float | str) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return str(one) > str(other)
    return one > other


class CheckpointState(Struct, frozen=True, kw_only=True):
    """What was kept at a checkpoint, and whose claims it is made of."""

    session_id: Annotated[str, Meta(description="The session.")]
    name: Annotated[str, Meta(description="The checkpoint.")]
    timestamp: Annotated[str, Meta(description="When it was reached.")]
    state: Annotated[
        dict[str, Any] | None, Meta(description="What was kept: data, and no instruction.")
    ]
    has_state: Annotated[bool, Meta(description="Whether anything was kept.")]
    provenance: Annotated[tuple[str, ...], Meta(description="Which claims it is from.")]


def checkpoint_of(entity: Entity, name: str, *, timestamp: Any = None) -> CheckpointState:
    """Return a checkpoint by its name; of several the latest, unless a time selects another."""
    issues = member_faults(FieldShape("timestamp", INSTANT, ""), timestamp)
    if issues:
        raise rejection(issues)
    checkpoints = entity.snapshot.get("checkpoints", [])
    # They are in the order of their times, so the last that fits is the latest.
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
