"""Routes of sessions: create, list, read, change, delete, interrupt, close, resume, compact,
verify, fork, export.

Messages and events of a session have modules of their own.
"""

from contextlib import suppress
from typing import Any, Final

from msgspec.structs import asdict, replace

from holdfast.domain.errors import Code, NotFound
from holdfast.domain.ids import AgentId, SessionId
from holdfast.domain.queries import SessionQuery
from holdfast.domain.sessions import Session, Status
from holdfast.domain.tokens import Scope
from holdfast.http.bodies import in_pieces
from holdfast.http.responses import Answer, Stream, etag_of, require_match
from holdfast.http.routing import Asked, NoQuery, Route, of_session, session_of
from holdfast.http.v1.idempotency import TELLS, chosen_id, made
from holdfast.services.session_lifecycle import DeletePolicy
from holdfast.wire.errors import invalid_query, query_judged
from holdfast.wire.messages import export_line
from holdfast.wire.sessions import (
    ClosePost,
    Compacted,
    CompactPost,
    ContextForm,
    DeletionQuery,
    Exported,
    ExportPost,
    ExportQuery,
    ForkPost,
    Interrupted,
    InterruptPost,
    Resumed,
    ResumePost,
    SessionForm,
    SessionList,
    SessionPatch,
    SessionPost,
    SessionsQuery,
    Verified,
    changes_of,
    context_of,
    fork_of,
    request_of,
    session_form,
    states_of,
    wishes_of,
)

# What may be wrong with any wish about a session.
_WISHES: Final = (Code.INVALID_INPUT, Code.INVALID_TEXT, Code.MODEL_NOT_FOUND)


async def open_session(asked: Asked[NoQuery, SessionPost]) -> Answer:
    """Open a session."""
    id_ = chosen_id(asked)
    context = await placed(asked, asked.body.context)
    wish = request_of(replace(asked.body, context=context))
    agent = asked.path["agent_id"]
    # Made when it is first needed; whoever asks for it by name should not have to make it.
    await asked.house.agents.seed(asked.owner, agent)
    new = await asked.house.sessions.make(asked.owner, agent, wish, id=id_)
    return await session_made(asked, new.thing, is_new=new.is_new)


async def session_made(asked: Asked[Any, Any], session: Session, *, is_new: bool) -> Answer:
    """Return the answer to a request that makes a session."""
    form = session_form(await asked.house.session_views.get(asked.owner, session.id))
    location = f"/v1/agents/{form.agent_id}/sessions/{form.id}"
    return made(form, is_new=is_new, location=location)


async def placed(asked: Asked[Any, Any], context: ContextForm | None) -> ContextForm | None:
    """Return a workspace with its real folder, or refuse one that may not be named from outside."""
    if context is None:
        return None
    folder = await asked.house.repos.require_folder(asked.owner, context.working_dir)
    return replace(context, working_dir=folder)


async def list_agent_sessions(asked: Asked[SessionsQuery, None]) -> Answer:
    """List the sessions of an agent."""
    agent = await asked.house.agents.get(asked.owner, asked.path["agent_id"])
    return await _listed(asked, agent.id)


async def list_sessions(asked: Asked[SessionsQuery, None]) -> Answer:
    """List the sessions of all agents."""
    return await _listed(asked, None)


async def _listed(asked: Asked[SessionsQuery, None], agent_id: AgentId | None) -> Answer:
    query = asked.query
    if query.begins is not None:
        return await _beginning(asked, query.begins)
    parent = query.forked_from
    wanted = SessionQuery(
        owner=asked.owner,
        agent_id=agent_id,
        statuses=states_of(query.state),
        wishes=wishes_of(query.status),
        tags=query.tag,
        text=query.q,
        forked_from=SessionId(parent.lower()) if parent else None,
        order=query.order,
        limit=query.limit,
    )
    with query_judged():
        page = await asked.house.session_views.list(wanted, cursor=query.cursor)
    return Answer(content=SessionList(tuple(map(session_form, page.items)), page.next_cursor))


async def _beginning(asked: Asked[SessionsQuery, None], text: str) -> Answer:
    """List the few sessions whose ids begin like this; other filters do not count."""
    ids = await asked.house.sessions.find(asked.owner, text, limit=asked.query.limit)
    found = []
    for each in ids:
        # One that was deleted since it was found is no longer in the list.
        with suppress(NotFound):
            found.append(await asked.house.session_views.get(asked.owner, each))
    return Answer(content=SessionList(tuple(map(session_form, found)), None))


async def read_session(asked: Asked[NoQuery, None]) -> Answer:
    """Return a session."""
    return await shown(asked, await session_of(asked))


async def shown(asked: Asked[Any, Any], session_id: SessionId) -> Answer:
    """Return the answer that shows a session as it is now."""
    overview = await asked.house.session_views.get(asked.owner, session_id)
    return Answer(content=session_form(overview), has_etag=True)


async def change_session(asked: Asked[NoQuery, SessionPatch]) -> Answer:
    """Change a session."""
    session_id = await session_of(asked)
    changes = changes_of(asked.body)
    update = asked.house.sessions.update
    if "if-match" in asked.headers:
        seen = await asked.house.session_views.get(asked.owner, session_id)
        require_match(asked.headers, session_form(seen))
        # Judged again with the writer's eyes: between the two lines it may have changed.
        await update(asked.owner, session_id, changes, expected=lambda now: now == seen.session)
    else:
        await update(asked.owner, session_id, changes)
    return await shown(asked, session_id)


async def delete_session(asked: Asked[DeletionQuery, None]) -> Answer:
    """Delete a session with all that belongs to it."""
    session_id = await session_of(asked)
    if asked.query.cascade and asked.query.detach:
        raise invalid_query("detach", "forks are deleted or made to stand alone, not both")
    heirs = DeletePolicy.CASCADE if asked.query.cascade else DeletePolicy.REFUSE
    heirs = DeletePolicy.DETACH if asked.query.detach else heirs
    await asked.house.sessions.delete(asked.owner, session_id, heirs=heirs)
    return Answer(status=204)


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="POST",
        path="/v1/agents/{agent_id}/sessions",
        name="sessions.open",
        summary="Open a session with an agent.",
        act=open_session,
        needs=Scope.WRITE,
        body=SessionPost,
        body_may_be_missing=True,
        gives={201: SessionForm, 200: SessionForm},
        tells=TELLS,
        refuses=(
            *_WISHES,
            Code.AGENT_ARCHIVED,
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
        summary="List the sessions of an agent, newest first.",
        act=list_agent_sessions,
        needs=Scope.READ,
        query=SessionsQuery,
        gives={200: SessionList},
        refuses=(Code.AGENT_NOT_FOUND,),
    ),
    Route(
        method="GET",
        path="/v1/sessions",
        name="sessions.list",
        summary="List the sessions of all agents, newest first.",
        act=list_sessions,
        needs=Scope.READ,
        query=SessionsQuery,
        gives={200: SessionList},
    ),
    *of_session(
        Route(
            method="GET",
            path="",
            name="sessions.read",
            summary="Return a session; its messages have a path of their own.",
            act=read_session,
            needs=Scope.READ,
            gives={200: SessionForm, 304: None},
            tells={200: ("etag",), 304: ("etag",)},
            refuses=(Code.SESSION_NOT_FOUND,),
        )
    ),
    *of_session(
        Route(
            method="PATCH",
            path="",
            name="sessions.change",
            summary="Change a session; a new model holds from the next turn on.",
            act=change_session,
            needs=Scope.WRITE,
            body=SessionPatch,
            gives={200: SessionForm},
            tells={200: ("etag",)},
            refuses=(*_WISHES, Code.SESSION_NOT_FOUND, Code.STALE_ETAG),
            examples={"body": {"title": "Better sums"}},
        )
    ),
    *of_session(
        Route(
            method="DELETE",
            path="",
            name="sessions.delete",
            summary="Delete a session with its messages and events; a running turn is stopped.",
            act=delete_session,
            needs=Scope.WRITE,
            query=DeletionQuery,
            gives={204: None},
            refuses=(Code.SESSION_HAS_FORKS, Code.SESSION_NOT_FOUND),
        )
    ),
)


async def interrupt_session(asked: Asked[NoQuery, InterruptPost]) -> Answer:
    """Stop the running turn; it has ended on disk when this answers with 200."""
    session_id = await session_of(asked)
    body = asked.body
    done = await asked.house.sessions.interrupt(
        asked.owner, session_id, turn=body.turn, reason=body.reason
    )
    form = session_form(await asked.house.session_views.get(asked.owner, session_id))
    told = Interrupted(session=form, interrupted=done.turn is not None, turn=done.turn)
    return Answer(status=200 if done.is_settled else 202, content=told)


async def close_session(asked: Asked[NoQuery, ClosePost]) -> Answer:
    """End a session."""
    session_id = await session_of(asked)
    ending = Status(asked.body.ending)
    await asked.house.sessions.close(
        asked.owner, session_id, status=ending, reason=asked.body.reason
    )
    return await shown(asked, session_id)


async def resume_session(asked: Asked[NoQuery, ResumePost]) -> Answer:
    """Open a closed session again."""
    session_id = await session_of(asked)
    place = await placed(asked, asked.body.context)
    context = None if place is None else context_of(place)
    done = await asked.house.sessions.resume(asked.owner, session_id, context=context)
    form = session_form(await asked.house.session_views.get(asked.owner, session_id))
    told = Resumed(**asdict(form), turns_left=done.turns_left)
    # The tag of the session itself: that is what `If-Match` will be held against.
    return Answer(content=told, headers={"etag": etag_of(form)})


async def compact_session(asked: Asked[NoQuery, CompactPost]) -> Answer:
    """Sum up what came before the last answer."""
    session_id = await session_of(asked)
    is_folded = await asked.house.compactions.compact(asked.owner, session_id)
    form = session_form(await asked.house.session_views.get(asked.owner, session_id))
    return Answer(content=Compacted(compacted=is_folded, session=form))


async def verify_session(asked: Asked[NoQuery, None]) -> Answer:
    """Check a session's messages against the chain of their hashes."""
    found = await asked.house.sessions.verify(asked.owner, await session_of(asked))
    return Answer(content=Verified(**asdict(found)))


async def fork_session(asked: Asked[NoQuery, ForkPost]) -> Answer:
    """Open a session that goes on from a message of this one."""
    session_id = await session_of(asked)
    id_ = chosen_id(asked)
    new = await asked.house.sessions.make_fork(asked.owner, session_id, fork_of(asked.body), id=id_)
    return await session_made(asked, new.thing, is_new=new.is_new)


async def export_session(asked: Asked[ExportQuery, None]) -> Answer | Stream:
    """Write a session out."""
    session_id = await session_of(asked)
    query = asked.query
    # In the words of this surface, so that a line is what reading the message gives.
    line = export_line(session_id)
    file = await asked.house.exports.stream(
        asked.owner, session_id, query.format, through=query.through, line=line
    )
    named = {"content-disposition": f'attachment; filename="{file.file_name}"'}
    return await in_pieces(asked, file.pieces, Answer(media_type=file.media_type, headers=named))


async def note_export(asked: Asked[NoQuery, ExportPost]) -> Answer:
    """Write down where a session's workflow was written to."""
    session_id = await session_of(asked)
    event = await asked.house.exports.record(asked.owner, session_id, asked.body.target)
    return Answer(content=Exported(target=asked.body.target, sequence=event.sequence))


def _change(verb: str, summary: str, act: Any, **rest: Any) -> tuple[Route, Route]:
    """Return the rows of a verb that takes a small body, or none."""
    return of_session(
        Route(
            method="POST",
            path=f"/{verb}",
            name=f"sessions.{verb}",
            summary=summary,
            act=act,
            needs=Scope.WRITE,
            body_may_be_missing=True,
            **rest,
        )
    )


LIFECYCLE_ROUTES: Final[tuple[Route, ...]] = (
    *_change(
        "interrupt",
        "Stop the running turn; what was streamed is kept, and the session stays open.",
        interrupt_session,
        body=InterruptPost,
        examples={"body": {"reason": "enough"}},
        gives={200: Interrupted, 202: Interrupted},
        refuses=(Code.INVALID_TEXT, Code.SESSION_NOT_FOUND),
    ),
    *_change(
        "close",
        "End a session as completed or cancelled; a running turn is stopped with it.",
        close_session,
        body=ClosePost,
        gives={200: SessionForm},
        tells={200: ("etag",)},
        refuses=(Code.INVALID_TEXT, Code.SESSION_NOT_FOUND),
        examples={"body": {"as": "completed", "reason": "done"}},
    ),
    *_change(
        "resume",
        "Open a closed session again; an open one stays as it is.",
        resume_session,
        body=ResumePost,
        examples={"body": {}},
        gives={200: Resumed},
        tells={200: ("etag",)},
        refuses=(
            Code.INVALID_CONTEXT,
            Code.REPO_OUTSIDE_ROOT,
            Code.SESSION_FAILED,
            Code.SESSION_LIMIT,
            Code.SESSION_NOT_FOUND,
            Code.WORKSPACE_ROOT_UNSET,
        ),
    ),
    *_change(
        "compact",
        "Sum up what came before the last answer; no message is removed or changed.",
        compact_session,
        body=CompactPost,
        gives={200: Compacted},
        refuses=(Code.SESSION_NOT_FOUND, Code.TURN_RUNNING),
    ),
    *_change(
        "fork",
        "Open a session that goes on from a message of this one; nothing is copied.",
        fork_session,
        body=ForkPost,
        gives={201: SessionForm, 200: SessionForm},
        tells=TELLS,
        refuses=(
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
    *of_session(
        Route(
            method="GET",
            path="/verify",
            name="sessions.verify",
            summary="Check a session's messages against the chain of their hashes.",
            act=verify_session,
            needs=Scope.READ,
            gives={200: Verified},
            refuses=(Code.SESSION_NOT_FOUND,),
        )
    ),
    *of_session(
        Route(
            method="GET",
            path="/export",
            name="sessions.export",
            summary="Write a session out: one message per line, to be read, or as a workflow.",
            act=export_session,
            needs=Scope.READ,
            query=ExportQuery,
            gives={200: bytes},
            tells={200: ("content-disposition",)},
            media_type="application/x-ndjson",
            kinds=("text/markdown", "application/yaml"),
            refuses=(Code.MESSAGE_NOT_FOUND, Code.SESSION_NOT_FOUND, Code.WORKFLOW_TOO_LARGE),
        )
    ),
    *of_session(
        Route(
            method="POST",
            path="/export",
            name="sessions.exported",
            summary="Write down where a session's workflow was written to.",
            act=note_export,
            needs=Scope.WRITE,
            body=ExportPost,
            examples={"body": {"target": "plan.relavium.yaml"}},
            gives={200: Exported},
            refuses=(Code.INVALID_TEXT, Code.SESSION_NOT_FOUND),
        )
    ),
)
