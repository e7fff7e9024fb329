"""Routes of `/api`: repositories, sessions bound to one, and their messages.

Messages are an array of rows, by number or by time, ending with the one that is still streaming.
"""

import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from msgspec import UnsetType

from holdfast.domain.errors import Code, Conflict, LimitReached, NotFound
from holdfast.domain.ids import RepoId, SessionId, is_uuid
from holdfast.domain.queries import SessionQuery
from holdfast.domain.sessions import Session, SessionRequest, Status
from holdfast.domain.time import EPOCH
from holdfast.domain.tokens import Scope
from holdfast.http.bodies import PAGE_BYTES, encode_members, respond_in_pieces, stream_json_array
from holdfast.http.responses import Response, StreamResponse, encode_json, etag_of
from holdfast.http.routing import NoQuery, RouteRequest, Routes, cacheable
from holdfast.services.batches import BATCH_ROWS
from holdfast.services.journal import session_not_found
from holdfast.services.messages import MessageExcerpt, UnfinishedAnswer
from holdfast.wire.errors import invalid_query
from holdfast.wire.repo_sessions import (
    STATUS_WORDS,
    AgentMessage,
    AgentMessagesQuery,
    AgentSession,
    AgentSessionDetails,
    AgentSessionList,
    AgentSessionPost,
    AgentSessionsQuery,
    PromptAccepted,
    PromptPost,
    RepoForm,
    RepoList,
    RepoPost,
    build_agent_messages,
    partial_row,
    repo_form,
    session_form,
    whole_form,
)

USER_REQUEST: Final = "user_request"
_MILLISECONDS: Final = re.compile(r"[0-9]{1,15}")
# RFC 3339: letters in either case, and always an offset.
_TIME: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt]([0-9]{2}:[0-9]{2}):([0-9]{2})(\.[0-9]+)?"
    r"([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
Rows = AsyncGenerator[list[AgentMessage], None]
routes: Final = Routes(tolerant=True)


@routes.post(
    "/api/repos",
    "api.repos.add",
    {200: RepoForm, 201: RepoForm},
    needs=Scope.ADMIN,
    example={"path": "/srv/work/sums", "name": "Sums"},
    errors=(Code.REPO_INVALID, Code.REPO_OUTSIDE_ROOT, Code.WORKSPACE_ROOT_UNSET),
)
async def add_repo(request: RouteRequest[NoQuery, RepoPost]) -> Response:
    """Register a repository."""
    created = await request.holdfast.repos.make(
        request.owner, request.body.path, name=request.body.name
    )
    return Response(status=201 if created.is_new else 200, content=repo_form(created.value))


@routes.get("/api/repos", "api.repos.list", RepoList)
async def list_repos(request: RouteRequest[NoQuery, None]) -> Response:
    """List the repositories, by name."""
    found = await request.holdfast.repos.list(request.owner)
    return Response(content=RepoList(tuple(map(repo_form, found))))


@routes.add(
    "DELETE",
    "/api/repos/{id}",
    "api.repos.remove",
    needs=Scope.ADMIN,
    errors=(Code.REPO_NOT_FOUND, Code.REPO_IN_USE),
)
async def remove_repo(request: RouteRequest[NoQuery, None]) -> Response:
    """Unregister a repository that no session is bound to."""
    if not is_uuid(request.path["id"]):
        raise repo_not_found()
    await request.holdfast.repos.remove(request.owner, request.path["id"])
    return Response(status=204)


def repo_not_found() -> NotFound:
    """Return the error for a repository that does not exist."""
    return NotFound(Code.REPO_NOT_FOUND, "There is no such repository; GET /api/repos lists yours.")


@routes.post(
    "/api/sessions",
    "api.sessions.open",
    {200: AgentSession, 201: AgentSession},
    example={"repoId": "019b7ca9-8f2e-7666-8aaa-000000000006", "title": "Sums"},
    response_headers={200: ("location",), 201: ("location",)},
    errors=(
        Code.REPO_NOT_FOUND,
        Code.REPO_OUTSIDE_ROOT,
        Code.WORKSPACE_ROOT_UNSET,
        Code.AGENT_NOT_FOUND,
        Code.AGENT_ARCHIVED,
        Code.AGENT_UNAVAILABLE,
        Code.ID_REUSED,
        Code.SESSION_LIMIT,
    ),
)
async def open_session(request: RouteRequest[NoQuery, AgentSessionPost]) -> Response:
    """Open a session in a repository."""
    body, repo_id = request.body, RepoId(request.body.repo_id.lower())
    if not is_uuid(repo_id):
        raise repo_not_found()
    known = await _find_repeat(request, repo_id)
    if known is not None:
        return _created_response(known, is_new=False)
    agent = body.agent_id or (await request.holdfast.agents.in_repositories(request.owner)).id
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
    return _created_response(created.value, is_new=created.is_new)


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


@routes.get(
    "/api/sessions",
    "api.sessions.list",
    AgentSessionList,
    is_large=True,
    errors=(Code.SESSION_NOT_FOUND,),
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


@routes.get(
    "/api/sessions/{id}",
    "api.sessions.read",
    **cacheable(AgentSessionDetails),
    is_large=True,
    errors=(Code.SESSION_NOT_FOUND,),
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
    pieces = stream_json_array(encoded_rows(request, rows), start=start, end=lambda: b"]}")
    tag = etag_of([form.decode(), whole.chain, whole.unfinished])
    return await respond_in_pieces(request, pieces, tag=tag)


@routes.post(
    "/api/sessions/{id}/prompt",
    "api.sessions.prompt",
    {202: PromptAccepted},
    example={"text": "How much is 2+2?"},
    errors=(
        Code.SESSION_NOT_FOUND,
        Code.SESSION_NOT_ACTIVE,
        Code.MESSAGE_EMPTY,
        Code.MESSAGE_TOO_LARGE,
        Code.MESSAGE_ID_REUSED,
        Code.TURN_RUNNING,
    ),
)
async def prompt(request: RouteRequest[NoQuery, PromptPost]) -> Response:
    """Store a prompt; its turn runs after the response."""
    session = await _require_repo_session(request, request.path["id"])
    body, send = request.body, request.holdfast.messages.send_idempotent
    try:
        created = await send(request.owner, session.id, body.text, id=body.id, on_busy=body.on_busy)
    except Conflict as error:
        if error.code not in (Code.SESSION_CLOSED, Code.SESSION_FAILED):
            raise
        # Read again, because it may have ended after the first read (race).
        raise not_active(await request.holdfast.sessions.get(request.owner, session.id)) from None
    message = created.value
    return Response(
        status=202,
        content=PromptAccepted(message_id=message.id, sequence=message.sequence, turn=message.turn),
    )


@routes.post(
    "/api/sessions/{id}/complete",
    "api.sessions.complete",
    AgentSession,
    errors=(Code.SESSION_NOT_FOUND,),
)
async def complete(request: RouteRequest[NoQuery, None]) -> Response:
    """End a session gracefully."""
    return await _close(request, Status.COMPLETED)


@routes.add(
    "DELETE",
    "/api/sessions/{id}",
    "api.sessions.cancel",
    AgentSession,
    errors=(Code.SESSION_NOT_FOUND,),
)
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


@routes.get(
    "/api/sessions/{id}/messages",
    "api.sessions.messages",
    {200: tuple[AgentMessage, ...]},
    is_large=True,
    response_headers={200: ("x-next-after",)},
    errors=(Code.SESSION_NOT_FOUND, Code.CURSOR_AHEAD),
)
async def list_messages(
    request: RouteRequest[AgentMessagesQuery, None],
) -> Response | StreamResponse:
    """Return the messages that a reader has not received yet."""
    query = request.query
    session = await _require_repo_session(request, request.path["id"])
    session_id, after = session.id, 0 if isinstance(query.after, UnsetType) else query.after
    if after > session.message_count:
        raise Conflict(
            Code.CURSOR_AHEAD,
            f"The session has messages up to {session.message_count}, but the cursor is "
            f"{after}; read again from a lower number.",
            {"head": session.message_count},
        )
    if not isinstance(query.after, UnsetType) and query.since is not None:
        raise invalid_query("since", "send since or after, not both")
    start = after if query.since is None else _instant(query.since)
    # A row takes at most two messages, except for messages that show nothing.
    most = BATCH_ROWS if query.limit is None else 2 * query.limit + 2
    excerpts, unfinished = await request.holdfast.messages.excerpts(
        request.owner, session_id, after=start, limit=most
    )
    rows = message_rows(session_id, excerpts, unfinished if query.partial else None)
    if query.limit is None:
        return await respond_in_pieces(request, stream_json_array(encoded_rows(request, rows)))
    return await _page(request, rows, query.limit)


async def encoded_rows(request: RouteRequest[Any, Any], rows: Rows) -> AsyncGenerator[bytes, None]:
    """Yield rows as members of a JSON array."""
    async with aclosing(rows):
        async for batch in rows:
            yield await encode_members(request.response_budget, batch)


async def _page(request: RouteRequest[Any, Any], rows: Rows, limit: int) -> Response:
    """Return at most `limit` rows, or as many as fit into one response."""
    found: list[AgentMessage] = []
    size = 0
    async with aclosing(rows):
        async for batch in rows:
            if size > PAGE_BYTES and batch:
                limit = min(limit, len(found))
            found += batch
            if len(found) > limit:
                page = found[:limit]
                return Response(content=page, headers={"x-next-after": str(page[-1].sequence)})
            size += len(await encode_members(request.response_budget, batch))
    return Response(content=found)


async def message_rows(
    session_id: SessionId,
    excerpts: AsyncGenerator[MessageExcerpt, None],
    unfinished: UnfinishedAnswer | None,
) -> Rows:
    """Yield messages as rows, batch by batch, and last the one that is still streaming."""
    growing = None if unfinished is None else partial_row(session_id, unfinished)
    async with aclosing(excerpts):
        async for part in excerpts:
            rows = build_agent_messages(
                session_id, (*part.calls, *part.rows), without=part.answered
            )
            # The streaming message may have been stored since, and be among the rows.
            if growing is not None and any(row.id == growing.id for row in rows):
                growing = None
            yield rows
    if growing is not None:
        yield [growing]


def _instant(text: str) -> datetime:
    try:
        if _MILLISECONDS.fullmatch(text):
            return EPOCH + timedelta(milliseconds=int(text))
        # An unescaped plus sign in a query is decoded as a space.
        written = _TIME.fullmatch(text.replace(" ", "+"))
        if written is None:
            raise ValueError
        day, minute, second, fraction, offset = written.groups(default="")
        # A leap second is treated as the end of its minute.
        leap = timedelta(seconds=1) if second == "60" else timedelta(0)
        shown = f"{day}T{minute}:{'59' if leap else second}{fraction[:7]}{offset.upper()}"
        return (datetime.fromisoformat(shown) + leap).astimezone(UTC)
    except (ValueError, OverflowError):
        raise invalid_query(
            "since", "expected a time with its offset, or Unix milliseconds"
        ) from None
