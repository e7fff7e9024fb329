"""Canonical JSON: one spelling for one value, so that equal contents have equal bytes and ids.

Keys are sorted by code point, nothing stands between tokens, only what must be is escaped, and a
float that is a whole number below 2^53 is spelled as that number. The order of lists is meaning.
"""

import hashlib
import json
import re
from typing import Any, Final

import msgspec

_WHOLE_BELOW: Final = 2.0**53
# A float inside of something; or a null, which the quick spelling also has for what is no number.
# Each branch begins with a character, because only then most of a text is passed over quickly.
_UNSURE: Final = re.compile(rb'\[-?[0-9]+[.e]|,-?[0-9]+[.e]|":-?[0-9]+[.e]|null')


def canonical(value: Any) -> bytes:
    """Return the one spelling of a value; it must be JSON without NaN and lone surrogates."""
    try:
        quick = _quickly(value)
    except TypeError:
        # A text of a class of its own, which only a program can hand over.
        return _slowly(value)
    # Floats and nulls aside both spell alike, and most values have neither.
    is_sure = type(value) is not float and _UNSURE.search(quick) is None
    return quick if is_sure else _slowly(value)


def canonical_text(value: Any) -> str:
    """Return the one spelling of a value as text."""
    return canonical(value).decode()


def decode_exact(stored: bytes) -> Any:
    """Return the value that canonical bytes spell, integers of any size among its parts."""
    return _read(stored)


def digest(value: Any) -> str:
    """Return the SHA-256 of a value's one spelling, in hexadecimal digits."""
    return hashlib.sha256(canonical(value)).hexdigest()


def equality_key(value: Any) -> str | bytes:
    """Return what two values have in common exactly when their spellings are equal.

    They must be as `reading` gives them; it is made for comparing many, not for keeping.
    """
    # A text is its own: most values are, and no other kind becomes a text here.
    return value if type(value) is str else _quickly(value)


def _slowly(value: Any) -> bytes:
    return _encode(_whole(value)).encode()


def _whole(value: Any) -> Any:
    """Return the value with whole numbers for the floats that are some; itself if there are none.

    It is never changed: what was given may be shared.
    """
    if isinstance(value, dict):
        members = {name: _whole(each) for name, each in value.items()}
        return members if any(members[name] is not value[name] for name in value) else value
    if isinstance(value, list | tuple):
        items = [_whole(each) for each in value]
        return items if any(map(_differs, items, value)) else value
    if isinstance(value, float) and value.is_integer() and abs(value) < _WHOLE_BELOW:
        return int(value)
    return value


def _differs(one: object, other: object) -> bool:
    return one is not other


_encode: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
).encode
_read: Final = msgspec.json.Decoder().decode
_quickly: Final = msgspec.json.Encoder(order="sorted").encode
