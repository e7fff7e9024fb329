"""Routes of `/api`: sessions bound to a repository; and the table of all routes of `/api`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from holdfast.domain.errors import Code, Conflict, LimitReached, NotFound
from holdfast.domain.ids import RepoId, SessionId, is_uuid
from holdfast.domain.queries import SessionQuery
from holdfast.domain.sessions import Session, SessionRequest, Status
from holdfast.domain.tokens import Scope
from holdfast.http.api import messages, repos
from holdfast.http.api.messages import encoded_rows, shown_rows
from holdfast.http.api.repos import repo_not_found
from holdfast.http.bodies import in_pieces, joined
from holdfast.http.responses import Answer, Stream, encoded, etag_of
from holdfast.http.routing import Asked, NoQuery, Route
from holdfast.services.journal import session_not_found
from holdfast.wire.errors import invalid_query
from holdfast.wire.repo_sessions import (
    STATUS_WORDS,
    AgentSession,
    AgentSessionList,
    AgentSessionPost,
    AgentSessionsQuery,
    AgentSessionWhole,
    PromptAccepted,
    PromptPost,
    session_form,
    whole_form,
)

USER_REQUEST: Final = "user_request"


async def open_session(asked: Asked[NoQuery, AgentSessionPost]) -> Answer:
    """Open a session in a repository; no process starts before its first prompt."""
    body, repo_id = asked.body, RepoId(asked.body.repo_id.lower())
    if not is_uuid(repo_id):
        raise repo_not_found()
    known = await _opened_before(asked, repo_id)
    if known is not None:
        return _opened(known, is_new=False)
    agent = body.agent_id or (await asked.house.agents.in_repositories(asked.owner)).id
    await asked.house.agents.seed(asked.owner, agent)
    request = SessionRequest(title=body.title, repo_id=repo_id)
    try:
        with _slots_told():
            made = await asked.house.sessions.make(asked.owner, agent, request, id=body.id)
    except Conflict as error:
        # Two may have asked with one id at the same moment, and not in the same words.
        known = await _opened_before(asked, repo_id) if error.code is Code.ID_REUSED else None
        if known is None:
            raise
        return _opened(known, is_new=False)
    return _opened(made.thing, is_new=made.is_new)


async def _opened_before(
    asked: Asked[NoQuery, AgentSessionPost], repo_id: RepoId
) -> Session | None:
    """Return the session that has the chosen id, if it is in the same repository."""
    chosen = (asked.body.id or "").lower()
    if not is_uuid(chosen):
        return None
    try:
        session = await asked.house.sessions.get(asked.owner, SessionId(chosen))
    except NotFound:
        return None
    return session if session.repo_id == repo_id else None


def _opened(session: Session, *, is_new: bool) -> Answer:
    return Answer(
        status=201 if is_new else 200,
        content=session_form(session),
        headers={"location": f"/api/sessions/{session.id}"},
    )


async def list_sessions(asked: Asked[AgentSessionsQuery, None]) -> Answer:
    """List sessions, newest first."""
    query = asked.query
    if query.before is not None and query.offset:
        raise invalid_query("before", "pages go by before or by offset, not by both")
    if query.repo_id is not None and not is_uuid(query.repo_id.lower()):
        empty = AgentSessionList(sessions=(), total=0, limit=query.limit, offset=query.offset)
        return Answer(content=empty)
    wanted = SessionQuery(
        owner=asked.owner,
        is_bound=True,
        repo_id=None if query.repo_id is None else RepoId(query.repo_id.lower()),
        statuses=_statuses(query.status),
        offset=query.offset,
        limit=query.limit,
    )
    behind = None if query.before is None else await _bound(asked, query.before)
    page = await asked.house.session_views.list(
        wanted, behind=behind.id if behind else None, is_counted=True
    )
    return Answer(
        content=AgentSessionList(
            sessions=tuple(session_form(each.session) for each in page.items),
            total=page.total or 0,
            limit=query.limit,
            offset=query.offset,
        )
    )


async def read_session(asked: Asked[NoQuery, None]) -> Answer | Stream:
    """Return a session with its repository and all its messages."""
    session_id = asked.path["id"]
    if not is_uuid(session_id):
        raise session_not_found()
    whole = await asked.house.session_views.whole(asked.owner, SessionId(session_id))
    if whole.repo is None:
        raise session_not_found()
    rows = shown_rows(whole.session.id, whole.excerpts, whole.unfinished)
    form = encoded(whole_form(whole.session, whole.repo, ()))
    # The messages are the last member.
    start = form.removesuffix(b"]}")
    pieces = joined(encoded_rows(asked, rows), start=start, end=lambda: b"]}")
    tag = etag_of([form.decode(), whole.chain, whole.unfinished])
    return await in_pieces(asked, pieces, tag=tag)


async def prompt(asked: Asked[NoQuery, PromptPost]) -> Answer:
    """Write a prompt down; its turn comes after the answer."""
    session = await _bound(asked, asked.path["id"])
    body, make = asked.body, asked.house.messages.make
    try:
        made = await make(asked.owner, session.id, body.text, id=body.id, on_busy=body.on_busy)
    except Conflict as error:
        if error.code not in (Code.SESSION_CLOSED, Code.SESSION_FAILED):
            raise
        # As it is now: it may have ended after it was looked at.
        raise not_active(await asked.house.sessions.get(asked.owner, session.id)) from None
    message = made.thing
    return Answer(
        status=202,
        content=PromptAccepted(message_id=message.id, sequence=message.sequence, turn=message.turn),
    )


async def complete(asked: Asked[NoQuery, None]) -> Answer:
    """End a session gracefully; a running turn is stopped first."""
    return await _close(asked, Status.COMPLETED)


async def cancel(asked: Asked[NoQuery, None]) -> Answer:
    """Cancel a session; its rows stay."""
    return await _close(asked, Status.CANCELLED)


async def _close(asked: Asked[Any, Any], status: Status) -> Answer:
    session = await _bound(asked, asked.path["id"])
    # What has ended stays as it ended.
    if STATUS_WORDS[session.status] == "active":
        session = await asked.house.sessions.close(
            asked.owner, session.id, status=status, reason=USER_REQUEST
        )
    return Answer(content=session_form(session))


async def _bound(asked: Asked[Any, Any], session_id: str) -> Session:
    """Return the session of that id, if it is bound to a repository."""
    if not is_uuid(session_id):
        raise session_not_found()
    session = await asked.house.sessions.get(asked.owner, SessionId(session_id))
    if session.repo_id is None:
        raise session_not_found()
    return session


@contextmanager
def _slots_told() -> Iterator[None]:
    """Tell who finds no free slot how to free one from here."""
    try:
        yield
    except LimitReached as error:
        told = error.message.removesuffix(".")
        raise LimitReached(
            error.code, f"{told} with DELETE /api/sessions/{{id}}.", error.details
        ) from None


def _statuses(words: str | None) -> tuple[Status, ...]:
    if words is None:
        return ()
    wanted = {word.strip() for word in words.split(",")}
    allowed = sorted(set(STATUS_WORDS.values()))
    if not wanted <= set(allowed):
        raise invalid_query("status", f"words of {', '.join(allowed)}, with commas between them")
    return tuple(status for status, word in STATUS_WORDS.items() if word in wanted)


def not_active(session: Session) -> Conflict:
    """Return the refusal of a prompt to a session that has ended."""
    word = STATUS_WORDS[session.status]
    remedy = "fork it" if word == "error" else "resume it"
    return Conflict(
        Code.SESSION_NOT_ACTIVE,
        f"The session is {word} and takes no prompts; {remedy} to go on.",
        {"status": word},
    )


ROUTES: Final = (
    Route(
        method="POST",
        path="/api/sessions",
        name="api.sessions.open",
        summary="Open a session in a repository.",
        act=open_session,
        needs=Scope.WRITE,
        body=AgentSessionPost,
        examples={"body": {"repoId": "019b7ca9-8f2e-7666-8aaa-000000000006", "title": "Sums"}},
        gives={200: AgentSession, 201: AgentSession},
        tells={200: ("location",), 201: ("location",)},
        refuses=(
            Code.REPO_NOT_FOUND,
            Code.REPO_OUTSIDE_ROOT,
            Code.WORKSPACE_ROOT_UNSET,
            Code.AGENT_NOT_FOUND,
            Code.AGENT_ARCHIVED,
            Code.AGENT_UNAVAILABLE,
            Code.ID_REUSED,
            Code.SESSION_LIMIT,
        ),
        tolerant=True,
    ),
    Route(
        method="GET",
        path="/api/sessions",
        name="api.sessions.list",
        summary="List sessions, newest first.",
        act=list_sessions,
        needs=Scope.READ,
        query=AgentSessionsQuery,
        gives={200: AgentSessionList},
        refuses=(Code.SESSION_NOT_FOUND,),
        tolerant=True,
    ),
    Route(
        method="GET",
        path="/api/sessions/{id}",
        name="api.sessions.read",
        summary="Return a session with its repository and all its messages.",
        act=read_session,
        needs=Scope.READ,
        gives={200: AgentSessionWhole, 304: None},
        tells={200: ("etag",), 304: ("etag",)},
        refuses=(Code.SESSION_NOT_FOUND,),
        tolerant=True,
    ),
    Route(
        method="POST",
        path="/api/sessions/{id}/prompt",
        name="api.sessions.prompt",
        summary="Write a prompt down; its turn comes after the answer.",
        act=prompt,
        needs=Scope.WRITE,
        body=PromptPost,
        examples={"body": {"text": "How much is 2+2?"}},
        gives={202: PromptAccepted},
        refuses=(
            Code.SESSION_NOT_FOUND,
            Code.SESSION_NOT_ACTIVE,
            Code.MESSAGE_EMPTY,
            Code.MESSAGE_TOO_LARGE,
            Code.MESSAGE_ID_REUSED,
            Code.TURN_RUNNING,
        ),
        tolerant=True,
    ),
    Route(
        method="POST",
        path="/api/sessions/{id}/complete",
        name="api.sessions.complete",
        summary="End a session gracefully.",
        act=complete,
        needs=Scope.WRITE,
        gives={200: AgentSession},
        refuses=(Code.SESSION_NOT_FOUND,),
        tolerant=True,
    ),
    Route(
        method="DELETE",
        path="/api/sessions/{id}",
        name="api.sessions.cancel",
        summary="Cancel a session; its rows stay.",
        act=cancel,
        needs=Scope.WRITE,
        gives={200: AgentSession},
        refuses=(Code.SESSION_NOT_FOUND,),
        tolerant=True,
    ),
)
API_ROUTES: Final[tuple[Route, ...]] = (*repos.ROUTES, *ROUTES, *messages.ROUTES)
