"""How a claim is written: judged before, numbered under the lock, and merged in the same commit."""

import hashlib
from collections.abc import Iterable
from datetime import datetime
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.acceptances import Accepted
from holdfast.domain.canonical import reading
from holdfast.domain.entities import entity_not_found
from holdfast.domain.entity_types import SHAPES, EntityType
from holdfast.domain.errors import Code, Conflict
from holdfast.domain.events import SessionObserved
from holdfast.domain.histories import Action, Submitted
from holdfast.domain.ids import ObservationId, Owner, SessionId
from holdfast.domain.observation_issues import SchemaWarning
from holdfast.domain.observation_warnings import change_warnings, deleted_warning, session_warnings
from holdfast.domain.observations import Entry as Entered
from holdfast.domain.observations import Kind, Origin, Subject, is_repeat, observation_id, observed
from holdfast.domain.scrubbing import Scrubber
from holdfast.domain.timestamps import milliseconds, moment
from holdfast.ports import Known, Tx
from holdfast.services.ink import Ink
from holdfast.services.journal import Entry, Journal
from holdfast.services.observation_memory import Name, Remembered
from holdfast.services.observation_projections import computed
from holdfast.services.observation_resolving import Found, Resolver, carried_on, mark_of

# What is larger, such as a hundred checkpoints, is not written within a moment.
BRIEF_MOST: Final = 8 << 10
# Claims that stay hidden while the history they are about is deleted.
_ADDING: Final = frozenset({Kind.SUBMIT, Kind.IMPORT, Kind.CORRECTION})


class Claim(Struct, frozen=True, kw_only=True):
    """A claim that is to be written; some are only about what is known already."""

    accepted: Accepted
    origin: Origin
    observed_at: datetime | None = None
    needs_known: bool = False


class Written(Struct, frozen=True):
    """What became of a claim, and whether the history is deleted now."""

    submitted: Submitted
    is_deleted: bool


class ObservationWriter:
    """Writes claims, each in one transaction with all that follows from it."""

    def __init__(self, journal: Journal, resolver: Resolver, ink: Ink) -> None:
        self._journal = journal
        self._resolver = resolver
        self._ink = ink

    async def write(self, owner: Owner, claim: Claim) -> Written:
        """Write a claim, unless it was made before; it is on disk when this returns."""
        claim = _cleaned(claim, self._ink.scrubber())
        subject = Subject(owner, claim.accepted.entity_type, claim.accepted.key)
        name = (subject.entity_id, False)
        try:
            written = None
            if self._may_be_brief(name, claim):
                written = await self._journal.enter(
                    lambda entry: self._enter_if_light(entry, subject, claim), is_brief=True
                )
            if written is None:
                written = await self._journal.enter(
                    lambda entry: self._enter_anyhow(entry, subject, claim)
                )
            return written
        except BaseException:
            # It may have been merged without being written.
            self._resolver.folds.forget(name)
            raise

    def _may_be_brief(self, name: Name, claim: Claim) -> bool:
        # What is corrected is looked at as a whole, with a journal that may be long.
        if claim.origin.kind is Kind.CORRECTION or len(claim.accepted.content) > BRIEF_MOST:
            return False
        return not self._resolver.folds.is_heavy(name)

    async def _enter_if_light(self, entry: Entry, subject: Subject, claim: Claim) -> Written | None:
        """Write a claim at once, unless others have to be read and merged before."""
        known = await entry.tx.observations.entity(subject)
        if known is not None and not self._resolver.folds.knows((subject.entity_id, False)):
            return None
        return await self._enter(entry, subject, known, claim)

    async def _enter_anyhow(self, entry: Entry, subject: Subject, claim: Claim) -> Written:
        known = await entry.tx.observations.entity(subject)
        return await self._enter(entry, subject, known, claim)

    async def _enter(
        self, entry: Entry, subject: Subject, known: Known | None, claim: Claim
    ) -> Written:
        tx = entry.tx
        earlier = await _earlier(tx, subject, known, claim)
        if known is not None and earlier is not None:
            return _answered(known, claim, earlier, Action.MATCHED)
        is_known = known is not None or await _is_hosted(tx, subject)
        if claim.needs_known and not is_known:
            raise entity_not_found()
        # Not before what was written last, even when the clock goes back.
        now_ms = max(milliseconds(entry.now()), known.known_ms if known else 0)
        if known is None:
            known = await tx.observations.add(subject, now_ms)
        action = Action.MATCHED if is_known else Action.CREATED
        return await self._append(entry, known, claim, (now_ms, action))

    async def _append(
        self, entry: Entry, known: Known, claim: Claim, told: tuple[int, Action]
    ) -> Written:
        """Write the next claim about an entity, and what is computed from all of them."""
        tx, subject, (now_ms, action) = entry.tx, known.subject, told
        merged = before = await self._resolver.merged(tx, known)
        odd = _beside(merged, claim, now_ms)
        place = Entered(
            ordinal=known.count + 1, created_at=moment(now_ms), observed_at=claim.observed_at
        )
        observation = observed(subject.owner, claim.accepted, claim.origin, place)
        known = await tx.observations.append(known, observation, claim.accepted.content)
        if merged.fold.follows(observation):
            merged.fold.add(observation)
        else:
            merged = await carried_on(tx, known, merged)
        after = computed(merged.fold, before)
        await tx.projections.save(known, after.projection, after.body, before=before.projection)
        known = replace(known, is_deleted=after.projection.is_deleted)
        kept = Remembered(
            fold=merged.fold,
            newest=mark_of(observation),
            entity=after.entity,
            projection=after.projection,
            size=len(after.encoded),
        )
        self._resolver.folds.put((subject.entity_id, False), kept)
        if claim.origin.kind is Kind.CORRECTION:
            entity = await self._resolver.entity(tx, Found(subject, known, known.session_key))
            odd += session_warnings(entity.snapshot)
        if known.session_key is not None:
            pen = await entry.open(subject.owner, SessionId(subject.key))
            await pen.tell(SessionObserved(target=observation.id))
        return _answered(known, claim, observation.id, action, odd)


async def _earlier(
    tx: Tx, subject: Subject, known: Known | None, claim: Claim
) -> ObservationId | None:
    """Return the very same claim if it was made before: under its key, or else as the last one.

    A key under which something else was claimed is refused.
    """
    told, origin = claim.accepted, claim.origin
    if origin.idempotency_key is None:
        if known is None or not is_repeat(told, origin.kind, known.newest):
            return None
        return observation_id(subject, known.count, told.content_hash)
    found = await tx.observations.keyed(subject.owner, origin.idempotency_key)
    if found is not None and (found.subject != subject or not is_repeat(told, origin.kind, found)):
        raise Conflict(
            Code.IDEMPOTENCY_MISMATCH,
            "Something else was submitted under this idempotency key; use another one.",
        )
    return None if found is None else found.id


async def _is_hosted(tx: Tx, subject: Subject) -> bool:
    if subject.entity_type is not EntityType.AGENT_SESSION:
        return False
    return await tx.sessions.head(subject.owner, SessionId(subject.key)) is not None


def _beside(merged: Remembered, claim: Claim, now_ms: int) -> tuple[SchemaWarning, ...]:
    """Return what is odd about a claim beside what was known, and today."""
    told = claim.accepted
    if told.entity_type is EntityType.AGENT_SESSION:
        return ()
    before = merged.fold.entity().snapshot
    return change_warnings(told.entity_type, before, told.fields, now=moment(now_ms))


def _answered(
    known: Known,
    claim: Claim,
    observation: ObservationId,
    action: Action,
    odd: tuple[SchemaWarning, ...] | None = None,
) -> Written:
    """Return what became of a claim; one that was made before has nothing odd beside it."""
    warnings = [*claim.accepted.warnings, *(odd or ())]
    if known.is_deleted and claim.origin.kind in _ADDING:
        warnings.append(deleted_warning())
    submitted = Submitted(
        entity_id=known.entity_id,
        observation_id=observation,
        observation_count=known.count,
        action=action,
        deduplicated=odd is None,
        warnings=_in_order(claim.accepted.entity_type, warnings) if warnings else (),
    )
    return Written(submitted, known.is_deleted)


def _in_order(
    entity_type: EntityType, warnings: Iterable[SchemaWarning]
) -> tuple[SchemaWarning, ...]:
    """Return warnings by the fields they are about, their items and their codes."""
    shape = SHAPES[entity_type]

    def place(each: SchemaWarning) -> tuple[int, int, str]:
        name, _, rest = each.field.partition("[")
        number = rest.partition("]")[0]
        return shape.rank(name), int(number) if number.isdigit() else -1, each.code

    return tuple(sorted(warnings, key=place))


def _cleaned(claim: Claim, scrubber: Scrubber) -> Claim:
    """Return what may be written: without the secrets that we hold, in names and marks as well."""
    told, origin = claim.accepted, claim.origin
    told = replace(told, key=scrubber.clean(told.key))
    content = scrubber.clean_json(told.content)
    # The same object, as good as always.
    if content is not told.content:
        digest = hashlib.sha256(content).hexdigest()
        told = replace(told, fields=reading(content), content=content, content_hash=digest)
    mark = origin.idempotency_key
    origin = replace(
        origin,
        source=scrubber.clean(origin.source),
        idempotency_key=None if mark is None else scrubber.clean(mark),
    )
    return replace(claim, accepted=told, origin=origin)
