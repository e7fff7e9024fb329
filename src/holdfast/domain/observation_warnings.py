"""What is odd about an observation that is written all the same.

Nothing here refuses anything; the order is that of the shape's members, then items, then codes.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final

from holdfast.domain import shapes
from holdfast.domain.entity_types import SHAPES, EntityType
from holdfast.domain.observation_issues import Path, SchemaWarning, WarningCode, spelled_path
from holdfast.domain.shapes import Kind, Shape
from holdfast.domain.timestamps import instant_of, milliseconds, parsed

RESULTS: Final = frozenset({"success", "failure", "warning"})
DURATION_TOLERANCE: Final = 1_000

# What is, or may hold, a time.
_TIMED: Final = (shapes.Instant, shapes.Listing, Shape)

# A warning with the place it is told at.
Placed = tuple[Path, SchemaWarning]


def payload_warnings(entity_type: EntityType, payload: Mapping[str, Any]) -> list[Placed]:
    """Return what is odd about an accepted payload by itself."""
    shape = SHAPES[entity_type]
    found = [*_nulls(shape, payload), *_unknown(shape, payload)]
    _assumed(shape, payload, (), found)
    if entity_type is EntityType.AGENT_SESSION:
        found += [*_results(payload), *consistency(payload)]
    return found


def in_order(entity_type: EntityType, found: list[Placed]) -> tuple[SchemaWarning, ...]:
    """Return warnings by member, item and code."""
    if not found:
        return ()
    shape = SHAPES[entity_type]

    def place(each: Placed) -> tuple[int, str, int, str, str]:
        path, warning = each
        number = path[1] if len(path) > 1 and isinstance(path[1], int) else -1
        return shape.rank(str(path[0])), str(path[0]), number, warning.code, warning.field

    return tuple(warning for _, warning in sorted(found, key=place))


def consistency(told: Mapping[str, Any]) -> Iterator[Placed]:
    """Yield how the times of a session, a payload or a snapshot, contradict each other."""
    start, end = _ms(told.get("started_at")), _ms(told.get("ended_at"))
    duration = told.get("duration")
    if start is not None and end is not None:
        if end < start:
            yield _warning(
                ("ended_at",),
                WarningCode.ENDED_BEFORE_STARTED,
                "The session ends before it starts",
                {"started_at": told["started_at"], "ended_at": told["ended_at"]},
            )
        # In whole milliseconds, because a duration may be a whole number beyond any float.
        if duration is not None and abs(duration * 1000 - (end - start)) > DURATION_TOLERANCE:
            yield _warning(
                ("duration",),
                WarningCode.DURATION_MISMATCH,
                "duration is not the time between started_at and ended_at",
                {"duration": duration, "expected": (end - start) / 1000},
            )
    for number, checkpoint in enumerate(told.get("checkpoints") or ()):
        at = instant_of(checkpoint["timestamp"])
        if (start is not None and at < start) or (end is not None and at > end):
            yield _warning(
                ("checkpoints", number, "timestamp"),
                WarningCode.CHECKPOINT_OUT_OF_RANGE,
                "The checkpoint was not reached between started_at and ended_at",
                {"name": checkpoint["name"], "timestamp": checkpoint["timestamp"]},
            )


def session_warnings(snapshot: Mapping[str, Any]) -> tuple[SchemaWarning, ...]:
    """Return how a merged session contradicts itself, which is told to whoever corrects it."""
    return in_order(EntityType.AGENT_SESSION, list(consistency(snapshot)))


def change_warnings(
    entity_type: EntityType, before: Mapping[str, Any], told: Mapping[str, Any], *, now: datetime
) -> tuple[SchemaWarning, ...]:
    """Return what is odd about an entity's payload beside what was known of it, and today."""
    found: list[Placed] = []
    if entity_type is EntityType.FEATURE_UNIT:
        steps = before.get("status"), told.get("status")
        if steps == ("deployed", "planning"):
            message = "The feature unit was deployed already"
            details = {"from": steps[0], "to": steps[1]}
            found.append(_warning(("status",), WarningCode.STATUS_REGRESSION, message, details))
    ship = told.get("target_ship_date") if entity_type is EntityType.RELEASE else None
    if ship is not None and _last_ms(ship) < milliseconds(now):
        details = {"target_ship_date": ship}
        message = "The date to ship is in the past"
        found.append(_warning(("target_ship_date",), WarningCode.DATE_IN_PAST, message, details))
    made = told.get("timestamp") if entity_type is EntityType.AGENT_DECISION else None
    if made is not None and instant_of(made) > milliseconds(now):
        message = "The decision is in the future"
        details = {"timestamp": made}
        found.append(_warning(("timestamp",), WarningCode.DATE_IN_FUTURE, message, details))
    return in_order(entity_type, found)


def deleted_warning() -> SchemaWarning:
    """Return what somebody is told who adds to history that was deleted."""
    return SchemaWarning(
        code=WarningCode.ENTITY_DELETED,
        field="session_id",
        message="The history was deleted; this was recorded and shows once it is restored",
    )


def _nulls(shape: Shape, payload: Mapping[str, Any]) -> Iterator[Placed]:
    for member in shape.members:
        if member.name not in payload or payload[member.name] is not None:
            continue
        if member.is_ignored_as_null:
            message = f"{member.name} is null and was taken as not sent"
            yield _warning((member.name,), WarningCode.NULL_IGNORED, message)
        else:
            message = f"{member.name} is null, which clears it"
            yield _warning((member.name,), WarningCode.NULL_CLEARED_FIELD, message)


def _unknown(shape: Shape, payload: Mapping[str, Any]) -> Iterator[Placed]:
    for name in payload:
        if shape.member(name) is None:
            message = f"{spelled_path((name,))} is no field of this type; it is kept and not shown"
            yield _warning((name,), WarningCode.UNKNOWN_FIELD, message)


def _assumed(kind: Kind, value: Any, path: Path, found: list[Placed]) -> None:
    """Find the times that were told without an offset."""
    if isinstance(kind, shapes.Instant):
        moment = parsed(value)
        if moment is not None and moment.is_assumed:
            message = f"{spelled_path(path)} has no offset and was read as UTC"
            found.append(_warning(path, WarningCode.TIMESTAMP_ASSUMED_UTC, message))
    elif isinstance(kind, Shape):
        for member in kind.members:
            if isinstance(member.kind, _TIMED) and value.get(member.name) is not None:
                _assumed(member.kind, value[member.name], (*path, member.name), found)
    elif isinstance(kind, shapes.Listing):
        for number, item in enumerate(value):
            _assumed(kind.item, item, (*path, number), found)


def _results(payload: Mapping[str, Any]) -> Iterator[Placed]:
    for number, action in enumerate(payload.get("actions") or ()):
        if action["result"] not in RESULTS:
            path = ("actions", number, "result")
            message = f"{spelled_path(path)} is none of failure, success, warning"
            details = {"result": action["result"]}
            yield _warning(path, WarningCode.NONSTANDARD_RESULT, message, details)


def _warning(
    path: Path, code: WarningCode, message: str, details: dict[str, Any] | None = None
) -> Placed:
    field = spelled_path(path)
    return path, SchemaWarning(code=code, field=field, message=message, details=details or {})


def _ms(text: str | None) -> int | None:
    return None if text is None else instant_of(text)


def _last_ms(text: str) -> int:
    found = parsed(text)
    assert found is not None  # noqa: S101 — a fault of ours
    return found.last_ms
