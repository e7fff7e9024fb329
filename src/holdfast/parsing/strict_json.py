"""Strict JSON: refuses duplicate keys, excessive depth, NaN, and for HTTP also other ambiguities.

Two parsers could read such a document differently (request smuggling into what is stored). Every
reader of untrusted JSON that must be unambiguous uses this module.
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
TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[][{},]', re.DOTALL)
# Possibly a number beyond 64 bits, or digits inside a string.
_LONG_NUMBER: Final = re.compile(rb"[0-9]{19}")
_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*+\\u0000")


class StrictJsonError(ValueError):
    """Why JSON is refused although a lenient parser would read it."""


def decode_strictly(
    body: bytes, *, depth_most: int = DEPTH_MOST, values_most: int = VALUES_MOST
) -> Any:
    """Decode JSON; refuses excessive depth and size, duplicate keys and NaN.

    Raises `StrictJsonError` for these, and any other `ValueError` if it is not JSON in UTF-8.
    """
    require_moderate(body, depth_most=depth_most, values_most=values_most)
    return _strict.decode(body.decode())


def require_plain_json(body: bytes) -> None:
    """Refuse excessive depth, duplicate keys, and values that parsers read differently."""
    try:
        require_moderate(body)
        if not _is_plain(body):
            _unambiguous.decode(body.decode())
    except (ValueError, RecursionError) as error:
        raise Invalid(
            Code.INVALID_BODY,
            f"The body is not strict JSON: {error}.",
            {"path": "", "rule": str(error)},
        ) from None
    if b"\\u0000" in body and _NUL.search(body):
        raise Invalid(
            Code.INVALID_TEXT,
            "A string in the body contains NUL, which cannot be stored; remove it.",
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
    for token in TOKEN.finditer(body):
        size += body[token.start()] in b"[]{},"
        if size > most:
            return True
    return False


def require_moderate(
    body: bytes, *, depth_most: int = DEPTH_MOST, values_most: int = VALUES_MOST
) -> None:
    """Refuse JSON that is too deep or has too many values, before parsing it."""
    # Fast path: most bodies have too few such characters to be too deep or too wide.
    openings = _openings(body)
    if openings <= depth_most and openings + body.count(b",") <= values_most:
        return
    depth = values = 0
    for number, token in enumerate(TOKEN.finditer(body)):
        mark = body[token.start()]
        depth += (mark in b"[{") - (mark in b"]}")
        values += mark in b"[{,"
        # With keys and closing brackets, a body within the limit has no more tokens than this.
        if values > values_most or number > 4 * values_most:
            raise StrictJsonError(f"it has more than {values_most} values")
        if depth > depth_most:
            raise StrictJsonError(f"it is nested deeper than {depth_most} levels")


def _openings(body: bytes) -> int:
    return body.count(b"[") + body.count(b"{")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise StrictJsonError("a key is repeated")
    return found


def _integer(digits: str) -> None:
    if len(digits) > _DIGITS_MOST or int(digits) not in _INTEGERS:
        raise StrictJsonError("an integer exceeds 64 bits")


def _number(digits: str) -> None:
    if not math.isfinite(float(digits)):
        raise StrictJsonError("a number exceeds 64 bits")


def _constant(name: str) -> NoReturn:
    raise StrictJsonError(f"{name} is not a JSON number")


_encoder: Final = msgspec.json.Encoder()
_strict: Final = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
# Used only for its checks, so numbers are not built.
_unambiguous: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_number, parse_constant=_constant
)
