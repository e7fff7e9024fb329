"""Which entities are listed, and in what order: rules over snapshots."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from msgspec.structs import replace

from holdfast.domain.canonical import sameness
from holdfast.domain.entities import Entity
from holdfast.domain.observation_issues import Issue, rejection
from holdfast.domain.observation_plainness import plain_faults
from holdfast.domain.timestamps import instant_of, milliseconds, parsed

_RANGE: Final = frozenset({"gte", "lte"})
_MISSING: Final = object()


class EntityOrder(StrEnum):
    """By what sessions are listed."""

    STARTED_AT = "started_at"
    ENDED_AT = "ended_at"
    DURATION = "duration"
    LAST_OBSERVATION_AT = "last_observation_at"
    SESSION_ID = "session_id"


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
        return sameness(value) == sameness(wish)
    if "contains" in wish:
        return _contains(value, wish["contains"])
    return all(_compares(value, bound, limit) for bound, limit in wish.items())


def _contains(value: Any, part: Any) -> bool:
    if isinstance(value, str):
        return isinstance(part, str) and part in value
    return isinstance(value, list) and sameness(part) in map(sameness, value)


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
    found = parsed(value) if isinstance(value, str) else None
    if found is None:
        return value
    return found.last_ms if is_last else found.ms
