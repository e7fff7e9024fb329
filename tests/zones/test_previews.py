"""A preview is one line about an archive, and whatever a snapshot holds, nothing is raised."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.zones.replay import (
    SNAPSHOT_LARGEST,
    collapse_preview,
    output_preview,
    snapshot_preview,
    version_of,
)
from tests.marks import demands, each_case


def said(message: Any) -> dict[str, Any]:
    return {"type": "user_message", "message": message}


def snapshot(*nodes: Any) -> bytes:
    return msgspec.json.encode({"schemaVersion": 1, "nodes": list(nodes)})


BOOTSTRAP = "# Session Context\nwhere we are"


@demands("S4-072")
@each_case(
    ("nodes", "told"),
    [
        ((), ""),
        ((said("hello"),), "hello"),
        ((said(BOOTSTRAP),), "# Session Context where we are"),
        ((said(BOOTSTRAP), said("real")), "real"),
        ((said(BOOTSTRAP), said(BOOTSTRAP + "!"), said("real"), said("later")), "real"),
        ((said("  "), said(5), {"type": "note", "message": "x"}, 7, said("it")), "it"),
    ],
)
def test_the_first_message_of_a_person_is_the_preview(nodes: tuple[Any, ...], told: str) -> None:
    assert snapshot_preview(snapshot(*nodes)) == (told, len(nodes))


@demands("S4-072b")
@each_case(
    "content",
    [None, b"", b"{", b"[]", b"3", b'{"nodes":{}}', b'{"x":1}', b"\xff", b"[" * 200_000],
)
def test_what_is_no_snapshot_has_neither_preview_nor_nodes(content: bytes | None) -> None:
    assert snapshot_preview(content) == ("", 0)


def test_a_snapshot_may_have_four_mebibytes_and_not_a_byte_more() -> None:
    bare = snapshot(said("x"))
    padded = bare[:-1] + b" " * (SNAPSHOT_LARGEST - len(bare)) + b"}"

    assert len(padded) == 4_194_304
    assert snapshot_preview(padded) == ("x", 1)
    assert snapshot_preview(padded + b" ") == ("", 0)


@demands("S4-074")
@each_case(
    ("text", "told"),
    [
        ("x" * 240, "x" * 240),
        ("x" * 241, "x" * 240 + "…"),
        (" a\t\tb\n\r\nc ", "a b c"),
        ("🪢" * 240, "🪢" * 240),
        ("🪢" * 300, "🪢" * 240 + "…"),
        ("", ""),
    ],
)
def test_a_preview_is_one_line_of_at_most_240_characters(text: str, told: str) -> None:
    assert collapse_preview(text) == told


@each_case(
    "line",
    [
        {"type": "user", "message": "hi"},
        {"type": "user", "message": {"content": "hi"}},
        {"type": "user_message", "content": [{"type": "text", "text": "hi"}]},
        {"role": "user", "text": "hi"},
        {"role": "user", "message": {"content": [{"text": "h"}, {"text": "i"}, {}, 3]}},
    ],
)
def test_a_log_is_about_its_first_user_prompt(line: dict[str, Any]) -> None:
    lines = [b'{"type":"assistant","text":"no"}', b"torn {", msgspec.json.encode(line)]

    assert output_preview(lines) == "hi"
    assert output_preview(lines[:2]) == ""


@given(st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5))
def test_no_line_is_too_odd_to_be_looked_at(value: Any) -> None:
    line = {"type": "user", "message": value, "content": value, "text": value}

    assert isinstance(output_preview([msgspec.json.encode(line)]), str)


def test_a_snapshot_says_its_version_or_has_the_first() -> None:
    assert version_of({"schemaVersion": 2}) == 2
    assert version_of({"nodes": []}) == 1
    assert [version_of(each) for each in ({}, [], None, {"schemaVersion": "1"})] == [None] * 4
