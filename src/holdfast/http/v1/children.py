"""Routes of children: the sessions that a session has opened."""

from contextlib import suppress
from typing import Final

from holdfast.domain.errors import Code, NotFound
from holdfast.domain.queries import SessionQuery
from holdfast.http.responses import Response
from holdfast.http.routing import NoQuery, RouteRequest, Routes, requested_session
from holdfast.http.v1.idempotency import chosen_id, creates
from holdfast.http.v1.sessions import session_created
from holdfast.wire.errors import as_query_errors
from holdfast.wire.session_actions import ChildPost, ChildrenQuery, child_request
from holdfast.wire.sessions import SessionForm, SessionList, session_form

routes: Final = Routes()


@routes.post(
    "{session}/children",
    "sessions.spawn",
    **creates(SessionForm),
    errors=(
        Code.AGENT_ARCHIVED,
        Code.AGENT_NOT_FOUND,
        Code.CHILD_LIMIT,
        Code.GRANT_EXCEEDED,
        Code.ID_REUSED,
        Code.INVALID_INPUT,
        Code.MESSAGE_EMPTY,
        Code.MESSAGE_INVALID,
        Code.MESSAGE_TOO_LARGE,
        Code.REPO_REQUIRED,
        Code.SESSION_CLOSED,
        Code.SESSION_FAILED,
        Code.SESSION_LIMIT,
        Code.UNKNOWN_TOOL,
    ),
    example={"agent": "holdfast", "task": "Add 2 and 2."},
)
async def spawn_child(request: RouteRequest[NoQuery, ChildPost]) -> Response:
    """Open a session for a task of this one; its powers lie within those of this one."""
    session_id = await requested_session(request)
    new = await request.holdfast.children.spawn_idempotent(
        request.owner, session_id, child_request(request.body), id=chosen_id(request)
    )
    return await session_created(request, new.value, is_new=new.is_new)


@routes.get("{session}/children", "sessions.children", SessionList, is_large=True)
async def list_children(request: RouteRequest[ChildrenQuery, None]) -> Response:
    """List the sessions that this one has opened, newest first."""
    parent, asked = await requested_session(request), request.query
    query = SessionQuery(owner=request.owner, parent=parent, limit=asked.limit)
    with as_query_errors():
        page = await request.holdfast.session_views.list(query, cursor=asked.cursor)
    return Response(content=SessionList(tuple(map(session_form, page.items)), page.next_cursor))


@routes.get("{session}/tree", "sessions.tree", SessionList, is_large=True)
async def show_tree(request: RouteRequest[NoQuery, None]) -> Response:
    """List this session and all below it, each parent before its children, oldest first."""
    session_id = await requested_session(request)
    forms = []
    for each in await request.holdfast.children.ids(request.owner, session_id):
        # One that was deleted since is left out (race).
        with suppress(NotFound):
            forms.append(
                session_form(await request.holdfast.session_views.get(request.owner, each))
            )
    return Response(content=SessionList(tuple(forms), None))
