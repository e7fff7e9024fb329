"""Workflows: the content of a `.relavium.yaml` file as a value, and the subset that can run."""

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.tools import ALWAYS

SCHEMA_VERSION: Final = "1.0"
ENDING: Final = ".relavium.yaml"
# The metadata key under which an export stores the transcript.
EXPORT_KEY: Final = "relaviumExport"
_NO_TITLE: Final = "exported-session"
# File names are limited to 255 bytes, including the extension.
_STEM_LONGEST: Final = 200
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]")
_OTHERS: Final = re.compile(r"[^a-z0-9]+")
_PLACEHOLDER: Final = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)


class NodeType(StrEnum):
    """Type of a workflow node; only the first three can run."""

    INPUT = "input"
    AGENT = "agent"
    OUTPUT = "output"
    HUMAN_GATE = "human_gate"
    CONDITION = "condition"
    TRANSFORM = "transform"
    PARALLEL = "parallel"
    MERGE = "merge"


class Edge(Struct, frozen=True, kw_only=True):
    """An edge between two nodes; `extras` are its keys besides the two ends."""

    source: str
    target: str
    extras: tuple[str, ...] = ()


class Workflow(Struct, frozen=True):
    """A workflow as the parsed content of its file."""

    document: dict[str, Any]

    @property
    def body(self) -> dict[str, Any]:
        """Return the content of `workflow`."""
        body: dict[str, Any] = self.document["workflow"]
        return body

    @property
    def id(self) -> str:
        """Return the id."""
        return str(self.body["id"])

    @property
    def file_name(self) -> str:
        """Return the name of the workflow's file."""
        return f"{self.id[:_STEM_LONGEST]}{ENDING}"

    @property
    def nodes(self) -> dict[str, dict[str, Any]]:
        """Return the nodes by id, in order."""
        return {node["id"]: node for node in self.body["nodes"]}

    @property
    def edges(self) -> list[Edge]:
        """Return the edges; a source handle is listed as one of the extras."""
        return [_edge(raw) for raw in self.body["edges"]]

    @property
    def agents(self) -> dict[str, dict[str, Any]]:
        """Return the agents defined in the file, by id."""
        return {each["id"]: each for each in self.body.get("agents", ()) if "id" in each}


def kebab_id(title: str | None) -> str:
    """Return the workflow id derived from a session's title."""
    plain = _NOT_ASCII.sub("", title or "").lower()
    return _OTHERS.sub("-", plain).strip("-") or _NO_TITLE


def placeholders(text: str) -> list[str]:
    """Return the content of each `{{…}}`; an unclosed `{{` is plain text."""
    # Cut after the last `}}`: unclosed openers would make the pattern quadratic (ReDoS).
    closed, end, _ = text.rpartition("}}")
    return _PLACEHOLDER.findall(closed + end)


def _edge(raw: Mapping[str, Any]) -> Edge:
    source, handle, _ = raw["from"].partition(":")
    extras = [key for key in raw if key not in {"from", "to"}]
    named = ("handle", *extras) if handle else tuple(extras)
    return Edge(source=source, target=raw["to"], extras=named)


_PLAYED: Final = frozenset({NodeType.INPUT, NodeType.AGENT, NodeType.OUTPUT})
# Descriptive keys that do not affect how the workflow runs.
_TELLING: Final = frozenset(
    {"id", "version", "name", "description", "tags", "metadata", "agents", "nodes", "edges"}
)
_APPLIED: Final[Mapping[str, frozenset[str]]] = {
    NodeType.INPUT: frozenset({"id", "type", "label"}),
    NodeType.AGENT: frozenset({"id", "type", "agent_ref", "prompt_template", "tools"}),
    NodeType.OUTPUT: frozenset({"id", "type"}),
}


class WorkflowStep(Struct, frozen=True, kw_only=True):
    """A node to run and the prompt of its turn."""

    node: str
    prompt: str = ""


class AgentRun(Struct, frozen=True, kw_only=True):
    """Consecutive nodes with the same agent: the turns of one session.

    `tools` are all tools named by the nodes; `None` if a node leaves them to the agent.
    """

    agent_ref: str
    steps: tuple[WorkflowStep, ...]
    tools: tuple[str, ...] | None = None


def agent_runs(workflow: Workflow) -> tuple[AgentRun, ...]:
    """Return the runs in order; raises `Invalid` for a workflow that cannot run."""
    _refuse_what_is_not_applied(workflow)
    line = _line(workflow)
    players = [node for node in line if node["type"] == NodeType.AGENT]
    if not players:
        raise _not_runnable("it has no agent node", None)
    made = tuple(map(_stretch, _neighbours(players)))
    for number, stretch in enumerate(made):
        # The first prompt of a later run is the previous answer.
        for step in stretch.steps[1:] if number else stretch.steps:
            if not step.prompt.strip():
                raise _not_runnable(f"node {step.node} has no prompt_template", step.node)
    return made


def _refuse_what_is_not_applied(workflow: Workflow) -> None:
    for key, value in workflow.body.items():
        is_manual = key == "trigger" and value["type"] == "manual"
        if key not in _TELLING and not is_manual:
            raise _not_runnable(f"{key} is not applied yet", None)
    for id_, node in workflow.nodes.items():
        if node["type"] not in _PLAYED:
            raise _not_runnable(f"node {id_} is of the type {node['type']}", id_)
        for key in node:
            if key not in _APPLIED[node["type"]]:
                raise _not_runnable(f"{key} of node {id_} is not applied yet", id_)
        if placeholders(node.get("prompt_template", "")):
            raise _not_runnable(f"node {id_} has a {{{{…}}}} in its prompt_template", id_)
    for edge in workflow.edges:
        if edge.extras:
            problem = f"the edge from {edge.source} to {edge.target} has a {edge.extras[0]}"
            raise _not_runnable(problem, edge.source)


def _line(workflow: Workflow) -> list[dict[str, Any]]:
    """Return the nodes in edge order; they must form a single path."""
    nodes = workflow.nodes
    following: dict[str, str] = {}
    for edge in workflow.edges:
        if edge.source in following:
            raise _not_runnable(f"several edges leave node {edge.source}", edge.source)
        following[edge.source] = edge.target
    walked = list(_walked(following, _only(workflow, NodeType.INPUT)))
    _only(workflow, NodeType.OUTPUT)
    strayed = [id_ for id_ in (*walked, *nodes) if id_ not in nodes or id_ not in walked]
    if strayed:
        raise _not_runnable(
            f"node {strayed[0]} is not on the line from input to output", strayed[0]
        )
    if nodes[walked[-1]]["type"] != NodeType.OUTPUT or len(following) != len(nodes) - 1:
        raise _not_runnable("its nodes do not form a line from input to output", None)
    return [nodes[id_] for id_ in walked]


def _walked(following: Mapping[str, str], start: str) -> Iterator[str]:
    seen: set[str] = set()
    at: str | None = start
    while at is not None and at not in seen:
        seen.add(at)
        yield at
        at = following.get(at)


def _only(workflow: Workflow, kind: NodeType) -> str:
    found = [id_ for id_, node in workflow.nodes.items() if node["type"] == kind]
    if len(found) != 1:
        raise _not_runnable(f"it has {len(found)} nodes of the type {kind}", None)
    return found[0]


def _neighbours(players: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Group consecutive agent nodes with the same agent."""
    runs: list[list[dict[str, Any]]] = []
    for node in players:
        if runs and runs[-1][0]["agent_ref"] == node["agent_ref"]:
            runs[-1].append(node)
        else:
            runs.append([node])
    return runs


def _stretch(nodes: list[dict[str, Any]]) -> AgentRun:
    named = [node["tools"] for node in nodes if "tools" in node]
    every = dict.fromkeys(tool for tools in named for tool in tools if tool not in ALWAYS)
    return AgentRun(
        agent_ref=nodes[0]["agent_ref"],
        steps=tuple(WorkflowStep(node=n["id"], prompt=n.get("prompt_template", "")) for n in nodes),
        tools=tuple(every) if len(named) == len(nodes) else None,
    )


def _not_runnable(why: str, node: str | None) -> Invalid:
    return Invalid(
        Code.WORKFLOW_NOT_RUNNABLE,
        f"The workflow cannot be run yet: {why}. Only a line from input over agent "
        "nodes to output can be run.",
        {} if node is None else {"node": node},
    )
