"""Answers become text that every reader can read, whatever was stored."""

import json
from typing import Any

from msgspec import Struct

from holdfast.domain.errors import Code, Conflict
from holdfast.mcp.forms import text_of, to_plain
from holdfast.wire.errors import error_form


def test_half_a_character_is_mended_before_it_is_sent() -> None:
    details = {"a\ud800": ["x\udc00y", {"n": 1}], "b": ("\ud83d\ude00",)}
    form = to_plain(error_form(Conflict(Code.CALL_NOT_OPEN, "half \ud800", details)))

    assert json.loads(text_of(form).encode()) == form
    assert form["message"] == "half ?"
    assert form["details"]["b"] == ["??"]


def test_a_whole_number_of_any_size_is_text() -> None:
    assert text_of({"n": 10**40}) == '{"n":1' + "0" * 40 + "}"


def test_whatever_stands_in_details_is_told() -> None:
    told = {"set": {1}, "none": None, "flag": True, "code": Code.INTERNAL, "thing": object}
    form = to_plain(error_form(Conflict(Code.CALL_NOT_OPEN, "x", told)))

    assert form["details"]["set"] == [1]
    assert (form["details"]["none"], form["details"]["flag"]) == (None, True)
    assert form["details"]["code"] == "internal"
    assert "object" in form["details"]["thing"]


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
