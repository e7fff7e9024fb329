"""Routes of agents, and of the well-known agent programs on the server's machine."""

from typing import Any, Final

from holdfast.domain.agents import AcpRuntime, Agent, AgentStatus
from holdfast.domain.errors import Code, Conflict
from holdfast.domain.queries import AgentQuery
from holdfast.domain.tokens import Scope
from holdfast.domain.tools import require_tools
from holdfast.http.responses import Answer, require_match
from holdfast.http.routing import Asked, NoQuery, Route
from holdfast.http.v1.idempotency import TELLS, chosen_id, made
from holdfast.wire.agents import (
    AcpRuntimeForm,
    AgentForm,
    AgentList,
    AgentPatch,
    AgentPost,
    AgentsQuery,
    KnownProgramList,
    agent_form,
    changed_fields,
    fields_of,
    program_form,
)
from holdfast.wire.errors import query_judged


async def create_agent(asked: Asked[NoQuery, AgentPost]) -> Answer:
    """Make an agent."""
    if isinstance(asked.body.runtime, AcpRuntimeForm):
        _require_admin(asked)
    _require_tools(asked.body)
    new = await asked.house.agents.make(asked.owner, fields_of(asked.body), id=chosen_id(asked))
    return made(agent_form(new.thing), is_new=new.is_new, location=f"/v1/agents/{new.thing.id}")


async def list_agents(asked: Asked[AgentsQuery, None]) -> Answer:
    """List agents."""
    query = asked.query
    wanted = AgentQuery(
        owner=asked.owner,
        status=None if query.status == "all" else AgentStatus(query.status),
        tags=query.tag,
        text=query.q,
        limit=query.limit,
    )
    with query_judged():
        page = await asked.house.agents.list(wanted, cursor=query.cursor)
    return Answer(content=AgentList(tuple(map(agent_form, page.items)), page.next_cursor))


async def read_agent(asked: Asked[NoQuery, None]) -> Answer:
    """Return an agent."""
    agent = await asked.house.agents.get(asked.owner, asked.path["agent_id"])
    return Answer(content=agent_form(agent), has_etag=True)


async def change_agent(asked: Asked[NoQuery, AgentPatch]) -> Answer:
    """Change an agent."""
    ref = asked.path["agent_id"]
    while True:
        agent = await asked.house.agents.get(asked.owner, ref)
        require_match(asked.headers, agent_form(agent))
        try:
            changed = await _changed(asked, agent)
        except Conflict as error:
            # Somebody was faster: what the change adds to is read again, and its tag is judged.
            if error.code is not Code.STALE_ETAG:
                raise
            continue
        return Answer(content=agent_form(changed), has_etag=True)


async def _changed(asked: Asked[NoQuery, AgentPatch], agent: Agent) -> Agent:
    if isinstance(asked.body.runtime, AcpRuntimeForm) or isinstance(agent.runtime, AcpRuntime):
        _require_admin(asked)
    _require_tools(asked.body, agent)
    changes = changed_fields(asked.body, agent.runtime)
    return await asked.house.agents.update(
        asked.owner, agent.id, changes, expected=lambda now: now == agent
    )


def _require_tools(body: AgentPost | AgentPatch, agent: Agent | None = None) -> None:
    """Refuse a bare name that no tool has; a described tool is its author's own."""
    given = body.tools if isinstance(body.tools, tuple) else ()
    names = (each for each in given if isinstance(each, str))
    require_tools(names, agent.tools if agent else (), field="tools")


def _require_admin(asked: Asked[Any, Any]) -> None:
    """Refuse who may only write: such an agent is a command that runs as the server's user."""
    asked.required_caller.require(Scope.ADMIN)


async def archive_agent(asked: Asked[NoQuery, None]) -> Answer:
    """Archive an agent; nothing is lost, and its sessions go on."""
    await asked.house.agents.archive(asked.owner, asked.path["agent_id"])
    return Answer(status=204)


EXAMPLE: Final[dict[str, Any]] = {
    "name": "Code assistant",
    "system_prompt": "You are terse.",
    "default_model_id": "offline:holdfast",
    "tags": ["demo"],
}
ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="POST",
        path="/v1/agents",
        name="agents.create",
        summary="Make an agent.",
        act=create_agent,
        needs=Scope.WRITE,
        body=AgentPost,
        gives={201: AgentForm, 200: AgentForm},
        tells=TELLS,
        refuses=(
            Code.AGENT_INVALID,
            Code.ID_REUSED,
            Code.INVALID_TEXT,
            Code.MODEL_NOT_FOUND,
            Code.SLUG_TAKEN,
            Code.UNKNOWN_TOOL,
        ),
        examples={"body": EXAMPLE},
    ),
    Route(
        method="GET",
        path="/v1/agents",
        name="agents.list",
        summary="List agents, newest first.",
        act=list_agents,
        needs=Scope.READ,
        query=AgentsQuery,
        gives={200: AgentList},
    ),
    Route(
        method="GET",
        path="/v1/agents/{agent_id}",
        name="agents.read",
        summary="Return an agent by id or slug.",
        act=read_agent,
        needs=Scope.READ,
        gives={200: AgentForm, 304: None},
        tells={200: ("etag",), 304: ("etag",)},
        refuses=(Code.AGENT_NOT_FOUND,),
    ),
    Route(
        method="PATCH",
        path="/v1/agents/{agent_id}",
        name="agents.change",
        summary="Change an agent; sessions that are open keep the one they opened with.",
        act=change_agent,
        needs=Scope.WRITE,
        body=AgentPatch,
        gives={200: AgentForm},
        tells={200: ("etag",)},
        refuses=(
            Code.AGENT_INVALID,
            Code.AGENT_NOT_FOUND,
            Code.INVALID_TEXT,
            Code.MODEL_NOT_FOUND,
            Code.SLUG_TAKEN,
            Code.STALE_ETAG,
            Code.UNKNOWN_TOOL,
        ),
        examples={"body": {"name": "Reviewer"}},
    ),
    Route(
        method="DELETE",
        path="/v1/agents/{agent_id}",
        name="agents.archive",
        summary="Archive an agent; it opens no new session until it is active again.",
        act=archive_agent,
        needs=Scope.WRITE,
        gives={204: None},
        refuses=(Code.AGENT_NOT_FOUND,),
    ),
)


async def list_programs(asked: Asked[NoQuery, None]) -> Answer:
    """Look for the programs; a version that is told late is not waited for."""
    found = await asked.house.programs()
    return Answer(content=KnownProgramList(tuple(map(program_form, found))))


PROGRAM_ROUTES: Final[tuple[Route, ...]] = (
    Route(
        method="GET",
        path="/v1/programs",
        name="programs",
        summary="Look for well-known agents on the server's machine.",
        act=list_programs,
        # Where programs lie on a machine is for those who look after it.
        needs=Scope.ADMIN,
        gives={200: KnownProgramList},
    ),
)
