"""Strict JSON: refuses duplicate keys, excessive depth, numbers beyond 64 bits, NUL and NaN.

Two parsers could read such a document differently (request smuggling into what is stored).
"""

import json
import math
import re
from typing import Any, Final, NoReturn

import msgspec

from holdfast.domain.errors import Code, Invalid

DEPTH_MOST: Final = 100
# Values cost many times their bytes once they are read.
VALUES_MOST: Final = 100_000
_DIGITS_MOST: Final = 20
# Beyond that a second look costs more than it saves.
PLAIN_LARGEST: Final = 16 << 10
_INTEGERS: Final = range(-(1 << 63), 1 << 64)
# A string, closed or not, so that a quote is never looked at twice; or what stands between values.
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[][{},]', re.DOTALL)
# It may be a number beyond 64 bits, or be within a text.
_LONG_NUMBER: Final = re.compile(rb"[0-9]{19}")
_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*+\\u0000")


def require_plain_json(body: bytes) -> None:
    """Refuse depths, doubled keys, numbers and texts that readers disagree about."""
    try:
        _require_moderate(body)
        if not _is_plain(body):
            _decoder.decode(body.decode())
    except (ValueError, RecursionError) as error:
        raise Invalid(
            Code.INVALID_BODY,
            f"The body is not JSON that is safe to pass on: {error}.",
            {"path": "", "rule": str(error)},
        ) from None
    if b"\\u0000" in body and _NUL.search(body):
        raise Invalid(
            Code.INVALID_TEXT,
            "A text in the body contains the character NUL, which cannot be stored; leave it out.",
        )


def _is_plain(body: bytes) -> bool:
    """Tell whether a small body is beyond doubt; others are looked at value by value."""
    if len(body) > PLAIN_LARGEST or _LONG_NUMBER.search(body):
        return False
    try:
        # Written again it would be another one, if something in it could be read in two ways.
        return _encoder.encode(msgspec.json.decode(body)) == msgspec.json.format(body, indent=-1)
    except (msgspec.DecodeError, ValueError):
        return False


def has_more_values(body: bytes, most: int) -> bool:
    """Tell whether a body has more values, or brackets, than it could have in so many bytes."""
    # As above: most have not even that many such characters.
    if body.count(b",") + 2 * _openings(body) <= most:
        return False
    size = 0
    for token in _TOKEN.finditer(body):
        size += body[token.start()] in b"[]{},"
        if size > most:
            return True
    return False


def _require_moderate(body: bytes) -> None:
    """Refuse what would be too much to read, without reading it."""
    # Most bodies could not be deep or wide even if every such character counted.
    openings = _openings(body)
    if openings <= DEPTH_MOST and openings + body.count(b",") <= VALUES_MOST:
        return
    depth = values = 0
    for number, token in enumerate(_TOKEN.finditer(body)):
        mark = body[token.start()]
        depth += (mark in b"[{") - (mark in b"]}")
        values += mark in b"[{,"
        # Even with names and closing brackets there are not more tokens than that.
        if values > VALUES_MOST or number > 4 * VALUES_MOST:
            raise ValueError(f"it has more than {VALUES_MOST} values")
        if depth > DEPTH_MOST:
            raise ValueError(f"it is deeper than {DEPTH_MOST} levels")


def _openings(body: bytes) -> int:
    return body.count(b"[") + body.count(b"{")


def _without_doubles(pairs: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a key is given twice")


def _integer(digits: str) -> None:
    if len(digits) > _DIGITS_MOST or int(digits) not in _INTEGERS:
        raise ValueError("a whole number is beyond 64 bits")


def _number(digits: str) -> None:
    if not math.isfinite(float(digits)):
        raise ValueError("a number is beyond what 64 bits hold")


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


_encoder: Final = msgspec.json.Encoder()
# It is only looked at, so nothing is kept of what has been judged.
_decoder: Final = json.JSONDecoder(
    object_pairs_hook=_without_doubles,
    parse_int=_integer,
    parse_float=_number,
    parse_constant=_constant,
)
