"""Routes of sessions: create, read, change, delete, and lifecycle actions.

Messages and events of a session have modules of their own.
"""

from contextlib import suppress
from typing import Any, Final

from msgspec.structs import replace

from holdfast.domain.errors import Code, NotFound
from holdfast.domain.ids import AgentId, SessionId
from holdfast.domain.queries import SessionQuery
from holdfast.domain.sessions import Session, Status
from holdfast.domain.tokens import Scope
from holdfast.http.bodies import in_pieces
from holdfast.http.responses import Response, StreamResponse, etag_of, require_etag_match
from holdfast.http.routing import (
    NoQuery,
    Route,
    RouteRequest,
    requested_session,
    session_routes,
)
from holdfast.http.v1.idempotency import CREATED_HEADERS, chosen_id, created_response
from holdfast.services.session_lifecycle import DeletePolicy
from holdfast.wire.errors import as_query_errors, invalid_query
from holdfast.wire.messages import export_line
from holdfast.wire.session_actions import (
    ClosePost,
    Compacted,
    CompactPost,
    Exported,
    ExportPost,
    ExportQuery,
    ForkPost,
    Interrupted,
    InterruptPost,
    Resumed,
    ResumePost,
    Verified,
    fork_request,
    resumed_form,
    verified_form,
)
from holdfast.wire.sessions import (
    ContextForm,
    DeletionQuery,
    SessionForm,
    SessionList,
    SessionPatch,
    SessionPost,
    SessionsQuery,
    changes_of,
    context_of,
    session_form,
    session_request,
    states_of,
    status_filters,
)

# Errors of every request that sets session options.
_OPEN_ERRORS: Final = (Code.INVALID_INPUT, Code.INVALID_TEXT, Code.MODEL_NOT_FOUND)


async def open_session(request: RouteRequest[NoQuery, SessionPost]) -> Response:
    """Open a session with an agent."""
    id_ = chosen_id(request)
    context = await resolve_context(request, request.body.context)
    session_options = session_request(replace(request.body, context=context))
    agent = request.path["agent_id"]
    # Built-in agents are created on first use, so that clients need not create them.
    await request.holdfast.agents.seed(request.owner, agent)
    new = await request.holdfast.sessions.make(request.owner, agent, session_options, id=id_)
    return await session_created(request, new.thing, is_new=new.is_new)


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


async def list_agent_sessions(request: RouteRequest[SessionsQuery, None]) -> Response:
    """List the sessions of an agent, newest first."""
    agent = await request.holdfast.agents.get(request.owner, request.path["agent_id"])
    return await _list(request, agent.id)


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


async def read_session(request: RouteRequest[NoQuery, None]) -> Response:
    """Return a session; its messages have a separate path."""
    return await session_response(request, await requested_session(request))


async def session_response(request: RouteRequest[Any, Any], session_id: SessionId) -> Response:
    """Return the response that shows a session as it is now."""
    overview = await request.holdfast.session_views.get(request.owner, session_id)
    return Response(content=session_form(overview), has_etag=True)


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


async def delete_session(request: RouteRequest[DeletionQuery, None]) -> Response:
    """Delete a session with its messages and events; a running turn is stopped."""
    session_id = await requested_session(request)
    if request.query.cascade and request.query.detach:
        raise invalid_query("detach", "send cascade or detach, not both")
    policy = DeletePolicy.CASCADE if request.query.cascade else DeletePolicy.REFUSE
    policy = DeletePolicy.DETACH if request.query.detach else policy
    await request.holdfast.sessions.delete(request.owner, session_id, policy=policy)
    return Response(status=204)


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="POST",
        path="/v1/agents/{agent_id}/sessions",
        name="sessions.open",
        handler=open_session,
        needs=Scope.WRITE,
        body=SessionPost,
        body_may_be_missing=True,
        responses={201: SessionForm, 200: SessionForm},
        response_headers=CREATED_HEADERS,
        error_codes=(
            *_OPEN_ERRORS,
            Code.AGENT_ARCHIVED,
            Code.AGENT_INVALID,
            Code.AGENT_NOT_FOUND,
            Code.GRANT_EXCEEDED,
            Code.ID_REUSED,
            Code.INVALID_CONTEXT,
            Code.REPO_NOT_FOUND,
            Code.REPO_OUTSIDE_ROOT,
            Code.REPO_REQUIRED,
            Code.SECRET_IN_VARIABLES,
            Code.SESSION_LIMIT,
            Code.UNKNOWN_TOOL,
            Code.WORKSPACE_ROOT_UNSET,
        ),
        examples={"body": {"title": "Sums", "tags": ["demo"]}},
    ),
    Route(
        method="GET",
        path="/v1/agents/{agent_id}/sessions",
        name="sessions.list_of_agent",
        handler=list_agent_sessions,
        needs=Scope.READ,
        is_large=True,
        query=SessionsQuery,
        responses={200: SessionList},
        error_codes=(Code.AGENT_NOT_FOUND,),
    ),
    Route(
        method="GET",
        path="/v1/sessions",
        name="sessions.list",
        handler=list_sessions,
        needs=Scope.READ,
        is_large=True,
        query=SessionsQuery,
        responses={200: SessionList},
    ),
    *session_routes(
        Route(
            method="GET",
            path="",
            name="sessions.read",
            handler=read_session,
            needs=Scope.READ,
            responses={200: SessionForm, 304: None},
            response_headers={200: ("etag",), 304: ("etag",)},
            error_codes=(Code.SESSION_NOT_FOUND,),
        )
    ),
    *session_routes(
        Route(
            method="PATCH",
            path="",
            name="sessions.change",
            handler=change_session,
            needs=Scope.WRITE,
            body=SessionPatch,
            responses={200: SessionForm},
            response_headers={200: ("etag",)},
            error_codes=(*_OPEN_ERRORS, Code.SESSION_NOT_FOUND, Code.STALE_ETAG),
            examples={"body": {"title": "Better sums"}},
        )
    ),
    *session_routes(
        Route(
            method="DELETE",
            path="",
            name="sessions.delete",
            handler=delete_session,
            needs=Scope.WRITE,
            query=DeletionQuery,
            responses={204: None},
            error_codes=(Code.SESSION_HAS_FORKS, Code.SESSION_NOT_FOUND),
        )
    ),
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


async def close_session(request: RouteRequest[NoQuery, ClosePost]) -> Response:
    """Close a session as completed or cancelled; a running turn is stopped."""
    session_id = await requested_session(request)
    ending = Status(request.body.ending)
    await request.holdfast.sessions.close(
        request.owner, session_id, status=ending, reason=request.body.reason
    )
    return await session_response(request, session_id)


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


async def compact_session(request: RouteRequest[NoQuery, CompactPost]) -> Response:
    """Compact a session: summarize the messages before the last answer; no message is changed."""
    session_id = await requested_session(request)
    is_folded = await request.holdfast.compactions.compact(request.owner, session_id)
    form = session_form(await request.holdfast.session_views.get(request.owner, session_id))
    return Response(content=Compacted(compacted=is_folded, session=form))


async def verify_session(request: RouteRequest[NoQuery, None]) -> Response:
    """Verify the hash chain of a session's messages."""
    found = await request.holdfast.sessions.verify(request.owner, await requested_session(request))
    return Response(content=verified_form(found))


async def fork_session(request: RouteRequest[NoQuery, ForkPost]) -> Response:
    """Open a session that continues from a message of this one; nothing is copied."""
    session_id = await requested_session(request)
    id_ = chosen_id(request)
    new = await request.holdfast.sessions.make_fork(
        request.owner, session_id, fork_request(request.body), id=id_
    )
    return await session_created(request, new.thing, is_new=new.is_new)


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
    return await in_pieces(
        request, file.pieces, Response(media_type=file.media_type, headers=named)
    )


async def note_export(request: RouteRequest[NoQuery, ExportPost]) -> Response:
    """Record where a session's workflow was written to."""
    session_id = await requested_session(request)
    event = await request.holdfast.exports.record(request.owner, session_id, request.body.target)
    return Response(content=Exported(target=request.body.target, sequence=event.sequence))


def _lifecycle_routes(verb: str, handler: Any, **rest: Any) -> tuple[Route, Route]:
    """Return the routes of an action whose body is small and optional."""
    return session_routes(
        Route(
            method="POST",
            path=f"/{verb}",
            name=f"sessions.{verb}",
            handler=handler,
            needs=Scope.WRITE,
            body_may_be_missing=True,
            **rest,
        )
    )


LIFECYCLE_ROUTES: Final[tuple[Route, ...]] = (
    *_lifecycle_routes(
        "interrupt",
        interrupt_session,
        body=InterruptPost,
        examples={"body": {"reason": "enough"}},
        responses={200: Interrupted, 202: Interrupted},
        error_codes=(Code.INVALID_TEXT, Code.SESSION_NOT_FOUND),
    ),
    *_lifecycle_routes(
        "close",
        close_session,
        body=ClosePost,
        responses={200: SessionForm},
        response_headers={200: ("etag",)},
        error_codes=(Code.INVALID_TEXT, Code.SESSION_NOT_FOUND),
        examples={"body": {"as": "completed", "reason": "done"}},
    ),
    *_lifecycle_routes(
        "resume",
        resume_session,
        body=ResumePost,
        examples={"body": {}},
        responses={200: Resumed},
        response_headers={200: ("etag",)},
        error_codes=(
            Code.INVALID_CONTEXT,
            Code.REPO_OUTSIDE_ROOT,
            Code.SESSION_FAILED,
            Code.SESSION_LIMIT,
            Code.SESSION_NOT_FOUND,
            Code.WORKSPACE_ROOT_UNSET,
        ),
    ),
    *_lifecycle_routes(
        "compact",
        compact_session,
        body=CompactPost,
        responses={200: Compacted},
        error_codes=(Code.SESSION_NOT_FOUND, Code.TURN_RUNNING),
    ),
    *_lifecycle_routes(
        "fork",
        fork_session,
        body=ForkPost,
        responses={201: SessionForm, 200: SessionForm},
        response_headers=CREATED_HEADERS,
        error_codes=(
            Code.AGENT_ARCHIVED,
            Code.AGENT_NOT_FOUND,
            Code.GRANT_EXCEEDED,
            Code.ID_REUSED,
            Code.INVALID_TEXT,
            Code.MESSAGE_NOT_FOUND,
            Code.MODEL_NOT_FOUND,
            Code.SESSION_LIMIT,
            Code.SESSION_NOT_FOUND,
        ),
        examples={"body": {"at": 4, "title": "Another way"}},
    ),
    *session_routes(
        Route(
            method="GET",
            path="/verify",
            name="sessions.verify",
            handler=verify_session,
            needs=Scope.READ,
            responses={200: Verified},
            error_codes=(Code.SESSION_NOT_FOUND,),
        )
    ),
    *session_routes(
        Route(
            method="GET",
            path="/export",
            name="sessions.export",
            handler=export_session,
            needs=Scope.READ,
            is_large=True,
            query=ExportQuery,
            responses={200: bytes},
            response_headers={200: ("content-disposition",)},
            media_type="application/x-ndjson",
            other_media_types=("text/markdown", "application/yaml"),
            error_codes=(Code.MESSAGE_NOT_FOUND, Code.SESSION_NOT_FOUND, Code.WORKFLOW_TOO_LARGE),
        )
    ),
    *session_routes(
        Route(
            method="POST",
            path="/export",
            name="sessions.exported",
            handler=note_export,
            needs=Scope.WRITE,
            body=ExportPost,
            examples={"body": {"target": "plan.relavium.yaml"}},
            responses={200: Exported},
            error_codes=(Code.INVALID_TEXT, Code.SESSION_NOT_FOUND),
        )
    ),
)
