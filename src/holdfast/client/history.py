"""Observed history, told and asked for over the network."""

from collections.abc import Mapping
from typing import Any, TypeVar

from holdfast.client.requests import Requests, path_of, query_of
from holdfast.client.transport import ANSWER_SECONDS
from holdfast.http.v1.history_bodies import CorrectionPost, EntityPost, RestorationPost
from holdfast.http.v1.history_forms import (
    CheckpointQuery,
    ClaimsQuery,
    HistoryList,
    HistoryPageQuery,
    PastQuery,
    RemovalQuery,
)
from holdfast.http.v1.timelines_forms import EntitiesQuery, EventsOfQuery
from holdfast.observations.queries import CheckpointState, SubmitResult
from holdfast.services.history_forms import (
    EntityList,
    HistoryForm,
    ObservationList,
    RemovalForm,
    TimelineForm,
)

T = TypeVar("T")


class History:
    """What agents say they did, wherever they ran, and what all of it comes to.

    With an `idempotency_key` a claim is sent again when its connection breaks, and written once.
    Without one it is sent once, because somebody may have said something else in between.
    """

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    async def submit(
        self, payload: Mapping[str, Any], *, idempotency_key: str | None = None
    ) -> SubmitResult:
        """Write down what happened in a session."""
        return await self._claimed(path_of("v1", "history"), dict(payload), idempotency_key)

    async def query(self, query: HistoryPageQuery | None = None) -> HistoryList:
        """Return a page of sessions."""
        return await self._requests.get(path_of("v1", "history"), HistoryList, query)

    async def show(self, session_id: str, query: PastQuery | None = None) -> HistoryForm:
        """Return what is known of a session, or was at a moment."""
        return await self._requests.get(_of(session_id), HistoryForm, query)

    async def observations(
        self, session_id: str, query: ClaimsQuery | None = None
    ) -> ObservationList:
        """Return a page of the claims about a session, newest first."""
        return await self._requests.get(_of(session_id, "observations"), ObservationList, query)

    async def checkpoint(
        self, session_id: str, name: str, query: CheckpointQuery | None = None
    ) -> CheckpointState:
        """Return what was kept at a checkpoint."""
        path = _of(session_id, "checkpoints", name)
        return await self._requests.get(path, CheckpointState, query)

    async def correct(self, session_id: str, correction: CorrectionPost) -> SubmitResult:
        """Put one field of a session's history right."""
        path, key = _of(session_id, "correct"), correction.idempotency_key
        return await self._changed(path, correction, SubmitResult, key)

    async def delete(self, session_id: str, query: RemovalQuery | None = None) -> RemovalForm:
        """Hide the history of a session."""
        return await self._requests.remove(_of(session_id) + query_of(query), RemovalForm)

    async def restore(self, session_id: str, wish: RestorationPost | None = None) -> RemovalForm:
        """Show the history of a session again."""
        body = wish or RestorationPost()
        path = _of(session_id, "restore")
        return await self._changed(path, body, RemovalForm, body.idempotency_key)

    async def timeline(self, query: EventsOfQuery) -> TimelineForm:
        """Return what happened to an entity, and to whoever names it."""
        return await self._requests.get(path_of("v1", "timeline"), TimelineForm, query)

    async def submit_entity(self, entity: EntityPost) -> SubmitResult:
        """Write down what is known of an entity that is no session."""
        path = path_of("v1", "entities")
        return await self._changed(path, entity, SubmitResult, entity.idempotency_key)

    async def entities(self, query: EntitiesQuery) -> EntityList:
        """Return a page of entities of a type."""
        return await self._requests.get(path_of("v1", "entities"), EntityList, query)

    async def _claimed(self, path: str, body: dict[str, Any], key: str | None) -> SubmitResult:
        keyed = body if key is None else {**body, "idempotency_key": key}
        return await self._changed(path, keyed, SubmitResult, key)

    async def _changed(self, path: str, body: Any, kind: type[T], key: str | None) -> T:
        seconds = ANSWER_SECONDS if key is None else None
        return await self._requests.post(path, body, kind, seconds=seconds)


def _of(session_id: str, *more: str) -> str:
    return path_of("v1", "history", session_id, *more)
