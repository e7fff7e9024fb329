"""Full-text search on a server."""

from datetime import datetime

from holdfast.client import Client
from holdfast.domain.ids import AgentId, MessageId, Owner, SessionId
from holdfast.domain.queries import Page
from holdfast.search.query import Hit, SearchQuery, require_query
from holdfast.wire.search import HitForm, form_of


class RemoteSearch:
    """Search over messages and observations of a server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def find(self, _: Owner, query: SearchQuery, *, cursor: str | None = None) -> Page[Hit]:
        """Return a page of hits."""
        page = await self._client.search.find(form_of(require_query(query))).page(cursor)
        return Page(items=tuple(map(_hit, page.data)), next_cursor=page.next_cursor)


def _hit(form: HitForm) -> Hit:
    return Hit(
        session_id=None if form.session_id is None else SessionId(form.session_id),
        agent_id=None if form.agent_id is None else AgentId(form.agent_id),
        message_id=None if form.message_id is None else MessageId(form.message_id),
        message_sequence=form.message_sequence,
        turn=form.turn,
        role=form.role,
        snippet=form.snippet,
        score=form.score,
        created_at=datetime.fromisoformat(form.created_at),
        observation_id=form.observation_id,
    )
