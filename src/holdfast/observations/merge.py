"""Merge the claims about an entity, and its session journal, into one snapshot."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from heapq import merge
from itertools import islice
from typing import Any, Final

from msgspec import Struct

from holdfast.domain.canonical_json import canonical, equality_key
from holdfast.domain.time import format_iso8601, instant_of, milliseconds
from holdfast.observations.as_of import EVERYTHING, AsOf
from holdfast.observations.claims import ended_before_started
from holdfast.observations.journal import JournalClaim, JournalRanges, JournalView, claim_of
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


class Element(Struct, frozen=True, gc=False):
    """A merged list element: its members, the claim behind each, and all claims by number.

    `stamps` includes removed members, because a lower priority must not restore them. `sources`
    is in time order.
    """

    members: dict[str, Any]
    stamps: dict[str, ClaimStamp]
    sources: dict[int, str]


def _start_element(claimed: dict[str, Any], stamp: ClaimStamp) -> Element:
    """Return a new element without its null members."""
    members = {name: value for name, value in claimed.items() if value is not None}
    return Element(members, dict.fromkeys(claimed, stamp), {stamp.number: stamp.reference})


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
    return Element(members, stamps, dict(sorted(found.items())))


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

    def restore(self, item: dict[str, Any], stamps: list[ClaimStamp]) -> bool:
        """Append a stored element; return False if it is not known which claim set a member."""
        if len(stamps) == 1:
            self.by_key[self._key_of(item)] = _start_element(item, stamps[0])
        return len(stamps) == 1


def _checkpoint_key(checkpoint: dict[str, Any]) -> tuple[str, int]:
    return checkpoint["name"], instant_of(checkpoint["timestamp"])


def _outcome_key(outcome: dict[str, Any]) -> tuple[str, str] | bytes:
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


# Above this many comparisons an index by member is cheaper than to compare all pairs.
_PAIRS_MOST: Final = 4_096
_INDEXED: Final = 8


class ActionMatcher:
    """Finds the first compatible action of a list, for one action after another."""

    def __init__(self, texts: Sequence[ActionText], claimed: Sequence[ActionText]) -> None:
        self._texts = texts
        self._taken: set[int] = set()
        # Per list of positions, how many at its start are taken.
        self._starts: dict[int, int] = {}
        self._names: list[str] = []
        if len(texts) * len(claimed) > _PAIRS_MOST:
            counts = Counter(name for each in claimed for name in each.rest)
            self._names = [name for name, _ in counts.most_common(_INDEXED)]
        # Positions by type and result, and by these with a member's value, None if it lacks it.
        self._places: defaultdict[object, list[int]] = defaultdict(list)
        for place, text in enumerate(texts):
            self._places[text.head].append(place)
            for name in self._names:
                self._places[text.head, name, text.rest.get(name)].append(place)

    def find(self, text: ActionText) -> int | None:
        """Return the first position of a compatible action that is not taken."""
        lists = [self._places[text.head]]
        for name in self._names:
            if name in text.rest:
                keys = (text.head, name, text.rest[name]), (text.head, name, None)
                narrowed = [self._places[key] for key in keys]
                if sum(map(len, narrowed)) < sum(map(len, lists)):
                    lists = narrowed
        free = [self._free(each) for each in lists]
        for place in free[0] if len(free) == 1 else merge(*free):
            if place not in self._taken and _are_compatible(text, self._texts[place]):
                return place
        return None

    def take(self, text: ActionText) -> int | None:
        """Return the first position like `find`, which is then taken."""
        place = self.find(text)
        if place is not None:
            self._taken.add(place)
        return place

    def _free(self, places: list[int]) -> Iterator[int]:
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
            self.elements, self._texts = [], []
        elif self._removed and not is_new:
            removed = ActionMatcher(self._removed, texts)
            shown = [removed.find(each) is None for each in texts]
            items = [item for item, is_shown in zip(items, shown, strict=True) if is_shown]
            texts = [text for text, is_shown in zip(texts, shown, strict=True) if is_shown]
        for item, text, place in zip(items, texts, self._match(texts), strict=True):
            if place is None:
                self._texts.append(text)
                self.elements.append(_start_element(item, stamp))
            else:
                self._extend(place, item, text, stamp)

    def restore(self, item: dict[str, Any], stamps: list[ClaimStamp]) -> bool:
        """Append a stored element; which claim set a member does not matter, for none changes."""
        self._texts.append(_action_text(item))
        sources = {each.number: each.reference for each in stamps}
        self.elements.append(Element(item, {}, sources))
        return True

    def _match(self, texts: list[ActionText]) -> list[int | None]:
        """Return for each action the position that it is merged into, or None if it is new."""
        known = self._texts
        for one, other in zip(texts, known, strict=False):
            if not _are_compatible(one, other):
                matcher = ActionMatcher(known, texts)
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
            self.elements[place] = Element(members, {}, dict(sorted(sources.items())))
            self._texts[place] = ActionText(known.head, text.rest | known.rest)


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
    journal: JournalView | None = None,
    horizon: AsOf = EVERYTHING,
) -> Entity:
    """Return the merged state of a subject within the horizon."""
    claim = claim_of(journal, horizon) if journal is not None else None
    seen = [each for each in observations if horizon.shows(each.observed_at, each.created_at)]
    return fold_all(subject, seen, claim).entity()


def fold_all(
    subject: Subject, observations: Sequence[Observation], claim: JournalClaim | None = None
) -> "Fold":
    """Return the fold of all these observations, given in any order."""
    fold = Fold(subject, claim, observations)
    for observation in sorted(observations, key=lambda each: each.place):
        fold.add(observation)
    return fold


class Fold:
    """Incremental merge of the claims about one entity, in time order.

    Adding a claim gives the same result as resolving all claims again. Not shared: discard a
    fold that contains a claim whose write failed. With a journal claim, `coming` must list the
    observations that will be added, because corrections split the journal.
    """

    def __init__(
        self,
        subject: Subject,
        claim: JournalClaim | None = None,
        coming: Iterable[Observation] = (),
    ) -> None:
        self.subject = subject
        self._entity_id = subject.entity_id
        self.claim = claim
        self.count = 0
        self.is_deleted = False
        # The winning claim of each scalar field, without the journal's claims.
        self.scalars: dict[str, Scalar] = {}
        self._last: tuple[datetime, int] | None = None
        self._first_reference = claim.reference if claim else ""
        self._names = members_of(PAYLOADS[subject.entity_type])
        self._changes: list[StatusChange] = []
        # Lists that merge by element; other types replace lists as a whole.
        self._lists: dict[str, ActionList | KeyedList] = {}
        self._is_session = subject.entity_type is EntityType.AGENT_SESSION
        if self._is_session:
            self._lists["actions"] = ActionList()
            self._lists["checkpoints"] = KeyedList(_checkpoint_key)
            self._lists["outcomes"] = KeyedList(_outcome_key)
        # Cached lists in display form, invalidated when a claim changes them.
        self._shown_lists: dict[str, _ShownList] = {}
        # Per list, the first claim and the last correction.
        self._first: dict[str, ClaimStamp] = {}
        self._corrected: dict[str, ClaimStamp] = {}
        # Whether null members and priorities of earlier claims are unknown.
        self._is_restored = False
        self._journal: dict[str, JournalRanges] = {}
        if claim is not None:
            self._split_journal(claim, coming)

    def _split_journal(self, claim: JournalClaim, coming: Iterable[Observation]) -> None:
        corrections = [each for each in coming if each.priority == CORRECTED]
        for name in self._lists:
            if name in claim.fields:
                cuts = [each for each in corrections if name in each.fields]
                ranges = self._journal[name] = JournalRanges(claim.fields[name], cuts)
                self._merge(name, ranges.first(), self._journal_stamp)

    def restore(
        self, entity: Entity, last: tuple[datetime, int], cleared: Mapping[str, int]
    ) -> bool:
        """Take over a stored snapshot of submissions only; return False if it does not tell enough.

        `last` is the place of the last claim, and `cleared` holds the times of the last claims of
        `ended_at` and `duration`, also if their values were cleared.
        """
        snapshot, provenance = entity.snapshot, entity.provenance
        for name, found in self._lists.items():
            numbers = {each: number for number, each in enumerate(provenance[name], 1)}
            stamps = {each: ClaimStamp(ORDINARY, number, each) for each, number in numbers.items()}
            items = zip(snapshot[name], entity.provenance_items[name], strict=True)
            if not all(
                found.restore(item, [stamps[each] for each in whose]) for item, whose in items
            ):
                return False
            if numbers:
                self._first[name] = stamps[provenance[name][0]]
        for name in self._names:
            if name not in self._lists and (name in snapshot or name in cleared):
                value, (whose,) = snapshot.get(name), provenance.get(name, ("",))
                at_ms, stamp = cleared.get(name, 0), ClaimStamp(ORDINARY, 0, whose)
                self.scalars[name] = Scalar(value, at_ms, stamp, self._instant(name, value))
        self._last, self.count = last, last[1]
        self._first_reference = provenance[_KEY][0] if self._is_session else "-"
        self._changes = list(entity.status_changes)
        self._is_restored = True
        return True

    def follows(self, observation: Observation) -> bool:
        """Return whether an observation sorts after all added ones, as `add` requires.

        A correction of a list must also not precede journal elements that are already merged.
        """
        if self._last is not None and observation.place <= self._last:
            return False
        if self._is_restored and observation.priority < ORDINARY:
            return False
        if self.claim is None or observation.priority != CORRECTED:
            return True
        ms = milliseconds(observation.observed_at)
        corrected = self._journal.keys() & observation.fields.keys()
        return all(self._journal[name].last_ms <= ms for name in corrected)

    def add(self, observation: Observation) -> None:
        """Merge the next observation in time order, which `follows` the others."""
        place = observation.place
        assert self._last is None or place > self._last  # noqa: S101 — internal invariant
        self.count += 1
        self._last = place
        self._first_reference = self._first_reference or observation.id
        fields, at_ms = observation.fields, milliseconds(place[0])
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
                self._set(name, Scalar(value, at_ms, stamp, self._instant(name, value)), place[0])
            elif value is not None:
                self._merge(name, value, stamp)
                if stamp.priority == CORRECTED and name in self._journal:
                    items = self._journal[name].following()
                    self._lists[name].take(items, self._journal_stamp, is_new=True)

    def entity(self) -> Entity:
        """Return the entity merged from the claims added so far."""
        snapshot: dict[str, Any] = {}
        provenance: dict[str, tuple[str, ...]] = {}
        items: dict[str, tuple[tuple[str, ...], ...]] = {}
        scalars: Mapping[str, Scalar] = {}
        if not self.is_deleted and self._first_reference:
            scalars = self.scalars if self.claim is None else self._with_claim(self.claim)
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
        times = [self._last[0]] if self._last else []
        times += [self.claim.last_at] if self.claim else []
        start, end = scalars.get(_START), scalars.get("ended_at")
        is_early = start and end and start.ms is not None and end.ms is not None
        is_early = is_early and end.ms < start.ms  # type: ignore[union-attr, operator]
        return Entity(
            entity_id=self._entity_id,
            entity_type=self.subject.entity_type,
            key=self.subject.key,
            snapshot=snapshot,
            provenance=provenance,
            provenance_items=items,
            observation_count=self.count if snapshot else 0,
            last_observation_at=max(times) if snapshot else None,
            hosted=self.claim is not None,
            deleted=self.is_deleted,
            warnings=(ended_before_started(snapshot),) if is_early else (),
            status_changes=tuple(self._changes) if snapshot else (),
        )

    def _instant(self, name: str, value: Any) -> int | None:
        if value is None or not self._is_session or name not in _TIMES:
            return None
        # Most claims repeat the start, which is then not parsed again.
        before = self.scalars.get(name)
        return before.ms if before is not None and before.value == value else instant_of(value)

    def _set(self, name: str, claimed: Scalar, at: datetime) -> None:
        before = self.scalars.get(name)
        rule = earliest if name == _START else latest
        self.scalars[name] = after = rule(before, claimed)
        if name == "status" and (before is None or before.value != after.value):
            change = StatusChange(
                status=after.value,
                previous=before.value if before else None,
                at=at,
                reference=claimed.stamp.reference,
            )
            self._changes.append(change)

    @property
    def _journal_stamp(self) -> ClaimStamp:
        return ClaimStamp(ORDINARY, 0, self._first_reference)

    def _merge(self, name: str, items: Items, stamp: ClaimStamp) -> None:
        self._lists[name].take(items, stamp)
        self._shown_lists.pop(name, None)
        self._first.setdefault(name, stamp)
        if stamp.priority == CORRECTED:
            self._corrected[name] = stamp

    def _with_claim(self, claim: JournalClaim) -> Mapping[str, Scalar]:
        """Return the scalars merged with the journal's, each at the time of its row."""
        found = dict(self.scalars)
        for name, at in claim.times.items():
            value = claim.fields[name]
            ms = instant_of(value) if name in _TIMES else None
            scalars = [Scalar(value, milliseconds(at), self._journal_stamp, ms)]
            scalars += [found[name]] if name in found else []
            rule = earliest if name == _START else latest
            shown = None
            # At equal times the journal is first.
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
        whose = [each.sources for each in elements]
        sources = {number: reference for each in whose for number, reference in each.items()}
        if name in self._corrected:
            sources[self._corrected[name].number] = self._corrected[name].reference
        if not sources and name in self._first:
            sources[self._first[name].number] = self._first[name].reference
        return (
            [each.members for each in elements],
            tuple([tuple(each.values()) for each in whose]),
            tuple([sources[number] for number in sorted(sources)]),
        )
