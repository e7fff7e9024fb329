"""The workspace of a session."""

from typing import Any

import msgspec
import pytest
from hypothesis import given

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.sessions import VARIABLE_LARGEST, VARIABLES_MOST, Selection, SessionContext
from holdfast.domain.tools import FsTier
from tests.builders import a_context
from tests.domain.strategies import CONTEXTS
from tests.marks import demands, each_case


def a_selection(**changes: Any) -> Selection:
    lines: dict[str, Any] = {"file": "a.py", "start_line": 0, "end_line": 0}
    return Selection(**(lines | changes))


def faults(**changes: Any) -> list[str]:
    with pytest.raises(Invalid) as refused:
        a_context(**changes)

    error = refused.value
    named = ", ".join(error.details["fields"])
    assert error.code is Code.INVALID_CONTEXT
    assert error.message == f"The session's context is not valid; check: {named}."
    return list(error.details["fields"])


def test_a_context_is_sandboxed_unless_told_otherwise() -> None:
    assert a_context() == SessionContext(
        working_dir="/desk",
        active_file=None,
        selection=None,
        git_ref=None,
        fs_scope_tier=FsTier.SANDBOXED,
        variables={},
    )


@demands("S0-006e")
def test_a_session_carries_64_variables_of_8_kibibytes() -> None:
    assert (VARIABLES_MOST, VARIABLE_LARGEST) == (64, 8_192)


@each_case("tier", ["sandboxed", "project", "full"])
def test_the_tier_is_always_written_out(tier: str) -> None:
    context = a_context(fs_scope_tier=FsTier(tier))

    assert msgspec.to_builtins(context)["fs_scope_tier"] == tier


@each_case(
    "changes",
    [
        {"working_dir": "/"},
        {"working_dir": "/with blank/ünd"},
        {"active_file": "src/a.py"},
        {"selection": a_selection(start_line=3, end_line=3)},
        {"selection": a_selection(start_line=0, end_line=9)},
        {"git_ref": "main@0123456789ab"},
        {"variables": {"A-z_9": ""}},
        {"variables": {"k" * 64: "v" * VARIABLE_LARGEST}},
        {"variables": {str(number): "v" for number in range(VARIABLES_MOST)}},
    ],
)
def test_what_is_within_the_rules_is_kept_as_given(changes: dict[str, Any]) -> None:
    built = a_context(**changes)

    assert {name: getattr(built, name) for name in changes} == changes


@demands("S0-017b")
@each_case(
    ("changes", "fields"),
    [
        ({"working_dir": ""}, ["working_dir"]),
        ({"working_dir": "relative/path"}, ["working_dir"]),
        ({"working_dir": "~/home"}, ["working_dir"]),
        ({"working_dir": "/nul\x00"}, ["working_dir"]),
        ({"working_dir": "/\udcff"}, ["working_dir"]),
        ({"active_file": ""}, ["active_file"]),
        ({"active_file": "  "}, ["active_file"]),
        ({"active_file": "a\x00"}, ["active_file"]),
        ({"selection": a_selection(file="")}, ["selection.file"]),
        ({"selection": a_selection(file="\ud800")}, ["selection.file"]),
        ({"selection": a_selection(start_line=-1)}, ["selection.start_line"]),
        ({"selection": a_selection(start_line=2, end_line=1)}, ["selection.end_line"]),
        ({"git_ref": ""}, ["git_ref"]),
        ({"git_ref": "a\x00"}, ["git_ref"]),
        ({"variables": {str(n): "v" for n in range(VARIABLES_MOST + 1)}}, ["variables"]),
        ({"variables": {"": "v"}}, ["variables"]),
        ({"variables": {"a b": "v"}}, ["variables"]),
        ({"variables": {"a b": "v", "c d": "v"}}, ["variables"]),
        ({"variables": {"k" * 65: "v"}}, ["variables"]),
        ({"variables": {"good": "v", "bad": "\x00"}}, ["variables.bad"]),
        ({"variables": {"bad": "\ud800"}}, ["variables.bad"]),
        ({"variables": {"bad": "v" * (VARIABLE_LARGEST + 1)}}, ["variables.bad"]),
        ({"variables": {"bad": "é" * (VARIABLE_LARGEST // 2 + 1)}}, ["variables.bad"]),
    ],
)
def test_a_broken_rule_is_refused_by_the_path_of_its_field(
    changes: dict[str, Any], fields: list[str]
) -> None:
    assert faults(**changes) == fields


def test_all_broken_rules_are_named_at_once() -> None:
    assert faults(
        working_dir="here",
        active_file="",
        selection=a_selection(file="", start_line=-1, end_line=-2),
        git_ref="",
        variables={"a": "\x00"},
    ) == [
        "working_dir",
        "active_file",
        "selection.file",
        "selection.start_line",
        "selection.end_line",
        "git_ref",
        "variables.a",
    ]


def test_a_refusal_never_repeats_a_value() -> None:
    with pytest.raises(Invalid) as refused:
        a_context(working_dir="canary", variables={"key": "canary\x00", "canary key": "v"})

    assert "canary" not in str(refused.value.body())


@given(CONTEXTS)
def test_a_context_survives_being_stored(context: SessionContext) -> None:
    stored = msgspec.json.encode(context)

    assert msgspec.json.decode(stored, type=SessionContext) == context


@each_case(
    "wrong",
    [
        b'{"working_dir": "/w", "selection": {"file": "a", "start_line": true, "end_line": 1}}',
        b'{"working_dir": "/w", "selection": {"file": "a", "start_line": 0, "end_line": false}}',
        b'{"working_dir": "/w", "selection": {"file": "a", "start_line": 0.5, "end_line": 1}}',
        b'{"working_dir": "/w", "selection": {"file": "a", "start_line": "0", "end_line": 1}}',
        b'{"working_dir": "/w", "selection": {"file": "a", "start_line": 0}}',
        b'{"working_dir": "/w", "fs_scope_tier": "everything"}',
        b'{"working_dir": "/w", "variables": {"a": 1}}',
        b'{"working_dir": 1}',
        b"{}",
    ],
)
def test_a_value_of_another_type_is_not_read(wrong: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(wrong, type=SessionContext)


@demands("S0-017")
def test_a_rule_holds_for_what_is_read_as_for_what_is_built() -> None:
    with pytest.raises(Invalid):
        msgspec.json.decode(b'{"working_dir": "here"}', type=SessionContext)
