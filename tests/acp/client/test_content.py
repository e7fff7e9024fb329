"""Contents of programs, as rows can hold them."""

import base64
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.acp.client.content import (
    DEEPEST,
    MediaBlock,
    limit_value,
    read_block,
    truncate,
)
from holdfast.domain.messages import Media, ToolResult, encode_parts, media_handle
from tests.marks import each_case

DATA = base64.b64encode(b"bytes").decode()


def picture(content: bytes, mime_type: str, name: str | None = None) -> MediaBlock:
    media = Media(
        mime_type=mime_type, ref=media_handle(content), name=name, byte_length=len(content)
    )
    return MediaBlock(media=media, content=content)


@each_case(
    ("block", "seen"),
    [
        ({"type": "text", "text": "a"}, "a"),
        ({"type": "text", "text": 5}, None),
        ({"type": "text"}, None),
        ({"type": "hologram"}, None),
        ({}, None),
        (None, None),
        ("text", None),
        ({"type": "image", "data": DATA, "mimeType": "image/png"}, picture(b"bytes", "image/png")),
        ({"type": "audio", "data": DATA}, picture(b"bytes", "application/octet-stream")),
        ({"type": "image", "data": "äöü"}, "[image that cannot be read]"),
        ({"type": "image", "data": 5}, "[image that cannot be read]"),
        ({"type": "image", "data": ""}, None),
        (
            {"type": "resource", "resource": {"uri": "file:///a/b.txt", "text": "x"}},
            picture(b"x", "text/plain", "b.txt"),
        ),
        (
            {
                "type": "resource",
                "resource": {"uri": "", "blob": DATA, "mimeType": "application/pdf"},
            },
            picture(b"bytes", "application/pdf"),
        ),
        ({"type": "resource", "resource": []}, "[resource that cannot be read]"),
        ({"type": "resource_link", "uri": "file:///a", "name": "A"}, "[A](file:///a)"),
        ({"type": "resource_link", "uri": "file:///a"}, "[file:///a](file:///a)"),
        ({"type": "resource_link"}, None),
    ],
)
def test_a_block_shows_words_or_a_medium_or_nothing(block: Any, seen: Any) -> None:
    assert read_block(block) == seen


def deep(levels: int) -> Any:
    value: Any = "core"
    for _ in range(levels):
        value = [value]
    return value


@each_case(
    ("value", "kept"),
    [
        (None, None),
        (5, 5),
        ("a\x00", "a\ufffd"),
        ({"a": [1, "b"]}, {"a": [1, "b"]}),
        ({"a\x00": ["\ud800", 1.5]}, {"a\ufffd": ["\ufffd", 1.5]}),
        ({"a": "\\u0000"}, {"a": "\\u0000"}),
        (deep(DEEPEST), deep(DEEPEST)),
    ],
)
def test_a_value_becomes_one_that_a_row_can_hold(value: Any, kept: Any) -> None:
    assert limit_value(value) == kept


@each_case("levels", [DEEPEST + 1, 900, 5_000])
def test_what_is_nested_too_deeply_is_cut_off(levels: int) -> None:
    kept = limit_value(deep(levels))

    for _ in range(DEEPEST + 1):
        kept = kept[0]
    assert kept == "[nested too deeply]"


def test_a_large_value_becomes_a_text_with_a_mark() -> None:
    assert limit_value({"a": "x" * 200}, 100) == '{"a":"' + "x" * 30 + "\n[… 172 bytes cut]"
    assert limit_value("ä" * 60, 100) == "ä" * 18 + "\n[… 84 bytes cut]"
    assert truncate("ä" * 50, 100) == "ä" * 50


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
    ),
    st.integers(min_value=80, max_value=400),
)
def test_whatever_comes_fits_and_can_be_stored(value: Any, largest: int) -> None:
    kept = limit_value(value, largest)

    stored = encode_parts((ToolResult(call_id="c", name="n", status="ok", result=kept),))  # type: ignore[arg-type]
    assert b"\\u0000" not in stored.replace(b"\\\\u0000", b"")
    if isinstance(kept, str):
        assert len(kept.encode()) <= largest
