"""Payloads as bytes: read without losing what plain readers pass over in silence.

Keys that stand twice and numbers that are none stay visible in what is returned, so that
`observation_schema` can refuse them by their place. A surface whose own reader has refused such
bytes already may hand over plain values instead.
"""

import json
import math
from collections import Counter
from typing import Any, Final

from holdfast.domain.observation_issues import DIGITS_MOST, Issue, rejection


class Doubled(dict[str, Any]):
    """An object in which keys stood twice; each holds its last value."""

    doubled: tuple[str, ...] = ()


def decoded(raw: bytes) -> Any:
    """Return the value that the bytes spell, or refuse them if they are no JSON at all."""
    try:
        return _decode(raw.decode())
    except RecursionError:
        issue = Issue(path=(), expected="max_depth: 32", message="The payload is nested too deeply")
    except ValueError:
        issue = Issue(path=(), expected="type: object", message="The payload is not JSON in UTF-8")
    raise rejection((issue,))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    plain = dict(pairs)
    if len(plain) == len(pairs):
        return plain
    found = Doubled(plain)
    counted = Counter(name for name, _ in pairs)
    found.doubled = tuple(name for name in plain if counted[name] > 1)
    return found


def _integer(digits: str) -> int | float:
    # Longer ones could be read in quadratic time only, and Python refuses them with its own error.
    return int(digits) if len(digits) <= DIGITS_MOST else math.inf


_decode: Final = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer).decode
