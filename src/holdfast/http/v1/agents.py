"""Routes of agents, and of well-known agent programs on the server's machine."""

from typing import Any, Final

from msgspec import UNSET
from msgspec.structs import replace

from holdfast.domain.agents import AcpRuntime, Agent, AgentStatus, tool_warnings
from holdfast.domain.errors import Code, Conflict
from holdfast.domain.queries import AgentQuery
from holdfast.domain.tokens import Scope
from holdfast.http.responses import Response, require_etag_match
from holdfast.http.routing import NoQuery, RouteRequest, Routes, cacheable
from holdfast.http.v1.idempotency import chosen_id, created_response, creates
from holdfast.wire.agents import (
    AcpRuntimeForm,
    AgentForm,
    AgentList,
    AgentPatch,
    AgentPost,
    AgentsQuery,
    KnownProgramList,
    agent_fields,
    agent_form,
    changed_fields,
    program_form,
)
from holdfast.wire.errors import as_query_errors

routes: Final = Routes()
program_routes: Final = Routes()
_FIELD_ERRORS: Final = (
    Code.AGENT_INVALID,
    Code.MODEL_NOT_FOUND,
    Code.SLUG_TAKEN,
)


@routes.post(
    "/v1/agents",
    "agents.create",
    **creates(AgentForm),
    errors=(*_FIELD_ERRORS, Code.ID_REUSED),
    example={
        "name": "Code assistant",
        "system_prompt": "You are terse.",
        "default_model_id": "offline:holdfast",
        "tags": ["demo"],
    },
)
async def create_agent(request: RouteRequest[NoQuery, AgentPost]) -> Response:
    """Create an agent; `warnings` names tools that no process has registered."""
    if isinstance(request.body.runtime, AcpRuntimeForm):
        _require_admin(request)
    new = await request.holdfast.agents.make(
        request.owner, agent_fields(request.body), id=chosen_id(request)
    )
    return created_response(
        replace(agent_form(new.value), warnings=await _warnings(request) or UNSET),
        is_new=new.is_new,
        location=f"/v1/agents/{new.value.id}",
    )


@routes.get("/v1/agents", "agents.list", AgentList, is_large=True)
async def list_agents(request: RouteRequest[AgentsQuery, None]) -> Response:
    """List agents, newest first."""
    query = request.query
    wanted = AgentQuery(
        owner=request.owner,
        status=None if query.status == "all" else AgentStatus(query.status),
        tags=query.tag,
        text=query.q,
        limit=query.limit,
    )
    with as_query_errors():
        page = await request.holdfast.agents.list(wanted, cursor=query.cursor)
    return Response(content=AgentList(tuple(map(agent_form, page.items)), page.next_cursor))


@routes.get("/v1/agents/{agent_id}", "agents.read", **cacheable(AgentForm))
async def read_agent(request: RouteRequest[NoQuery, None]) -> Response:
    """Return an agent by id or slug."""
    agent = await request.holdfast.agents.get(request.owner, request.path["agent_id"])
    return Response(content=agent_form(agent), has_etag=True)


@routes.add(
    "PATCH",
    "/v1/agents/{agent_id}",
    "agents.change",
    AgentForm,
    response_headers={200: ("etag",)},
    errors=(*_FIELD_ERRORS, Code.STALE_ETAG),
    example={"name": "Reviewer"},
)
async def change_agent(request: RouteRequest[NoQuery, AgentPatch]) -> Response:
    """Change an agent; open sessions keep the version they were opened with."""
    ref = request.path["agent_id"]
    while True:
        agent = await request.holdfast.agents.get(request.owner, ref)
        require_etag_match(request.headers, agent_form(agent))
        try:
            changed = await _apply_changes(request, agent)
        except Conflict as error:
            # Lost a race with another change: read the agent again and compare its ETag again.
            if error.code is not Code.STALE_ETAG:
                raise
            continue
        return Response(content=agent_form(changed), has_etag=True)


async def _apply_changes(request: RouteRequest[NoQuery, AgentPatch], agent: Agent) -> Agent:
    if isinstance(request.body.runtime, AcpRuntimeForm) or isinstance(agent.runtime, AcpRuntime):
        _require_admin(request)
    changes = changed_fields(request.body, agent.runtime)
    return await request.holdfast.agents.update(
        request.owner, agent.id, changes, expected=lambda now: now == agent
    )


async def _warnings(request: RouteRequest[NoQuery, AgentPost]) -> tuple[str, ...]:
    """Return what is said of bare names that no tool has; definitions are their author's."""
    names = [each for each in request.body.tools if isinstance(each, str)]
    functions = request.holdfast.tools.names(request.owner)
    if not tool_warnings(names, functions):
        return ()
    # Another process may have them.
    workers = await request.holdfast.workers.list(request.owner)
    return tool_warnings(names, functions.union(*(each.functions for each in workers)))


def _require_admin(request: RouteRequest[Any, Any]) -> None:
    """Refuse callers that are not admins: the agent is a command that runs as the server's user."""
    request.required_caller.require(Scope.ADMIN)


@routes.add("DELETE", "/v1/agents/{agent_id}", "agents.archive")
async def archive_agent(request: RouteRequest[NoQuery, None]) -> Response:
    """Archive an agent; it opens no new sessions until it is active again."""
    await request.holdfast.agents.archive(request.owner, request.path["agent_id"])
    return Response(status=204)


@program_routes.get("/v1/programs", "programs", KnownProgramList, needs=Scope.ADMIN)
async def list_programs(request: RouteRequest[NoQuery, None]) -> Response:
    """List well-known agent programs on the server's machine."""
    found = await request.holdfast.programs()
    return Response(content=KnownProgramList(tuple(map(program_form, found))))
