"""What is computed from the claims about an entity, in the form in which it is kept."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.domain.canonical import reading
from holdfast.domain.entities import Entity
from holdfast.domain.errors import Code, Internal
from holdfast.domain.resolutions import Fold
from holdfast.domain.timelines import TimelineEvent, events_of, happens_alike, references
from holdfast.domain.timestamps import instant_of, milliseconds
from holdfast.ports import Fact, Projection
from holdfast.services.observation_memory import Remembered

# A larger snapshot is computed when it is asked for: it would be written with every claim.
BODY_MOST: Final = 256 << 10


class Computed(NamedTuple):
    """What all claims about an entity come to: as it is shown, as it is kept, and its bytes."""

    entity: Entity
    projection: Projection
    encoded: bytes

    @property
    def body(self) -> bytes | None:
        """Return the snapshot that is kept, unless it is too large."""
        return self.encoded if len(self.encoded) <= BODY_MOST else None


def computed(fold: Fold, before: Remembered | None = None) -> Computed:
    """Return what all claims come to; what one more of them left as it was is not made anew."""
    entity = fold.entity()
    projection = Projection(
        is_deleted=fold.is_deleted,
        started=_fact(fold, "started_at", instant_of),
        ended=_fact(fold, "ended_at", instant_of),
        duration=_fact(fold, "duration", _real),
        events=_events(entity, before),
        names=references(entity),
    )
    return Computed(entity, projection, encoded(entity))


def _events(entity: Entity, before: Remembered | None) -> tuple[TimelineEvent, ...]:
    if before is None or before.entity is None or before.projection is None:
        return events_of(entity)
    is_same = happens_alike(before.entity, entity)
    return before.projection.events if is_same else events_of(entity)


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
