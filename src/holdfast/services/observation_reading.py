"""Observed history of one session: what is known of it, from which claims, and its checkpoints.

Foreign history looks exactly like history that is not there, and so does what was deleted.
"""

from holdfast.domain.canonical import canonical
from holdfast.domain.checkpoints import CheckpointState, checkpoint_of
from holdfast.domain.entities import entity_not_found
from holdfast.domain.histories import PAGE, PAGE_MOST, History, ObservationPage
from holdfast.domain.horizons import EVERYTHING, Horizon, horizon
from holdfast.domain.ids import Owner
from holdfast.domain.queries import require_limit
from holdfast.domain.texts import require_encodable
from holdfast.ports import Tx
from holdfast.services.cursors import encode_count
from holdfast.services.observation_cursors import decode_claim
from holdfast.services.observation_lists import ObservationLists
from holdfast.services.observation_resolving import Found, as_of, claims_of, find
from holdfast.services.observation_timelines import ObservationTimelines
from holdfast.services.page_sizes import fitting


class ObservationReading(ObservationLists, ObservationTimelines):
    """Observed history, for its owner."""

    async def show(
        self,
        owner: Owner,
        session_id: str,
        *,
        at: str | None = None,
        at_ingested: str | None = None,
    ) -> History:
        """Return what is known of a session, or was at a moment, with its newest claims."""
        seen = horizon(at, at_ingested)

        async def look(tx: Tx) -> History:
            found = await find(tx, owner, session_id)
            if seen != EVERYTHING:
                return await self._shown_as_of(tx, found, seen)
            _require_shown(found)
            entity = await self._resolver.entity(tx, found)
            if found.known is None:
                return History(entity=entity, observations=(), observations_total=0)
            newest, _ = await tx.observations.newest(found.known, before=None, limit=PAGE)
            total = found.known.count
            return History(entity=entity, observations=tuple(newest), observations_total=total)

        return await self._store.read(look)

    async def list_observations(
        self, owner: Owner, session_id: str, *, limit: int = PAGE, cursor: str | None = None
    ) -> ObservationPage:
        """Return the claims about a session, newest first."""
        require_limit(limit, most=PAGE_MOST)
        marks = ("observations", owner, session_id)
        before = decode_claim(cursor, marks)

        async def look(tx: Tx) -> ObservationPage:
            found = await find(tx, owner, session_id)
            _require_shown(found)
            if found.known is None:
                return ObservationPage(items=(), total=0)
            rows, last = await tx.observations.newest(found.known, before=before, limit=limit)
            place = None if last is None else (last[0], str(last[1]))
            return ObservationPage(
                items=tuple(rows),
                total=found.known.count,
                next_cursor=encode_count(place, marks),
            )

        return await self._store.read(look)

    async def checkpoint(
        self,
        owner: Owner,
        session_id: str,
        name: str,
        *,
        timestamp: str | None = None,
        at: str | None = None,
    ) -> CheckpointState:
        """Return what was kept at a checkpoint; of several of a name, the latest."""
        require_encodable(name, field="name")
        entity = (await self.show(owner, session_id, at=at)).entity
        return checkpoint_of(entity, name, timestamp=timestamp)

    async def _shown_as_of(self, tx: Tx, found: Found, seen: Horizon) -> History:
        claims = await claims_of(tx, found)
        entity = await as_of(tx, found, claims, seen)
        visible = [each for each in claims if seen.shows(each.observed_at, each.created_at)]
        # Of what was deleted at that moment nothing is shown.
        visible = sorted(visible, key=lambda each: each.place, reverse=True)
        visible = visible if entity.snapshot else []
        shown = fitting(visible[:PAGE], lambda each: len(canonical(each.fields)))
        return History(entity=entity, observations=shown, observations_total=len(visible))


def _require_shown(found: Found) -> None:
    if found.is_deleted:
        raise entity_not_found()
