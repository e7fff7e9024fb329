"""Merge the claims about an entity, and the rows of its hosted session, into one snapshot."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Any, Final

from msgspec import Struct

from holdfast.domain.canonical_json import equality_key
from holdfast.domain.time import format_iso8601, instant_of, milliseconds, moment
from holdfast.observations.as_of import EVERYTHING, AsOf
from holdfast.observations.claims import session_warnings
from holdfast.observations.hosted_session import HostedObservation, HostedSessionView, claim_of
from holdfast.observations.merge_lists import (
    ActionList,
    ClaimStamp,
    Items,
    KeyedList,
    checkpoint_key,
    outcome_key,
)
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
