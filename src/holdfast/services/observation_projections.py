"""What is computed from the claims about an entity, in the form in which it is kept."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from holdfast.domain.canonical import reading
from holdfast.domain.entities import Entity
from holdfast.domain.errors import Code, Internal
from holdfast.domain.resolutions import Fold
from holdfast.domain.timelines import events_of, references
from holdfast.domain.timestamps import instant_of, milliseconds
from holdfast.ports import Fact, Projection

# A larger snapshot is computed when it is asked for: it would be written with every claim.
BODY_MOST: Final = 256 << 10


def projection_of(fold: Fold) -> tuple[Projection, int]:
    """Return what is kept of all claims, and how many bytes a snapshot of them has."""
    entity = fold.entity()
    body = encoded(entity)
    projection = Projection(
        is_deleted=fold.is_deleted,
        started=_fact(fold, "started_at", instant_of),
        ended=_fact(fold, "ended_at", instant_of),
        duration=_fact(fold, "duration", _real),
        body=body if len(body) <= BODY_MOST else None,
        events=events_of(entity),
        names=references(entity),
    )
    return projection, len(body)


def encoded(entity: Entity) -> bytes:
    """Return an entity in the one form that it is kept in."""
    return _encode(entity)


def decoded(body: bytes) -> Entity:
    """Return an entity as it was kept."""
    try:
        return msgspec.convert(reading(body), Entity)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise Internal(
            Code.CORRUPT_ROW,
            "A snapshot is damaged and is not shown; `holdfast doctor --rebuild` makes it anew.",
        ) from error


def _fact(fold: Fold, name: str, read: Callable[[Any], float]) -> Fact | None:
    scalar = fold.scalars.get(name)
    if scalar is None:
        return None
    value = None if scalar.value is None else read(scalar.value)
    return Fact(value, scalar.stamp.priority, milliseconds(scalar.place[0]))


def _real(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf")


_encode: Final = msgspec.json.Encoder().encode
