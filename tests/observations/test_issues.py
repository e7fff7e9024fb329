"""Rejections: what is told of an offending value, and what bytes hide from plain readers."""

from typing import Any

import pytest

from holdfast.domain.canonical_json import canonical_text
from holdfast.domain.errors import Invalid
from holdfast.observations.issues import echo, format_path
from holdfast.observations.validation import decode_payload_strictly
from tests.marks import each_case
from tests.observations.claims import issues_of


@each_case(
    ("path", "field"),
    [
        ((), ""),
        (("actions",), "actions"),
        (("actions", 2, "result"), "actions[2].result"),
        (("note", "a", 0, 1), "note.a[0][1]"),
        ((".x",), ".x"),
    ],
)
def test_a_place_is_spelled_as_callers_do(path: tuple[str | int, ...], field: str) -> None:
    assert format_path(path) == field


@each_case("value", [None, True, 0, -1.5, "x", "a\x00b", [], {}, {"a": [1, {"b": None}]}])
def test_a_value_is_told_as_it_is(value: Any) -> None:
    assert echo(value) == value


@each_case(
    ("value", "told"),
    [
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        ("a\ud800", "a\ufffd"),
        ({"\udc00": "\udc00"}, {"\ufffd": "\ufffd"}),
        (10**1000, "…"),
        ({1: object()}, {"1": "…"}),
    ],
)
def test_what_is_no_json_is_told_as_what_is(value: Any, told: Any) -> None:
    assert echo(value) == told


def test_a_long_value_is_told_by_its_beginning() -> None:
    assert echo("x" * 998) == "x" * 998
    assert echo("x" * 999) == '"' + "x" * 999 + "…"
    assert echo([10] * 1000) == canonical_text([10] * 1000)[:1000] + "…"


def test_a_deep_value_is_told_as_deep_as_one_is_accepted() -> None:
    value: Any = []
    for _ in range(5_000):
        value = [value]

    assert canonical_text(echo(value)) == "[" * 32 + '"…"' + "]" * 32


@each_case(
    ("raw", "issues"),
    [
        (b'{"session_id":"abc12","session_id":"abc12"', [("", "type: object")]),
        (b"", [("", "type: object")]),
        (b"\xff{}", [("", "type: object")]),
        (b'{"a":1} x', [("", "type: object")]),
        (b"[" * 100_000, [("", "max_depth: 32")]),
    ],
)
def test_bytes_that_are_no_json_are_refused(raw: bytes, issues: list[tuple[str, str]]) -> None:
    with pytest.raises(Invalid) as refused:
        decode_payload_strictly(raw)

    told = refused.value.details["issues"]
    assert [(each["field"], each["expected"]) for each in told] == issues


@each_case(
    ("member", "issue"),
    [
        (b'"note":{"a":1,"b":2,"a":1}', ("note.a", "unique_keys")),
        (b'"session_id":"abc124"', ("session_id", "unique_keys")),
        (b'"note":NaN', ("note", "finite")),
        (b'"note":[-Infinity]', ("note[0]", "finite")),
        (b'"duration":1e999', ("duration", "finite")),
        (b'"duration":' + b"9" * 5_000, ("duration", "finite")),
        (b'"note":"\\ud800"', ("note", "pattern: well-formed Unicode")),
    ],
)
def test_what_plain_readers_pass_over_is_refused_by_its_place(
    member: bytes, issue: tuple[str, str]
) -> None:
    raw = (
        b'{"session_id":"abc123","actions":[{"type":"a","result":"success"}],'
        b'"started_at":"2025-12-31T11:00:00Z",' + member + b"}"
    )

    assert issues_of(decode_payload_strictly(raw)) == [issue]


def test_plain_bytes_are_read_as_they_are() -> None:
    assert decode_payload_strictly(b'{"a":[1,2.5,"x",null,true,{}]}') == {
        "a": [1, 2.5, "x", None, True, {}]
    }
