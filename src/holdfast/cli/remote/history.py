"""Observed history of a server.

Input is validated here with the server's rules before it is sent. So errors have the same text, and
values that a request cannot represent are refused instead of changed.
"""

from datetime import datetime
from typing import Any, Literal, cast

from holdfast.client import Client
from holdfast.domain.canonical_json import canonical_text
from holdfast.domain.ids import EntityId, ObservationId, Owner
from holdfast.domain.queries import require_limit
from holdfast.observations.as_of import parse_as_of, parse_window
from holdfast.observations.claims import (
    Observation,
    Subject,
    accept_correction,
    accept_deletion,
    accept_payload,
    require_idempotency_key,
    require_sibling,
)
from holdfast.observations.model import STRING_LONGEST, Entity, EntityType, entity_not_found
from holdfast.observations.queries import (
    PAGE,
    PAGE_MOST,
    CheckpointState,
    Correction,
    EntityPage,
    EntityQuery,
    History,
    HistoryQuery,
    ObservationPage,
    Removal,
    SubmitResult,
    TimelinePage,
    TimelineQuery,
    require_filters,
)
from holdfast.wire.observations import (
    CheckpointQuery,
    ClaimsQuery,
    CorrectionPost,
    EntitiesQuery,
    EntityForm,
    EntityPost,
    EntityTimelineQuery,
    HistoryPageQuery,
    ObservationForm,
    PastQuery,
    RemovalForm,
    RemovalQuery,
    RestorationPost,
)

_FieldWord = Literal["actions", "checkpoints", "outcomes", "duration", "started_at", "ended_at"]
_TypeWord = Literal["feature_unit", "release", "agent_decision", "validation_result"]


class RemoteObservations:
    """Observations on a server, and the history merged from them."""

    def __init__(self, client: Client) -> None:
        self._history = client.history

    async def submit(
        self, _: Owner, payload: Any, *, idempotency_key: str | None = None, source: str = ""
    ) -> SubmitResult:
        """Submit an observation of a session; the server sets the source."""
        told = accept_payload(EntityType.AGENT_SESSION, payload)
        return await self._history.submit(told.fields, idempotency_key=_key(idempotency_key))

    async def submit_entity(
        self,
        _: Owner,
        entity_type: str,
        fields: Any,
        *,
        idempotency_key: str | None = None,
        source: str = "",
    ) -> SubmitResult:
        """Submit an observation of an entity other than a session."""
        kind = require_sibling(entity_type)
        told = accept_payload(kind, fields)
        entity = EntityPost(
            entity_type=cast(_TypeWord, kind.value),
            fields=told.fields,
            idempotency_key=_key(idempotency_key),
        )
        return await self._history.submit_entity(entity)

    async def correct(
        self,
        _: Owner,
        correction: Correction,
        *,
        idempotency_key: str | None = None,
        source: str = "",
    ) -> SubmitResult:
        """Correct one field of a session's history."""
        name, field = correction.session_id, correction.field
        accept_correction(name, field, correction.value, reason=correction.reason)
        body = CorrectionPost(
            field=cast(_FieldWord, field),
            value=correction.value,
            reason=correction.reason,
            idempotency_key=_key(idempotency_key),
        )
        return await self._history.correct(name, body)

    async def delete(
        self,
        _: Owner,
        session_id: str,
        *,
        reason: str | None = None,
        idempotency_key: str | None = None,
        source: str = "",
    ) -> Removal:
        """Hide the history of a session."""
        accept_deletion(session_id, is_deleted=True, reason=reason)
        query = RemovalQuery(reason=reason, idempotency_key=_key(idempotency_key))
        return _removal(await self._history.delete(session_id, query))

    async def restore(
        self,
        _: Owner,
        session_id: str,
        *,
        reason: str | None = None,
        idempotency_key: str | None = None,
        source: str = "",
    ) -> Removal:
        """Show the history of a session again."""
        accept_deletion(session_id, is_deleted=False, reason=reason)
        wish = RestorationPost(reason=reason, idempotency_key=_key(idempotency_key))
        return _removal(await self._history.restore(session_id, wish))

    async def show(
        self, _: Owner, session_id: str, *, at: str | None = None, at_ingested: str | None = None
    ) -> History:
        """Return the history of a session, now or at a past time."""
        parse_as_of(at, at_ingested)
        _require_place(session_id)
        form = await self._history.show(session_id, PastQuery(at=at, at_ingested=at_ingested))
        return History(
            entity=_entity(form, session_id),
            observations=tuple(map(_observation, form.observations)),
            observations_total=form.observations_total,
        )

    async def query(
        self, _: Owner, query: HistoryQuery | None = None, *, cursor: str | None = None
    ) -> EntityPage:
        """Return sessions in order."""
        wanted = query or HistoryQuery()
        parse_as_of(wanted.at, wanted.at_ingested)
        asked = HistoryPageQuery(
            limit=wanted.limit,
            offset=wanted.offset,
            cursor=cursor,
            order_by=wanted.order_by,
            order=wanted.order,
            at=wanted.at,
            at_ingested=wanted.at_ingested,
        )
        page = await self._history.query(asked)
        items = tuple(_entity(form, _name(form)) for form in page.data)
        return EntityPage(items=items, total=page.total, next_cursor=page.next_cursor)

    async def entities(
        self, _: Owner, query: EntityQuery, *, cursor: str | None = None
    ) -> EntityPage:
        """Return entities of a type."""
        filters = require_filters(query.filters)
        asked = EntitiesQuery(
            entity_type=query.entity_type,
            filters=canonical_text(filters) if filters else None,
            order_by=query.order_by,
            order=query.order,
            limit=query.limit,
            cursor=cursor,
        )
        page = await self._history.entities(asked)
        items = tuple(_entity(form, _name(form)) for form in page.entities)
        return EntityPage(items=items, total=page.total, next_cursor=page.next_cursor)

    async def list_observations(
        self, _: Owner, session_id: str, *, limit: int = PAGE, cursor: str | None = None
    ) -> ObservationPage:
        """Return the observations of a session, newest first."""
        require_limit(limit, most=PAGE_MOST)
        _require_place(session_id)
        page = await self._history.observations(session_id, ClaimsQuery(limit=limit, cursor=cursor))
        items = tuple(map(_observation, page.observations))
        return ObservationPage(items=items, total=page.total, next_cursor=page.next_cursor)

    async def checkpoint(
        self,
        _: Owner,
        session_id: str,
        name: str,
        *,
        timestamp: str | None = None,
        at: str | None = None,
    ) -> CheckpointState:
        """Return the state stored at a checkpoint."""
        parse_as_of(at)
        _require_place(session_id)
        query = CheckpointQuery(timestamp=timestamp, at=at)
        return await self._history.checkpoint(session_id, name, query)

    async def timeline(
        self,
        _: Owner,
        entity_id: str,
        query: TimelineQuery | None = None,
        *,
        cursor: str | None = None,
    ) -> TimelinePage:
        """Return the events of an entity."""
        wanted = query or TimelineQuery()
        parse_window(wanted.start_date, wanted.end_date)
        if not 0 < len(entity_id) <= STRING_LONGEST:
            # An id that is invalid here is unknown to the server, too.
            return TimelinePage(events=(), total=0)
        asked = EntityTimelineQuery(
            entity_id=entity_id,
            start_date=wanted.start_date,
            end_date=wanted.end_date,
            event_types=wanted.event_types,
            limit=wanted.limit,
            cursor=cursor,
        )
        page = await self._history.timeline(asked)
        return TimelinePage(events=page.events, total=page.total, next_cursor=page.next_cursor)


def _key(given: str | None) -> str | None:
    return None if given is None else require_idempotency_key(given)


def _require_place(session_id: str) -> None:
    if not session_id:
        raise entity_not_found()


def _removal(form: RemovalForm) -> Removal:
    return Removal(
        entity_id=EntityId(form.entity_id),
        observation_id=ObservationId(form.observation_id),
        deleted=form.deleted,
    )


def _name(form: EntityForm) -> str:
    return str(form.snapshot.get("session_id", form.snapshot.get("id", "")))


def _entity(form: EntityForm, key: str) -> Entity:
    last = form.last_observation_at
    return Entity(
        entity_id=EntityId(form.entity_id),
        entity_type=form.entity_type,
        key=key,
        schema_version=form.schema_version,
        snapshot=form.snapshot,
        provenance=form.provenance,
        provenance_items=form.provenance_items,
        observation_count=form.observation_count,
        last_observation_at=None if last is None else datetime.fromisoformat(last),
        hosted=form.hosted,
        warnings=form.warnings,
    )


def _observation(form: ObservationForm) -> Observation:
    return Observation(
        id=ObservationId(form.id),
        subject=Subject(Owner(form.owner), form.entity_type, form.session_key),
        entity_id=EntityId(form.entity_id),
        ordinal=form.ordinal,
        fields=form.fields,
        content_hash=form.content_hash,
        kind=form.kind,
        source=form.source,
        observed_at=datetime.fromisoformat(form.observed_at),
        created_at=datetime.fromisoformat(form.created_at),
        idempotency_key=form.idempotency_key,
    )
