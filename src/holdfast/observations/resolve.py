"""Resolve an entity: merge its visible claims and its session journal into one snapshot."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from holdfast.domain.calls import Call, CallState, Settlement
from holdfast.domain.canonical_json import canonical, decode_exact
from holdfast.domain.ids import CallId
from holdfast.domain.messages import (
    Message,
    Notice,
    NoticeCode,
    ResultStatus,
    ToolCall,
    ToolResult,
)
from holdfast.domain.sessions import OPEN, Session
from holdfast.domain.time import format_iso8601, instant_of, milliseconds, truncate_to_ms
from holdfast.observations.as_of import EVERYTHING, AsOf
from holdfast.observations.claims import ended_before_started
from holdfast.observations.merge import (
    ActionList,
    ClaimStamp,
    Elements,
    KeyedList,
    Scalar,
    earliest,
    latest,
)
from holdfast.observations.model import (
    CORRECTED,
    DELETED,
    ORDINARY,
    PAYLOADS,
    CheckpointFields,
    Entity,
    EntityType,
    Observation,
    StatusChange,
    Subject,
)
from holdfast.observations.validation import find_issues, members_of

CHECKPOINT_TOOL: Final = "checkpoint"
OPENED: Final = "session_opened"
RESULTS: Final[Mapping[ResultStatus, str]] = {
    ResultStatus.OK: "success",
    ResultStatus.ERROR: "failure",
    ResultStatus.UNKNOWN: "unknown",
    ResultStatus.SKIPPED: "skipped",
    ResultStatus.DENIED: "denied",
}
# A retried call stays unknown, because the retry is recorded as its own action.
SETTLED: Final[Mapping[Settlement, str]] = {
    Settlement.RETRIED: "unknown",
    Settlement.SKIPPED: "skipped",
    Settlement.MARKED_DONE: "success",
}


class JournalView(Struct, frozen=True, kw_only=True):
    """The part of a session's journal needed to resolve it: session, messages and calls.

    Only messages with calls, results and notices matter; others may be omitted.
    """

    session: Session
    messages: Sequence[Message]
    calls: Sequence[Call] = ()

    @property
    def subject(self) -> Subject:
        """Return the entity that the session corresponds to."""
        return Subject(self.session.owner, EntityType.AGENT_SESSION, self.session.id)


class JournalClaim(Struct, frozen=True, kw_only=True):
    """The claim derived from a journal; `times` holds the row times of its scalar fields."""

    reference: str
    fields: dict[str, Any]
    times: dict[str, datetime]
    last_at: datetime


def claim_of(journal: JournalView, horizon: AsOf = EVERYTHING) -> JournalClaim | None:
    """Return the journal's claim within the horizon; None before the session was created."""
    session = journal.session
    if not horizon.shows(session.created_at, session.created_at):
        return None
    rows = [row for row in _own(journal) if horizon.shows(row.created_at, row.created_at)]
    results = _results(rows, journal.calls)
    opened = {"type": OPENED, "result": "success", "timestamp": _at(session.created_at)}
    fields: dict[str, Any] = {
        "session_id": session.id,
        "actions": [opened, *(_action(row, part, result) for row, part, result in results)],
        "checkpoints": list(_checkpoints(rows, results)),
        "started_at": _at(session.created_at),
    }
    times = dict.fromkeys(("session_id", "started_at"), truncate_to_ms(session.created_at))
    ended = _ended(session, horizon)
    if ended is not None:
        closing = {"ended_at": _at(ended)} | _duration(session.created_at, ended)
        fields |= closing
        times |= dict.fromkeys(closing, truncate_to_ms(ended))
    return JournalClaim(
        reference=f"journal:{session.id}",
        fields=fields,
        times=times,
        last_at=truncate_to_ms(_last_at(session, rows, horizon)),
    )


# A result's row, the result, and its name in observations.
_Told = tuple[Message, ToolResult, str]


def _own(journal: JournalView) -> Iterator[Message]:
    """Yield the rows that the session wrote itself, without those a fork inherited."""
    forked = journal.session.forked_from
    inherited = forked.sequence if forked else 0
    return (row for row in journal.messages if row.sequence > inherited)


def _results(rows: Iterable[Message], calls: Sequence[Call]) -> list[_Told]:
    settled = {call.id: call for call in calls if call.state is CallState.SETTLED}
    notices = [
        part.text
        for row in rows
        for part in row.parts
        if isinstance(part, Notice) and part.code is NoticeCode.CALL_SETTLED
    ]
    return [
        (row, part, _outcome(part, settled, notices))
        for row in rows
        for part in row.parts
        if isinstance(part, ToolResult)
    ]


def _outcome(part: ToolResult, settled: Mapping[CallId, Call], notices: Sequence[str]) -> str:
    """Return the outcome of a call; a settlement counts once it is within the horizon."""
    call = settled.get(part.call_id)
    if call is None or call.settlement is None or part.status is not ResultStatus.UNKNOWN:
        return RESULTS[part.status]
    # The notice is the row of the settlement; without it, the settlement is beyond the horizon.
    is_in_notice = any(f"({call.id})" in text for text in notices)
    return SETTLED[call.settlement] if is_in_notice else RESULTS[part.status]


def _action(row: Message, part: ToolResult, result: str) -> dict[str, Any]:
    details: dict[str, Any] = {"call_id": part.call_id, "turn": row.turn}
    if part.error is not None:
        details["error"] = part.error.code
    return {
        "type": part.name,
        "result": result,
        "details": details,
        "timestamp": _at(row.created_at),
    }


def _checkpoints(rows: Iterable[Message], results: Iterable[_Told]) -> Iterator[dict[str, Any]]:
    reached = {part.call_id for _, part, result in results if result == "success"}
    for row in rows:
        for part in row.parts:
            if isinstance(part, ToolCall) and part.name == CHECKPOINT_TOOL and part.id in reached:
                claimed = {"name": part.arguments.get("name"), "timestamp": _at(row.created_at)}
                state = part.arguments.get("state")
                claimed |= {} if state is None else {"state": state}
                # Another agent may define a tool with the same name but other arguments.
                if not find_issues(members_of(CheckpointFields), claimed):
                    yield decode_exact(canonical(claimed))


def _ended(session: Session, horizon: AsOf) -> datetime | None:
    ended = session.finished_at
    if session.status in OPEN or ended is None or not horizon.shows(ended, ended):
        return None
    return ended


def _last_at(session: Session, rows: Sequence[Message], horizon: AsOf) -> datetime:
    """Return the time of the last write within the horizon."""
    if horizon.shows(session.updated_at, session.updated_at):
        return session.updated_at
    seen = [session.created_at, _ended(session, horizon), *(row.created_at for row in rows)]
    return max(at for at in seen if at is not None)


def _duration(start: datetime, end: datetime) -> dict[str, Any]:
    ms = milliseconds(end) - milliseconds(start)
    # Whole seconds as an integer, to match the canonical JSON form.
    seconds = ms // 1000 if ms % 1000 == 0 else ms / 1000
    return {"duration": seconds} if ms > 0 else {}


def _at(instant: datetime) -> str:
    return format_iso8601(milliseconds(instant))


Items = list[dict[str, Any]]
_BEFORE_ALL = -(1 << 62)


class JournalRanges:
    """Returns journal elements in ranges that end at corrections.

    Corrections known in advance are passed to the constructor. `last_ms` is the latest time
    returned so far.
    """

    def __init__(self, items: Items, corrections: Iterable[Observation] = ()) -> None:
        self._items = items
        self._cuts = sorted(milliseconds(each.observed_at) for each in corrections)
        self.last_ms = _BEFORE_ALL

    def first(self) -> Items:
        """Return the elements up to the first correction."""
        return self._take()

    def following(self) -> Items:
        """Return the elements after the correction that was just added, up to the next one."""
        del self._cuts[:1]
        return self._take()

    def _take(self) -> Items:
        cut = self._cuts[0] if self._cuts else None
        times = [instant_of(each["timestamp"]) for each in self._items]
        included = [cut is None or ms <= cut for ms in times]
        self.last_ms = max(
            [self.last_ms, *(ms for ms, now in zip(times, included, strict=True) if now)]
        )
        taken = [each for each, now in zip(self._items, included, strict=True) if now]
        self._items = [each for each, now in zip(self._items, included, strict=True) if not now]
        return taken


def journal_ranges(
    lists: Mapping[str, Items], coming: Iterable[Observation]
) -> dict[str, JournalRanges]:
    """Split each journal list at the corrections among the coming observations."""
    corrections = [each for each in coming if each.priority == CORRECTED]
    return {
        name: JournalRanges(items, [each for each in corrections if name in each.fields])
        for name, items in lists.items()
    }


# List elements, the claims behind each element, and the claims behind the list.
_ShownList = tuple[list[dict[str, Any]], tuple[tuple[str, ...], ...], tuple[str, ...]]
_KEY: Final = "session_id"
_START: Final = "started_at"
# Lowest priority: any explicit claim overrides an assumed start.
_ASSUMED: Final = 0
_STATUS: Final = "status"


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
    fold = Fold(subject, claim, seen)
    for observation in sorted(seen, key=lambda each: each.place):
        fold.add(observation)
    return fold.entity()


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
        self.claim = claim
        self.count = 0
        self.is_deleted = False
        self._last: tuple[datetime, int] | None = None
        self._references = [claim.reference if claim else ""]
        self._names = list(members_of(PAYLOADS[subject.entity_type]))
        self._scalars: dict[str, Scalar] = {}
        self._changes: list[StatusChange] = []
        self._lists = _lists_of(subject.entity_type)
        # Cached lists in display form, invalidated when a claim changes them.
        self._shown_lists: dict[str, _ShownList] = {}
        # Per list, the number of the first claim and of the last correction.
        self._first: dict[str, int] = {}
        self._corrected: dict[str, int] = {}
        fields = claim.fields if claim is not None else {}
        lists = {name: fields[name] for name in self._lists if name in fields}
        self._journal = journal_ranges(lists, coming)
        for name, stretches in self._journal.items():
            self._merge(name, stretches.first(), self._journal_stamp)

    @property
    def scalars(self) -> Mapping[str, Scalar]:
        """Return the winning claim of each scalar field, without the journal's claims."""
        return self._scalars

    def follows(self, observation: Observation) -> bool:
        """Return whether an observation sorts after all added ones, as `add` requires.

        A correction of a list must also not precede journal elements that are already merged.
        """
        if self._last is not None and observation.place <= self._last:
            return False
        if self.claim is None or observation.priority != CORRECTED:
            return True
        ms = milliseconds(observation.observed_at)
        corrected = self._journal.keys() & observation.fields.keys()
        return all(self._journal[name].last_ms <= ms for name in corrected)

    def add(self, observation: Observation) -> None:
        """Merge the next observation in time order."""
        assert self.follows(observation)  # noqa: S101 — internal invariant
        self.count += 1
        self._last = observation.place
        self._references.append(observation.id)
        fields = observation.fields
        self.is_deleted = fields.get(DELETED, self.is_deleted)
        stamp = ClaimStamp(observation.priority, self.count, observation.id)
        if self.count == 1 and self.subject.entity_type is EntityType.AGENT_SESSION:
            self._assume_start(observation)
        for name in self._names:
            if name not in fields:
                continue
            if name not in self._lists:
                self._set(name, Scalar(fields[name], observation.place, stamp))
            elif fields[name] is not None:
                self._merge(name, fields[name], stamp)
                if stamp.priority == CORRECTED and name in self._journal:
                    items = self._journal[name].following()
                    self._lists[name].take(items, self._journal_stamp, is_new=True)

    def entity(self) -> Entity:
        """Return the entity merged from the claims added so far."""
        if self.is_deleted or (not self.count and self.claim is None):
            return self._shown({}, {}, {})
        scalars = self._scalars if self.claim is None else self._with_claim(self.claim)
        snapshot: dict[str, Any] = {}
        provenance: dict[str, tuple[str, ...]] = {}
        items: dict[str, tuple[tuple[str, ...], ...]] = {}
        if self.subject.entity_type is EntityType.AGENT_SESSION:
            # Every claim repeats the session id, so it is credited to the first one.
            snapshot[_KEY] = self.subject.key
            provenance[_KEY] = tuple([each for each in self._references if each][:1])
        for name in self._names:
            if name in self._lists:
                shown = self._shown_lists.get(name)
                if shown is None:
                    shown = self._shown_lists[name] = self._shown_list(name)
                snapshot[name], items[name], provenance[name] = shown
            elif name in scalars and scalars[name].value is not None:
                snapshot[name] = scalars[name].value
                provenance[name] = (scalars[name].stamp.reference,)
        return self._shown(snapshot, provenance, items)

    def _assume_start(self, first: Observation) -> None:
        """Assume that a session started when it was first observed, until a claim states the start.

        Submissions always state it; only corrections of a deleted hosted session do not.
        """
        spoken_of = format_iso8601(milliseconds(first.observed_at))
        self._scalars[_START] = Scalar(spoken_of, first.place, ClaimStamp(_ASSUMED, 1, first.id))

    def _set(self, name: str, claimed: Scalar) -> None:
        before = self._scalars.get(name)
        self._scalars[name] = after = _rule(name)(before, claimed)
        if name == _STATUS and (before is None or before.value != after.value):
            change = StatusChange(
                status=after.value,
                previous=before.value if before else None,
                at=claimed.place[0],
                reference=claimed.stamp.reference,
            )
            self._changes.append(change)

    @property
    def _journal_stamp(self) -> ClaimStamp:
        return ClaimStamp(ORDINARY, 0, self._references[0])

    def _merge(self, name: str, items: list[dict[str, Any]], stamp: ClaimStamp) -> None:
        self._lists[name].take(items, stamp)
        self._shown_lists.pop(name, None)
        self._first.setdefault(name, stamp.number)
        if stamp.priority == CORRECTED:
            self._corrected[name] = stamp.number

    def _with_claim(self, claim: JournalClaim) -> Mapping[str, Scalar]:
        """Return the scalars merged with the journal's, each at the time of its row."""
        found = dict(self._scalars)
        for name, at in claim.times.items():
            scalars = [Scalar(claim.fields[name], (at, 0), self._journal_stamp)]
            scalars += [found[name]] if name in found else []
            shown = None
            for each in sorted(scalars, key=lambda one: one.place):
                found[name] = shown = _rule(name)(shown, each)
        return found

    def _shown_list(self, name: str) -> _ShownList:
        found = self._lists[name]
        elements = found.elements
        members, whose = elements.members.copy(), tuple(elements.references)
        if name == "checkpoints" and isinstance(found, KeyedList):
            times = [key[1] for key in found.keys]
            order = sorted(range(len(times)), key=times.__getitem__)
            members = [members[place] for place in order]
            whose = tuple([whose[place] for place in order])
        return members, whose, self._credit(name, elements)

    def _credit(self, name: str, elements: Elements) -> tuple[str, ...]:
        """Return the claims behind a list; an empty list is credited to its first claim."""
        numbers = elements.numbers
        if name in self._corrected:
            numbers.add(self._corrected[name])
        if not numbers and name in self._first:
            numbers.add(self._first[name])
        return tuple([self._references[number] for number in sorted(numbers)])

    def _shown(
        self,
        snapshot: dict[str, Any],
        provenance: dict[str, tuple[str, ...]],
        items: dict[str, tuple[tuple[str, ...], ...]],
    ) -> Entity:
        times = [self._last[0]] if self._last else []
        times += [self.claim.last_at] if self.claim else []
        ended = snapshot.get("ended_at")
        is_ended_early = ended and instant_of(ended) < instant_of(snapshot["started_at"])
        return Entity(
            entity_id=self.subject.entity_id,
            entity_type=self.subject.entity_type,
            key=self.subject.key,
            snapshot=snapshot,
            provenance=provenance,
            provenance_items=items,
            observation_count=self.count if snapshot else 0,
            last_observation_at=max(times) if snapshot else None,
            hosted=self.claim is not None,
            deleted=self.is_deleted,
            warnings=(ended_before_started(snapshot),) if is_ended_early else (),
            status_changes=tuple(self._changes) if snapshot else (),
        )


def _rule(name: str) -> Callable[[Scalar | None, Scalar], Scalar]:
    return earliest if name == _START else latest


def _lists_of(entity_type: EntityType) -> dict[str, ActionList | KeyedList]:
    """Return the lists that merge by element; other types replace lists as a whole."""
    if entity_type is not EntityType.AGENT_SESSION:
        return {}
    return {
        "actions": ActionList(),
        "checkpoints": KeyedList(_checkpoint_key),
        "outcomes": KeyedList(_outcome_key),
    }


def _checkpoint_key(checkpoint: dict[str, Any]) -> tuple[str, int]:
    return checkpoint["name"], instant_of(checkpoint["timestamp"])


def _outcome_key(outcome: dict[str, Any]) -> tuple[str, str] | bytes:
    if outcome.get("id") is not None:
        return outcome["type"], outcome["id"]
    return canonical({name: value for name, value in outcome.items() if value is not None})
