"""Computes what is known of entities: from claims, and from the journals of sessions of ours.

Nothing is believed because it is remembered: what was merged counts only while the claim that was
merged last is the stored one of its number, and the journal stands where it stood.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from holdfast.domain.calls import Call, CallState
from holdfast.domain.entities import Entity, entity_not_found
from holdfast.domain.entity_listings import Listed
from holdfast.domain.entity_types import EntityType
from holdfast.domain.horizons import Horizon
from holdfast.domain.ids import Owner, SessionId, SessionKey
from holdfast.domain.journal_observations import Journal, JournalClaim, claim_of
from holdfast.domain.observations import Observation, Subject
from holdfast.domain.queries import WorkQuery
from holdfast.domain.resolutions import Fold, resolve
from holdfast.domain.sessions import Head
from holdfast.domain.texts import require_encodable
from holdfast.domain.timestamps import milliseconds
from holdfast.ports import Known, Projection, Tx
from holdfast.services.observation_memory import Folds, Remembered
from holdfast.services.observation_projections import decoded, encoded

_ALL: Final = 1 << 31


class Found(NamedTuple):
    """What is asked about: what claims there are, and which session of ours it is."""

    subject: Subject
    known: Known | None
    session_key: SessionKey | None

    @property
    def is_deleted(self) -> bool:
        """Tell whether its history was deleted."""
        return self.known is not None and self.known.is_deleted


async def find(tx: Tx, owner: Owner, session_id: str) -> Found:
    """Return the owner's session that somebody has observed or that is ours, or refuse."""
    require_encodable(session_id, field="session_id")
    subject = Subject(owner, EntityType.AGENT_SESSION, session_id)
    known = await tx.observations.entity(subject)
    if known is not None:
        return Found(subject, known, known.session_key)
    head = await tx.sessions.head(owner, SessionId(session_id))
    if head is None:
        raise entity_not_found()
    return Found(subject, None, head.key)


async def found_in_list(tx: Tx, owner: Owner, listed: Listed) -> Found:
    """Return what a listing leads to."""
    if listed.key is not None:
        known = await tx.observations.by_key(listed.key)
        if known is not None:
            return Found(known.subject, known, known.session_key)
    head = None if listed.session_key is None else await tx.sessions.head_by_key(listed.session_key)
    if head is None:
        raise entity_not_found()
    subject = Subject(owner, EntityType.AGENT_SESSION, head.session_id)
    return Found(subject, None, head.key)


class Resolver:
    """Computes entities, carrying on what it remembers of them."""

    def __init__(self) -> None:
        self.folds = Folds()

    async def entity(self, tx: Tx, found: Found) -> Entity:
        """Return what is known of an entity now."""
        if found.session_key is not None:
            return await self._with_journal(tx, found, found.session_key)
        known = _claimed(found)
        body = await tx.projections.body(known)
        if body is not None:
            return decoded(body)
        merged = await self.merged(tx, known)
        entity = merged.fold.entity()
        self.folds.put((known.entity_id, False), replace(merged, size=len(encoded(entity))))
        return entity

    async def merged(self, tx: Tx, known: Known) -> Remembered:
        """Return all claims about an entity as merged, out of memory as far as it reaches."""
        before = self.folds.take((known.entity_id, False))
        return await carried_on(tx, known, before or _empty(known.subject))

    async def _with_journal(self, tx: Tx, found: Found, key: SessionKey) -> Entity:
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
            kept = Remembered(fold=Fold(found.subject, claim), size=0)
        if found.known is not None:
            kept = await carried_on(tx, found.known, kept)
        entity = kept.fold.entity()
        size = len(encoded(entity))
        self.folds.put(name, replace(kept, stamp=stamp, entity=entity, size=size))
        return entity


async def as_of(tx: Tx, found: Found, claims: Sequence[Observation], horizon: Horizon) -> Entity:
    """Return what was known of an entity at a moment, given all claims about it."""
    key = found.session_key
    journal = None if key is None else await _journal(tx, key)
    return resolve(found.subject, claims, journal=journal, horizon=horizon)


async def claims_of(tx: Tx, found: Found) -> list[Observation]:
    """Return every claim about an entity, in the order they were written."""
    return [] if found.known is None else await tx.observations.since(found.known, 1)


def _is_same(before: JournalClaim | None, claim: JournalClaim | None) -> bool:
    """Tell whether a journal claims what it claimed before, whenever it did so last."""
    if before is None or claim is None:
        return False
    return (before.fields, before.times) == (claim.fields, claim.times)


async def carried_on(tx: Tx, known: Known, before: Remembered) -> Remembered:
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
    return Remembered(fold=fold, newest=newest, stamp=before.stamp, size=before.size)


async def _since(tx: Tx, known: Known, before: Remembered) -> list[Observation] | None:
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


def _newest(known: Known | None) -> tuple[str, int] | None:
    newest = None if known is None else known.newest
    return None if newest is None else (newest.content_hash, newest.created_ms)


def _in_time(rows: Sequence[Observation]) -> list[Observation]:
    return sorted(rows, key=lambda row: row.place)


def _empty(subject: Subject) -> Remembered:
    """Return what nobody has claimed anything about yet, so that nothing of it is kept either."""
    return Remembered(fold=Fold(subject), projection=Projection(is_deleted=False), size=0)


def _claimed(found: Found) -> Known:
    assert found.known is not None  # noqa: S101 — what is no session of ours has claims
    return found.known


async def _journal(tx: Tx, key: SessionKey) -> Journal | None:
    found = await tx.sessions.get_by_key(key)
    if found is None:
        return None
    session, head = found
    return Journal(
        session=session, messages=await tx.messages.deeds(head), calls=await _settled(tx, head)
    )


async def _settled(tx: Tx, head: Head) -> Sequence[Call]:
    query = WorkQuery(owner=head.owner, key=head.key, states=(CallState.SETTLED.value,), limit=_ALL)
    return await tx.calls.page(query)
