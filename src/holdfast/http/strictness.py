"""What a body must be beyond its type: JSON that every reader understands in the same way."""

import json
import math
import re
from typing import Any, Final, NoReturn

from holdfast.domain.errors import Code, Invalid

DEPTH_MOST: Final = 100
# Values cost many times their bytes once they are read.
VALUES_MOST: Final = 100_000
_DIGITS_MOST: Final = 20
_INTEGERS: Final = range(-(1 << 63), 1 << 64)
# Closed or not, so that a quote is never looked at twice.
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*+\\u0000")
_ALL_BUT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))


def require_plain_json(body: bytes) -> None:
    """Refuse depths, doubled keys, numbers and texts that readers disagree about."""
    try:
        text = body.decode()
        _require_moderate(body)
        _decoder.decode(text)
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


def _require_moderate(body: bytes) -> None:
    """Refuse what would be too much to read, without reading it."""
    # Most bodies could not be deep or wide even if every such character counted.
    if _openings(body) <= DEPTH_MOST and body.count(b",") <= VALUES_MOST:
        return
    # Two for each value, its name and itself; what has more is not even taken apart.
    bones, strings = _STRING.subn(b"", body, count=2 * VALUES_MOST + 1)
    if strings > 2 * VALUES_MOST or _openings(bones) + bones.count(b",") > VALUES_MOST:
        raise ValueError(f"it has more than {VALUES_MOST} values")
    depth = 0
    for bracket in bones.translate(None, _ALL_BUT_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
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


# It is only looked at, so nothing is kept of what has been judged.
_decoder: Final = json.JSONDecoder(
    object_pairs_hook=_without_doubles,
    parse_int=_integer,
    parse_float=_number,
    parse_constant=_constant,
)
