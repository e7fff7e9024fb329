"""Routes of sessions and of their children: create, read, change, delete, and lifecycle actions.

Messages and events of a session have modules of their own.
"""

from contextlib import suppress
from typing import Any, Final

from msgspec.structs import replace

from holdfast.domain.errors import Code, NotFound
from holdfast.domain.ids import AgentId, SessionId
from holdfast.domain.queries import SessionQuery
from holdfast.domain.sessions import Session, Status
from holdfast.http.bodies import respond_in_pieces
from holdfast.http.requests import run_until
from holdfast.http.responses import Response, StreamResponse, etag_of, require_etag_match
from holdfast.http.routing import (
    NoQuery,
    RouteRequest,
    Routes,
    cacheable,
    requested_session,
)
from holdfast.http.v1.idempotency import chosen_id, created_response, creates
from holdfast.services.session_lifecycle import DeletePolicy
from holdfast.wire.agents import definitions_of
from holdfast.wire.errors import as_query_errors, invalid_query
from holdfast.wire.messages import export_line
from holdfast.wire.session_actions import (
    ChildPost,
    ChildrenQuery,
    ClosePost,
    Compacted,
    CompactPost,
    DeletionQuery,
    Exported,
    ExportPost,
    ExportQuery,
    ForkPost,
    Interrupted,
    InterruptPost,
    Resumed,
    ResumePost,
    SessionsQuery,
    ToolsPost,
    Verified,
    child_request,
    fork_request,
    resumed_form,
    states_of,
    status_filters,
    verified_form,
)
from holdfast.wire.sessions import (
    ContextForm,
    SessionForm,
    SessionList,
    SessionPatch,
    SessionPost,
    changes_of,
    context_of,
    session_form,
    session_request,
)

# Errors of every request that sets session options.
_OPEN_ERRORS: Final = (Code.INVALID_INPUT, Code.MODEL_NOT_FOUND)

routes: Final = Routes()
child_routes: Final = Routes()


@routes.post(
    "/v1/agents/{agent_id}/sessions",
    "sessions.open",
    **creates(SessionForm),
    body_may_be_missing=True,
    errors=(
        *_OPEN_ERRORS,
        Code.AGENT_ARCHIVED,
        Code.AGENT_INVALID,
        Code.GRANT_EXCEEDED,
        Code.ID_REUSED,
        Code.INVALID_CONTEXT,
        Code.REPO_NOT_FOUND,
        Code.REPO_OUTSIDE_ROOT,
        Code.REPO_REQUIRED,
        Code.SECRET_IN_VARIABLES,
        Code.SESSION_LIMIT,
        Code.TOOL_INVALID,
        Code.TOOL_NAME_TAKEN,
        Code.UNKNOWN_TOOL,
        Code.WORKSPACE_ROOT_UNSET,
    ),
    example={"title": "Sums", "tags": ["demo"]},
)
async def open_session(request: RouteRequest[NoQuery, SessionPost]) -> Response:
    """Open a session with an agent."""
    id_ = chosen_id(request)
    context = await resolve_context(request, request.body.context)
    session_options = session_request(replace(request.body, context=context))
    agent = request.path["agent_id"]
    new = await request.holdfast.sessions.make(
        request.owner,
        agent,
        session_options,
        id=id_,
        functions=definitions_of(request.body.tools),
    )
    return await session_created(request, new.value, is_new=new.is_new)


async def session_created(
    request: RouteRequest[Any, Any], session: Session, *, is_new: bool
) -> Response:
    """Return the response to a request that creates a session."""
    form = session_form(await request.holdfast.session_views.get(request.owner, session.id))
    location = f"/v1/agents/{form.agent_id}/sessions/{form.id}"
    return created_response(form, is_new=is_new, location=location)


async def resolve_context(
    request: RouteRequest[Any, Any], context: ContextForm | None
) -> ContextForm | None:
    """Return a workspace with its resolved folder; refuse one that a client may not name."""
    if context is None:
        return None
    folder = await request.holdfast.repos.require_folder(request.owner, context.working_dir)
    return replace(context, working_dir=folder)


@routes.post(
    "{session}/tools",
    "sessions.add_tools",
    SessionForm,
    errors=(
        Code.AGENT_INVALID,
        Code.INVALID_INPUT,
        Code.SESSION_CLOSED,
        Code.SESSION_FAILED,
        Code.TOOL_INVALID,
        Code.TOOL_NAME_TAKEN,
    ),
    example={
        "tools": [{"name": "refund", "description": "Refund.", "parameters": {"type": "object"}}]
    },
)
async def add_tools(request: RouteRequest[NoQuery, ToolsPost]) -> Response:
    """Add tools that a client runs to a session, with a notice; those it has stay as they are."""
    session_id = await requested_session(request)
    tools = definitions_of(request.body.tools)
    await request.holdfast.sessions.add_functions(request.owner, session_id, tools)
    found = await request.holdfast.session_views.get(request.owner, session_id)
    return Response(content=session_form(found))


@routes.get("/v1/agents/{agent_id}/sessions", "sessions.list_of_agent", SessionList, is_large=True)
async def list_agent_sessions(request: RouteRequest[SessionsQuery, None]) -> Response:
    """List the sessions of an agent, newest first."""
    agent = await request.holdfast.agents.get(request.owner, request.path["agent_id"])
    return await _list(request, agent.id)


@routes.get("/v1/sessions", "sessions.list", SessionList, is_large=True)
async def list_sessions(request: RouteRequest[SessionsQuery, None]) -> Response:
    """List the sessions of all agents, newest first."""
    return await _list(request, None)


async def _list(request: RouteRequest[SessionsQuery, None], agent_id: AgentId | None) -> Response:
    query = request.query
    if query.begins is not None:
        return await _find_by_prefix(request, query.begins)
    parent = query.forked_from
    wanted = SessionQuery(
        owner=request.owner,
        agent_id=agent_id,
        statuses=states_of(query.state),
        status_filters=status_filters(query.status),
        tags=query.tag,
        text=query.q,
        forked_from=SessionId(parent.lower()) if parent else None,
        parent=SessionId(query.parent.lower()) if query.parent else None,
        order=query.order,
        limit=query.limit,
    )
    with as_query_errors():
        page = await request.holdfast.session_views.list(wanted, cursor=query.cursor)
    return Response(content=SessionList(tuple(map(session_form, page.items)), page.next_cursor))


async def _find_by_prefix(request: RouteRequest[SessionsQuery, None], text: str) -> Response:
    """List the sessions whose ids begin with a prefix; other filters are ignored."""
    ids = await request.holdfast.sessions.find(request.owner, text, limit=request.query.limit)
    found = []
    for each in ids:
        # Skip a session that was deleted after it was found (race).
        with suppress(NotFound):
            found.append(await request.holdfast.session_views.get(request.owner, each))
    return Response(content=SessionList(tuple(map(session_form, found)), None))


@routes.get("{session}", "sessions.read", **cacheable(SessionForm))
async def read_session(request: RouteRequest[NoQuery, None]) -> Response:
    """Return a session; its messages have a separate path."""
    return await session_response(request, await requested_session(request))


async def session_response(request: RouteRequest[Any, Any], session_id: SessionId) -> Response:
    """Return the response that shows a session as it is now."""
    overview = await request.holdfast.session_views.get(request.owner, session_id)
    return Response(content=session_form(overview), has_etag=True)


@routes.add(
    "PATCH",
    "{session}",
    "sessions.change",
    SessionForm,
    response_headers={200: ("etag",)},
    errors=(*_OPEN_ERRORS, Code.STALE_ETAG),
    example={"title": "Better sums"},
)
async def change_session(request: RouteRequest[NoQuery, SessionPatch]) -> Response:
    """Change a session; a new model applies from the next turn on."""
    session_id = await requested_session(request)
    changes = changes_of(request.body)
    update = request.holdfast.sessions.update
    if "if-match" in request.headers:
        seen = await request.holdfast.session_views.get(request.owner, session_id)
        require_etag_match(request.headers, session_form(seen))
        # Checked again inside the write transaction, because it may have changed since (TOCTOU).
        await update(request.owner, session_id, changes, expected=lambda now: now == seen.session)
    else:
        await update(request.owner, session_id, changes)
    return await session_response(request, session_id)


@routes.add(
    "DELETE",
    "{session}",
    "sessions.delete",
    errors=(Code.SESSION_HAS_CHILDREN, Code.SESSION_HAS_FORKS),
)
async def delete_session(request: RouteRequest[DeletionQuery, None]) -> Response:
    """Delete a session with its messages and events; a running turn is stopped."""
    session_id = await requested_session(request)
    if request.query.cascade and request.query.detach:
        raise invalid_query("detach", "send cascade or detach, not both")
    policy = DeletePolicy.CASCADE if request.query.cascade else DeletePolicy.REFUSE
    policy = DeletePolicy.DETACH if request.query.detach else policy
    await request.holdfast.sessions.delete(request.owner, session_id, policy=policy)
    return Response(status=204)


@routes.post(
    "{session}/interrupt",
    "sessions.interrupt",
    {200: Interrupted, 202: Interrupted},
    body_may_be_missing=True,
    example={"reason": "enough"},
)
async def interrupt_session(request: RouteRequest[NoQuery, InterruptPost]) -> Response:
    """Stop the running turn; streamed text is stored, and the session stays open."""
    session_id = await requested_session(request)
    body = request.body
    done = await request.holdfast.sessions.interrupt(
        request.owner, session_id, turn=body.turn, reason=body.reason
    )
    form = session_form(await request.holdfast.session_views.get(request.owner, session_id))
    result = Interrupted(session=form, interrupted=done.turn is not None, turn=done.turn)
    return Response(status=200 if done.is_settled else 202, content=result)


@routes.post(
    "{session}/close",
    "sessions.close",
    SessionForm,
    body_may_be_missing=True,
    response_headers={200: ("etag",)},
    example={"as": "completed", "reason": "done"},
)
async def close_session(request: RouteRequest[NoQuery, ClosePost]) -> Response:
    """Close a session as completed or cancelled; a running turn is stopped."""
    session_id = await requested_session(request)
    ending = Status(request.body.ending)
    await request.holdfast.sessions.close(
        request.owner, session_id, status=ending, reason=request.body.reason
    )
    return await session_response(request, session_id)


@routes.post(
    "{session}/resume",
    "sessions.resume",
    Resumed,
    body_may_be_missing=True,
    example={},
    response_headers={200: ("etag",)},
    errors=(
        Code.INVALID_CONTEXT,
        Code.REPO_OUTSIDE_ROOT,
        Code.SESSION_FAILED,
        Code.SESSION_LIMIT,
        Code.WORKSPACE_ROOT_UNSET,
    ),
)
async def resume_session(request: RouteRequest[NoQuery, ResumePost]) -> Response:
    """Reopen a closed session; no effect on an open one."""
    session_id = await requested_session(request)
    given = await resolve_context(request, request.body.context)
    context = None if given is None else context_of(given)
    done = await request.holdfast.sessions.resume(request.owner, session_id, context=context)
    overview = await request.holdfast.session_views.get(request.owner, session_id)
    form, result = session_form(overview), resumed_form(overview, done.turns_left)
    # The ETag of the session itself, because `If-Match` is compared with that.
    return Response(content=result, headers={"etag": etag_of(form)})


@routes.post(
    "{session}/compact",
    "sessions.compact",
    Compacted,
    body_may_be_missing=True,
    errors=(Code.TURN_RUNNING,),
)
async def compact_session(request: RouteRequest[NoQuery, CompactPost]) -> Response:
    """Compact a session: summarize the messages before the last answer; no message is changed."""
    session_id = await requested_session(request)
    is_folded = await request.holdfast.compactions.compact(request.owner, session_id)
    form = session_form(await request.holdfast.session_views.get(request.owner, session_id))
    return Response(content=Compacted(compacted=is_folded, session=form))


@routes.post(
    "{session}/fork",
    "sessions.fork",
    **creates(SessionForm),
    body_may_be_missing=True,
    errors=(
        Code.AGENT_ARCHIVED,
        Code.AGENT_NOT_FOUND,
        Code.GRANT_EXCEEDED,
        Code.ID_REUSED,
        Code.MESSAGE_NOT_FOUND,
        Code.MODEL_NOT_FOUND,
        Code.SESSION_LIMIT,
    ),
    example={"at": 4, "title": "Another way"},
)
async def fork_session(request: RouteRequest[NoQuery, ForkPost]) -> Response:
    """Open a session that continues from a message of this one; nothing is copied."""
    session_id = await requested_session(request)
    id_, wanted = chosen_id(request), fork_request(request.body)
    new = await request.holdfast.sessions.make_fork(request.owner, session_id, wanted, id=id_)
    return await session_created(request, new.value, is_new=new.is_new)


@routes.get("{session}/verify", "sessions.verify", Verified)
async def verify_session(request: RouteRequest[NoQuery, None]) -> Response:
    """Verify the hash chain of a session's messages."""
    session_id = await requested_session(request)
    verification = request.holdfast.sessions.verify(request.owner, session_id)
    return Response(content=verified_form(await run_until(request.disconnected, verification)))


@routes.get(
    "{session}/export",
    "sessions.export",
    bytes,
    is_large=True,
    response_headers={200: ("content-disposition",)},
    media_type="application/x-ndjson",
    other_media_types=("text/markdown", "application/yaml"),
    errors=(Code.MESSAGE_NOT_FOUND, Code.WORKFLOW_TOO_LARGE),
)
async def export_session(request: RouteRequest[ExportQuery, None]) -> Response | StreamResponse:
    """Export a session: as JSON lines, as Markdown, or as a workflow."""
    session_id = await requested_session(request)
    query = request.query
    # Each line has the same JSON as reading the message over this API.
    line = export_line(session_id)
    file = await request.holdfast.exports.stream(
        request.owner, session_id, query.format, through=query.through, line=line
    )
    named = {"content-disposition": f'attachment; filename="{file.file_name}"'}
    return await respond_in_pieces(
        request, file.pieces, Response(media_type=file.media_type, headers=named)
    )


@routes.post(
    "{session}/export",
    "sessions.exported",
    Exported,
    example={"target": "plan.relavium.yaml"},
)
async def note_export(request: RouteRequest[NoQuery, ExportPost]) -> Response:
    """Record where a session's workflow was written to."""
    session_id = await requested_session(request)
    event = await request.holdfast.exports.record(request.owner, session_id, request.body.target)
    return Response(content=Exported(target=request.body.target, sequence=event.sequence))


@child_routes.post(
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


@child_routes.get("{session}/children", "sessions.children", SessionList, is_large=True)
async def list_children(request: RouteRequest[ChildrenQuery, None]) -> Response:
    """List the sessions that this one has opened, newest first."""
    parent, asked = await requested_session(request), request.query
    query = SessionQuery(owner=request.owner, parent=parent, limit=asked.limit)
    with as_query_errors():
        page = await request.holdfast.session_views.list(query, cursor=asked.cursor)
    return Response(content=SessionList(tuple(map(session_form, page.items)), page.next_cursor))


@child_routes.get("{session}/tree", "sessions.tree", SessionList, is_large=True)
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
