"""Workflow files: what they may say, and all that is wrong with one, by its place."""

import copy
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.errors import Code, Invalid, NotFound
from holdfast.domain.secrets import Scrubber, Secret
from holdfast.parsing.workflow_files import (
    build_workflow,
    parse_workflow,
    read_inputs,
    read_workflow,
    write_workflow,
)
from holdfast.parsing.yaml import LARGEST, WRITTEN_LARGEST
from holdfast.workflows.model import Workflow
from tests.marks import demands, each_case
from tests.parsing.workflows import LEAST, WHOLE

GONE = object()


def with_(path: str, value: Any, base: dict[str, Any] = WHOLE) -> dict[str, Any]:
    """Return a document that has something else at a place, or nothing there."""
    document = copy.deepcopy(base)
    at: Any = document
    *way, last = path.split(".")
    for step in way:
        at = at[int(step)] if step.isdigit() else at[step]
    key: Any = int(last) if last.isdigit() else last
    if value is GONE:
        del at[key]
    else:
        at[key] = value
    return document


def refused(document: Any) -> Invalid:
    """Return how a document is refused."""
    with pytest.raises(Invalid) as error:
        build_workflow(document, where="it")
    return error.value


@demands("S0-461")
@each_case("document", [LEAST, WHOLE])
def test_a_workflow_is_read_and_written_the_same(document: dict[str, Any]) -> None:
    text = write_workflow(build_workflow(document, where="it"))

    assert parse_workflow(text, where="it").document == document
    assert write_workflow(parse_workflow(text, where="it")) == text


FAULTS: dict[str, tuple[str, Any]] = {
    "schema_version": ("schema_version", 1.0),
    "more": ("more", 1),
    "workflow": ("workflow", []),
    "workflow.id": ("workflow.id", "Not-Kebab"),
    "workflow.nope": ("workflow.nope", 1),
    "workflow.nodes": ("workflow.nodes", []),
    "workflow.edges": ("workflow.edges", GONE),
    "workflow.tags[0]": ("workflow.tags", [""]),
    "workflow.metadata": ("workflow.metadata", []),
    "workflow.trigger.type": ("workflow.trigger", {"type": "moon"}),
    "workflow.trigger.path": ("workflow.trigger", {"type": "webhook", "secret_env": "X"}),
    "workflow.trigger.x": ("workflow.trigger", {"type": "manual", "x": 1}),
    "workflow.trigger.debounce_ms": (
        "workflow.trigger",
        {"type": "file_change", "glob": "*", "debounce_ms": -1},
    ),
    "workflow.inputs[0].type": ("workflow.inputs.0.type", "date"),
    "workflow.inputs[1].default": ("workflow.inputs.1.default", "one"),
    "workflow.inputs[1].validation.min": ("workflow.inputs.1.validation.min", 3),
    "workflow.inputs[1].validation.pattern": ("workflow.inputs.1.validation", {"pattern": "x"}),
    "workflow.inputs[2].validation.min_length": ("workflow.inputs.2.validation.min_length", 2),
    "workflow.inputs[3].default": ("workflow.inputs.3.default", 1),
    "workflow.inputs[3].validation.min": ("workflow.inputs.3.validation", {"min": 1}),
    "workflow.inputs[4].default": ("workflow.inputs.4.default", "hush"),
    "workflow.inputs[4]": ("workflow.inputs.4.name", "b"),
    "workflow.context[1]": ("workflow.context.1.key", "lang"),
    "workflow.context[0].key": ("workflow.context.0.key", "a b"),
    "workflow.tools.allowed": ("workflow.tools", {"allowed": []}),
    "workflow.budget.max_cost_microcents": ("workflow.budget.max_cost_microcents", 0),
    "workflow.timeout_ms": ("workflow.timeout_ms", True),
    "workflow.agents[0].model": ("workflow.agents.0.model", ""),
    "workflow.agents[0]": ("workflow.agents.0", "helper"),
    "workflow.agents[1]": ("workflow.agents.1", {"$ref": "x", "id": "y"}),
    "workflow.nodes[0].type": ("workflow.nodes.0.type", "loop"),
    "workflow.nodes[0].id": ("workflow.nodes.0.id", "a--b"),
    "workflow.nodes[1]": ("workflow.nodes.1.id", "input"),
    "workflow.nodes[1].agent_ref": ("workflow.nodes.1.agent_ref", GONE),
    "workflow.nodes[1].tools[1]": ("workflow.nodes.1.tools", ["a", "a"]),
    "workflow.nodes[1].temperature": ("workflow.nodes.1.temperature", 3),
    "workflow.nodes[1].retry.max": ("workflow.nodes.1.retry.max", 0),
    "workflow.nodes[1].retry.retry_on[0]": ("workflow.nodes.1.retry.retry_on", ["tool_failed"]),
    "workflow.nodes[2].gate_type": ("workflow.nodes.2.gate_type", "x"),
    "workflow.nodes[3].branches": ("workflow.nodes.3.branches", []),
    "workflow.nodes[3].branches[0].when": ("workflow.nodes.3.branches.0.when", None),
    "workflow.nodes[4].parallel_of": ("workflow.nodes.4.parallel_of", []),
    "workflow.nodes[6].merge_fn": ("workflow.nodes.6.merge_fn", GONE),
    "workflow.nodes[7].save_to": ("workflow.nodes.7.save_to", "a/../b"),
    "workflow.edges[0].on_error": ("workflow.edges.0.on_error", "x"),
    "workflow.edges[0].from": ("workflow.edges.0.from", "a b"),
    "workflow.edges[2].to": ("workflow.edges.2.to", "gate"),
    "workflow.name": ("workflow.name", "\ud800"),
}


@each_case("field", FAULTS)
def test_a_fault_is_told_by_its_place(field: str) -> None:
    error = refused(with_(*FAULTS[field]))

    assert (error.code, error.details["fields"][0]) == (Code.WORKFLOW_INVALID, field)


@each_case("path", ["/a", "..", "a\\..\\b", "C:\\a", "\\a", "a/.."])
def test_an_output_stays_where_it_is(path: str) -> None:
    assert refused(with_("workflow.nodes.7.save_to", path)).code is Code.WORKFLOW_INVALID


@each_case("document", [None, [], "x", {}, {"workflow": 1}, {"workflow": {}}])
def test_what_is_no_workflow_at_all_is_refused(document: Any) -> None:
    assert refused(document).code is Code.WORKFLOW_INVALID


def test_all_faults_are_told_at_once_and_no_value() -> None:
    error = refused(
        {
            "schema_version": "2.0",
            "workflow": {
                "id": "Secret Word",
                "nodes": [{"type": "input"}, 1],
                "edges": [{"to": "x"}],
                "x" * 300: 1,
            },
        }
    )

    assert error.details == {
        "file": "it",
        "fields": [
            "schema_version",
            f"workflow.{'x' * 191}",
            "workflow.id",
            "workflow.nodes[0].id",
            "workflow.nodes[1]",
            "workflow.edges[0].from",
        ],
    }
    assert "Secret Word" not in error.message


INPUTS = [
    {"name": "text", "type": "string", "validation": {"min_length": 2, "max_length": 3}},
    {"name": "code", "type": "code_diff", "validation": {"pattern": "[a-z]+"}},
    {"name": "odd", "type": "string", "validation": {"pattern": "("}},
    {"name": "file", "type": "file_path"},
    {"name": "n", "type": "number", "default": 1.5, "validation": {"min": 0, "max": 10}},
    {"name": "b", "type": "boolean", "default": True},
    {"name": "low", "type": "number", "validation": {"min": 2}},
    {"name": "key", "type": "secret", "required": True},
]


def with_inputs(prompt: str, *more: dict[str, Any]) -> Workflow:
    """Return a workflow with inputs, and a prompt that may use them."""
    nodes = [{"id": "a", "type": "agent", "agent_ref": "x", "prompt_template": prompt}]
    body = {"id": "w", "nodes": nodes, "edges": [], "inputs": [*INPUTS, *more]}
    return parse_workflow(
        write_workflow(Workflow({"schema_version": "1.0", "workflow": body})), where="it"
    )


def test_inputs_are_what_is_given_and_what_is_the_default() -> None:
    given = {"text": "a=b", "file": "a b/c.py", "n": "-0", "code": "abc"}

    assert read_inputs(with_inputs("{{inputs.text}}"), given) == {**given, "b": "true"}
    assert read_inputs(with_inputs("x"), {"n": "1e1", "b": "false"}) == {"n": "1e1", "b": "false"}
    assert read_inputs(with_inputs("x"), {}) == {"n": "1.5", "b": "true"}


@each_case(
    ("given", "problem"),
    [
        ({"nope": "x"}, "Input nope: The workflow has no such input; its inputs are text, code,"),
        ({"text": "a"}, "Input text: It must have at least 2 characters."),
        ({"text": "abcd"}, "Input text: It must have at most 3 characters."),
        ({"text": "a\x00"}, "Input text: It contains an invalid character."),
        ({"code": "abc1"}, "Input code: It must match the pattern that the workflow sets for it."),
        ({"odd": "x"}, "Input odd: It has an invalid pattern in the workflow: this is not a"),
        ({"file": " "}, "Input file: It must be a path."),
        ({"n": "11"}, "Input n: It must be at most 10."),
        ({"low": "1.9"}, "Input low: It must be at least 2."),
        ({"n": "one"}, "Input n: It must be a number."),
        ({"n": "1e999"}, "Input n: It must be a number."),
        ({"n": "0x1"}, "Input n: It must be a number."),
        ({"n": ""}, "Input n: It must be a number."),
        ({"b": "yes"}, "Input b: It must be true or false."),
        ({"key": "hush"}, "Input key: It is a secret, which no text of a workflow may contain;"),
    ],
)
def test_an_input_that_is_not_what_it_should_be_is_refused(
    given: dict[str, str], problem: str
) -> None:
    with pytest.raises(Invalid) as refused:
        read_inputs(with_inputs("x"), given)

    assert refused.value.message.startswith(problem)
    assert refused.value.details == {"input": next(iter(given))}
    assert "hush" not in refused.value.message


def test_an_input_without_a_value_is_refused_where_it_is_needed() -> None:
    workflow = with_inputs("{{inputs.file}}", {"name": "must", "type": "string", "required": True})

    with pytest.raises(Invalid) as refused:
        read_inputs(workflow, {})

    assert refused.value.details == {"inputs": ["file", "must"]}
    assert "--input NAME=VALUE" in refused.value.message
    assert read_inputs(workflow, {"file": "f", "must": ""})["must"] == ""


def test_a_failure_that_is_never_retried_is_refused_with_those_that_are() -> None:
    retry = {"max": 2, "backoff": "linear", "retry_on": ["timeout"]}

    error = refused(with_("workflow.agents.0.retry", retry))

    known = "rate_limit, unavailable, provider_rate_limit, provider_unavailable"
    assert f"workflow.agents[0].retry.retry_on[0]: it must be one of {known}." in error.message


def test_two_agents_of_one_name_are_a_fault() -> None:
    agent = WHOLE["workflow"]["agents"][0]

    assert refused(with_("workflow.agents", [agent, agent])).details["fields"] == [
        "workflow.agents[1]"
    ]


def test_a_secret_in_an_agent_is_refused_behind_other_faults() -> None:
    leaking = with_("workflow.agents.0.system_prompt", "use sk-abcdefghij0123456789")
    asking = with_("workflow.agents.0.system_prompt", "use {{secrets.key}}")

    assert refused(leaking).code is Code.SECRET_IN_FILE
    assert refused(asking).code is Code.SECRET_INTERPOLATION
    assert refused(with_("workflow.id", "X", leaking)).code is Code.WORKFLOW_INVALID


def test_a_managed_secret_is_known_by_the_scrubber() -> None:
    leaking = with_("workflow.agents.0.system_prompt", "say correct-horse-battery")
    scrubber = Scrubber([("door", Secret("correct-horse-battery"))])

    with pytest.raises(Invalid) as error:
        build_workflow(leaking, where="it", scrubber=scrubber)
    assert error.value.code is Code.SECRET_IN_FILE
    assert "correct-horse" not in error.value.message


@each_case(
    ("text", "place"),
    [
        ("a: [", (1, 5)),
        ("a: &x 1", (1, 4)),
        ("a: !!str x", (1, 4)),
        ("a: 1\na: 2", (2, 1)),
        ("<<: {a: 1}", (1, 1)),
        ("--- 1\n--- 2", (2, 1)),
        ("[" * 70 + "]" * 70, (1, 65)),
        ("#" * (LARGEST + 1), (1, 1)),
        ("#" * (WRITTEN_LARGEST + 1), (0, 0)),
    ],
)
def test_what_is_no_yaml_of_ours_is_refused_with_its_place(
    text: str, place: tuple[int, int]
) -> None:
    with pytest.raises(Invalid) as error:
        parse_workflow(text, where="it")

    assert error.value.code is Code.YAML_INVALID
    assert error.value.details == {"file": "it", "line": place[0], "column": place[1]}


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a.relavium.yaml"
    file.write_text(write_workflow(build_workflow(WHOLE, where="it")))

    assert read_workflow(file).document == WHOLE


def test_a_file_that_is_none_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff")
    (tmp_path / "large").write_bytes(b" " * (LARGEST + 1))

    with pytest.raises(NotFound, match="There is no file"):
        read_workflow(tmp_path / "ghost")
    for name in (".", "binary", "large"):
        with pytest.raises(Invalid) as error:
            read_workflow(tmp_path / name)
        assert error.value.code is Code.YAML_INVALID
