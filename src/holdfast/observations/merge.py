"""Merge the claims about an entity, and the rows of its hosted session, into one snapshot."""

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import islice, pairwise
from math import inf
from typing import Any, Final

from msgspec import Struct

from holdfast.domain.canonical_json import canonical, equality_key
from holdfast.domain.time import format_iso8601, instant_of, milliseconds, moment
from holdfast.observations.as_of import EVERYTHING, AsOf
from holdfast.observations.claims import session_warnings
from holdfast.observations.hosted_session import HostedObservation, HostedSessionView, claim_of
from holdfast.observations.model import (
    CORRECTED,
    DELETED,
    ORDINARY,
    PAYLOADS,
    Entity,
    EntityType,
    Observation,
    StatusChange,
    Subject,
)
from holdfast.observations.validation import members_of


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


class Scalar(Struct, frozen=True, gc=False):
    """A value (null if cleared), the time of its last claim, and the claim it comes from.

    Repeating a value updates its time but keeps the original source. `ms` is the instant of a
    value that is a time.
    """

    value: Any
    at_ms: int
    stamp: ClaimStamp
    ms: int | None = None


def latest(before: Scalar | None, claimed: Scalar) -> Scalar:
    """Return the winner by higher priority, then by later time."""
    if before is None or claimed.stamp.priority > before.stamp.priority:
        return claimed
    if claimed.stamp.priority < before.stamp.priority:
        return before
    if equality_key(before.value) == equality_key(claimed.value):
        return Scalar(before.value, claimed.at_ms, before.stamp, before.ms)
    return claimed


def earliest(before: Scalar | None, claimed: Scalar) -> Scalar:
    """Return the winner by higher priority, then by earlier instant.

    Between two corrections the newer one wins, because it corrects the other.
    """
    priority = claimed.stamp.priority
    if before is None or priority != before.stamp.priority or priority == CORRECTED:
        return latest(before, claimed)
    assert before.ms is not None  # noqa: S101 — internal invariant
    assert claimed.ms is not None  # noqa: S101 — internal invariant
    return claimed if claimed.ms < before.ms else before


# List elements, the claims behind each element, and the claims behind the list.
_ShownList = tuple[Items, tuple[tuple[str, ...], ...], tuple[str, ...]]
_KEY: Final = "session_id"
_START: Final = "started_at"
_TIMES: Final = frozenset({_START, "ended_at"})
# Lowest priority: any explicit claim overrides an assumed start.
_ASSUMED: Final = 0


def resolve(
    subject: Subject,
    observations: Iterable[Observation],
    *,
    hosted: HostedSessionView | None = None,
    horizon: AsOf = EVERYTHING,
) -> Entity:
    """Return the merged state of a subject within the horizon."""
    claim = claim_of(hosted, horizon) if hosted is not None else None
    seen = [each for each in observations if horizon.shows(each.observed_at, each.created_at)]
    return fold_all(subject, seen, claim).entity()


def fold_all(
    subject: Subject, observations: Sequence[Observation], claim: HostedObservation | None = None
) -> "Fold":
    """Return the fold of all these observations, given in any order."""
    fold = Fold(subject, claim, observations)
    for observation in sorted(observations, key=lambda each: each.place):
        fold.add(observation)
    return fold


def _split_items(items: Items, cuts: Sequence[int]) -> Iterator[Items]:
    """Yield a hosted session's elements in ranges that end at the corrections of their list."""
    for after, until in pairwise((-inf, *cuts, inf)):
        yield [each for each in items if after < instant_of(each["timestamp"]) <= until]


class Fold:
    """Incremental merge of the claims about one entity, in time order.

    Adding a claim gives the same result as resolving all claims again. Not shared: discard a
    fold that contains a claim whose write failed. For a hosted session, `coming` must list the
    observations that will be added, because corrections split its lists.
    """

    def __init__(
        self,
        subject: Subject,
        claim: HostedObservation | None = None,
        coming: Iterable[Observation] = (),
    ) -> None:
        self.subject = subject
        self._entity_id = subject.entity_id
        self._claim = claim
        self.count = 0
        self.is_deleted = False
        # The winning claim of each scalar field, without that of the hosted session.
        self.scalars: dict[str, Scalar] = {}
        self._last: tuple[int, int] | None = None
        self._first_reference = claim.reference if claim else ""
        self._names = members_of(PAYLOADS[subject.entity_type])
        self._changes: list[StatusChange] = []
        # Lists that merge by element; other types replace lists as a whole.
        self._lists: dict[str, ActionList | KeyedList] = {}
        self._is_session = subject.entity_type is EntityType.AGENT_SESSION
        if self._is_session:
            self._lists["actions"] = ActionList()
            self._lists["checkpoints"] = KeyedList(checkpoint_key)
            self._lists["outcomes"] = KeyedList(outcome_key)
        # Cached lists in display form, invalidated when a claim changes them.
        self._shown_lists: dict[str, _ShownList] = {}
        # Per list, the first claim and the last correction.
        self._first: dict[str, ClaimStamp] = {}
        self._corrected: dict[str, ClaimStamp] = {}
        # Per list, the session's elements between one correction of it and the next.
        self._hosted_items: dict[str, Iterator[Items]] = {}
        if claim is not None:
            self._merge_hosted(claim, coming)

    def _merge_hosted(self, claim: HostedObservation, coming: Iterable[Observation]) -> None:
        """Merge the session's list elements up to the first correction of their list."""
        corrections = [each for each in coming if each.priority == CORRECTED]
        for name in self._lists.keys() & claim.fields.keys():
            cuts = sorted(each.observed_ms for each in corrections if name in each.fields)
            self._hosted_items[name] = _split_items(claim.fields[name], cuts)
            self._merge(name, next(self._hosted_items[name]), self._hosted_stamp)

    def follows(self, observation: Observation) -> bool:
        """Return whether an observation sorts after all added ones, as `add` requires."""
        return self._last is None or observation.place > self._last

    def add(self, observation: Observation) -> None:
        """Merge the next observation in time order, which `follows` the others."""
        place = observation.place
        assert self._last is None or place > self._last  # noqa: S101 — internal invariant
        self.count += 1
        self._last = place
        self._first_reference = self._first_reference or observation.id
        fields, at_ms = observation.fields, observation.observed_ms
        self.is_deleted = fields.get(DELETED, self.is_deleted)
        stamp = ClaimStamp(observation.priority, self.count, observation.id)
        if self.count == 1 and self._is_session:
            # A session started when it was first observed, until a claim states the start.
            # Submissions always do; only corrections of a deleted hosted session do not.
            assumed = ClaimStamp(_ASSUMED, 1, observation.id)
            self.scalars[_START] = Scalar(format_iso8601(at_ms), at_ms, assumed, at_ms)
        for name in self._names:
            if name not in fields:
                continue
            value = fields[name]
            if name not in self._lists:
                self._set(name, Scalar(value, at_ms, stamp, self._instant(name, value)))
            elif value is not None:
                self._merge(name, value, stamp)
                if stamp.priority == CORRECTED and name in self._hosted_items:
                    items = next(self._hosted_items[name])
                    self._lists[name].take(items, self._hosted_stamp, is_new=True)

    def entity(self) -> Entity:
        """Return the entity merged from the claims added so far."""
        snapshot: dict[str, Any] = {}
        provenance: dict[str, tuple[str, ...]] = {}
        items: dict[str, tuple[tuple[str, ...], ...]] = {}
        scalars: Mapping[str, Scalar] = {}
        if not self.is_deleted and self._first_reference:
            scalars = self.scalars if self._claim is None else self._with_claim(self._claim)
            if self._is_session:
                # Every claim repeats the session id, so it is credited to the first one.
                snapshot[_KEY] = self.subject.key
                provenance[_KEY] = (self._first_reference,)
            for name in self._names:
                if name in self._lists:
                    shown = self._shown_lists.get(name)
                    if shown is None:
                        shown = self._shown_lists[name] = self._show_list(name)
                    snapshot[name], items[name], provenance[name] = shown
                elif name in scalars and scalars[name].value is not None:
                    snapshot[name] = scalars[name].value
                    provenance[name] = (scalars[name].stamp.reference,)
        times = [moment(self._last[0])] if self._last else []
        times += [self._claim.last_at] if self._claim else []
        return Entity(
            entity_id=self._entity_id,
            entity_type=self.subject.entity_type,
            key=self.subject.key,
            snapshot=snapshot,
            provenance=provenance,
            provenance_items=items,
            observation_count=self.count if snapshot else 0,
            last_observation_at=max(times) if snapshot else None,
            hosted=self._claim is not None,
            deleted=self.is_deleted,
            warnings=session_warnings(snapshot) if self._is_session else (),
            status_changes=tuple(self._changes) if snapshot else (),
        )

    def _instant(self, name: str, value: Any) -> int | None:
        if value is None or not self._is_session or name not in _TIMES:
            return None
        # Most claims repeat the start, which is then not parsed again.
        before = self.scalars.get(name)
        return before.ms if before is not None and before.value == value else instant_of(value)

    def _set(self, name: str, claimed: Scalar) -> None:
        before = self.scalars.get(name)
        rule = earliest if name == _START else latest
        self.scalars[name] = after = rule(before, claimed)
        if name == "status" and (before is None or before.value != after.value):
            change = StatusChange(
                status=after.value,
                previous=before.value if before else None,
                at=moment(claimed.at_ms),
                reference=claimed.stamp.reference,
            )
            self._changes.append(change)

    @property
    def _hosted_stamp(self) -> ClaimStamp:
        return ClaimStamp(ORDINARY, 0, self._first_reference)

    def _merge(self, name: str, items: Items, stamp: ClaimStamp) -> None:
        self._lists[name].take(items, stamp)
        self._shown_lists.pop(name, None)
        self._first.setdefault(name, stamp)
        if stamp.priority == CORRECTED:
            self._corrected[name] = stamp

    def _with_claim(self, claim: HostedObservation) -> Mapping[str, Scalar]:
        """Return the scalars merged with the session's own, each at the time of its row."""
        found = dict(self.scalars)
        for name, at in claim.times.items():
            value = claim.fields[name]
            ms = instant_of(value) if name in _TIMES else None
            scalars = [Scalar(value, milliseconds(at), self._hosted_stamp, ms)]
            scalars += [found[name]] if name in found else []
            rule = earliest if name == _START else latest
            shown = None
            # At equal times the session's own value is first.
            for each in sorted(scalars, key=lambda one: one.at_ms):
                found[name] = shown = rule(shown, each)
        return found

    def _show_list(self, name: str) -> _ShownList:
        """Return a list for display; an empty list is credited to its first claim."""
        found = self._lists[name]
        elements = list(found.elements)
        if name == "checkpoints" and isinstance(found, KeyedList):
            times = [key[1] for key in found.by_key]
            elements = [
                elements[place] for place in sorted(range(len(times)), key=times.__getitem__)
            ]
        sources = found.sources
        credited = self._corrected.get(name) or (None if sources else self._first.get(name))
        if credited is not None:
            sources = sources | {credited.number: credited.reference}
        return (
            [each.members for each in elements],
            tuple([each.references for each in elements]),
            tuple([sources[number] for number in sorted(sources)]),
        )
