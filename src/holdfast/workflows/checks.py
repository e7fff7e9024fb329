"""Checks beyond a workflow's schema: unknown names, unreachable nodes and cycles."""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

from holdfast.domain.tools import ACCEPTED_TOOLS, ALWAYS, CATALOGUE, remote_id
from holdfast.workflows.model import NodeType, Workflow


class FindingCode(StrEnum):
    """Problems of a file that is valid by its schema."""

    AGENT_REF_UNRESOLVED = "agent_ref_unresolved"
    TOOLS_EXCEED_AGENT = "tools_exceed_agent"
    UNKNOWN_TOOL = "unknown_tool"
    UNKNOWN_NODE = "unknown_node"
    UNREACHABLE_NODE = "unreachable_node"
    CYCLE = "cycle"


class Finding(Struct, frozen=True, kw_only=True):
    """A problem, its node and a message."""

    code: FindingCode
    node: str
    message: str


def check(
    workflow: Workflow, agents: Mapping[str, Mapping[str, Any]] | None = None
) -> list[Finding]:
    """Return all findings; `agents` are known agents that the file does not define."""
    known = {**(agents or {}), **workflow.agents}
    return [*_check_agents(workflow, known), *_check_edges(workflow)]


def find_unresolved(workflow: Workflow) -> list[str]:
    """Return the referenced agents that the file does not define, without duplicates."""
    named = (node["agent_ref"] for node in _agent_nodes(workflow))
    return [ref for ref in dict.fromkeys(named) if ref not in workflow.agents]


def _agent_nodes(workflow: Workflow) -> list[dict[str, Any]]:
    return [node for node in workflow.nodes.values() if node["type"] == NodeType.AGENT]


def _check_agents(workflow: Workflow, agents: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    for node in _agent_nodes(workflow):
        agent = agents.get(node["agent_ref"])
        if agent is None:
            message = f"there is no agent {node['agent_ref']}"
            yield _finding(FindingCode.AGENT_REF_UNRESOLVED, node, message)
        # An unknown agent may be a program, and a program has tools of its own.
        if agent is None or agent.get("program"):
            continue
        for tool in node.get("tools", ()):
            if tool not in CATALOGUE | ACCEPTED_TOOLS and not tool.startswith(_servers(agent)):
                yield _finding(FindingCode.UNKNOWN_TOOL, node, f"there is no tool {tool}")
            elif not has_tool(agent, tool):
                message = f"agent {node['agent_ref']} does not have {tool}"
                yield _finding(FindingCode.TOOLS_EXCEED_AGENT, node, message)


def has_tool(agent: Mapping[str, Any], tool: str) -> bool:
    """Return whether an agent, in the form of a file, may use a tool."""
    named = tool in ALWAYS or tool in agent.get("tools", ())
    return named or tool.startswith(_servers(agent))


def _servers(agent: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the name prefixes of the tools of an agent's MCP servers."""
    names = (each.get("ref", each.get("id", "")) for each in agent.get("mcp_servers", ()))
    return tuple(remote_id(name) for name in names)


def _check_edges(workflow: Workflow) -> Iterator[Finding]:
    nodes = workflow.nodes
    successors = _successors(workflow)
    for source, targets in successors.items():
        for name in dict.fromkeys((source, *targets)):
            if name not in nodes:
                message = f"an edge refers to {name}, which is not a node"
                yield Finding(code=FindingCode.UNKNOWN_NODE, node=name, message=message)
    entries = [id_ for id_, node in nodes.items() if node["type"] == NodeType.INPUT]
    targeted = {target for targets in successors.values() for target in targets}
    reached = _find_reachable(successors, entries or [id_ for id_ in nodes if id_ not in targeted])
    for id_, node in nodes.items():
        if id_ not in reached:
            yield _finding(
                FindingCode.UNREACHABLE_NODE, node, "this node cannot be reached from the input"
            )
    in_cycle = _find_cycle(successors)
    if in_cycle is not None:
        message = "this node is part of a cycle"
        yield Finding(code=FindingCode.CYCLE, node=in_cycle, message=message)


def _successors(workflow: Workflow) -> dict[str, list[str]]:
    """Return the successors of each node: by edge, condition or parallel branch."""
    successors: dict[str, list[str]] = {
        id_: list(_node_targets(n)) for id_, n in workflow.nodes.items()
    }
    for edge in workflow.edges:
        successors.setdefault(edge.source, []).append(edge.target)
    return successors


def _node_targets(node: Mapping[str, Any]) -> Iterator[str]:
    yield from (branch["target_node"] for branch in node.get("branches", ()))
    yield from node.get("parallel_of", ())
    if "default" in node:
        yield node["default"]


def _find_reachable(successors: Mapping[str, list[str]], entries: Iterable[str]) -> set[str]:
    waiting = list(entries)
    reached = set(waiting)
    while waiting:
        for target in successors.get(waiting.pop(), ()):
            if target not in reached:
                reached.add(target)
                waiting.append(target)
    return reached


def _find_cycle(successors: Mapping[str, list[str]]) -> str | None:
    """Return a node on a cycle, if there is one."""
    counts = dict.fromkeys(successors, 0)
    for targets in successors.values():
        for target in targets:
            counts[target] = counts.get(target, 0) + 1
    free = [id_ for id_, count in counts.items() if count == 0]
    # Topological sort: nodes without predecessors are removed; cycles and their successors remain.
    while free:
        id_ = free.pop()
        del counts[id_]
        for target in successors.get(id_, ()):
            counts[target] -= 1
            if counts[target] == 0:
                free.append(target)
    before = {target: id_ for id_ in counts for target in successors.get(id_, ())}
    at, seen = next(iter(counts), None), set[str]()
    # Walk backwards, because every remaining node has a remaining predecessor.
    while at is not None and at not in seen:
        seen.add(at)
        at = before[at]
    return at


def _finding(code: FindingCode, node: Mapping[str, Any], message: str) -> Finding:
    return Finding(code=code, node=str(node["id"]), message=message)
