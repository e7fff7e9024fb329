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
from holdfast.http.api.messages import encoded_rows, message_rows
from holdfast.http.api.repos import repo_not_found
from holdfast.http.bodies import add, in_pieces
from holdfast.http.responses import Response, StreamResponse, encode_json, etag_of
from holdfast.http.routing import NoQuery, Route, RouteRequest
from holdfast.services.journal import session_not_found
from holdfast.wire.errors import invalid_query
from holdfast.wire.repo_sessions import (
    STATUS_WORDS,
    AgentSession,
    AgentSessionDetails,
    AgentSessionList,
    AgentSessionPost,
    AgentSessionsQuery,
    PromptAccepted,
    PromptPost,
    session_form,
    whole_form,
)

USER_REQUEST: Final = "user_request"


async def open_session(request: RouteRequest[NoQuery, AgentSessionPost]) -> Response:
    """Open a session in a repository."""
    body, repo_id = request.body, RepoId(request.body.repo_id.lower())
    if not is_uuid(repo_id):
        raise repo_not_found()
    known = await _find_repeat(request, repo_id)
    if known is not None:
        return _created_response(known, is_new=False)
    agent = body.agent_id or (await request.holdfast.agents.in_repositories(request.owner)).id
    await request.holdfast.agents.seed(request.owner, agent)
    session_request = SessionRequest(title=body.title, repo_id=repo_id)
    try:
        with _explain_session_limit():
            created = await request.holdfast.sessions.make(
                request.owner, agent, session_request, id=body.id
            )
    except Conflict as error:
        # Two concurrent requests may have used one id with different bodies (race).
        known = await _find_repeat(request, repo_id) if error.code is Code.ID_REUSED else None
        if known is None:
            raise
        return _created_response(known, is_new=False)
    return _created_response(created.thing, is_new=created.is_new)


async def _find_repeat(
    request: RouteRequest[NoQuery, AgentSessionPost], repo_id: RepoId
) -> Session | None:
    """Return the session that has the client's id, if it is in the same repository."""
    chosen = (request.body.id or "").lower()
    if not is_uuid(chosen):
        return None
    try:
        session = await request.holdfast.sessions.get(request.owner, SessionId(chosen))
    except NotFound:
        return None
    return session if session.repo_id == repo_id else None


def _created_response(session: Session, *, is_new: bool) -> Response:
    return Response(
        status=201 if is_new else 200,
        content=session_form(session),
        headers={"location": f"/api/sessions/{session.id}"},
    )


async def list_sessions(request: RouteRequest[AgentSessionsQuery, None]) -> Response:
    """List sessions, newest first."""
    query = request.query
    if query.before is not None and query.offset:
        raise invalid_query("before", "send before or offset, not both")
    if query.repo_id is not None and not is_uuid(query.repo_id.lower()):
        empty = AgentSessionList(sessions=(), total=0, limit=query.limit, offset=query.offset)
        return Response(content=empty)
    wanted = SessionQuery(
        owner=request.owner,
        is_bound=True,
        repo_id=None if query.repo_id is None else RepoId(query.repo_id.lower()),
        statuses=_statuses(query.status),
        offset=query.offset,
        limit=query.limit,
    )
    behind = None if query.before is None else await _require_repo_session(request, query.before)
    page = await request.holdfast.session_views.list(
        wanted, behind=behind.id if behind else None, is_counted=True
    )
    return Response(
        content=AgentSessionList(
            sessions=tuple(session_form(each.session) for each in page.items),
            total=page.total or 0,
            limit=query.limit,
            offset=query.offset,
        )
    )


async def read_session(request: RouteRequest[NoQuery, None]) -> Response | StreamResponse:
    """Return a session with its repository and all its messages."""
    session_id = request.path["id"]
    if not is_uuid(session_id):
        raise session_not_found()
    whole = await request.holdfast.session_views.whole(request.owner, SessionId(session_id))
    if whole.repo is None:
        raise session_not_found()
    rows = message_rows(whole.session.id, whole.excerpts, whole.unfinished)
    form = encode_json(whole_form(whole.session, whole.repo, ()))
    # The messages are the last member, so the array can be appended.
    start = form.removesuffix(b"]}")
    pieces = add(encoded_rows(request, rows), start=start, end=lambda: b"]}")
    tag = etag_of([form.decode(), whole.chain, whole.unfinished])
    return await in_pieces(request, pieces, tag=tag)


async def prompt(request: RouteRequest[NoQuery, PromptPost]) -> Response:
    """Store a prompt; its turn runs after the response."""
    session = await _require_repo_session(request, request.path["id"])
    body, make = request.body, request.holdfast.messages.make
    try:
        created = await make(request.owner, session.id, body.text, id=body.id, on_busy=body.on_busy)
    except Conflict as error:
        if error.code not in (Code.SESSION_CLOSED, Code.SESSION_FAILED):
            raise
        # Read again, because it may have ended after the first read (race).
        raise not_active(await request.holdfast.sessions.get(request.owner, session.id)) from None
    message = created.thing
    return Response(
        status=202,
        content=PromptAccepted(message_id=message.id, sequence=message.sequence, turn=message.turn),
    )


async def complete(request: RouteRequest[NoQuery, None]) -> Response:
    """End a session gracefully."""
    return await _close(request, Status.COMPLETED)


async def cancel(request: RouteRequest[NoQuery, None]) -> Response:
    """Cancel a session; its messages are not deleted."""
    return await _close(request, Status.CANCELLED)


async def _close(request: RouteRequest[Any, Any], status: Status) -> Response:
    session = await _require_repo_session(request, request.path["id"])
    # An ended session is not changed.
    if STATUS_WORDS[session.status] == "active":
        session = await request.holdfast.sessions.close(
            request.owner, session.id, status=status, reason=USER_REQUEST
        )
    return Response(content=session_form(session))


async def _require_repo_session(request: RouteRequest[Any, Any], session_id: str) -> Session:
    """Return the session with that id, if it is bound to a repository."""
    if not is_uuid(session_id):
        raise session_not_found()
    session = await request.holdfast.sessions.get(request.owner, SessionId(session_id))
    if session.repo_id is None:
        raise session_not_found()
    return session


@contextmanager
def _explain_session_limit() -> Iterator[None]:
    """Add to a session limit error how to free a slot with this API."""
    try:
        yield
    except LimitReached as error:
        reason = error.message.removesuffix(".")
        raise LimitReached(
            error.code, f"{reason} with DELETE /api/sessions/{{id}}.", error.details
        ) from None


def _statuses(words: str | None) -> tuple[Status, ...]:
    if words is None:
        return ()
    wanted = {word.strip() for word in words.split(",")}
    allowed = sorted(set(STATUS_WORDS.values()))
    if not wanted <= set(allowed):
        raise invalid_query(
            "status", f"expected one or more of {', '.join(allowed)}, separated by commas"
        )
    return tuple(status for status, word in STATUS_WORDS.items() if word in wanted)


def not_active(session: Session) -> Conflict:
    """Return the error for a prompt to a session that has ended."""
    word = STATUS_WORDS[session.status]
    remedy = "fork it" if word == "error" else "resume it"
    return Conflict(
        Code.SESSION_NOT_ACTIVE,
        f"The session is {word} and accepts no prompts; {remedy} to continue.",
        {"status": word},
    )


ROUTES: Final = (
    Route(
        method="POST",
        path="/api/sessions",
        name="api.sessions.open",
        handler=open_session,
        needs=Scope.WRITE,
        body=AgentSessionPost,
        examples={"body": {"repoId": "019b7ca9-8f2e-7666-8aaa-000000000006", "title": "Sums"}},
        responses={200: AgentSession, 201: AgentSession},
        response_headers={200: ("location",), 201: ("location",)},
        error_codes=(
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
        handler=list_sessions,
        needs=Scope.READ,
        is_large=True,
        query=AgentSessionsQuery,
        responses={200: AgentSessionList},
        error_codes=(Code.SESSION_NOT_FOUND,),
        tolerant=True,
    ),
    Route(
        method="GET",
        path="/api/sessions/{id}",
        name="api.sessions.read",
        handler=read_session,
        needs=Scope.READ,
        is_large=True,
        responses={200: AgentSessionDetails, 304: None},
        response_headers={200: ("etag",), 304: ("etag",)},
        error_codes=(Code.SESSION_NOT_FOUND,),
        tolerant=True,
    ),
    Route(
        method="POST",
        path="/api/sessions/{id}/prompt",
        name="api.sessions.prompt",
        handler=prompt,
        needs=Scope.WRITE,
        body=PromptPost,
        examples={"body": {"text": "How much is 2+2?"}},
        responses={202: PromptAccepted},
        error_codes=(
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
        handler=complete,
        needs=Scope.WRITE,
        responses={200: AgentSession},
        error_codes=(Code.SESSION_NOT_FOUND,),
        tolerant=True,
    ),
    Route(
        method="DELETE",
        path="/api/sessions/{id}",
        name="api.sessions.cancel",
        handler=cancel,
        needs=Scope.WRITE,
        responses={200: AgentSession},
        error_codes=(Code.SESSION_NOT_FOUND,),
        tolerant=True,
    ),
)
API_ROUTES: Final[tuple[Route, ...]] = (*repos.ROUTES, *ROUTES, *messages.ROUTES)
