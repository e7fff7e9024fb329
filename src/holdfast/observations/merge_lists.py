"""Merge rules of lists: elements with keys, and actions."""

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Any, Final

from msgspec import Struct

from holdfast.domain.canonical_json import canonical, equality_key
from holdfast.domain.time import instant_of
from holdfast.observations.model import CORRECTED


class ClaimStamp(Struct, frozen=True, gc=False):
    """The claim a value comes from: its priority, its number in time order, and its reference."""

    priority: int
    number: int
    reference: str


class Element(Struct, frozen=True, gc=False):
    """A merged list element: its members, the claim behind each, and all claims by number.

    `stamps` includes removed members, because a lower priority must not restore them. `sources`
    is in time order.
    """

    members: dict[str, Any]
    stamps: dict[str, ClaimStamp]
    sources: dict[int, str]
    references: tuple[str, ...]


def _build_element(
    members: dict[str, Any], stamps: dict[str, ClaimStamp], sources: dict[int, str]
) -> Element:
    ordered = dict(sorted(sources.items()))
    return Element(members, stamps, ordered, tuple(ordered.values()))


def _start_element(claimed: dict[str, Any], stamp: ClaimStamp) -> Element:
    """Return a new element without its null members."""
    members = {name: value for name, value in claimed.items() if value is not None}
    stamps, sources = dict.fromkeys(claimed, stamp), {stamp.number: stamp.reference}
    return Element(members, stamps, sources, (stamp.reference,))


def _overlay_element(element: Element, claimed: dict[str, Any], stamp: ClaimStamp) -> Element:
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
    if stamps is element.stamps:
        return element
    found = {stamps[name].number: stamps[name].reference for name in members}
    return _build_element(members, stamps, found)


def _is_same(members: dict[str, Any], name: str, value: Any) -> bool:
    if value is None or name not in members:
        return value is None and name not in members
    return equality_key(members[name]) == equality_key(value)


Items = list[dict[str, Any]]
Key = tuple[str, int] | tuple[str, str] | bytes


class KeyedList:
    """A list whose elements have keys, in the order they were first claimed."""

    def __init__(self, key_of: Callable[[dict[str, Any]], Key]) -> None:
        self.by_key: dict[Key, Element] = {}
        self._key_of = key_of
        self._removed: set[Key] = set()

    @property
    def elements(self) -> Iterable[Element]:
        """Return the elements in order."""
        return self.by_key.values()

    @property
    def sources(self) -> dict[int, str]:
        """Return the contributing claims by number."""
        return {number: each for one in self.elements for number, each in one.sources.items()}

    def take(self, items: Items, stamp: ClaimStamp, *, is_new: bool = False) -> None:
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
            self._removed |= self.by_key.keys()
            self._removed -= claimed.keys()
            self.by_key = {}
        for key, item in claimed.items():
            before = self.by_key.get(key)
            if before is not None:
                self.by_key[key] = _overlay_element(before, item, stamp)
            elif is_new or key not in self._removed:
                self._removed.discard(key)
                self.by_key[key] = _start_element(item, stamp)


def checkpoint_key(checkpoint: dict[str, Any]) -> tuple[str, int]:
    """Return the key of a checkpoint: its name and instant."""
    return checkpoint["name"], instant_of(checkpoint["timestamp"])


def outcome_key(outcome: dict[str, Any]) -> tuple[str, str] | bytes:
    """Return the key of an outcome: its type and id, or else all of it."""
    if outcome.get("id") is not None:
        return outcome["type"], outcome["id"]
    return canonical({name: value for name, value in outcome.items() if value is not None})


class ActionText(Struct, frozen=True, gc=False):
    """Comparable form of an action: type and result, and its other non-null members."""

    head: tuple[str, str]
    rest: dict[str, str | bytes]


_HEAD: Final = ("type", "result")


def _action_text(action: dict[str, Any]) -> ActionText:
    rest = {
        name: equality_key(value)
        for name, value in action.items()
        if value is not None and name not in _HEAD
    }
    return ActionText((action["type"], action["result"]), rest)


def _are_compatible(one: ActionText, other: ActionText) -> bool:
    """Return whether two actions agree on every member that both have."""
    if one.head != other.head:
        return False
    rest = other.rest
    for name, mark in one.rest.items():  # noqa: SIM110 — a generator is a call per comparison
        if rest.get(name, mark) != mark:
            return False
    return True


_TIME: Final = "timestamp"
# Positions by type and result and by timestamp, None if there is none.
TimeIndex = dict[tuple[tuple[str, str], str | bytes | None], list[int]]
# More actions than these are found by an index of their most frequent members.
_FEW: Final = 8
_INDEXED: Final = 8


class ActionMatcher:
    """Finds the first compatible action of a list, for one action after another."""

    def __init__(
        self,
        texts: Sequence[ActionText],
        claimed: Sequence[ActionText],
        by_time: TimeIndex | None = None,
    ) -> None:
        self._texts = texts
        self._by_time = by_time
        self._all = range(len(texts))
        self._taken: set[int] = set()
        # Per list of positions, how many at its start are taken.
        self._starts: dict[int, int] = {}
        self._names: list[str] = []
        # Positions by type and result and by a member's value, None if it lacks it.
        self._places: defaultdict[object, list[int]] = defaultdict(list)
        if min(len(texts), len(claimed)) > _FEW:
            counts = Counter(name for each in claimed for name in each.rest)
            self._names = [name for name, _ in counts.most_common(_INDEXED)]
            for place, text in enumerate(texts):
                for name in self._names:
                    self._places[text.head, name, text.rest.get(name)].append(place)

    def find(self, text: ActionText) -> int | None:
        """Return the first position of a compatible action that is not taken."""
        lists: list[Sequence[int]] = [self._all]
        if self._by_time is not None and _TIME in text.rest:
            keys = (text.head, text.rest[_TIME]), (text.head, None)
            lists = [self._by_time.get(key, ()) for key in keys]
        for name in self._names:
            if name in text.rest:
                marks = text.rest[name], None
                narrowed = [self._places[text.head, name, mark] for mark in marks]
                if sum(map(len, narrowed)) < sum(map(len, lists)):
                    lists = list(narrowed)
        for place in merge(*[self._free(each) for each in lists if each]):
            if place not in self._taken and _are_compatible(text, self._texts[place]):
                return place
        return None

    def take(self, text: ActionText) -> int | None:
        """Return the first position like `find`, which is then taken."""
        place = self.find(text)
        if place is not None:
            self._taken.add(place)
        return place

    def _free(self, places: Sequence[int]) -> Iterator[int]:
        start = self._starts.get(id(places), 0)
        while start < len(places) and places[start] in self._taken:
            start += 1
        self._starts[id(places)] = start
        return islice(places, start, None)


class ActionList:
    """A list of actions in the order they were first claimed."""

    def __init__(self) -> None:
        self.elements: list[Element] = []
        self._texts: list[ActionText] = []
        # The contributing claims by number; an action keeps all it has.
        self.sources: dict[int, str] = {}
        self._by_time: TimeIndex = {}
        self._removed: list[ActionText] = []

    def take(self, items: Items, stamp: ClaimStamp, *, is_new: bool = False) -> None:
        """Merge a claim into the list; a correction replaces the whole list.

        With `is_new`, actions that a correction removed are accepted again, because they are newer
        than the correction.
        """
        texts = [_action_text(item) for item in items]
        if stamp.priority == CORRECTED:
            former = [*self._removed, *self._texts]
            new = ActionMatcher(texts, former)
            self._removed = [each for each in former if new.find(each) is None]
            self.elements, self.sources, self._texts, self._by_time = [], {}, [], {}
        elif self._removed and not is_new:
            removed = ActionMatcher(self._removed, texts)
            shown = [removed.find(each) is None for each in texts]
            items = [item for item, is_shown in zip(items, shown, strict=True) if is_shown]
            texts = [text for text, is_shown in zip(texts, shown, strict=True) if is_shown]
        for item, text, place in zip(items, texts, self._match(texts), strict=True):
            if place is None:
                self._append(text)
                self.elements.append(_start_element(item, stamp))
                self.sources[stamp.number] = stamp.reference
            else:
                self._extend(place, item, text, stamp)

    def _append(self, text: ActionText) -> None:
        self._by_time.setdefault((text.head, text.rest.get(_TIME)), []).append(len(self._texts))
        self._texts.append(text)

    def _match(self, texts: list[ActionText]) -> list[int | None]:
        """Return for each action the position that it is merged into, or None if it is new."""
        known = self._texts
        for one, other in zip(texts, known, strict=False):
            if not _are_compatible(one, other):
                matcher = ActionMatcher(known, texts, self._by_time)
                return [matcher.take(each) for each in texts]
        # One list is a prefix of the other.
        return [place if place < len(known) else None for place in range(len(texts))]

    def _extend(
        self, place: int, item: dict[str, Any], text: ActionText, stamp: ClaimStamp
    ) -> None:
        """Add the members that an action lacks; those that it has are equal."""
        known, element = self._texts[place], self.elements[place]
        gained = [name for name in text.rest if name not in known.rest]
        if gained:
            members = element.members | {name: item[name] for name in gained}
            sources = element.sources | {stamp.number: stamp.reference}
            self.elements[place] = _build_element(members, {}, sources)
            self.sources[stamp.number] = stamp.reference
            self._texts[place] = ActionText(known.head, text.rest | known.rest)
            if _TIME in gained:
                self._by_time[known.head, None].remove(place)
                insort(self._by_time.setdefault((known.head, text.rest[_TIME]), []), place)
