"""What a workflow's schema leaves open, found one by one."""

from typing import Any

from holdfast.workflows.checks import Finding, FindingCode, check, find_unresolved
from holdfast.workflows.model import Workflow
from tests.marks import each_case

INPUT = {"id": "input", "type": "input"}
OUTPUT = {"id": "output", "type": "output"}


def player(id_: str = "a", ref: str = "helper", *tools: str) -> dict[str, Any]:
    """Return a node of an agent."""
    return {"id": id_, "type": "agent", "agent_ref": ref, "tools": list(tools)}


def of(nodes: list[dict[str, Any]], *ways: str, agents: Any = ()) -> Workflow:
    """Return a workflow of these nodes; a way is `from>to`."""
    edges = [dict(zip(("from", "to"), way.split(">"), strict=True)) for way in ways]
    return Workflow({"workflow": {"id": "w", "nodes": nodes, "edges": edges, "agents": agents}})


def codes(workflow: Workflow, **known: Any) -> list[tuple[str, str]]:
    """Return what was found, in short."""
    return [(each.code.value, each.node) for each in check(workflow, known)]


LINE = ("input>a", "a>output")


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    tools = ["read_file", "mcp_wiki_find", "mcp_b_c_get", "checkpoint", "read_output"]
    helper = {
        "id": "helper",
        "tools": ["read_file", "web_search"],
        "mcp_servers": [{"ref": "wiki"}, {"id": "b c"}],
    }
    nodes = [INPUT, player("a", "helper", *tools, "web_search"), OUTPUT]

    assert check(of(nodes, *LINE, agents=[helper])) == []
    assert codes(of([INPUT, player(), OUTPUT], *LINE), helper={}) == []


def test_an_agent_that_there_is_not_is_found() -> None:
    workflow = of([INPUT, player(), OUTPUT], *LINE)

    assert check(workflow) == [
        Finding(code=FindingCode.AGENT_REF_UNRESOLVED, node="a", message="there is no agent helper")
    ]
    assert find_unresolved(workflow) == ["helper"]


def test_the_tools_of_a_program_and_of_an_unknown_agent_are_their_own() -> None:
    workflow = of([INPUT, player("a", "helper", "read", "execute"), OUTPUT], *LINE)

    assert codes(workflow, helper={"program": True}) == []
    assert codes(workflow) == [("agent_ref_unresolved", "a")]


def test_tools_beyond_the_agents_and_tools_of_nobody_are_found() -> None:
    nodes = [INPUT, player("a", "helper", "run_command", "ghost", "mcp_x_y"), OUTPUT]

    assert check(of(nodes, *LINE, agents=[{"id": "helper", "tools": ["read_file"]}])) == [
        Finding(
            code=FindingCode.TOOLS_EXCEED_AGENT,
            node="a",
            message="agent helper does not have run_command",
        ),
        Finding(code=FindingCode.UNKNOWN_TOOL, node="a", message="there is no tool ghost"),
        Finding(code=FindingCode.UNKNOWN_TOOL, node="a", message="there is no tool mcp_x_y"),
    ]


@each_case(
    ("nodes", "ways", "found"),
    [
        (
            [INPUT, OUTPUT],
            ["input>ghost"],
            [("unknown_node", "ghost"), ("unreachable_node", "output")],
        ),
        ([INPUT, OUTPUT], ["ghost>output", "input>output"], [("unknown_node", "ghost")]),
        ([OUTPUT, {"id": "b", "type": "output"}], ["output>b"], []),
        (
            [OUTPUT, {"id": "b", "type": "output"}],
            ["output>b", "b>output"],
            [("unreachable_node", "output"), ("unreachable_node", "b"), ("cycle", "output")],
        ),
        ([INPUT, OUTPUT], ["input>output", "output>output"], [("cycle", "output")]),
        (
            [
                INPUT,
                {"id": "b", "type": "output"},
                {"id": "c", "type": "output"},
                {"id": "d", "type": "output"},
            ],
            ["input>b", "b>c", "c>b", "c>d"],
            [("cycle", "b")],
        ),
        (
            [
                INPUT,
                {
                    "id": "c",
                    "type": "condition",
                    "branches": [{"target_node": "x"}],
                    "default": "y",
                },
                {"id": "p", "type": "parallel", "parallel_of": ["z"]},
                *({"id": id_, "type": "output"} for id_ in "xyz"),
            ],
            ["input>c", "input>p"],
            [],
        ),
    ],
)
def test_ways_that_lead_nowhere_or_in_a_circle_are_found(
    nodes: list[dict[str, Any]], ways: list[str], found: list[tuple[str, str]]
) -> None:
    assert codes(of(nodes, *ways)) == found


def test_a_long_circle_is_found_at_once() -> None:
    ids = [f"n{number}" for number in range(20_000)]
    nodes = [INPUT, *({"id": id_, "type": "output"} for id_ in ids)]
    ways = ["input>n0", *(f"{a}>{b}" for a, b in zip(ids, [*ids[1:], ids[0]], strict=True))]

    ((code, node),) = codes(of(nodes, *ways))

    assert (code, node in ids) == ("cycle", True)
