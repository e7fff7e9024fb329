"""Merge rules for claims about one scalar, keyed list or action list."""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from holdfast.domain.canonical_json import equality_key
from holdfast.domain.time import instant_of
from holdfast.observations.model import CORRECTED


class ClaimStamp(Struct, frozen=True, gc=False):
    """The claim a value comes from: its priority, its number in time order, and its reference."""

    priority: int
    number: int
    reference: str


class Element(Struct, frozen=True, gc=False):
    """An immutable merged list element and the claim behind each member.

    `stamps` includes removed members, because a lower priority must not restore them. `numbers`
    and `references` list the contributing claims in time order.
    """

    members: dict[str, Any]
    stamps: dict[str, ClaimStamp]
    numbers: tuple[int, ...]
    references: tuple[str, ...]


def start_element(claimed: dict[str, Any], stamp: ClaimStamp) -> Element:
    """Return a new element without its null members."""
    members = {name: value for name, value in claimed.items() if value is not None}
    stamps = dict.fromkeys(claimed, stamp)
    return Element(members, stamps, (stamp.number,), (stamp.reference,))


def build_element(members: dict[str, Any], stamps: dict[str, ClaimStamp]) -> Element:
    """Return an element with these members and the claims behind them."""
    found = {stamps[name].number: stamps[name].reference for name in members}
    numbers = tuple(sorted(found))
    return Element(members, stamps, numbers, tuple(found[number] for number in numbers))


def overlay_element(element: Element, claimed: dict[str, Any], stamp: ClaimStamp) -> Element:
    """Return the element with each claimed member replaced unless its priority is too low.

    Null removes a member. Repeating a value can raise its priority but keeps its source.
    """
    members, stamps = element.members, element.stamps
    for name, value in claimed.items():
        before = stamps.get(name)
        if before is not None and stamp.priority < before.priority:
            continue
        if before is not None and _is_same(members, name, value):
            if stamp.priority > before.priority:
                raised = ClaimStamp(stamp.priority, before.number, before.reference)
                stamps = {**stamps, name: raised}
            continue
        stamps = {**stamps, name: stamp}
        if value is not None:
            members = {**members, name: value}
        else:
            members = {each: members[each] for each in members if each != name}
    return element if stamps is element.stamps else build_element(members, stamps)


def _is_same(members: dict[str, Any], name: str, value: Any) -> bool:
    if value is None or name not in members:
        return value is None and name not in members
    return equality_key(members[name]) == equality_key(value)


class Elements:
    """The ordered elements of a list, with members and references cached for display."""

    def __init__(self) -> None:
        self.all: list[Element] = []
        self.members: list[dict[str, Any]] = []
        self.references: list[tuple[str, ...]] = []
        self._credits: defaultdict[int, int] = defaultdict(int)

    @property
    def numbers(self) -> set[int]:
        """Return the numbers of the contributing claims."""
        return {number for number, count in self._credits.items() if count}

    def append(self, element: Element) -> None:
        """Append an element."""
        self.all.append(element)
        self.members.append(element.members)
        self.references.append(element.references)
        for number in element.numbers:
            self._credits[number] += 1

    def replace(self, place: int, element: Element) -> None:
        """Replace the element at a position."""
        for number in self.all[place].numbers:
            self._credits[number] -= 1
        self.all[place] = element
        self.members[place] = element.members
        self.references[place] = element.references
        for number in element.numbers:
            self._credits[number] += 1


Key = tuple[str, int] | tuple[str, str] | bytes


class KeyedList:
    """A list whose elements have keys, in the order they were first claimed."""

    def __init__(self, key_of: Callable[[dict[str, Any]], Key]) -> None:
        self.elements = Elements()
        self._key_of = key_of
        self._places: dict[Key, int] = {}
        self._removed: set[Key] = set()

    @property
    def keys(self) -> Iterable[Key]:
        """Return the element keys in order."""
        return self._places

    def take(self, items: list[dict[str, Any]], stamp: ClaimStamp, *, is_new: bool = False) -> None:
        """Merge a claim into the list; a correction replaces the whole list.

        With `is_new`, elements that a correction removed are accepted again, because they are
        newer than the correction.
        """
        # A claim may contain a key twice; its items are merged first.
        claimed: dict[Key, dict[str, Any]] = {}
        for item in items:
            key = self._key_of(item)
            claimed[key] = claimed[key] | item if key in claimed else item
        if stamp.priority == CORRECTED:
            self._removed |= self._places.keys()
            self._removed -= claimed.keys()
            self._places, self.elements = {}, Elements()
        for key, item in claimed.items():
            place = self._places.get(key)
            if place is not None:
                before = self.elements.all[place]
                after = overlay_element(before, item, stamp)
                if after is not before:
                    self.elements.replace(place, after)
            elif is_new or key not in self._removed:
                self._removed.discard(key)
                self._places[key] = len(self._places)
                self.elements.append(start_element(item, stamp))


class Scalar(Struct, frozen=True, gc=False):
    """A value (null if cleared), the time of its last claim, and the claim it comes from.

    Repeating a value updates its time but keeps the original source.
    """

    value: Any
    place: tuple[datetime, int]
    stamp: ClaimStamp


def latest(before: Scalar | None, claimed: Scalar) -> Scalar:
    """Return the winner by higher priority, then by later time."""
    if before is None or claimed.stamp.priority > before.stamp.priority:
        return claimed
    if claimed.stamp.priority < before.stamp.priority:
        return before
    if equality_key(before.value) == equality_key(claimed.value):
        return Scalar(before.value, claimed.place, before.stamp)
    return claimed


def earliest(before: Scalar | None, claimed: Scalar) -> Scalar:
    """Return the winner by higher priority, then by earlier instant.

    Between two corrections the newer one wins, because it corrects the other.
    """
    if before is None or claimed.stamp.priority != before.stamp.priority:
        return latest(before, claimed)
    if claimed.stamp.priority == CORRECTED:
        return latest(before, claimed)
    return claimed if instant_of(claimed.value) < instant_of(before.value) else before


Mark = str | bytes
# Two sorted lists of positions: actions with the same value, and actions without the member.
Candidates = tuple[Sequence[int], Sequence[int]]
_NOWHERE: Final[Candidates] = ((), ())
_HEAD: Final = ("type", "result")


class ActionText(Struct, frozen=True, gc=False):
    """Comparable form of an action: type and result, and its other non-null members."""

    head: tuple[str, str]
    rest: dict[str, Mark]


def action_text(action: dict[str, Any]) -> ActionText:
    """Return the comparable form of an action."""
    rest = {
        name: equality_key(value)
        for name, value in action.items()
        if value is not None and name not in _HEAD
    }
    return ActionText((action["type"], action["result"]), rest)


def are_compatible(one: ActionText, other: ActionText) -> bool:
    """Return whether two actions agree on every member that both have."""
    if one.head != other.head:
        return False
    return all(other.rest.get(name, mark) == mark for name, mark in one.rest.items())


class ActionSearch:
    """State of one matching pass: the positions that are already taken."""

    def __init__(self) -> None:
        self._taken: set[int] = set()
        self._starts: dict[int, int] = {}
        self._runs: dict[object, Iterator[int]] = {}

    def first(self, saying: ActionText, places: Callable[[], Iterator[int]]) -> int | None:
        """Take and return the first free position where an action matches."""
        # An identical action continues the previous search, which keeps the pass linear.
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
        """Yield the positions of two sorted lists in order; skips taken ones at the start."""
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
        """Return the index of the first position that is not taken."""
        start = self._starts.get(id(places), 0)
        while start < len(places) and places[start] in self._taken:
            start += 1
        self._starts[id(places)] = start
        return start


class _Group:
    """Positions of the actions with one type and result, indexed by their other members."""

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
        """Return the shortest pair of lists that contains every compatible action."""
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
    """Index of actions by what they contain."""

    def __init__(self, sayings: list[ActionText]) -> None:
        """Share `sayings` with the caller; `add` appends to it."""
        self.sayings = sayings
        self._groups: dict[tuple[str, str], _Group] = {}
        for place, each in enumerate(sayings):
            self._group(each).add(place, each.rest)

    def add(self, saying: ActionText) -> None:
        """Append an action."""
        self._group(saying).add(len(self.sayings), saying.rest)
        self.sayings.append(saying)

    def extend(self, place: int, gained: dict[str, Mark]) -> None:
        """Update the index before an action gains members."""
        self._group(self.sayings[place]).extend(place, gained)

    def first(self, saying: ActionText, search: ActionSearch) -> int | None:
        """Take and return the first free compatible position."""
        group = self._groups.get(saying.head)
        candidates = group.candidates(saying.rest) if group else _NOWHERE
        # Fast path, because most actions are new and have no candidates.
        if not any(candidates):
            return None
        return search.first(saying, lambda: self._fitting(saying, search.ascending(candidates)))

    def _fitting(self, saying: ActionText, places: Iterator[int]) -> Iterator[int]:
        return (place for place in places if are_compatible(saying, self.sayings[place]))

    def _group(self, saying: ActionText) -> _Group:
        found = self._groups.get(saying.head)
        if found is None:
            found = self._groups[saying.head] = _Group()
        return found


# An action as claimed, and its comparable form.
Claimed = Sequence[tuple[dict[str, Any], ActionText]]


class ActionList:
    """A list of actions in the order they were first claimed."""

    def __init__(self) -> None:
        self.elements = Elements()
        self._sayings: list[ActionText] = []
        self._places: ActionPlaces | None = None
        self._removed = ActionPlaces([])

    def take(self, items: list[dict[str, Any]], stamp: ClaimStamp, *, is_new: bool = False) -> None:
        """Merge a claim into the list; a correction replaces the whole list.

        With `is_new`, actions that a correction removed are accepted again, because they are newer
        than the correction.
        """
        claimed: Claimed = [(item, action_text(item)) for item in items]
        if stamp.priority == CORRECTED:
            self._replace([saying for _, saying in claimed])
        elif self._removed.sayings and not is_new:
            claimed = [
                each for each in claimed if self._removed.first(each[1], ActionSearch()) is None
            ]
        places = self._beginning(claimed)
        if places is None:
            places = self._matching(claimed)
        for (item, saying), place in zip(claimed, places, strict=True):
            if place is None:
                self._append(item, saying, stamp)
            else:
                self._overlay(place, item, saying, stamp)

    def _replace(self, kept: list[ActionText]) -> None:
        former = [*self._removed.sayings, *self._sayings]
        among = ActionPlaces(kept)
        self._removed = ActionPlaces(
            [each for each in former if among.first(each, ActionSearch()) is None]
        )
        self.elements, self._sayings, self._places = Elements(), [], None

    def _beginning(self, claimed: Claimed) -> list[int | None] | None:
        """Return the positions if one list is a prefix of the other; None otherwise."""
        for (_, saying), known in zip(claimed, self._sayings, strict=False):
            if not are_compatible(saying, known):
                return None
        known_count = len(self._sayings)
        return [place if place < known_count else None for place in range(len(claimed))]

    def _matching(self, claimed: Claimed) -> list[int | None]:
        """Return for each action the first free compatible position, or None if it is new."""
        if self._places is None:
            self._places = ActionPlaces(self._sayings)
        search = ActionSearch()
        return [self._places.first(saying, search) for _, saying in claimed]

    def _append(self, item: dict[str, Any], saying: ActionText, stamp: ClaimStamp) -> None:
        self.elements.append(start_element(item, stamp))
        if self._places is None:
            self._sayings.append(saying)
        else:
            # `ActionPlaces` shares the list of sayings and appends to it.
            self._places.add(saying)

    def _overlay(
        self, place: int, item: dict[str, Any], saying: ActionText, stamp: ClaimStamp
    ) -> None:
        known = self._sayings[place]
        gained = {name: mark for name, mark in saying.rest.items() if name not in known.rest}
        if not gained:
            return
        element = self.elements.all[place]
        members = element.members | {name: item[name] for name in gained}
        stamps = element.stamps | dict.fromkeys(gained, stamp)
        self.elements.replace(place, build_element(members, stamps))
        if self._places is not None:
            self._places.extend(place, gained)
        self._sayings[place] = ActionText(known.head, known.rest | gained)
