"""Answers become text that every reader can read, whatever was stored."""

from typing import Any

from msgspec import Struct

from holdfast.mcp.forms import text_of, to_plain


def test_a_whole_number_of_any_size_is_text() -> None:
    assert text_of({"n": 10**40}) == '{"n":1' + "0" * 40 + "}"


def test_what_was_stored_with_half_a_character_is_shown_without() -> None:
    form = Odd(text="a\ud800", fields={"k\udfff": ["\ud800", 7, None]}, pair=("x", "\ud83d\ude00"))

    assert to_plain(form) == {
        "text": "a\ufffd",
        "fields": {"k\ufffd": ["\ufffd", 7, None]},
        "pair": ["x", "\U0001f600"],
    }


class Odd(Struct):
    """A form with whatever was stored."""

    text: str
    fields: dict[str, Any]
    pair: tuple[str, str]
