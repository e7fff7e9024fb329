"""Observed history of a server, and its full-text search.

Input is validated here with the server's rules before it is sent. So errors have the same text, and
values that a request cannot represent are refused instead of changed.
"""

from typing import Any, Literal, TypeVar, cast

from msgspec.structs import replace

from holdfast.client.requests import RemotePart, build_path, build_query
from holdfast.client.transport import ANSWER_SECONDS
from holdfast.domain.ids import Owner
from holdfast.domain.queries import Page, require_limit
from holdfast.observations.as_of import parse_as_of, parse_window
from holdfast.observations.claims import (
    accept_correction,
    accept_deletion,
    accept_payload,
    require_idempotency_key,
    require_sibling,
)
from holdfast.observations.model import STRING_LONGEST, EntityType, entity_not_found
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
)
from holdfast.search.query import Hit, SearchQuery, require_query
from holdfast.wire.observations import (
    CheckpointQuery,
    CorrectionPost,
    EntityList,
    EntityPost,
    HistoryForm,
    ObservationList,
    ObservationsQuery,
    PastStateQuery,
    RemovalForm,
    RemovalQuery,
    RestorationPost,
    TimelineList,
    entities_query,
    entity_of,
    history_of,
    history_query,
    observation_of,
    removal_of,
    timeline_query,
)
from holdfast.wire.search import HitList, form_of, hit_of

_FieldWord = Literal["actions", "checkpoints", "outcomes", "duration", "started_at", "ended_at"]
_TypeWord = Literal["feature_unit", "release", "agent_decision", "validation_result"]
_HISTORY = "/v1/history"
_ENTITIES = "/v1/entities"

T = TypeVar("T")


class RemoteSearch(RemotePart):
    """Search over messages and observations of a server."""

    async def find(
        self, owner: Owner, query: SearchQuery, *, cursor: str | None = None
    ) -> Page[Hit]:
        """Return a page of hits, newest session first."""
        sent = replace(form_of(require_query(query)), cursor=cursor)
        page = await self._requests.get("/v1/search", HitList, sent)
        return Page(items=tuple(map(hit_of, page.data)), next_cursor=page.next_cursor)


class RemoteObservations(RemotePart):
    """Observations on a server, and the history merged from them.

    With an `idempotency_key` an observation is retried when the connection breaks, and written
    once. Without one it is sent once, because another may have been written in between.
    """

    async def submit(
        self, owner: Owner, payload: Any, *, idempotency_key: str | None = None, source: str = ""
    ) -> SubmitResult:
        """Submit an observation of a session; the server sets the source."""
        accepted = accept_payload(EntityType.AGENT_SESSION, payload)
        key = _key(idempotency_key)
        body = accepted.fields if key is None else {**accepted.fields, "idempotency_key": key}
        return await self._change(_HISTORY, body, SubmitResult, key)

    async def submit_entity(
        self,
        owner: Owner,
        entity_type: str,
        fields: Any,
        *,
        idempotency_key: str | None = None,
        source: str = "",
    ) -> SubmitResult:
        """Submit an observation of an entity other than a session."""
        kind = require_sibling(entity_type)
        accepted = accept_payload(kind, fields)
        key = _key(idempotency_key)
        body = EntityPost(
            entity_type=cast("_TypeWord", kind.value), fields=accepted.fields, idempotency_key=key
        )
        return await self._change(_ENTITIES, body, SubmitResult, key)

    async def correct(
        self,
        owner: Owner,
        correction: Correction,
        *,
        idempotency_key: str | None = None,
        source: str = "",
    ) -> SubmitResult:
        """Correct one field of a session's history."""
        name, field = correction.session_id, correction.field
        accept_correction(name, field, correction.value, reason=correction.reason)
        key = _key(idempotency_key)
        body = CorrectionPost(
            field=cast("_FieldWord", field),
            value=correction.value,
            reason=correction.reason,
            idempotency_key=key,
        )
        return await self._change(_path(name, "correct"), body, SubmitResult, key)

    async def delete(
        self,
        owner: Owner,
        session_id: str,
        *,
        reason: str | None = None,
        idempotency_key: str | None = None,
        source: str = "",
    ) -> Removal:
        """Hide the history of a session."""
        accept_deletion(session_id, is_deleted=True, reason=reason)
        query = RemovalQuery(reason=reason, idempotency_key=_key(idempotency_key))
        path = _path(session_id) + build_query(query)
        return removal_of(await self._requests.remove(path, RemovalForm))

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
        accept_deletion(session_id, is_deleted=False, reason=reason)
        key = _key(idempotency_key)
        body = RestorationPost(reason=reason, idempotency_key=key)
        return removal_of(await self._change(_path(session_id, "restore"), body, RemovalForm, key))

    async def show(
        self,
        owner: Owner,
        session_id: str,
        *,
        at: str | None = None,
        at_ingested: str | None = None,
    ) -> History:
        """Return the history of a session, now or at a past time."""
        parse_as_of(at, at_ingested)
        query = PastStateQuery(at=at, at_ingested=at_ingested)
        form = await self._requests.get(_path(session_id), HistoryForm, query)
        return history_of(form, session_id)

    async def query(
        self, owner: Owner, query: HistoryQuery | None = None, *, cursor: str | None = None
    ) -> EntityPage:
        """Return sessions in order."""
        wanted = query or HistoryQuery()
        parse_as_of(wanted.at, wanted.at_ingested)
        page = await self._requests.get(_HISTORY, EntityList, history_query(wanted, cursor))
        items = tuple(map(entity_of, page.data))
        return EntityPage(items=items, total=page.total, next_cursor=page.next_cursor)

    async def entities(
        self, owner: Owner, query: EntityQuery, *, cursor: str | None = None
    ) -> EntityPage:
        """Return entities of a type."""
        parse_window(query.start_date, query.end_date)
        page = await self._requests.get(_ENTITIES, EntityList, entities_query(query, cursor))
        items = tuple(map(entity_of, page.data))
        return EntityPage(items=items, total=page.total, next_cursor=page.next_cursor)

    async def list_observations(
        self,
        owner: Owner,
        session_id: str,
        *,
        start_date: str | None = None,
        end_date: str | None = None,
        limit: int = PAGE,
        cursor: str | None = None,
    ) -> ObservationPage:
        """Return the observations of a session, newest first."""
        require_limit(limit, most=PAGE_MOST)
        parse_window(start_date, end_date)
        query = ObservationsQuery(since=start_date, until=end_date, limit=limit, cursor=cursor)
        path = _path(session_id, "observations")
        page = await self._requests.get(path, ObservationList, query)
        items = tuple(map(observation_of, page.data))
        return ObservationPage(items=items, total=page.total, next_cursor=page.next_cursor)

    async def checkpoint(
        self,
        owner: Owner,
        session_id: str,
        name: str,
        *,
        timestamp: str | None = None,
        at: str | None = None,
    ) -> CheckpointState:
        """Return the state stored at a checkpoint."""
        parse_as_of(at)
        query = CheckpointQuery(timestamp=timestamp, at=at)
        path = _path(session_id, "checkpoints", name)
        return await self._requests.get(path, CheckpointState, query)

    async def timeline(
        self,
        owner: Owner,
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
        sent = timeline_query(entity_id, wanted, cursor)
        page = await self._requests.get("/v1/timeline", TimelineList, sent)
        return TimelinePage(events=page.data, total=page.total, next_cursor=page.next_cursor)

    async def _change(self, path: str, body: Any, kind: type[T], key: str | None) -> T:
        seconds = ANSWER_SECONDS if key is None else None
        return await self._requests.post(path, body, kind, seconds=seconds)


def _key(key: str | None) -> str | None:
    return None if key is None else require_idempotency_key(key)


def _path(session_id: str, *rest: str) -> str:
    if not session_id:
        raise entity_not_found()
    return build_path("v1", "history", session_id, *rest)
