"""Entity snapshots: computed from claims, stored, cached in memory, rebuilt on request."""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.calls import CallState
from holdfast.domain.canonical_json import decode_exact
from holdfast.domain.errors import Code, Internal
from holdfast.domain.ids import EntityId, Owner, SessionId, SessionKey
from holdfast.domain.queries import WorkQuery
from holdfast.domain.text import require_encodable
from holdfast.observations.as_of import EVERYTHING, AsOf
from holdfast.observations.hosted_session import HostedSessionView
from holdfast.observations.merge import Fold, Scalar, fold_all, resolve
from holdfast.observations.model import Entity, EntityType, Observation, Subject, entity_not_found
from holdfast.observations.projections import Fact, KnownEntity, Projection
from holdfast.observations.queries import ListedEntity, RebuildReport
from holdfast.observations.timeline import events_of, happens_alike, references
from holdfast.ports.store import Store, Tx

# Larger snapshots are computed on demand, because each claim would rewrite them.
BODY_MOST: Final = 256 << 10
# Hash and time of the claim that was written last.
NewestObservation = tuple[str, int]
# What the state of a hosted session depends on: hash chain, time of the last change, inherited
# rows, and the last claim.
Source = tuple[bytes, int, int, NewestObservation | None]


class ComputedSnapshot(NamedTuple):
    """The result of merging all claims: the entity, its projection and its encoded form."""

    entity: Entity
    projection: Projection
    encoded: bytes

    @property
    def body(self) -> bytes | None:
        """Return the body to store, or None if it is too large."""
        return self.encoded if len(self.encoded) <= BODY_MOST else None


class CachedFold(Struct, frozen=True, kw_only=True):
    """A cached merge of claims; `newest` identifies the last written claim.

    `entity` and `projection` cache the computed result; `projection` is as it was stored.
    """

    fold: Fold
    newest: NewestObservation | None = None
    entity: Entity | None = None
    projection: Projection | None = None
    size: int


class CachedEntity(Struct, frozen=True):
    """The cached state of a hosted session."""

    entity: Entity
    source: Source
    size: int


def compute_snapshot(fold: Fold, before: CachedFold | None = None) -> ComputedSnapshot:
    """Compute entity, projection and body; reuses the previous events if they did not change."""
    entity = fold.entity()
    if before and before.entity and before.projection and happens_alike(before.entity, entity):
        events = before.projection.events
    else:
        events = events_of(entity)
    duration = fold.scalars.get("duration")
    projection = Projection(
        is_deleted=fold.is_deleted,
        started=_time_fact(fold.scalars.get("started_at")),
        ended=_time_fact(fold.scalars.get("ended_at")),
        duration=None if duration is None else _fact(duration, _real(duration.value)),
        events=events,
        names=references(entity),
    )
    return ComputedSnapshot(entity, projection, encode_entity(entity))


def _time_fact(scalar: Scalar | None) -> Fact | None:
    return None if scalar is None else _fact(scalar, scalar.ms)


def _fact(scalar: Scalar, value: float | None) -> Fact:
    return Fact(value, scalar.stamp.priority, scalar.at_ms)


def _real(value: float | None) -> float | None:
    try:
        return None if value is None else float(value)
    except OverflowError:
        return float("inf")


encode_entity: Final = msgspec.json.Encoder().encode


def decode_entity(body: bytes) -> Entity:
    """Decode a stored entity; raises `Internal` if it is damaged."""
    try:
        return msgspec.convert(decode_exact(body), Entity)
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise Internal(
            Code.CORRUPT_ROW,
            "A snapshot is damaged and cannot be shown; rebuild it with `holdfast doctor "
            "--rebuild`.",
        ) from error


BYTES_MOST: Final = 64 << 20
# Measured ratio of the memory use of a fold to the size of its encoded snapshot.
SPREAD: Final = 12
_OF_ONE: Final = 4 << 10
T = TypeVar("T", CachedFold, CachedEntity)


class SizedCache(Generic[T]):
    """Cache of the entities used last with a memory limit; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[EntityId, T] = OrderedDict()
        self._bytes = 0

    def get(self, entity_id: EntityId) -> T | None:
        """Return the cached value; the caller must not modify it."""
        with self._lock:
            return self._known.get(entity_id)

    def take(self, entity_id: EntityId) -> T | None:
        """Remove and return the cached value, so that the caller may modify it exclusively."""
        with self._lock:
            found = self._known.pop(entity_id, None)
            self._bytes -= 0 if found is None else _weight(found)
            return found

    def put(self, entity_id: EntityId, value: T) -> None:
        """Cache a value, replacing any previous one."""
        self.take(entity_id)
        with self._lock:
            self._known[entity_id] = value
            self._bytes += _weight(value)
            while self._bytes > BYTES_MOST and len(self._known) > 1:
                self._bytes -= _weight(self._known.popitem(last=False)[1])


def _weight(cached: CachedFold | CachedEntity) -> int:
    """Return the approximate memory use in bytes."""
    return cached.size * SPREAD + _OF_ONE


_ALL: Final = 1 << 31


def hosted_entity(owner: Owner, session_id: SessionId, key: SessionKey) -> KnownEntity:
    """Return the entity of a hosted session without claims."""
    subject = Subject(owner, EntityType.AGENT_SESSION, session_id)
    return KnownEntity(entity_id=subject.entity_id, subject=subject, session_key=key)


async def find(tx: Tx, owner: Owner, session_id: str) -> KnownEntity:
    """Return an owner's observed or hosted session, or raise `NotFound`."""
    require_encodable(session_id, field="session_id")
    known = await tx.observations.entity(Subject(owner, EntityType.AGENT_SESSION, session_id))
    if known is not None:
        return known
    state = await tx.sessions.state(owner, SessionId(session_id))
    if state is None:
        raise entity_not_found()
    return hosted_entity(owner, state.session_id, state.key)


async def entity_of_row(tx: Tx, owner: Owner, listed: ListedEntity) -> KnownEntity:
    """Return the entity of a listing row."""
    if listed.key is not None:
        known = await tx.observations.by_key(listed.key)
        if known is not None:
            return known
    state = (
        None if listed.session_key is None else await tx.sessions.state_by_key(listed.session_key)
    )
    if state is None:
        raise entity_not_found()
    return hosted_entity(owner, state.session_id, state.key)


class Resolver:
    """Computes entities and extends cached folds."""

    def __init__(self) -> None:
        self.folds = SizedCache[CachedFold]()
        self._hosted = SizedCache[CachedEntity]()

    async def entity(self, tx: Tx, known: KnownEntity) -> Entity:
        """Return the current state of an entity."""
        if known.session_key is not None:
            return await self._hosted_entity(tx, known, known.session_key)
        body = await tx.projections.body(known)
        if body is not None:
            return decode_entity(body)
        merged = await self.fold_of(tx, known)
        entity = merged.fold.entity()
        size = len(encode_entity(entity))
        self.folds.put(entity.entity_id, replace(merged, size=size))
        return entity

    async def fold_of(self, tx: Tx, known: KnownEntity) -> CachedFold:
        """Return the fold of all claims about an entity; removes it from the cache."""
        nothing = Projection(is_deleted=False)
        before = self.folds.take(known.entity_id)
        before = before or CachedFold(fold=Fold(known.subject), projection=nothing, size=0)
        return await continue_fold(tx, known, before)

    async def _hosted_entity(self, tx: Tx, known: KnownEntity, key: SessionKey) -> Entity:
        state = await tx.sessions.state_by_key(key)
        if state is None:
            raise entity_not_found()
        source = (state.chain, state.updated_at, state.inherited, _newest(known))
        kept = self._hosted.get(known.entity_id)
        if kept is None or kept.source != source:
            entity = await compute_as_of(tx, known, EVERYTHING)
            kept = CachedEntity(entity, source, len(encode_entity(entity)))
            self._hosted.put(known.entity_id, kept)
        return kept.entity


async def as_of(tx: Tx, known: KnownEntity, claims: Sequence[Observation], horizon: AsOf) -> Entity:
    """Return an entity within a horizon; `claims` must hold all claims about it."""
    key = known.session_key
    hosted = None if key is None else await _read_hosted_session(tx, key)
    return resolve(known.subject, claims, hosted=hosted, horizon=horizon)


async def compute_as_of(tx: Tx, known: KnownEntity, horizon: AsOf) -> Entity:
    """Return an entity within a horizon, computed from its claims and its hosted session."""
    return await as_of(tx, known, await claims_of(tx, known), horizon)


async def claims_of(tx: Tx, known: KnownEntity) -> list[Observation]:
    """Return every claim about an entity in log order."""
    return await tx.observations.since(known, 1) if known.count else []


async def continue_fold(tx: Tx, known: KnownEntity, before: CachedFold) -> CachedFold:
    """Add the claims written since a fold was cached."""
    fold, newest = before.fold, _newest(known)
    if fold.count == known.count and before.newest == newest:
        return before
    rows: Sequence[Observation] | None = None
    if before.newest is not None and fold.count <= known.count:
        # Includes the last cached claim: if it matches the store, so do all earlier ones.
        last, *rows = await tx.observations.since(known, fold.count)
        rows = sorted(rows, key=lambda row: row.place) if newest_of(last) == before.newest else None
    if rows is None or not all(map(fold.follows, rows)):
        # A claim precedes the merged ones in time, or a merged claim was rolled back.
        fold = fold_all(known.subject, await tx.observations.since(known, 1))
    else:
        for row in rows:
            fold.add(row)
    return CachedFold(fold=fold, newest=newest, size=before.size)


def newest_of(observation: Observation) -> NewestObservation:
    """Return what identifies the last merged claim."""
    return observation.content_hash, observation.created_ms


def _newest(known: KnownEntity) -> NewestObservation | None:
    newest = known.newest
    return None if newest is None else (newest.content_hash, newest.created_ms)


async def _read_hosted_session(tx: Tx, key: SessionKey) -> HostedSessionView | None:
    found = await tx.sessions.get_by_key(key)
    if found is None:
        return None
    session, state = found
    states = (CallState.SETTLED.value,)
    query = WorkQuery(owner=state.owner, key=state.key, states=states, limit=_ALL)
    calls = await tx.calls.page(query)
    return HostedSessionView(session=session, messages=await tx.messages.deeds(state), calls=calls)


# Entities per transaction, limited because each transaction blocks other writers.
_AT_ONCE: Final = 64


async def rebuild_snapshots(store: Store) -> RebuildReport:
    """Recompute all stored snapshots and repair differences."""
    entities, after = 0, 0
    differences: list[str] = []
    while True:
        last, count, found = await store.write(partial(_some, after=after))
        entities += count
        differences += found
        if last is None:
            break
        after = last
    astray = await store.write(lambda tx: tx.projections.relink())
    if astray:
        differences.append(f"{astray} entities belonged to another session.")
    return RebuildReport(entities=entities, differences=tuple(differences))


async def _some(tx: Tx, after: int) -> tuple[int | None, int, list[str]]:
    keys = await tx.observations.keys(after, _AT_ONCE)
    found = []
    for key in keys:
        # A damaged entity must not prevent the repair of the others.
        try:
            known = await tx.observations.verified(key)
            differs = await _anew(tx, known)
        except Internal as error:
            found.append(error.message)
        else:
            difference = f"The snapshot of {known.entity_id} did not match its observations."
            found += [difference] if differs else []
    return (keys[-1] if keys else None), len(keys), found


async def _anew(tx: Tx, known: KnownEntity) -> bool:
    anew = compute_snapshot(fold_all(known.subject, await tx.observations.since(known, 1)))
    return await tx.projections.mend(known, anew.projection, anew.body)
