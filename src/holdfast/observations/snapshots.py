"""Stored snapshots of entities: computed from claims, cached, rebuilt on request."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.calls import Call, CallState
from holdfast.domain.canonical_json import decode_exact
from holdfast.domain.errors import Code, Internal
from holdfast.domain.ids import EntityId, Owner, SessionId, SessionKey
from holdfast.domain.queries import WorkQuery
from holdfast.domain.sessions import SessionState
from holdfast.domain.text import require_encodable
from holdfast.domain.time import instant_of, milliseconds
from holdfast.observations.as_of import AsOf
from holdfast.observations.claims import Observation, Subject
from holdfast.observations.model import Entity, EntityType, entity_not_found
from holdfast.observations.queries import ListedEntity, RebuildReport
from holdfast.observations.resolve import Fold, JournalClaim, JournalView, claim_of, resolve
from holdfast.observations.timeline import TimelineEvent, events_of, happens_alike, references
from holdfast.ports import Fact, KnownEntity, Projection, Store, Tx

# A larger snapshot is computed when it is asked for: it would be written with every claim.
BODY_MOST: Final = 256 << 10


class ComputedSnapshot(NamedTuple):
    """What all claims about an entity come to: as it is shown, as it is kept, and its bytes."""

    entity: Entity
    projection: Projection
    encoded: bytes

    @property
    def body(self) -> bytes | None:
        """Return the snapshot that is kept, unless it is too large."""
        return self.encoded if len(self.encoded) <= BODY_MOST else None


# Where the journal stood that was merged, too: its last row, its last change, what it inherited.
Stamp = tuple[bytes, datetime, int]


class CachedFold(Struct, frozen=True, kw_only=True):
    """Claims as they were merged; `newest` are hash and time of the one that was written last.

    What they come to is remembered by whoever has computed it, and `projection` as it was written.
    """

    fold: Fold
    newest: tuple[str, int] | None = None
    stamp: Stamp | None = None
    entity: Entity | None = None
    projection: Projection | None = None
    size: int

    @property
    def weight(self) -> int:
        """Return about how many bytes of memory it takes."""
        return self.size * SPREAD + _OF_ONE


def compute_snapshot(fold: Fold, before: CachedFold | None = None) -> ComputedSnapshot:
    """Return what all claims come to; what one more of them left as it was is not made anew."""
    entity = fold.entity()
    projection = Projection(
        is_deleted=fold.is_deleted,
        started=_fact(fold, "started_at", instant_of),
        ended=_fact(fold, "ended_at", instant_of),
        duration=_fact(fold, "duration", _real),
        events=_events(entity, before),
        names=references(entity),
    )
    return ComputedSnapshot(entity, projection, encode_entity(entity))


def _events(entity: Entity, before: CachedFold | None) -> tuple[TimelineEvent, ...]:
    if before is None or before.entity is None or before.projection is None:
        return events_of(entity)
    is_same = happens_alike(before.entity, entity)
    return before.projection.events if is_same else events_of(entity)


def encode_entity(entity: Entity) -> bytes:
    """Return an entity in the one form that it is kept in."""
    return _encode(entity)


def decode_entity(body: bytes) -> Entity:
    """Return an entity as it was kept."""
    try:
        return msgspec.convert(decode_exact(body), Entity)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise Internal(
            Code.CORRUPT_ROW,
            "A snapshot is damaged and is not shown; `holdfast doctor --rebuild` makes it anew.",
        ) from error


def _fact(fold: Fold, name: str, read: Callable[[Any], float]) -> Fact | None:
    scalar = fold.scalars.get(name)
    if scalar is None:
        return None
    value = None if scalar.value is None else read(scalar.value)
    return Fact(value, scalar.stamp.priority, milliseconds(scalar.place[0]))


def _real(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf")


_encode: Final = msgspec.json.Encoder().encode
BYTES_MOST: Final = 64 << 20
# How much more a merged entity takes in memory than its snapshot does as text, as measured.
SPREAD: Final = 12
_OF_ONE: Final = 4 << 10
# Lighter ones are carried on within a moment.
LIGHT: Final = 256 << 10
# With whose journal: none, or that of the session which the entity is.
Name = tuple[EntityId, bool]


class FoldCache:
    """Remembers what was merged newest, up to what it weighs in all; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[Name, CachedFold] = OrderedDict()
        self._bytes = 0

    def knows(self, name: Name) -> bool:
        """Tell whether only the newest claims have to be read."""
        return name in self._known

    def is_heavy(self, name: Name) -> bool:
        """Tell whether one more claim is surely not merged within a moment."""
        found = self.look(name)
        return found is not None and found.size >= LIGHT

    def look(self, name: Name) -> CachedFold | None:
        """Return what is remembered, not to be carried on."""
        with self._lock:
            return self._known.get(name)

    def take(self, name: Name) -> CachedFold | None:
        """Take out what is remembered: who carries it on has it alone."""
        with self._lock:
            found = self._known.pop(name, None)
            self._bytes -= found.weight if found else 0
            return found

    def put(self, name: Name, merged: CachedFold) -> None:
        """Remember what was merged, in the place of what was."""
        with self._lock:
            before = self._known.pop(name, None)
            self._known[name] = merged
            self._bytes += merged.weight - (before.weight if before else 0)
            while self._bytes > BYTES_MOST and len(self._known) > 1:
                _, oldest = self._known.popitem(last=False)
                self._bytes -= oldest.weight

    def forget(self, name: Name) -> None:
        """Remember an entity no longer."""
        self.take(name)


_ALL: Final = 1 << 31


class FoundEntity(NamedTuple):
    """What is asked about: what claims there are, and which session of ours it is."""

    subject: Subject
    known: KnownEntity | None
    session_key: SessionKey | None

    @property
    def is_deleted(self) -> bool:
        """Tell whether its history was deleted."""
        return self.known is not None and self.known.is_deleted


async def find(tx: Tx, owner: Owner, session_id: str) -> FoundEntity:
    """Return the owner's session that somebody has observed or that is ours, or refuse."""
    require_encodable(session_id, field="session_id")
    subject = Subject(owner, EntityType.AGENT_SESSION, session_id)
    known = await tx.observations.entity(subject)
    if known is not None:
        return FoundEntity(subject, known, known.session_key)
    head = await tx.sessions.head(owner, SessionId(session_id))
    if head is None:
        raise entity_not_found()
    return FoundEntity(subject, None, head.key)


async def found_in_list(tx: Tx, owner: Owner, listed: ListedEntity) -> FoundEntity:
    """Return what a listing leads to."""
    if listed.key is not None:
        known = await tx.observations.by_key(listed.key)
        if known is not None:
            return FoundEntity(known.subject, known, known.session_key)
    head = None if listed.session_key is None else await tx.sessions.head_by_key(listed.session_key)
    if head is None:
        raise entity_not_found()
    subject = Subject(owner, EntityType.AGENT_SESSION, head.session_id)
    return FoundEntity(subject, None, head.key)


class Resolver:
    """Computes entities, carrying on what it remembers of them."""

    def __init__(self) -> None:
        self.folds = FoldCache()

    async def entity(self, tx: Tx, found: FoundEntity) -> Entity:
        """Return what is known of an entity now."""
        if found.session_key is not None:
            return await self._with_journal(tx, found, found.session_key)
        known = _claimed(found)
        body = await tx.projections.body(known)
        if body is not None:
            return decode_entity(body)
        merged = await self.merged(tx, known)
        entity = merged.fold.entity()
        self.folds.put((known.entity_id, False), replace(merged, size=len(encode_entity(entity))))
        return entity

    async def merged(self, tx: Tx, known: KnownEntity) -> CachedFold:
        """Return all claims about an entity as merged, out of memory as far as it reaches."""
        before = self.folds.take((known.entity_id, False))
        return await continue_fold(tx, known, before or _empty(known.subject))

    async def _with_journal(self, tx: Tx, found: FoundEntity, key: SessionKey) -> Entity:
        head = await tx.sessions.head_by_key(key)
        if head is None:
            raise entity_not_found()
        name = (found.subject.entity_id, True)
        stamp = (head.chain, head.updated_at, head.inherited)
        kept = self.folds.look(name)
        is_current = kept is not None and (kept.stamp, kept.newest) == (stamp, _newest(found.known))
        if kept is not None and is_current and kept.entity is not None:
            return kept.entity
        kept = self.folds.take(name)
        journal = await _journal(tx, key)
        claim = None if journal is None else claim_of(journal)
        if kept is not None and _is_same(kept.fold.claim, claim):
            # Somebody claimed something, and the session itself did nothing.
            kept.fold.claim = claim
        else:
            kept = CachedFold(fold=Fold(found.subject, claim), size=0)
        if found.known is not None:
            kept = await continue_fold(tx, found.known, kept)
        entity = kept.fold.entity()
        size = len(encode_entity(entity))
        self.folds.put(name, replace(kept, stamp=stamp, entity=entity, size=size))
        return entity


async def as_of(tx: Tx, found: FoundEntity, claims: Sequence[Observation], horizon: AsOf) -> Entity:
    """Return what was known of an entity at a moment, given all claims about it."""
    key = found.session_key
    journal = None if key is None else await _journal(tx, key)
    return resolve(found.subject, claims, journal=journal, horizon=horizon)


async def claims_of(tx: Tx, found: FoundEntity) -> list[Observation]:
    """Return every claim about an entity, in the order they were written."""
    return [] if found.known is None else await tx.observations.since(found.known, 1)


def _is_same(before: JournalClaim | None, claim: JournalClaim | None) -> bool:
    """Tell whether a journal claims what it claimed before, whenever it did so last."""
    if before is None or claim is None:
        return False
    return (before.fields, before.times) == (claim.fields, claim.times)


async def continue_fold(tx: Tx, known: KnownEntity, before: CachedFold) -> CachedFold:
    """Return what was merged before together with the claims that came since."""
    fold = before.fold
    if fold.count == known.count and before.newest == _newest(known):
        return before
    rows = await _since(tx, known, before)
    if rows is None or not all(map(fold.follows, rows)):
        # Something was claimed or corrected as of an earlier time, or was not written after all.
        rows = _in_time(await tx.observations.since(known, 1))
        fold = Fold(known.subject, fold.claim, rows)
    for row in rows:
        fold.add(row)
    written = max(rows, key=lambda row: row.ordinal, default=None)
    newest = before.newest if written is None else mark_of(written)
    return CachedFold(fold=fold, newest=newest, stamp=before.stamp, size=before.size)


async def _since(tx: Tx, known: KnownEntity, before: CachedFold) -> list[Observation] | None:
    """Return the claims that came since; nothing where what was merged is not what is stored."""
    if before.newest is None:
        return _in_time(await tx.observations.since(known, 1))
    if before.fold.count > known.count:
        return None
    # From the last one on: where that is the stored one, so is all before.
    last, *rows = await tx.observations.since(known, before.fold.count)
    return _in_time(rows) if mark_of(last) == before.newest else None


def mark_of(observation: Observation) -> tuple[str, int]:
    """Return what the claim that was merged last is recognised by."""
    return observation.content_hash, milliseconds(observation.created_at)


def _newest(known: KnownEntity | None) -> tuple[str, int] | None:
    newest = None if known is None else known.newest
    return None if newest is None else (newest.content_hash, newest.created_ms)


def _in_time(rows: Sequence[Observation]) -> list[Observation]:
    return sorted(rows, key=lambda row: row.place)


def _empty(subject: Subject) -> CachedFold:
    """Return what nobody has claimed anything about yet, so that nothing of it is kept either."""
    return CachedFold(fold=Fold(subject), projection=Projection(is_deleted=False), size=0)


def _claimed(found: FoundEntity) -> KnownEntity:
    assert found.known is not None  # noqa: S101 — what is no session of ours has claims
    return found.known


async def _journal(tx: Tx, key: SessionKey) -> JournalView | None:
    found = await tx.sessions.get_by_key(key)
    if found is None:
        return None
    session, head = found
    return JournalView(
        session=session, messages=await tx.messages.deeds(head), calls=await _settled(tx, head)
    )


async def _settled(tx: Tx, head: SessionState) -> Sequence[Call]:
    query = WorkQuery(owner=head.owner, key=head.key, states=(CallState.SETTLED.value,), limit=_ALL)
    return await tx.calls.page(query)


# So many entities in one transaction: others want to write, too.
_AT_ONCE: Final = 64


async def rebuild_snapshots(store: Store) -> RebuildReport:
    """Compute everything anew, and put right what differs from it."""
    entities, after = 0, 0
    differences: list[str] = []
    while True:
        last, count, found = await store.write(partial(_some, after=after))
        entities += count
        differences += found
        if last is None:
            break
        after = last
    astray = await store.write(lambda tx: tx.projections.sweep())
    if astray:
        differences.append(f"{astray} rows belonged to no entity, or to another session.")
    return RebuildReport(entities=entities, differences=tuple(differences))


async def _some(tx: Tx, after: int) -> tuple[int | None, int, list[str]]:
    keys = await tx.observations.keys(after, _AT_ONCE)
    found = []
    for key in keys:
        # One that is damaged does not keep the others from being put right.
        try:
            known = await tx.observations.proven(key)
            differs = await _anew(tx, known)
        except Internal as error:
            found.append(error.message)
        else:
            told = f"What was kept of {known.entity_id} is not what its claims come to."
            found += [told] if differs else []
    return (keys[-1] if keys else None), len(keys), found


async def _anew(tx: Tx, known: KnownEntity) -> bool:
    fold = Fold(known.subject)
    for row in sorted(await tx.observations.since(known, 1), key=lambda each: each.place):
        fold.add(row)
    anew = compute_snapshot(fold)
    return await tx.projections.mend(known, anew.projection, anew.body)
