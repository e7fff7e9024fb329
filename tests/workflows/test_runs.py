"""Which workflows are played, with what, and why another is not."""

from itertools import pairwise
from typing import Any

import pytest

from holdfast.domain.agents import AgentOverrides, Retry
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.sessions import Budget, OnExceed
from holdfast.domain.tools import Grant
from holdfast.workflows.model import (
    CONTEXT,
    INPUTS,
    OUTPUTS,
    AgentRun,
    Workflow,
    WorkflowStep,
    agent_runs,
    budget_of,
    context_values,
    fill,
    grant_of,
    used_inputs,
)
from tests.marks import demands, each_case

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


@demands("S0-001c")
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


def test_a_node_with_settings_of_its_own_is_a_session_of_its_own() -> None:
    retry = {"max": 3, "backoff": "linear", "retry_on": ["rate_limit"]}
    workflow = line(
        player("a", model="maker:one"),
        player("b"),
        player("c", temperature=0.5, max_tokens=9),
        player("d", temperature=0.5, max_tokens=9, model="two"),
        player("e", retry=retry, system_prompt_append="Be brief."),
    )

    runs = agent_runs(workflow)

    assert [[(step.node, step.model) for step in run.steps] for run in runs] == [
        [("a", "maker:one"), ("b", None)],
        [("c", None), ("d", "two")],
        [("e", None)],
    ]
    assert [run.overrides for run in runs] == [
        None,
        AgentOverrides(temperature=0.5, max_tokens=9),
        AgentOverrides(
            retry=Retry(max=3, backoff="linear", retry_on=("rate_limit",)),
            system_prompt_append="Be brief.",
        ),
    ]


@each_case(
    ("template", "filled"),
    [
        ("{{inputs.a}} {{ ctx.b }}", "A B"),
        ("{{run.outputs[\"n-1\"]}}{{run.outputs['n-1']}}{{run.outputs.n-1}}", "NNN"),
        ('{{inputs["a"]}}', "A"),
        ("{{inputs.x}} {{ctx.a}} {{a}} {{run.outputs[n-1]}}", None),
        ("{ {inputs.a}} {{inputs.a", None),
        # One pass: what was put in is not read again.
        ("{{inputs.sly}}", "{{inputs.a}}"),
        ("{{inputs.half}}inputs.a}}", "{{inputs.a}}"),
    ],
)
def test_a_template_is_filled_in_one_pass(template: str, filled: str | None) -> None:
    values = {
        (INPUTS, "a"): "A",
        (INPUTS, "sly"): "{{inputs.a}}",
        (INPUTS, "half"): "{{",
        (CONTEXT, "b"): "B",
        (OUTPUTS, "n-1"): "N",
    }

    assert fill(template, values) == (template if filled is None else filled)


def test_a_long_value_that_is_put_in_often_is_refused_before_it_is() -> None:
    with pytest.raises(Invalid) as refused:
        fill("{{inputs.a}}" * 100_000, {(INPUTS, "a"): "x" * 100_000})

    assert refused.value.code is Code.MESSAGE_TOO_LARGE


def test_values_of_the_context_are_texts_with_the_inputs_in_them() -> None:
    context = [{"key": "a", "value": "to {{inputs.who}}"}, {"key": "b", "value": {"n": [1, None]}}]
    workflow = line(
        player("a", prompt_template="{{inputs.what}}", system_prompt_append="{{ctx.a}}"),
        inputs=[{"name": name, "type": "string"} for name in ("who", "what", "unused")],
        context=context,
    )

    assert context_values(workflow, {"who": "{{ctx.b}}"}) == {
        "a": "to {{ctx.b}}",
        "b": '{"n":[1,null]}',
    }
    assert used_inputs(workflow) == {"who", "what"}


def test_a_value_in_a_system_prompt_opens_no_placeholder() -> None:
    (run,) = agent_runs(
        line(
            player("a", system_prompt_append="For {{inputs.who}}."),
            inputs=[{"name": "who", "type": "string"}],
        )
    )

    filled = run.with_values({(INPUTS, "who"): "{{ctx.x}}"})

    assert filled.overrides == AgentOverrides(system_prompt_append="For { {ctx.x}}.")


def test_a_budget_and_a_policy_hold_for_the_whole_workflow() -> None:
    budget = {"max_cost_microcents": 5, "on_exceed": "pause_for_approval"}
    whole = line(player(), budget=budget, tools={"allowedDomains": ["a.org"]})

    assert budget_of(whole) == Budget(microcents=5, on_exceed=OnExceed.PAUSE)
    # A list that is not given is empty, as soon as one is given.
    assert grant_of(whole) == Grant(domains=("a.org",))
    assert (budget_of(line()), grant_of(line(tools={"allowedTools": []}))) == (None, None)


FAULTS = {
    "it has no agent node": line(),
    "node a has no prompt_template": line(player("a", prompt_template=" ")),
    "node b has no prompt_template": line(player("a"), player("b", prompt_template="")),
    "node d has no prompt_template": line(
        player(), player("c", "o"), player("d", "o", prompt_template="")
    ),
    "prompt_template of node a refers to ctx x, which it cannot use": line(
        player("a", prompt_template="{{ctx.x}}")
    ),
    "prompt_template of node a refers to run.outputs b, which it cannot use": line(
        player("a", prompt_template='{{run.outputs["b"]}}'), player("b")
    ),
    "prompt_template of node a has another {{…}}": line(
        player("a", prompt_template="{{inputs.x | json}}"), inputs=[{"name": "x"}]
    ),
    "system_prompt_append of node b refers to run.outputs a, which it cannot use": line(
        player("a"), player("b", system_prompt_append='{{run.outputs["a"]}}')
    ),
    "the value of k in context refers to ctx k, which it cannot use": line(
        player(), context=[{"key": "k", "value": "{{ctx.k}}"}]
    ),
    "the value of j in context refers to inputs x, which it cannot use": line(
        player(), inputs=[{"name": "x"}], context=[{"key": "j", "value": ["{{inputs.x}}"]}]
    ),
    "node a uses read_file, which is not in tools.allowedTools": line(
        player("a", tools=["checkpoint", "read_file"]), tools={"allowedTools": ["find_text"]}
    ),
    "output_schema of node a is not applied yet": line(player("a", output_schema={})),
    "node g is of the type human_gate": line(
        player(), {"id": "g", "type": "human_gate", "gate_type": "review"}
    ),
    "save_to of node output is not applied yet": branched(
        way("input", "output"), nodes=[INPUT, OUTPUT | {"save_to": "x"}]
    ),
    "timeout_ms is not applied yet": line(player(), timeout_ms=1),
    "trigger is not applied yet": line(player(), trigger={"type": "mcp_call"}),
    "the edge from a to b has a label": branched(way("input", "a"), way("a", "b", label="x")),
    "the edge from a to b has a handle": branched(way("a:yes", "b")),
    "several edges leave node input": branched(way("input", "a"), way("input", "b")),
    "node b is not on the path from input to output": branched(
        way("input", "a"), way("a", "output"), way("b", "output")
    ),
    "node ghost is not on the path from input to output": branched(
        way("input", "a"), way("a", "b"), way("b", "ghost")
    ),
    "its nodes do not form a single path from input to output": branched(
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

    with pytest.raises(Invalid, match="do not form a single path from input to output"):
        agent_runs(circle)


def test_the_node_is_named_where_there_is_one() -> None:
    with pytest.raises(Invalid) as refused:
        agent_runs(line(player("a", count=2)))

    assert refused.value.details == {"node": "a"}
