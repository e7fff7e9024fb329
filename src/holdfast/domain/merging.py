"""Elements of lists, and lists whose elements are known by a key: how claims about them merge.

Lists of actions have no keys and a module of their own (`action_lists`).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from holdfast.domain.canonical import sameness
from holdfast.domain.observations import CORRECTED


class Stamp(Struct, frozen=True, gc=False):
    """Whose claim something is: its weight, its number in time order, and how it is referred to."""

    priority: int
    number: int
    reference: str


class Element(Struct, frozen=True, gc=False):
    """An element as merged so far: its members, and whose each is; it is never changed.

    `stamps` also holds members that were taken away, because less weight cannot bring them back.
    `numbers` and `references` tell in time order whose claims it is made of.
    """

    members: dict[str, Any]
    stamps: dict[str, Stamp]
    numbers: tuple[int, ...]
    references: tuple[str, ...]


def begun(claimed: dict[str, Any], stamp: Stamp) -> Element:
    """Return a new element; null members are no part of it."""
    members = {name: value for name, value in claimed.items() if value is not None}
    stamps = dict.fromkeys(claimed, stamp)
    return Element(members, stamps, (stamp.number,), (stamp.reference,))


def made_of(members: dict[str, Any], stamps: dict[str, Stamp]) -> Element:
    """Return the element of these members."""
    found = {stamps[name].number: stamps[name].reference for name in members}
    numbers = tuple(sorted(found))
    return Element(members, stamps, numbers, tuple(found[number] for number in numbers))


def overlaid(element: Element, claimed: dict[str, Any], stamp: Stamp) -> Element:
    """Return the element with each member that is claimed with enough weight, whole.

    Null takes a member away. Who repeats what stands there already adds nothing but weight.
    """
    members, stamps = element.members, element.stamps
    for name, value in claimed.items():
        before = stamps.get(name)
        if before is not None and stamp.priority < before.priority:
            continue
        if before is not None and _is_same(members, name, value):
            if stamp.priority > before.priority:
                raised = Stamp(stamp.priority, before.number, before.reference)
                stamps = {**stamps, name: raised}
            continue
        stamps = {**stamps, name: stamp}
        if value is not None:
            members = {**members, name: value}
        else:
            members = {each: members[each] for each in members if each != name}
    return element if stamps is element.stamps else made_of(members, stamps)


def _is_same(members: dict[str, Any], name: str, value: Any) -> bool:
    if value is None or name not in members:
        return value is None and name not in members
    return sameness(members[name]) == sameness(value)


class Elements:
    """The elements of a list in their order, with whatever is shown of them kept at hand."""

    def __init__(self) -> None:
        self.all: list[Element] = []
        self.members: list[dict[str, Any]] = []
        self.references: list[tuple[str, ...]] = []
        self._credits: defaultdict[int, int] = defaultdict(int)

    @property
    def numbers(self) -> set[int]:
        """Return whose claims they are made of."""
        return {number for number, count in self._credits.items() if count}

    def append(self, element: Element) -> None:
        """Put one more behind the others."""
        self.all.append(element)
        self.members.append(element.members)
        self.references.append(element.references)
        for number in element.numbers:
            self._credits[number] += 1

    def replace(self, place: int, element: Element) -> None:
        """Put what an element has become in its place."""
        for number in self.all[place].numbers:
            self._credits[number] -= 1
        self.all[place] = element
        self.members[place] = element.members
        self.references[place] = element.references
        for number in element.numbers:
            self._credits[number] += 1


Key = tuple[str, int] | tuple[str, str] | bytes


class KeyedList:
    """A list whose elements have keys, in the order they were first seen."""

    def __init__(self, key_of: Callable[[dict[str, Any]], Key]) -> None:
        self.elements = Elements()
        self._key_of = key_of
        self._places: dict[Key, int] = {}
        self._removed: set[Key] = set()

    @property
    def keys(self) -> Iterable[Key]:
        """Return the keys of the elements, in their order."""
        return self._places

    def take(self, items: list[dict[str, Any]], stamp: Stamp, *, is_news: bool = False) -> None:
        """Merge a claim into the list; a correction takes the place of all there was.

        What is news was not meant by a correction, whatever that took away.
        """
        # What one claim says of an element in two places is one saying of it.
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
                after = overlaid(before, item, stamp)
                if after is not before:
                    self.elements.replace(place, after)
            elif is_news or key not in self._removed:
                self._removed.discard(key)
                self._places[key] = len(self._places)
                self.elements.append(begun(item, stamp))
