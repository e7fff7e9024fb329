"""Observations: claims about sessions and what they work on, written down and resolved.

A claim is on disk when a verb returns, and every reading after that sees it. Nothing that was
claimed is ever changed; corrections and deletions are claims as well.
"""

from typing import Any

from holdfast.domain.acceptances import (
    Accepted,
    accepted,
    accepted_correction,
    accepted_deletion,
    require_sibling,
)
from holdfast.domain.entity_types import EntityType
from holdfast.domain.histories import Correction, ImportMark, Rebuilt, Removal, Submitted
from holdfast.domain.ids import Owner
from holdfast.domain.observations import Kind, Origin
from holdfast.ports import Store
from holdfast.services.ink import Ink
from holdfast.services.journal import Journal
from holdfast.services.observation_judging import judged
from holdfast.services.observation_reading import ObservationReading
from holdfast.services.observation_rebuilding import rebuilt
from holdfast.services.observation_resolving import Resolver
from holdfast.services.observation_writing import Claim, ObservationWriter, Written
from holdfast.services.submission_rates import SubmissionRates


class Observations(ObservationReading):
    """Observed history, for its owner."""

    def __init__(self, store: Store, journal: Journal, ink: Ink, rates: SubmissionRates) -> None:
        super().__init__(store, Resolver())
        self._writer = ObservationWriter(journal, self._resolver, ink)
        self._rates = rates

    async def submit(
        self, owner: Owner, payload: Any, *, idempotency_key: str | None = None, source: str = ""
    ) -> Submitted:
        """Write down what somebody observed of a session."""
        self._rates.count(owner)
        told = await judged(accepted, EntityType.AGENT_SESSION, payload)
        origin = Origin(kind=Kind.SUBMIT, source=source, idempotency_key=idempotency_key)
        return (await self._write(owner, told, origin)).submitted

    async def submit_entity(
        self,
        owner: Owner,
        entity_type: str,
        fields: Any,
        *,
        idempotency_key: str | None = None,
        source: str = "",
    ) -> Submitted:
        """Write down what somebody observed of what a session works on."""
        self._rates.count(owner)
        told = await judged(accepted, require_sibling(entity_type), fields)
        origin = Origin(kind=Kind.SUBMIT, source=source, idempotency_key=idempotency_key)
        return (await self._write(owner, told, origin)).submitted

    async def correct(
        self,
        owner: Owner,
        correction: Correction,
        *,
        idempotency_key: str | None = None,
        source: str = "",
    ) -> Submitted:
        """Put one field of a session's history right; it stays so, whoever claims what later."""
        self._rates.count(owner)
        told = await judged(
            accepted_correction,
            correction.session_id,
            correction.field,
            correction.value,
            reason=correction.reason,
        )
        origin = Origin(kind=Kind.CORRECTION, source=source, idempotency_key=idempotency_key)
        return (await self._write(owner, told, origin, needs_known=True)).submitted

    async def delete(
        self,
        owner: Owner,
        session_id: str,
        *,
        reason: str | None = None,
        idempotency_key: str | None = None,
        source: str = "",
    ) -> Removal:
        """Hide the history of a session; a session of ours stays, and what was claimed, too."""
        self._rates.count(owner)
        told = accepted_deletion(session_id, is_deleted=True, reason=reason)
        origin = Origin(kind=Kind.DELETION, source=source, idempotency_key=idempotency_key)
        return _removal(await self._write(owner, told, origin, needs_known=True))

    async def restore(
        self,
        owner: Owner,
        session_id: str,
        *,
        reason: str | None = None,
        idempotency_key: str | None = None,
        source: str = "",
    ) -> Removal:
        """Show the history of a session again."""
        self._rates.count(owner)
        told = accepted_deletion(session_id, is_deleted=False, reason=reason)
        origin = Origin(kind=Kind.RESTORATION, source=source, idempotency_key=idempotency_key)
        return _removal(await self._write(owner, told, origin, needs_known=True))

    async def import_(
        self, owner: Owner, entity_type: EntityType, payload: Any, mark: ImportMark
    ) -> Submitted:
        """Write down what was found elsewhere, as of the time it was true; it overrides nothing."""
        told = await judged(accepted, entity_type, payload)
        origin = Origin(kind=Kind.IMPORT, source=mark.source, idempotency_key=mark.idempotency_key)
        claim = Claim(accepted=told, origin=origin, observed_at=mark.observed_at)
        return (await self._writer.write(owner, claim)).submitted

    async def rebuild(self) -> Rebuilt:
        """Compute anew what is kept of everybody's claims, and put right what differs."""
        return await rebuilt(self._store)

    async def _write(
        self, owner: Owner, told: Accepted, origin: Origin, *, needs_known: bool = False
    ) -> Written:
        claim = Claim(accepted=told, origin=origin, needs_known=needs_known)
        return await self._writer.write(owner, claim)


def _removal(written: Written) -> Removal:
    submitted = written.submitted
    return Removal(
        entity_id=submitted.entity_id,
        observation_id=submitted.observation_id,
        deleted=written.is_deleted,
        deduplicated=submitted.deduplicated,
    )
