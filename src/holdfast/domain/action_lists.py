"""Lists of actions: what was done, merged without keys and without ever dropping anything.

Two actions can be the same one if nothing both say differs; which of several it is, is decided by
their order. `action_places` knows where to look for one.
"""

from collections.abc import Sequence
from typing import Any

from holdfast.domain.action_places import ActionPlaces, Saying, Search, are_compatible, saying_of
from holdfast.domain.merging import Elements, Stamp, begun, made_of
from holdfast.domain.observations import CORRECTED

# An action as it was claimed, and what it says.
Claimed = Sequence[tuple[dict[str, Any], Saying]]


class ActionList:
    """Actions in the order they were first told."""

    def __init__(self) -> None:
        self.elements = Elements()
        self._sayings: list[Saying] = []
        self._places: ActionPlaces | None = None
        self._removed = ActionPlaces([])

    def take(self, items: list[dict[str, Any]], stamp: Stamp, *, is_news: bool = False) -> None:
        """Merge a claim into the list; a correction takes the place of all there was.

        What is news was not meant by a correction, whatever that took away.
        """
        claimed: Claimed = [(item, saying_of(item)) for item in items]
        if stamp.priority == CORRECTED:
            self._replace([saying for _, saying in claimed])
        elif self._removed.sayings and not is_news:
            claimed = [each for each in claimed if self._removed.first(each[1], Search()) is None]
        places = self._beginning(claimed)
        if places is None:
            places = self._matching(claimed)
        for (item, saying), place in zip(claimed, places, strict=True):
            if place is None:
                self._append(item, saying, stamp)
            else:
                self._overlay(place, item, saying, stamp)

    def _replace(self, kept: list[Saying]) -> None:
        former = [*self._removed.sayings, *self._sayings]
        among = ActionPlaces(kept)
        self._removed = ActionPlaces(
            [each for each in former if among.first(each, Search()) is None]
        )
        self.elements, self._sayings, self._places = Elements(), [], None

    def _beginning(self, claimed: Claimed) -> list[int | None] | None:
        """Return where each goes if one list begins like the other; nothing if neither does."""
        for (_, saying), known in zip(claimed, self._sayings, strict=False):
            if not are_compatible(saying, known):
                return None
        known_count = len(self._sayings)
        return [place if place < known_count else None for place in range(len(claimed))]

    def _matching(self, claimed: Claimed) -> list[int | None]:
        """Return for each the first action that it can be and no other one is already."""
        if self._places is None:
            self._places = ActionPlaces(self._sayings)
        search = Search()
        return [self._places.first(saying, search) for _, saying in claimed]

    def _append(self, item: dict[str, Any], saying: Saying, stamp: Stamp) -> None:
        self.elements.append(begun(item, stamp))
        if self._places is None:
            self._sayings.append(saying)
        else:
            # The list of sayings is shared, and written there.
            self._places.add(saying)

    def _overlay(self, place: int, item: dict[str, Any], saying: Saying, stamp: Stamp) -> None:
        known = self._sayings[place]
        gained = {name: mark for name, mark in saying.rest.items() if name not in known.rest}
        if not gained:
            return
        element = self.elements.all[place]
        members = element.members | {name: item[name] for name in gained}
        stamps = element.stamps | dict.fromkeys(gained, stamp)
        self.elements.replace(place, made_of(members, stamps))
        if self._places is not None:
            self._places.extend(place, gained)
        self._sayings[place] = Saying(known.head, known.rest | gained)
