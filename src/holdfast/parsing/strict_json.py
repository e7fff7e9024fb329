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
# Limited, because parsed values take many times the memory of their bytes.
VALUES_MOST: Final = 100_000
_DIGITS_MOST: Final = 20
# Above this size, encoding again costs more than it saves.
PLAIN_LARGEST: Final = 16 << 10
_INTEGERS: Final = range(-(1 << 63), 1 << 64)
# A string, closed or not, so that no quote is scanned twice; or a structural character.
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[][{},]', re.DOTALL)
# Possibly a number beyond 64 bits, or digits inside a string.
_LONG_NUMBER: Final = re.compile(rb"[0-9]{19}")
_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*+\\u0000")


def require_plain_json(body: bytes) -> None:
    """Refuse excessive depth, duplicate keys, and values that parsers read differently."""
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
    """Return whether a small body is certainly unambiguous; others are checked value by value."""
    if len(body) > PLAIN_LARGEST or _LONG_NUMBER.search(body):
        return False
    try:
        # An ambiguous body, such as one with duplicate keys, differs when it is encoded again.
        return _encoder.encode(msgspec.json.decode(body)) == msgspec.json.format(body, indent=-1)
    except (msgspec.DecodeError, ValueError):
        return False


def has_more_values(body: bytes, most: int) -> bool:
    """Return whether a body has more values and brackets than `most`."""
    # Fast path: most bodies have fewer such characters in total, even counting strings.
    if body.count(b",") + 2 * _openings(body) <= most:
        return False
    size = 0
    for token in _TOKEN.finditer(body):
        size += body[token.start()] in b"[]{},"
        if size > most:
            return True
    return False


def _require_moderate(body: bytes) -> None:
    """Refuse a body that is too deep or has too many values, before parsing it."""
    # Fast path: most bodies have too few such characters to be too deep or too wide.
    openings = _openings(body)
    if openings <= DEPTH_MOST and openings + body.count(b",") <= VALUES_MOST:
        return
    depth = values = 0
    for number, token in enumerate(_TOKEN.finditer(body)):
        mark = body[token.start()]
        depth += (mark in b"[{") - (mark in b"]}")
        values += mark in b"[{,"
        # With keys and closing brackets, a body within the limit has no more tokens than this.
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
# Used only for its checks, so the hooks return nothing and no values are built.
_decoder: Final = json.JSONDecoder(
    object_pairs_hook=_without_doubles,
    parse_int=_integer,
    parse_float=_number,
    parse_constant=_constant,
)
