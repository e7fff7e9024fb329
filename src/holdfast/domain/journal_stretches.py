"""The journal's elements of a list, in the stretches that corrections of the list cut it into.

A correction is about what was known when it was made. What the journal shows of later moments is
news, and is told behind the correction (decision 0036).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.domain.observations import CORRECTED, Observation
from holdfast.domain.timestamps import instant_of, milliseconds

Items = list[dict[str, Any]]
_BEFORE_ALL = -(1 << 62)


class Stretches:
    """Hands out elements, those up to the next correction first; `last_ms` is the latest of them.

    Who knows which corrections will come says so at the beginning.
    """

    def __init__(self, items: Items, corrections: Iterable[Observation] = ()) -> None:
        self._items = items
        self._cuts = sorted(milliseconds(each.observed_at) for each in corrections)
        self.last_ms = _BEFORE_ALL

    def first(self) -> Items:
        """Return what was written up to the first correction."""
        return self._take()

    def following(self) -> Items:
        """Return what was written behind the correction that came just now."""
        del self._cuts[:1]
        return self._take()

    def _take(self) -> Items:
        cut = self._cuts[0] if self._cuts else None
        times = [instant_of(each["timestamp"]) for each in self._items]
        told = [cut is None or ms <= cut for ms in times]
        self.last_ms = max(
            [self.last_ms, *(ms for ms, now in zip(times, told, strict=True) if now)]
        )
        taken = [each for each, now in zip(self._items, told, strict=True) if now]
        self._items = [each for each, now in zip(self._items, told, strict=True) if not now]
        return taken


def stretches_of(lists: Mapping[str, Items], coming: Iterable[Observation]) -> dict[str, Stretches]:
    """Return the stretches of each list, cut by the corrections among what is about to come."""
    corrections = [each for each in coming if each.priority == CORRECTED]
    return {
        name: Stretches(items, [each for each in corrections if name in each.fields])
        for name, items in lists.items()
    }
