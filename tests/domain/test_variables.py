"""Variables: put in once, without openers, and never with a secret."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.agents import (
    SYSTEM_PROMPT_LONGEST,
    Rendered,
    has_secret_reference,
    neutralise,
    refuse_secrets,
    render,
)
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.secrets import Scrubber, Secret
from tests.marks import each_case


@each_case(
    ("template", "variables", "text", "unknown"),
    [
        ("Review {{ctx.repo}}.", {"repo": "holdfast"}, "Review holdfast.", ()),
        ("{{ctx.a}}{{ctx.b}}", {"a": "1", "b": "2"}, "12", ()),
        ("{{ctx.a-b_C9}}", {"a-b_C9": "x"}, "x", ()),
        # Unknown names stay as they were written, and are told once.
        ("{{ctx.a}} {{ctx.b}} {{ctx.a}}", {"b": "2"}, "{{ctx.a}} 2 {{ctx.a}}", ("a",)),
        ("{{ctx.b}} {{ctx.a}}", {}, "{{ctx.b}} {{ctx.a}}", ("b", "a")),
        # Nothing else is a variable.
        (
            "{{ ctx.a }} {{a}} {{ctx.}} {ctx.a}",
            {"a": "1"},
            "{{ ctx.a }} {{a}} {{ctx.}} {ctx.a}",
            (),
        ),
        ("", {"a": "1"}, "", ()),
        # One pass: what was put in is never looked at.
        ("{{ctx.x}}", {"x": "{{ctx.y}}", "y": "1"}, "{ {ctx.y}}", ()),
        ("{{ctx.x}}", {"x": "{{{secrets.key}}}"}, "{ { {secrets.key}}}", ()),
        # No opener is made where a value meets what stands beside it.
        ("{{{ctx.x}}", {"x": "{ctx.y}}"}, "{ {ctx.y}}", ()),
        ("{{ctx.x}}{ctx.y}}", {"x": "{"}, "{ {ctx.y}}", ()),
        ("{{ctx.x}}{{ctx.y}}", {"x": "{", "y": "{z}}"}, "{ {z}}", ()),
        ("{{{ctx.x}}{y}}", {"x": ""}, "{ {y}}", ()),
        ("{{ctx.x}}{{ctx.y}}", {"x": "{"}, "{ {{ctx.y}}", ("y",)),
    ],
)
def test_variables_are_put_in_once(
    template: str, variables: dict[str, str], text: str, unknown: tuple[str, ...]
) -> None:
    assert render(template, variables) == Rendered(text=text, unknown=unknown)


@each_case(
    ("text", "neutral"),
    [
        ("{{x}}", "{ {x}}"),
        ("{{{", "{ { {"),
        ("{ {x}}", "{ {x}}"),
        ("}}{", "}}{"),
        ("{", "{"),
    ],
)
def test_an_opener_gets_a_space_and_closing_braces_stay(text: str, neutral: str) -> None:
    assert neutralise(text) == neutral
    assert neutralise(neutral) == neutral


@given(st.text("{}ctx.abs "), st.text("{}ctx.a "), st.text("{}ctx.abs "))
def test_no_value_makes_an_opener(before: str, value: str, after: str) -> None:
    template = f"{neutralise(before)}{{{{ctx.a}}}}{neutralise(after)}"

    assert "{{" not in render(template, {"a": value}).text


def test_a_short_template_cannot_become_a_huge_prompt() -> None:
    value = "x" * 8192

    assert len(render("{{ctx.a}}" * 100, {"a": value}).text) == 100 * len(value)
    with pytest.raises(Invalid) as refused:
        render("{{ctx.a}}" * (SYSTEM_PROMPT_LONGEST // len(value)), {"a": value})

    assert refused.value.body() == {
        "error": "invalid_text",
        "message": "With its variables the prompt has more than 1048576 characters; shorten it.",
        "details": {"field": "system_prompt"},
    }


@each_case(
    ("text", "has_one"),
    [
        ("{{secrets.openai}}", True),
        ("a {{ secrets.x }}", True),
        ("{{ctx.secrets}}", False),
        ("{ {secrets.x}}", False),
        ("secrets.x", False),
    ],
)
def test_a_prompt_that_asks_for_a_secret_is_recognised(text: str, has_one: bool) -> None:
    assert has_secret_reference(text) is has_one


def test_variables_with_a_secret_are_refused_by_name() -> None:
    scrubber = Scrubber([("openai:default", Secret("managed-value-1"))])
    variables = {
        "branch": "main",
        "managed": "managed-value-1",
        "inside": "url?x=managed-value-1",
        "shape": "ghp_abcdefghij0123456789",
        "api_token": "abcd1234",
    }

    with pytest.raises(Invalid) as refused:
        refuse_secrets(variables, scrubber)

    assert refused.value.code is Code.SECRET_IN_VARIABLES
    assert refused.value.details == {"variables": ["api_token", "inside", "managed", "shape"]}
    assert not [value for name, value in variables.items() if value in refused.value.message]


def test_variables_without_a_secret_pass() -> None:
    refuse_secrets({"branch": "main", "tokens": "many", "url": "https://example.com"}, Scrubber())
