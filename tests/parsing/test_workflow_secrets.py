"""Secrets in workflows: no prompt, message or tool's text gets one, on no detour."""

import copy
from typing import Any

import pytest

from holdfast.domain.errors import Code, Invalid
from holdfast.parsing.workflow_files import build_workflow, find_secret_leaks
from tests.marks import each_case
from tests.parsing.workflows import WHOLE


def asking(text: str, context: Any = (), inputs: Any = ()) -> dict[str, Any]:
    """Return a workflow whose agent is told a text."""
    document = copy.deepcopy(WHOLE)
    body = document["workflow"]
    body["nodes"][1]["prompt_template"] = text
    body["context"] += [{"key": key, "value": value} for key, value in context]
    body["inputs"] += [{"name": name, "type": "string", "default": text} for name, text in inputs]
    return document


@each_case(
    "text",
    [
        "{{secrets.x}}",
        "{{ secrets.x }}",
        "{{ upper(secrets['x']) }}",
        "{{\nsecrets . x}}",
        "{{inputs.key}}",
        "{{ input.key | trim }}",
        "{{inputs['key']}}",
        "{{ {{inputs.key}}",
        "{{ctx.a}}",
        "{{ctx.b}}",
        "{{context.deep-one}}",
        "{{inputs.made}}",
    ],
)
def test_a_secret_is_refused_by_any_way(text: str) -> None:
    document = asking(
        text,
        context=[
            ("b", "{{ctx.a}}"),
            ("a", "so: {{inputs.key}}"),
            ("deep-one", {"x": ["{{secrets.y}}"]}),
        ],
        inputs=[("made", "{{ctx.b}}")],
    )

    with pytest.raises(Invalid) as error:
        build_workflow(document, where="it")

    assert error.value.code is Code.SECRET_INTERPOLATION
    assert error.value.details["fields"] == ["workflow.nodes[1].prompt_template"]


@each_case(
    "text",
    [
        "{{secrets.x",
        "secrets.x",
        "{ {secrets.x}}",
        "{{inputs.keys}}",
        "{{ctx.key}}",
        "{{mysecrets.x}}",
        "{{a.secrets.x}}",
        "{{ctx.lang}} {{inputs.t}}",
    ],
)
def test_what_is_no_secret_is_left_alone(text: str) -> None:
    assert build_workflow(asking(text), where="it").nodes["think"]["prompt_template"] == text


@each_case(
    ("place", "value"),
    [
        ("workflow.nodes[2].message_template", "{{secrets.x}}"),
        ("workflow.tools.allowedCommands[0]", "curl {{inputs.key}}"),
        ("workflow.nodes[5].transform", "{{secrets.x}}"),
    ],
)
def test_every_text_that_is_read_or_run_is_looked_at(place: str, value: str) -> None:
    body = copy.deepcopy(WHOLE["workflow"])
    body["nodes"][2]["message_template"] = value if "message" in place else "x"
    body["nodes"][5]["transform"] = value if "transform" in place else "x"
    body["tools"]["allowedCommands"] = [value if "tools" in place else "x"]

    assert find_secret_leaks(body) == [place]


def test_a_long_detour_takes_no_long_time() -> None:
    count = 20_000
    context = [(f"k{n}", f"{{{{ctx.k{n + 1}}}}}") for n in range(count)]
    context.append((f"k{count}", "{{secrets.x}}"))

    assert find_secret_leaks(asking("{{ctx.k0}}", context)["workflow"]) == [
        "workflow.nodes[1].prompt_template"
    ]
