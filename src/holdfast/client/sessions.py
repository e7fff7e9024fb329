"""Sessions of a server, with their costs."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import asdict, replace

from holdfast.children.model import ChildRequest
from holdfast.client.requests import RemotePart, Requests, build_path, new_id
from holdfast.domain.costs import CostQuery, CostReport
from holdfast.domain.ids import Owner, SessionId
from holdfast.domain.queries import Page, SessionQuery
from holdfast.domain.sessions import Session, SessionContext, Status
from holdfast.services.session_lifecycle import DeletePolicy, Interruption, Resumption
from holdfast.services.session_views import OverviewPage, SessionOverview
from holdfast.services.sessions import Verification
from holdfast.wire.costs import CostList, costs_query, report_of
from holdfast.wire.session_actions import (
    ClosePost,
    Compacted,
    CompactPost,
    DeletionQuery,
    ForkPost,
    Interrupted,
    InterruptPost,
    Resumed,
    ResumePost,
    SessionsQuery,
    Verified,
    child_post,
    sessions_query,
)
from holdfast.wire.sessions import (
    SessionForm,
    SessionList,
    context_form,
    overview_of,
    session_of,
    session_patch,
)

# Long timeout, because a model writes the summary.
COMPACT_SECONDS: Final = 600.0


def session_path(session_id: str, *rest: str) -> str:
    """Return a path below a session."""
    return build_path("v1", "sessions", session_id, *rest)


async def list_sessions(requests: Requests, query: SessionQuery, cursor: str | None) -> SessionList:
    """Return a page of sessions, of all agents or of one."""
    agent = query.agent_id
    path = "/v1/sessions" if agent is None else build_path("v1", "agents", agent, "sessions")
    return await requests.get(path, SessionList, sessions_query(query, cursor))


class RemoteSessions(RemotePart):
    """Sessions of a server."""

    async def get(self, owner: Owner, session_id: SessionId) -> Session:
        """Return a session."""
        return session_of(await self._requests.get(session_path(session_id), SessionForm))

    async def list(self, query: SessionQuery, *, cursor: str | None = None) -> Page[Session]:
        """Return a page of sessions."""
        page = await list_sessions(self._requests, query, cursor)
        return Page(items=tuple(map(session_of, page.data)), next_cursor=page.next_cursor)

    async def find(self, owner: Owner, beginning: str, *, limit: int = 5) -> tuple[SessionId, ...]:
        """Return the ids that begin with a prefix."""
        query = SessionsQuery(begins=beginning, limit=limit)
        page = await self._requests.get("/v1/sessions", SessionList, query)
        return tuple(SessionId(each.id) for each in page.data)

    async def update(
        self, owner: Owner, session_id: SessionId, changes: Mapping[str, Any]
    ) -> Session:
        """Change a session."""
        body = session_patch(changes)
        return session_of(await self._requests.patch(session_path(session_id), body, SessionForm))

    async def interrupt(
        self, owner: Owner, session_id: SessionId, *, turn: int | None = None
    ) -> Interruption:
        """Stop the running turn, or only the given one; streamed text is stored."""
        path = session_path(session_id, "interrupt")
        done = await self._requests.post(path, InterruptPost(turn=turn), Interrupted)
        session = session_of(done.session)
        is_settled = done.turn is None or done.turn <= session.settled
        return Interruption(session=session, turn=done.turn, is_settled=is_settled)

    async def resume(
        self, owner: Owner, session_id: SessionId, *, context: SessionContext | None = None
    ) -> Resumption:
        """Reopen a closed session; no effect on an open one."""
        body = ResumePost(context=None if context is None else context_form(context))
        done = await self._requests.post(session_path(session_id, "resume"), body, Resumed)
        return Resumption(session=session_of(done), turns_left=done.turns_left)

    async def close(
        self,
        owner: Owner,
        session_id: SessionId,
        *,
        status: Status = Status.COMPLETED,
        reason: str | None = None,
    ) -> Session:
        """Close a session."""
        is_cancelled = status is Status.CANCELLED
        body = ClosePost(ending="cancelled" if is_cancelled else "completed", reason=reason)
        return session_of(
            await self._requests.post(session_path(session_id, "close"), body, SessionForm)
        )

    async def fork(
        self,
        owner: Owner,
        session_id: SessionId,
        *,
        at: int | None = None,
        title: str | None = None,
        tags: tuple[str, ...] | None = None,
        model: str | None = None,
        agent: str | None = None,
        is_settled: bool = False,
        id: str | None = None,
    ) -> Session:
        """Open a session that continues from a message of this one, by default from the last.

        Without a number the server leaves out an open turn, as with `is_settled`.
        """
        if at is None and not is_settled:
            at = (await self.get(owner, session_id)).message_count
        body = ForkPost(
            id=id or new_id(), at=at, title=title, tags=tags, model_id=model, agent_id=agent
        )
        return session_of(
            await self._requests.post(session_path(session_id, "fork"), body, SessionForm)
        )

    async def delete(
        self, owner: Owner, session_id: SessionId, *, policy: DeletePolicy = DeletePolicy.REFUSE
    ) -> tuple[SessionId, ...]:
        """Delete a session permanently, and return the ids of all deleted sessions."""
        is_cascade = policy is DeletePolicy.CASCADE
        gone = await self._family(session_id) if is_cascade else (session_id,)
        query = DeletionQuery(cascade=is_cascade, detach=policy is DeletePolicy.DETACH)
        await self._requests.delete(session_path(session_id), query)
        return gone

    async def verify(self, owner: Owner, session_id: SessionId) -> Verification:
        """Verify a session's messages on the server."""
        found = await self._requests.get(session_path(session_id, "verify"), Verified)
        return Verification(**asdict(found) | {"session_id": SessionId(found.session_id)})

    async def _family(self, session_id: SessionId) -> tuple[SessionId, ...]:
        """Return the forks and children of a session and of these, each before its parent."""
        found: tuple[SessionId, ...] = ()
        children = SessionsQuery(parent=session_id)
        for below in await self._all(children) + await self._all(
            SessionsQuery(forked_from=session_id)
        ):
            found += await self._family(below)
        return (*found, session_id)

    async def _all(self, query: SessionsQuery) -> tuple[SessionId, ...]:
        found: tuple[SessionId, ...] = ()
        cursor = None
        while True:
            page = await self._requests.get(
                "/v1/sessions", SessionList, replace(query, cursor=cursor)
            )
            found += tuple(SessionId(each.id) for each in page.data)
            if (cursor := page.next_cursor) is None:
                return found


class RemoteChildren(RemotePart):
    """Children of a server's sessions."""

    async def spawn(
        self, owner: Owner, parent_id: SessionId, request: ChildRequest, *, id: str | None = None
    ) -> Session:
        """Open a child of a session with a task."""
        body = child_post(request, id=id or new_id())
        path = session_path(parent_id, "children")
        return session_of(await self._requests.post(path, body, SessionForm))

    async def tree(self, owner: Owner, session_id: SessionId) -> tuple[Session, ...]:
        """Return a session and all below it, each parent before its children."""
        page = await self._requests.get(session_path(session_id, "tree"), SessionList)
        return tuple(map(session_of, page.data))


class RemoteSessionViews(RemotePart):
    """Sessions of a server with their costs."""

    async def get(self, owner: Owner, session_id: SessionId) -> SessionOverview:
        """Return a session with its costs."""
        return overview_of(await self._requests.get(session_path(session_id), SessionForm))

    async def list(self, query: SessionQuery, *, cursor: str | None = None) -> OverviewPage:
        """Return a page of sessions with their costs."""
        page = await list_sessions(self._requests, query, cursor)
        items = tuple(map(overview_of, page.data))
        return OverviewPage(items=items, next_cursor=page.next_cursor)


class RemoteCompactions(RemotePart):
    """Compactions of a server's sessions."""

    async def compact(self, owner: Owner, session_id: SessionId) -> bool:
        """Compact a session on the server; not retried."""
        path = session_path(session_id, "compact")
        seconds = COMPACT_SECONDS
        done = await self._requests.post(path, CompactPost(), Compacted, seconds=seconds)
        return done.compacted


class RemoteCosts(RemotePart):
    """Costs of a server."""

    async def report(self, query: CostQuery) -> CostReport:
        """Return the costs."""
        return report_of(await self._requests.get("/v1/costs", CostList, costs_query(query)))
