"""Workflows as values: names, ends of edges, and what stands between braces."""

from holdfast.workflows.model import Edge, Workflow, kebab_id, placeholders
from tests.marks import demands, each_case


@demands("S0-409", "S0-409b")
@each_case(
    ("title", "id_"),
    [
        ("Hello -- World!", "hello-world"),
        ("???", "exported-session"),
        ("", "exported-session"),
        (None, "exported-session"),
        ("İstanbul Sohbeti", "stanbul-sohbeti"),
        ("naïve plan", "nave-plan"),
        ("a_b.c/d", "a-b-c-d"),
        ("  42 ", "42"),
        ("K\u212aK", "kk"),
    ],
)
def test_an_id_is_made_of_the_title(title: str | None, id_: str) -> None:
    assert kebab_id(title) == id_


def test_a_file_is_named_after_its_workflow_and_its_name_fits_on_a_disk() -> None:
    assert Workflow({"workflow": {"id": "plan"}}).file_name == "plan.relavium.yaml"
    assert len(Workflow({"workflow": {"id": "p" * 255}}).file_name) == 214


@each_case(
    ("text", "found"),
    [
        ("", []),
        ("{{a}} and {{ b\n}}", ["a", " b\n"]),
        ("{{a", []),
        ("a}} {{b", []),
        ("{ {a}}", []),
        ("{{ {{a}}", [" {{a"]),
        ("{{" * 200_000 + "}}", ["{{" * 199_999]),
        ("{{" * 500_000, []),
    ],
    ids=range(8),
)
def test_an_opener_without_an_end_is_text(text: str, found: list[str]) -> None:
    assert placeholders(text) == found


def test_an_edge_tells_what_it_has_beside_its_ends() -> None:
    body = {
        "id": "plan",
        "edges": [
            {"from": "a", "to": "b"},
            {"from": "b:yes", "to": "c", "label": "go", "condition": "x"},
        ],
        "nodes": [{"id": "a", "type": "input"}],
        "agents": [{"id": "helper"}, {"$ref": "other.agent.yaml"}],
    }
    workflow = Workflow({"workflow": body})

    assert workflow.edges == [
        Edge(source="a", target="b"),
        Edge(source="b", target="c", extras=("handle", "label", "condition")),
    ]
    assert workflow.nodes == {"a": {"id": "a", "type": "input"}}
    assert workflow.agents == {"helper": {"id": "helper"}}
