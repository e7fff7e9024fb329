"""Workflows: the content of a `.relavium.yaml` file as a value, and the subset that can run."""

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.agents import AgentOverrides, neutralise
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.messages import TEXT_LARGEST
from holdfast.domain.sessions import Budget, OnExceed
from holdfast.domain.tools import ALWAYS, Grant

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
# The keys of `tools` that list what a grant lists.
GRANTS: Final[Mapping[str, str]] = {
    "allowedCommands": "commands",
    "allowedCommandGlobs": "command_globs",
    "allowedDomains": "domains",
}
_encoder: Final = msgspec.json.Encoder()


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


# `{{inputs.NAME}}`, `{{ctx.KEY}}`, `{{run.outputs["NODE"]}}`; a name may follow a dot or a bracket.
_REFERENCE: Final = re.compile(
    r"\s*(inputs|ctx|run\.outputs)(?:\.([\w-]+)|\[\s*(?:\"([\w-]+)\"|'([\w-]+)')\s*\])\s*",
    re.ASCII,
)
INPUTS: Final = "inputs"
CONTEXT: Final = "ctx"
OUTPUTS: Final = "run.outputs"
# What a placeholder refers to: one of the three above, and a name.
Reference = tuple[str, str]


def parse_reference(inside: str) -> Reference | None:
    """Return what a placeholder refers to; `None` if it is another expression."""
    found = _REFERENCE.fullmatch(inside)
    return None if found is None else (found[1], found[2] or found[3] or found[4])


def fill(template: str, values: Mapping[Reference, str]) -> str:
    """Return the template with its placeholders replaced in one pass.

    A value is inserted as it is, so that a placeholder inside it stays text.
    """
    names = map(parse_reference, placeholders(template))
    # Checked before, because a short template can insert one long value many times.
    if len(template) + sum(len(values.get(each, "")) for each in names if each) > TEXT_LARGEST:
        raise Invalid(
            Code.MESSAGE_TOO_LARGE,
            "With its values a prompt has more than 1 MiB of text; shorten it or the values.",
        )

    def value(found: re.Match[str]) -> str:
        reference = parse_reference(found[1])
        return values.get(reference, found[0]) if reference else found[0]

    closed, end, rest = template.rpartition("}}")
    return _PLACEHOLDER.sub(value, closed + end) + rest


def _edge(raw: Mapping[str, Any]) -> Edge:
    source, handle, _ = raw["from"].partition(":")
    extras = [key for key in raw if key not in {"from", "to"}]
    named = ("handle", *extras) if handle else tuple(extras)
    return Edge(source=source, target=raw["to"], extras=named)


_RUNNABLE: Final = frozenset({NodeType.INPUT, NodeType.AGENT, NodeType.OUTPUT})
# Descriptive keys that do not affect how the workflow runs.
_DESCRIPTIVE: Final = frozenset(
    {"id", "version", "name", "description", "tags", "metadata", "agents", "nodes", "edges"}
)
# A sequence never runs two nodes at once, so `max_parallel` holds.
_RUN: Final = frozenset({"inputs", "context", "tools", "budget", "max_parallel"})
# Keys of a node that change the settings of its agent; each combination has a separate session.
_SETTINGS: Final = ("temperature", "max_tokens", "retry", "system_prompt_append")
_APPLIED: Final[Mapping[str, frozenset[str]]] = {
    NodeType.INPUT: frozenset({"id", "type", "label"}),
    NodeType.AGENT: frozenset(
        {"id", "type", "agent_ref", "prompt_template", "tools", "model", *_SETTINGS}
    ),
    NodeType.OUTPUT: frozenset({"id", "type"}),
}


class WorkflowStep(Struct, frozen=True, kw_only=True):
    """A node to run, the template of its prompt, and its own model."""

    node: str
    prompt: str = ""
    model: str | None = None

    @property
    def uses_outputs(self) -> bool:
        """Return whether the prompt contains the positions of earlier answers."""
        found = map(parse_reference, placeholders(self.prompt))
        return any(each is not None and each[0] == OUTPUTS for each in found)


class AgentRun(Struct, frozen=True, kw_only=True):
    """Consecutive nodes with the same agent and settings: the turns of one session.

    `tools` are all tools named by the nodes; `None` if a node leaves them to the agent.
    """

    agent_ref: str
    steps: tuple[WorkflowStep, ...]
    tools: tuple[str, ...] | None = None
    overrides: AgentOverrides | None = None

    def with_values(self, values: Mapping[Reference, str]) -> "AgentRun":
        """Return the run with the values in its system prompt."""
        overrides = self.overrides
        if overrides is None or not overrides.system_prompt_append:
            return self
        # A value must not become a placeholder of the system prompt (template injection).
        plain = {key: neutralise(value) for key, value in values.items()}
        filled = fill(overrides.system_prompt_append, plain)
        return replace(self, overrides=replace(overrides, system_prompt_append=filled))


def budget_of(workflow: Workflow) -> Budget | None:
    """Return the cost limit of all sessions of the workflow together."""
    form = workflow.body.get("budget")
    if form is None:
        return None
    on_exceed = OnExceed(form["on_exceed"].removesuffix("_for_approval"))
    return Budget(microcents=form["max_cost_microcents"], on_exceed=on_exceed)


def grant_of(workflow: Workflow) -> Grant | None:
    """Return the commands and domains of the workflow's agents; `None` keeps their own.

    If one of the lists is given, a list that is not given is empty. The tier is that of the agent.
    """
    policy = policy_of(workflow)
    lists = {name: policy[key] for key, name in GRANTS.items() if key in policy}
    return msgspec.convert(lists, Grant) if lists else None


def policy_of(workflow: Workflow) -> dict[str, Any]:
    """Return the content of `tools`, which restricts all agents of the workflow."""
    policy: dict[str, Any] = workflow.body.get("tools", {})
    return policy


def used_inputs(workflow: Workflow) -> set[str]:
    """Return the names of the inputs that a text refers to."""
    texts = [node.get(key, "") for node in workflow.nodes.values() for key in _TEMPLATES]
    texts += [each["value"] for each in workflow.body.get("context", ())]
    found = [
        parse_reference(inside)
        for text in texts
        if isinstance(text, str)
        for inside in placeholders(text)
    ]
    return {each[1] for each in found if each is not None and each[0] == INPUTS}


def context_values(workflow: Workflow, inputs: Mapping[str, str]) -> dict[str, str]:
    """Return the values of `context` with the inputs inserted; other values than texts are JSON."""
    values = {(INPUTS, name): text for name, text in inputs.items()}
    return {
        each["key"]: fill(each["value"], values)
        if isinstance(each["value"], str)
        else _encoder.encode(each["value"]).decode()
        for each in workflow.body.get("context", ())
    }


def agent_runs(workflow: Workflow) -> tuple[AgentRun, ...]:
    """Return the runs in order; raises `Invalid` for a workflow that cannot run."""
    _refuse_what_is_not_applied(workflow)
    nodes = _sequence(workflow)
    _refuse_references(workflow, nodes)
    _refuse_tools(workflow)
    agent_nodes = [node for node in nodes if node["type"] == NodeType.AGENT]
    if not agent_nodes:
        raise _not_runnable("it has no agent node", None)
    runs = tuple(map(_agent_run, _group_nodes(agent_nodes)))
    for number, run in enumerate(runs):
        # The first prompt of a later run is the previous answer.
        for step in run.steps[1:] if number else run.steps:
            if not step.prompt.strip():
                raise _not_runnable(f"node {step.node} has no prompt_template", step.node)
    return runs


def _refuse_what_is_not_applied(workflow: Workflow) -> None:
    for key, value in workflow.body.items():
        is_manual = key == "trigger" and value["type"] == "manual"
        if key not in _DESCRIPTIVE | _RUN and not is_manual:
            raise _not_runnable(f"{key} is not applied yet", None)
    for id_, node in workflow.nodes.items():
        if node["type"] not in _RUNNABLE:
            raise _not_runnable(f"node {id_} is of the type {node['type']}", id_)
        for key in node:
            if key not in _APPLIED[node["type"]]:
                raise _not_runnable(f"{key} of node {id_} is not applied yet", id_)
    for edge in workflow.edges:
        if edge.extras:
            problem = f"the edge from {edge.source} to {edge.target} has a {edge.extras[0]}"
            raise _not_runnable(problem, edge.source)


# The keys of a node that may contain placeholders, and what these may refer to.
_TEMPLATES: Final[Mapping[str, tuple[str, ...]]] = {
    "prompt_template": (INPUTS, CONTEXT, OUTPUTS),
    # An answer of a model must not become an instruction of the system.
    "system_prompt_append": (INPUTS, CONTEXT),
}


def _refuse_references(workflow: Workflow, nodes: list[dict[str, Any]]) -> None:
    """Refuse a placeholder that could not be replaced when its node runs."""
    known = {(INPUTS, each["name"]) for each in workflow.body.get("inputs", ())}
    for each in workflow.body.get("context", ()):
        place = f"the value of {each['key']} in context"
        value = each["value"]
        # A value that is not a text is inserted as JSON, where an inserted text could break out.
        text = value if isinstance(value, str) else _encoder.encode(value).decode()
        _refuse_unknown(text, known if text is value else set(), place, None)
    known |= {(CONTEXT, each["key"]) for each in workflow.body.get("context", ())}
    for node in nodes:
        for key, kinds in _TEMPLATES.items():
            allowed = {each for each in known if each[0] in kinds}
            _refuse_unknown(node.get(key, ""), allowed, f"{key} of node {node['id']}", node["id"])
        if node["type"] == NodeType.AGENT:
            known.add((OUTPUTS, node["id"]))


def _refuse_unknown(text: str, known: set[Reference], where: str, node: str | None) -> None:
    for inside in placeholders(text):
        reference = parse_reference(inside)
        if reference is None:
            raise _not_runnable(f"{where} has another {{{{…}}}}", node, _REFERENCES)
        if reference not in known:
            kind, name = reference
            problem = f"{where} refers to {kind} {name[:64]}, which it cannot use"
            raise _not_runnable(problem, node, _REFERENCES)


def _refuse_tools(workflow: Workflow) -> None:
    """Refuse a node that uses a tool which the workflow does not allow."""
    allowed = policy_of(workflow).get("allowedTools")
    if allowed is None:
        return
    for id_, node in workflow.nodes.items():
        for tool in node.get("tools", ()):
            if tool not in {*allowed, *ALWAYS}:
                problem = f"node {id_} uses {tool}, which is not in tools.allowedTools"
                raise _not_runnable(problem, id_, "Add it there, or remove it from the node.")


def _sequence(workflow: Workflow) -> list[dict[str, Any]]:
    """Return the nodes in edge order; they must form a single path."""
    nodes = workflow.nodes
    following: dict[str, str] = {}
    for edge in workflow.edges:
        if edge.source in following:
            raise _not_runnable(f"several edges leave node {edge.source}", edge.source)
        following[edge.source] = edge.target
    walked = list(_follow(following, _only(workflow, NodeType.INPUT)))
    _only(workflow, NodeType.OUTPUT)
    strayed = [id_ for id_ in (*walked, *nodes) if id_ not in nodes or id_ not in walked]
    if strayed:
        raise _not_runnable(
            f"node {strayed[0]} is not on the path from input to output", strayed[0]
        )
    if nodes[walked[-1]]["type"] != NodeType.OUTPUT or len(following) != len(nodes) - 1:
        raise _not_runnable("its nodes do not form a single path from input to output", None)
    return [nodes[id_] for id_ in walked]


def _follow(following: Mapping[str, str], start: str) -> Iterator[str]:
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


def _group_nodes(nodes: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Group consecutive agent nodes with the same agent and settings."""
    runs: list[list[dict[str, Any]]] = []
    for node in nodes:
        first = runs[-1][0] if runs else {}
        if all(first.get(key) == node.get(key) for key in ("agent_ref", *_SETTINGS)):
            runs[-1].append(node)
        else:
            runs.append([node])
    return runs


def _agent_run(nodes: list[dict[str, Any]]) -> AgentRun:
    named = [node["tools"] for node in nodes if "tools" in node]
    every = dict.fromkeys(tool for tools in named for tool in tools if tool not in ALWAYS)
    return AgentRun(
        agent_ref=nodes[0]["agent_ref"],
        steps=tuple(map(_step, nodes)),
        tools=tuple(every) if len(named) == len(nodes) else None,
        overrides=_overrides(nodes[0]),
    )


def _step(node: Mapping[str, Any]) -> WorkflowStep:
    prompt = node.get("prompt_template", "")
    return WorkflowStep(node=node["id"], prompt=prompt, model=node.get("model"))


def _overrides(node: Mapping[str, Any]) -> AgentOverrides | None:
    given = {key: node[key] for key in _SETTINGS if key in node}
    return msgspec.convert(given, AgentOverrides) if given else None


_STRUCTURE: Final = "Only a sequence from input over agent nodes to output can be run."
_REFERENCES: Final = (
    "A prompt may refer to {{inputs.NAME}}, {{ctx.KEY}} and, for an earlier node, "
    '{{run.outputs["NODE"]}}; a system_prompt_append to the first two, a context to inputs.'
)


def _not_runnable(why: str, node: str | None, remedy: str = _STRUCTURE) -> Invalid:
    return Invalid(
        Code.WORKFLOW_NOT_RUNNABLE,
        f"The workflow cannot be run yet: {why}. {remedy}",
        {} if node is None else {"node": node},
    )
