"""Where actions stand, by what they say: so that a long history is not searched for each one."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from msgspec import Struct

from holdfast.domain.canonical import sameness

Mark = str | bytes
# Two sorted lists of places: those that say the same, and those that say nothing.
Candidates = tuple[Sequence[int], Sequence[int]]
_NOWHERE: Final[Candidates] = ((), ())
_HEAD: Final = ("type", "result")


class Saying(Struct, frozen=True, gc=False):
    """What an action says: type and result, and member by member the rest; null says nothing."""

    head: tuple[str, str]
    rest: dict[str, Mark]


def saying_of(action: dict[str, Any]) -> Saying:
    """Return what an action says, in a form that can be compared."""
    rest = {
        name: sameness(value)
        for name, value in action.items()
        if value is not None and name not in _HEAD
    }
    return Saying((action["type"], action["result"]), rest)


def are_compatible(one: Saying, other: Saying) -> bool:
    """Tell whether two actions agree on whatever both speak of."""
    if one.head != other.head:
        return False
    return all(other.rest.get(name, mark) == mark for name, mark in one.rest.items())


class Search:
    """What one pass over a list has found already."""

    def __init__(self) -> None:
        self._taken: set[int] = set()
        self._starts: dict[int, int] = {}
        self._runs: dict[object, Iterator[int]] = {}

    def first(self, saying: Saying, places: Callable[[], Iterator[int]]) -> int | None:
        """Take the first of the places where a saying fits, and return it."""
        # Who says the same as another goes on where that one found its place.
        key = saying.head, frozenset(saying.rest.items())
        run = self._runs.get(key)
        if run is None:
            run = self._runs[key] = places()
        for place in run:
            if place not in self._taken:
                self._taken.add(place)
                return place
        return None

    def ascending(self, lists: Candidates) -> Iterator[int]:
        """Yield the places of two sorted lists in one order, without those taken at its start."""
        one, other = lists
        first, second = self._begin(one), self._begin(other)
        while first < len(one) or second < len(other):
            if second == len(other) or (first < len(one) and one[first] < other[second]):
                yield one[first]
                first += 1
            else:
                yield other[second]
                second += 1

    def _begin(self, places: Sequence[int]) -> int:
        """Return where in a list to begin: all that comes before is taken for good."""
        start = self._starts.get(id(places), 0)
        while start < len(places) and places[start] in self._taken:
            start += 1
        self._starts[id(places)] = start
        return start


class _Group:
    """The places of actions that have one type and one result, by what else they say."""

    def __init__(self) -> None:
        self.places: list[int] = []
        self.saying: dict[str, dict[Mark, list[int]]] = {}
        self.silent: dict[str, list[int]] = {}

    def add(self, place: int, rest: dict[str, Mark]) -> None:
        for name in rest:
            if name not in self.saying:
                self._learn(name)
        for name, silent in self.silent.items():
            if name in rest:
                self.saying[name].setdefault(rest[name], []).append(place)
            else:
                silent.append(place)
        self.places.append(place)

    def extend(self, place: int, gained: dict[str, Mark]) -> None:
        for name, mark in gained.items():
            if name not in self.saying:
                self._learn(name)
            silent = self.silent[name]
            del silent[bisect_left(silent, place)]
            insort(self.saying[name].setdefault(mark, []), place)

    def candidates(self, rest: dict[str, Mark]) -> Candidates:
        """Return the shortest two lists that together hold every compatible action."""
        best: Candidates = (self.places, ())
        fewest = len(self.places)
        for name, mark in rest.items():
            if fewest and name in self.saying:
                narrowed: Candidates = (self.saying[name].get(mark, ()), self.silent[name])
                count = len(narrowed[0]) + len(narrowed[1])
                if count < fewest:
                    best, fewest = narrowed, count
        return best

    def _learn(self, name: str) -> None:
        self.saying[name] = {}
        self.silent[name] = list(self.places)


class ActionPlaces:
    """Where each of many actions stands."""

    def __init__(self, sayings: list[Saying]) -> None:
        """The list is shared with whoever gives it, and written here as it grows."""
        self.sayings = sayings
        self._groups: dict[tuple[str, str], _Group] = {}
        for place, each in enumerate(sayings):
            self._group(each).add(place, each.rest)

    def add(self, saying: Saying) -> None:
        """Put one more behind the others."""
        self._group(saying).add(len(self.sayings), saying.rest)
        self.sayings.append(saying)

    def extend(self, place: int, gained: dict[str, Mark]) -> None:
        """Note that an action is about to say more than before."""
        self._group(self.sayings[place]).extend(place, gained)

    def first(self, saying: Saying, search: Search) -> int | None:
        """Return the first place that is compatible and not taken, and take it."""
        group = self._groups.get(saying.head)
        candidates = group.candidates(saying.rest) if group else _NOWHERE
        # Most are new, and for those there is nowhere to look.
        if not any(candidates):
            return None
        return search.first(saying, lambda: self._fitting(saying, search.ascending(candidates)))

    def _fitting(self, saying: Saying, places: Iterator[int]) -> Iterator[int]:
        return (place for place in places if are_compatible(saying, self.sayings[place]))

    def _group(self, saying: Saying) -> _Group:
        found = self._groups.get(saying.head)
        if found is None:
            found = self._groups[saying.head] = _Group()
        return found
