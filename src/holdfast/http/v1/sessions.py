"""Sessions: opened, listed, read, changed and deleted."""

from contextlib import suppress
from typing import Any, Final

from msgspec.structs import replace

from holdfast.domain.errors import Code, NotFound
from holdfast.domain.ids import AgentId, SessionId
from holdfast.domain.queries import SessionQuery
from holdfast.domain.sessions import Session
from holdfast.domain.tokens import Scope
from holdfast.http.answers import Answer
from holdfast.http.table import Asked, NoQuery, Route
from holdfast.http.v1.contexts_forms import ContextForm
from holdfast.http.v1.paths import of_session, session_of
from holdfast.http.v1.refusals import invalid_query, query_judged, require_match
from holdfast.http.v1.repeats import TELLS, chosen_id, made
from holdfast.http.v1.sessions_forms import (
    DeletionQuery,
    SessionForm,
    SessionList,
    SessionPatch,
    SessionPost,
    SessionsQuery,
    changes_of,
    request_of,
    session_form,
    states_of,
    wishes_of,
)
from holdfast.services.session_lifecycle import DeletePolicy

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
