"""Snapshots: the agent as it is frozen into a session when it opens.

Its grant comes from the configuration where it has none of its own, its prompt has the variables
in place, and what it names that cannot be had is told once.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.agents import AcpRuntime, Agent, LlmRuntime, ReasoningEffort, Runtime
from holdfast.domain.contexts import SessionContext
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.messages import Notice, NoticeCode, Role
from holdfast.domain.scrubbing import Scrubber
from holdfast.domain.sessions import TURN_CAP, Budget
from holdfast.domain.tools import CATALOGUE, ELSEWHERE, Grant, ToolSpec, narrow_tools, remote_id
from holdfast.domain.variables import refuse_secrets, render
from holdfast.services.slots import Slots


class OpeningRules(Struct, frozen=True, kw_only=True):
    """What the configuration says about every session that opens."""

    ceiling: Grant = Grant()
    turn_cap: int = TURN_CAP
    budget: Budget | None = None
    reasoning_effort: ReasoningEffort | None = None
    scrubber: Callable[[], Scrubber] = Scrubber
    slots: Slots = Slots()
    # Refuses an agent whose program cannot be found.
    require_program: Callable[[AcpRuntime], None] = lambda _: None


class Snapshot(Struct, frozen=True, kw_only=True):
    """An agent as a session keeps it, and what the session's record says about that."""

    agent: Agent
    notices: tuple[MessageDraft, ...] = ()


def frozen(agent: Agent, context: SessionContext, rules: OpeningRules) -> Snapshot:
    """Return the agent as the session keeps it; refuse secrets and tools that nobody knows."""
    refuse_secrets(context.variables, rules.scrubber())
    prompt = render(agent.system_prompt, context.variables)
    missing = [tool.name for tool in agent.tools if not _is_known(tool, agent)]
    told = [
        _notice(
            NoticeCode.UNKNOWN_VARIABLE,
            f"The prompt names a variable that the session does not have: {name}",
        )
        for name in prompt.unknown
    ]
    if missing:
        names = ", ".join(missing)
        told.append(_notice(NoticeCode.TOOL_UNAVAILABLE, f"These tools cannot be had: {names}."))
    grant = rules.ceiling if agent.grant is None else agent.grant
    kept = replace(
        agent, system_prompt=prompt.text, grant=grant, runtime=_runtime(agent.runtime, rules)
    )
    return Snapshot(agent=kept, notices=tuple(told))


def narrowed(agent: Agent, wanted: tuple[str, ...] | None) -> tuple[Agent, tuple[ToolSpec, ...]]:
    """Return the agent and its tools as a session wants them; `None` keeps all of both.

    Declaring a server grants its tools. Whoever names tools names those of servers, too: a server
    of which none is named is not the session's.
    """
    if wanted is None:
        return agent, agent.tools
    # An agent that names tools of a server itself has no others of it.
    whole = [begins for begins in _beginnings(agent) if not _any_begins(agent.tools, begins)]
    named = {tool.name for tool in agent.tools}
    implied = tuple(
        ToolSpec(name=name)
        for name in dict.fromkeys(wanted)
        if name not in named and name.startswith(tuple(whole))
    )
    tools = narrow_tools((*agent.tools, *implied), wanted)
    servers = tuple(
        server for server in agent.mcp_servers if _any_begins(tools, _beginning(server))
    )
    return replace(agent, mcp_servers=servers), tools


def _beginning(server: Mapping[str, Any]) -> str:
    return remote_id(str(server.get("id") or server.get("ref") or ""))


def _beginnings(agent: Agent) -> list[str]:
    return [_beginning(server) for server in agent.mcp_servers]


def _any_begins(tools: Iterable[ToolSpec], beginning: str) -> bool:
    return any(tool.name.startswith(beginning) for tool in tools)


def _runtime(runtime: Runtime, rules: OpeningRules) -> Runtime:
    """Return how the agent runs, with what the configuration wants where it says nothing."""
    if isinstance(runtime, LlmRuntime) and runtime.reasoning_effort is None:
        return replace(runtime, reasoning_effort=rules.reasoning_effort)
    return runtime


def _is_known(tool: ToolSpec, agent: Agent) -> bool:
    if tool.name in CATALOGUE or _is_remote(tool, agent):
        return True
    # A described tool is somebody's own: it is shown as given and cannot be run here.
    if tool.name in ELSEWHERE or tool.is_described:
        return False
    raise Invalid(
        Code.UNKNOWN_TOOL,
        f"There is no tool {tool.name}; the tools are {', '.join(sorted(CATALOGUE))}. Agent "
        f"{agent.slug} names it; `holdfast agents edit {agent.slug} --tools A,B` names others.",
        {"tool": tool.name},
    )


def _is_remote(tool: ToolSpec, agent: Agent) -> bool:
    return tool.name.startswith(tuple(_beginnings(agent)))


def _notice(code: NoticeCode, text: str) -> MessageDraft:
    return MessageDraft(role=Role.SYSTEM, parts=(Notice(code=code, text=text),))
