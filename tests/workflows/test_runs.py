"""Which workflows are played, and why another is not."""

from itertools import pairwise
from typing import Any

import pytest

from holdfast.domain.errors import Code, Invalid
from holdfast.workflows.model import AgentRun, Workflow, WorkflowStep, agent_runs
from tests.marks import each_case

INPUT = {"id": "input", "type": "input"}
OUTPUT = {"id": "output", "type": "output"}


def player(id_: str = "a", ref: str = "helper", **more: Any) -> dict[str, Any]:
    """Return a node of an agent that says its own name."""
    return {"id": id_, "type": "agent", "agent_ref": ref, "prompt_template": id_} | more


def line(*players: dict[str, Any], **more: Any) -> Workflow:
    """Return a workflow that is one line."""
    nodes = [INPUT, *players, OUTPUT]
    ids = [node["id"] for node in nodes]
    edges = [{"from": a, "to": b} for a, b in pairwise(ids)]
    return Workflow({"workflow": {"id": "w", "nodes": nodes, "edges": edges} | more})


def branched(*edges: dict[str, Any], nodes: Any = None) -> Workflow:
    """Return a workflow with these edges."""
    players = nodes or [INPUT, player("a"), player("b"), OUTPUT]
    return Workflow({"workflow": {"id": "w", "nodes": players, "edges": list(edges)}})


def way(source: str, target: str, **more: Any) -> dict[str, Any]:
    """Return an edge."""
    return {"from": source, "to": target, **more}


def test_neighbours_with_one_agent_are_one_stretch() -> None:
    workflow = line(
        player("a", tools=["read_file", "checkpoint"]),
        player("b", tools=["read_file", "find_text"]),
        player("c", "other", prompt_template=""),
        player("d", "other", tools=[]),
        player("e"),
        name="n",
        description="d",
        metadata={"x": "{{y}}"},
        trigger={"type": "manual"},
    )

    assert agent_runs(workflow) == (
        AgentRun(
            agent_ref="helper",
            steps=(WorkflowStep(node="a", prompt="a"), WorkflowStep(node="b", prompt="b")),
            tools=("read_file", "find_text"),
        ),
        AgentRun(
            agent_ref="other", steps=(WorkflowStep(node="c"), WorkflowStep(node="d", prompt="d"))
        ),
        AgentRun(agent_ref="helper", steps=(WorkflowStep(node="e", prompt="e"),)),
    )


FAULTS = {
    "it has no agent node": line(),
    "node a has no prompt_template": line(player("a", prompt_template=" ")),
    "node b has no prompt_template": line(player("a"), player("b", prompt_template="")),
    "node d has no prompt_template": line(
        player(), player("c", "o"), player("d", "o", prompt_template="")
    ),
    "node a has a {{…}} in its prompt_template": line(player("a", prompt_template="{{ctx.x}}")),
    "model of node a is not applied yet": line(player("a", model="x")),
    "node g is of the type human_gate": line(
        player(), {"id": "g", "type": "human_gate", "gate_type": "review"}
    ),
    "save_to of node output is not applied yet": branched(
        way("input", "output"), nodes=[INPUT, OUTPUT | {"save_to": "x"}]
    ),
    "budget is not applied yet": line(player(), budget={}),
    "trigger is not applied yet": line(player(), trigger={"type": "mcp_call"}),
    "inputs is not applied yet": line(player(), inputs=[]),
    "the edge from a to b has a label": branched(way("input", "a"), way("a", "b", label="x")),
    "the edge from a to b has a handle": branched(way("a:yes", "b")),
    "several edges leave node input": branched(way("input", "a"), way("input", "b")),
    "node b is not on the line from input to output": branched(
        way("input", "a"), way("a", "output"), way("b", "output")
    ),
    "node ghost is not on the line from input to output": branched(
        way("input", "a"), way("a", "b"), way("b", "ghost")
    ),
    "its nodes do not form a line from input to output": branched(
        way("input", "output"), way("output", "a"), way("a", "b")
    ),
    "it has 0 nodes of the type input": branched(nodes=[OUTPUT]),
    "it has 2 nodes of the type output": branched(
        way("input", "output"), nodes=[INPUT, OUTPUT, OUTPUT | {"id": "o"}]
    ),
}


@each_case("why", FAULTS)
def test_what_cannot_be_played_is_refused_with_its_reason(why: str) -> None:
    with pytest.raises(Invalid) as refused:
        agent_runs(FAULTS[why])

    assert refused.value.code is Code.WORKFLOW_NOT_RUNNABLE
    assert f": {why}. " in refused.value.message


def test_a_line_that_ends_in_a_circle_is_refused() -> None:
    circle = branched(way("input", "a"), way("a", "b"), way("b", "output"), way("output", "a"))

    with pytest.raises(Invalid, match="do not form a line from input to output"):
        agent_runs(circle)


def test_the_node_is_named_where_there_is_one() -> None:
    with pytest.raises(Invalid) as refused:
        agent_runs(line(player("a", model="x")))

    assert refused.value.details == {"node": "a"}
