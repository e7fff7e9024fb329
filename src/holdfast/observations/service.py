"""Submit, correct, delete, restore and import observations."""

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable
from functools import partial
from math import ceil
from typing import Any, Final, cast

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.canonical_json import decode_exact
from holdfast.domain.errors import Code, Conflict, LimitReached
from holdfast.domain.events import SessionObserved
from holdfast.domain.ids import ObservationId, Owner, SessionId
from holdfast.domain.secrets import Scrubber
from holdfast.domain.time import milliseconds
from holdfast.observations.claims import (
    Claim,
    ValidPayload,
    accept_correction,
    accept_deletion,
    accept_payload,
    build_observation,
    change_warnings,
    deleted_warning,
    require_sibling,
    sort_warnings,
)
from holdfast.observations.issues import SchemaWarning
from holdfast.observations.model import (
    EntityType,
    Observation,
    ObservationKind,
    Subject,
    entity_not_found,
    observation_id,
)
from holdfast.observations.projections import KnownEntity, NewestClaim
from holdfast.observations.queries import (
    Action,
    Correction,
    RebuildReport,
    Removal,
    SubmitResult,
)
from holdfast.observations.reading import ObservationReader
from holdfast.observations.snapshots import (
    CachedFold,
    Resolver,
    compute_snapshot,
    continue_fold,
    rebuild_snapshots,
)
from holdfast.ports.store import Store, Tx
from holdfast.ports.system import Clock
from holdfast.services.journal import Journal, JournalTransaction
from holdfast.services.stamping import Stamping

PER_MINUTE: Final = 600
WINDOW_MS: Final = 60_000


class SubmissionRates:
    """Per-owner rate limit on submissions over the last minute; 0 disables it."""

    def __init__(self, clock: Clock, most: int = PER_MINUTE) -> None:
        self._clock = clock
        self._most = most
        self._made: dict[Owner, deque[int]] = {}

    def count(self, owner: Owner) -> None:
        """Count one submission, or raise `LimitReached`; rejected submissions do not count."""
        if not self._most:
            return
        # Monotonic clock, because setting the wall clock back would extend the wait.
        now = self._clock.lease_clock_ms()
        made = self._made.setdefault(owner, deque())
        while made and now - made[0] >= WINDOW_MS:
            made.popleft()
        if len(made) >= self._most:
            raise _too_many(self._most, made[0] + WINDOW_MS - now)
        made.append(now)


def _too_many(most: int, wait_ms: int) -> LimitReached:
    seconds = ceil(wait_ms / 1000)
    return LimitReached(
        Code.RATE_LIMITED,
        f"More than {most} observations in a minute; try again in {seconds} s.",
        {"limit": most, "retry_after": seconds},
    )


# Largest JSON that is validated on the event loop.
SMALL_BYTES: Final = 4_000


async def validate_off_loop(
    judge: Callable[..., ValidPayload], *given: Any, **named: Any
) -> ValidPayload:
    """Validate a payload, in a worker thread if it is large; raise what the validator raises."""
    if is_small_payload(given):
        return judge(*given, **named)
    return await asyncio.to_thread(partial(judge, *given, **named))


def is_small_payload(value: Any) -> bool:
    """Return whether the JSON of a value is short; a value that has none counts as large."""
    try:
        return len(_encode(value)) <= SMALL_BYTES
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        return False


_encode: Final = msgspec.json.Encoder().encode
# Size limit for brief writes, because brief work may run on the event loop and block it.
BRIEF_MOST: Final = 8 << 10
# Size limit for the cached fold that a brief write extends.
LIGHT: Final = 256 << 10
_CREATING: Final = frozenset({ObservationKind.SUBMIT, ObservationKind.IMPORT})
# Claims that stay hidden while the history they belong to is deleted.
_ADDING: Final = _CREATING | {ObservationKind.CORRECTION}


class WriteResult(Struct, frozen=True):
    """Result of a claim, and whether the history is deleted after it."""

    submitted: SubmitResult
    is_deleted: bool


async def _earlier(
    tx: Tx, subject: Subject, known: KnownEntity | None, claim: Claim
) -> ObservationId | None:
    """Return the id of an identical earlier claim: by idempotency key, or else the newest claim.

    Raises `Conflict` if the idempotency key was used for a different claim.
    """
    if claim.idempotency_key is None:
        if known is None or not _is_repeat(claim, known.newest):
            return None
        return observation_id(subject, known.count, claim.payload.content_hash)
    found = await tx.observations.by_idempotency_key(subject.owner, claim.idempotency_key)
    if found is not None and (found.subject != subject or not _is_repeat(claim, found)):
        raise Conflict(
            Code.IDEMPOTENCY_MISMATCH,
            "A different observation was submitted with this idempotency key; use another key.",
        )
    return None if found is None else found.id


def _is_repeat(claim: Claim, stored: NewestClaim | Observation | None) -> bool:
    """Return whether a stored claim has the same kind and content, so no write is needed."""
    if stored is None or claim.kind is not stored.kind:
        return False
    return claim.payload.content_hash == stored.content_hash


async def _is_hosted(tx: Tx, subject: Subject) -> bool:
    if subject.entity_type is not EntityType.AGENT_SESSION:
        return False
    return await tx.sessions.state(subject.owner, SessionId(subject.key)) is not None


def _answer(
    known: KnownEntity,
    claim: Claim,
    observation: ObservationId,
    action: Action,
    odd: tuple[SchemaWarning, ...] | None = None,
) -> WriteResult:
    """Build the result of a claim; `odd` is None for a repeated claim."""
    warnings = [*claim.payload.warnings, *(odd or ())]
    if known.is_deleted and claim.kind in _ADDING:
        warnings.append(deleted_warning())
    submitted = SubmitResult(
        entity_id=known.entity_id,
        observation_id=observation,
        observation_count=known.count,
        action=action,
        deduplicated=odd is None,
        warnings=sort_warnings(claim.payload.entity_type, warnings),
    )
    return WriteResult(submitted, known.is_deleted)


def _only_new(
    merged: tuple[SchemaWarning, ...], own: tuple[SchemaWarning, ...]
) -> tuple[SchemaWarning, ...]:
    """Return the contradictions with other claims, without those inside the payload itself."""
    # Without the field, because items have other numbers in the merged lists.
    reported = {(each.code, *each.details.items()) for each in own}
    return tuple(each for each in merged if (each.code, *each.details.items()) not in reported)


def _redact(claim: Claim, scrubber: Scrubber) -> Claim:
    """Return the claim with known secrets redacted, also in its key and origin."""
    payload, mark = claim.payload, claim.idempotency_key
    key, content = scrubber.redact_text(payload.key), scrubber.redact_json(payload.content)
    source, mark = (
        scrubber.redact_text(claim.source),
        None if mark is None else scrubber.redact_text(mark),
    )
    # The scrubber returns the same object if it found no secret, which is the usual case.
    if content is not payload.content:
        digest = hashlib.sha256(content).hexdigest()
        payload = replace(
            payload, fields=decode_exact(content), content=content, content_hash=digest
        )
    if key is not payload.key:
        payload = replace(payload, key=key)
    is_clean = payload is claim.payload and source is claim.source and mark is claim.idempotency_key
    return (
        claim if is_clean else replace(claim, payload=payload, source=source, idempotency_key=mark)
    )


class Observations(ObservationReader):
    """Write and read observed history; every call is scoped to its owner."""

    def __init__(
        self, store: Store, journal: Journal, stamping: Stamping, rates: SubmissionRates
    ) -> None:
        super().__init__(store, Resolver())
        self._journal = journal
        self._stamping = stamping
        self._rates = rates

    async def submit(
        self, owner: Owner, payload: Any, *, idempotency_key: str | None = None, source: str = ""
    ) -> SubmitResult:
        """Record an observation of a session."""
        self._rates.count(owner)
        accepted = await validate_off_loop(accept_payload, EntityType.AGENT_SESSION, payload)
        claim = Claim(payload=accepted, source=source, idempotency_key=idempotency_key)
        return (await self._write(owner, claim)).submitted

    async def submit_entity(
        self,
        owner: Owner,
        entity_type: str,
        fields: Any,
        *,
        idempotency_key: str | None = None,
        source: str = "",
    ) -> SubmitResult:
        """Record an observation of an entity that is not a session."""
        self._rates.count(owner)
        accepted = await validate_off_loop(accept_payload, require_sibling(entity_type), fields)
        claim = Claim(payload=accepted, source=source, idempotency_key=idempotency_key)
        return (await self._write(owner, claim)).submitted

    async def correct(
        self,
        owner: Owner,
        correction: Correction,
        *,
        idempotency_key: str | None = None,
        source: str = "",
    ) -> SubmitResult:
        """Correct one field of a session's history; later submissions do not override it."""
        self._rates.count(owner)
        given = correction.session_id, correction.field, correction.value
        accepted = await validate_off_loop(accept_correction, *given, reason=correction.reason)
        claim = Claim(
            payload=accepted,
            kind=ObservationKind.CORRECTION,
            source=source,
            idempotency_key=idempotency_key,
        )
        return (await self._write(owner, claim)).submitted

    async def delete(
        self,
        owner: Owner,
        session_id: str,
        *,
        reason: str | None = None,
        idempotency_key: str | None = None,
        source: str = "",
    ) -> Removal:
        """Hide the history of a session; a hosted session and all claims are retained."""
        self._rates.count(owner)
        claim = Claim(
            payload=accept_deletion(session_id, is_deleted=True, reason=reason),
            kind=ObservationKind.DELETION,
            source=source,
            idempotency_key=idempotency_key,
        )
        return _removal(await self._write(owner, claim))

    async def restore(
        self,
        owner: Owner,
        session_id: str,
        *,
        reason: str | None = None,
        idempotency_key: str | None = None,
        source: str = "",
    ) -> Removal:
        """Restore the deleted history of a session."""
        self._rates.count(owner)
        claim = Claim(
            payload=accept_deletion(session_id, is_deleted=False, reason=reason),
            kind=ObservationKind.RESTORATION,
            source=source,
            idempotency_key=idempotency_key,
        )
        return _removal(await self._write(owner, claim))

    async def import_(self, owner: Owner, claim: Claim) -> SubmitResult:
        """Record an imported claim; it never overrides a submission."""
        return (await self._write(owner, claim)).submitted

    async def rebuild(self) -> RebuildReport:
        """Recompute the stored snapshots of all owners and repair differences."""
        return await rebuild_snapshots(self._store)

    async def _write(self, owner: Owner, claim: Claim) -> WriteResult:
        """Write a claim unless it is a repeat; it is durable on disk when this returns.

        Writes the claim, its snapshot and its event in one transaction.
        """
        claim = _redact(claim, self._stamping.scrubber())
        subject = claim.payload.subject_of(owner)

        async def enter(entry: JournalTransaction, *, is_brief: bool = False) -> WriteResult | None:
            known = await entry.tx.observations.entity(subject)
            # Earlier claims that must be read first, or a large snapshot, take longer.
            if is_brief and known is not None and not self._is_light(known):
                return None
            return await self._enter(entry, subject, known, claim)

        try:
            written = None
            # A correction resolves the whole entity, and its session may be long.
            is_long = claim.kind is ObservationKind.CORRECTION
            is_long = is_long or len(claim.payload.content) > BRIEF_MOST
            if not is_long:
                written = await self._journal.enter(partial(enter, is_brief=True), is_brief=True)
            return written or cast("WriteResult", await self._journal.enter(enter))
        except BaseException:
            # The cached fold may contain a claim whose transaction was rolled back.
            self._resolver.folds.take(subject.entity_id)
            raise

    def _is_light(self, known: KnownEntity) -> bool:
        kept = self._resolver.folds.get(known.entity_id)
        return kept is not None and kept.size < LIGHT

    async def _enter(
        self, entry: JournalTransaction, subject: Subject, known: KnownEntity | None, claim: Claim
    ) -> WriteResult:
        tx = entry.tx
        earlier = await _earlier(tx, subject, known, claim)
        if known is not None and earlier is not None:
            return _answer(known, claim, earlier, Action.MATCHED)
        is_known = known is not None or await _is_hosted(tx, subject)
        if claim.kind not in _CREATING and not is_known:
            raise entity_not_found()
        # Never before the last claim, because the wall clock may go backwards.
        now_ms = max(milliseconds(entry.now()), known.known_ms if known else 0)
        if known is None:
            known = await tx.observations.add(subject, now_ms)
        known, observation, odd = await self._append(tx, known, claim, now_ms)
        if known.session_key is not None:
            writer = await entry.open(subject.owner, SessionId(subject.key))
            writer.add_event(SessionObserved(target=observation.id))
        action = Action.MATCHED if is_known else Action.CREATED
        return _answer(known, claim, observation.id, action, odd)

    async def _append(
        self, tx: Tx, known: KnownEntity, claim: Claim, now_ms: int
    ) -> tuple[KnownEntity, Observation, tuple[SchemaWarning, ...]]:
        """Append a claim to an entity and save the snapshot computed from all its claims.

        Returns the entity, the claim, and warnings about contradictions with other claims.
        """
        merged = before = await self._resolver.fold_of(tx, known)
        subject, payload = known.subject, claim.payload
        odd: tuple[SchemaWarning, ...] = ()
        if subject.entity_type is not EntityType.AGENT_SESSION:
            earlier = merged.fold.entity().snapshot
            odd = change_warnings(subject.entity_type, earlier, payload.fields, now_ms=now_ms)
        observation = build_observation(subject, claim, ordinal=known.count + 1, created_ms=now_ms)
        known = await tx.observations.append(known, observation, payload.content)
        if merged.fold.follows(observation):
            merged.fold.add(observation)
        else:
            merged = await continue_fold(tx, known, merged)
        after = compute_snapshot(merged.fold, before)
        await tx.projections.save(known, after.projection, after.body, before=before.projection)
        if known.is_deleted != after.projection.is_deleted:
            known = replace(known, is_deleted=after.projection.is_deleted)
        kept = CachedFold(
            fold=merged.fold,
            newest=(observation.content_hash, now_ms),
            entity=after.entity,
            projection=after.projection,
            size=len(after.encoded),
        )
        self._resolver.folds.put(known.entity_id, kept)
        entity = after.entity
        if claim.kind is ObservationKind.CORRECTION:
            entity = await self._resolver.entity(tx, known)
        return known, observation, odd + _only_new(entity.warnings, payload.warnings)


def _removal(written: WriteResult) -> Removal:
    return Removal(
        entity_id=written.submitted.entity_id,
        observation_id=written.submitted.observation_id,
        deleted=written.is_deleted,
        deduplicated=written.submitted.deduplicated,
    )
