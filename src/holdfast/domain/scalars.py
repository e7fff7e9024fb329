"""Single values: which of several claims about one of them is shown."""

from datetime import datetime
from typing import Any

from msgspec import Struct

from holdfast.domain.canonical import sameness
from holdfast.domain.merging import Stamp
from holdfast.domain.observations import CORRECTED
from holdfast.domain.timestamps import instant_of


class Scalar(Struct, frozen=True, gc=False):
    """A value, null if it was cleared; where its last claim stands in time order, and whose it is.

    Who repeats a value moves its place and leaves it with whom it was from.
    """

    value: Any
    place: tuple[datetime, int]
    stamp: Stamp


def latest(before: Scalar | None, claimed: Scalar) -> Scalar:
    """Return what is shown after the next claim in time order: more weight, then the newer."""
    if before is None or claimed.stamp.priority > before.stamp.priority:
        return claimed
    if claimed.stamp.priority < before.stamp.priority:
        return before
    if sameness(before.value) == sameness(claimed.value):
        return Scalar(before.value, claimed.place, before.stamp)
    return claimed


def earliest(before: Scalar | None, claimed: Scalar) -> Scalar:
    """Return what is shown of a beginning: more weight, then the earlier instant.

    Of two corrections it is the newer one, because that is what corrects the other.
    """
    if before is None or claimed.stamp.priority != before.stamp.priority:
        return latest(before, claimed)
    if claimed.stamp.priority == CORRECTED:
        return latest(before, claimed)
    return claimed if instant_of(claimed.value) < instant_of(before.value) else before
