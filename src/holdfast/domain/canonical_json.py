"""Canonical JSON: one encoding per value, so that equal contents have equal bytes and ids.

Keys are sorted by code point, whitespace is omitted, and only required characters are escaped. A
float that is a whole number below 2^53 is written as an integer. The order of lists is significant.
"""

import hashlib
import json
import re
from typing import Any, Final

import msgspec

_WHOLE_BELOW: Final = 2.0**53
# A nested float, or a null, which the fast encoder also writes for NaN and infinity. Each branch
# starts with a literal character, because the scan is fast only then.
_UNSURE: Final = re.compile(rb'\[-?[0-9]+[.e]|,-?[0-9]+[.e]|":-?[0-9]+[.e]|null')


def canonical(value: Any) -> bytes:
    """Return the canonical encoding of a value; it must be JSON without NaN or lone surrogates."""
    try:
        quick = _quickly(value)
    except TypeError:
        # A subclass of str, which only a Python caller can pass.
        return _slowly(value)
    # Both encoders agree except on floats and nulls, and most values contain neither.
    is_sure = type(value) is not float and _UNSURE.search(quick) is None
    return quick if is_sure else _slowly(value)


def canonical_text(value: Any) -> str:
    """Return the canonical encoding of a value as text."""
    return canonical(value).decode()


def decode_exact(stored: bytes) -> Any:
    """Return the value of canonical bytes, with integers of any size."""
    return _read(stored)


def digest(value: Any) -> str:
    """Return the SHA-256 of a value's canonical encoding, in hexadecimal."""
    return hashlib.sha256(canonical(value)).hexdigest()


def equality_key(value: Any) -> str | bytes:
    """Return a key that is equal for two values exactly when their encodings are equal.

    The values must come from `decode_exact`. The key is for comparing many values, not for storing.
    """
    # A text is its own key; this is the common case, and no other type maps to a text.
    return value if type(value) is str else _quickly(value)


def _slowly(value: Any) -> bytes:
    return _encode(_whole(value)).encode()


def _whole(value: Any) -> Any:
    """Return the value with whole floats as integers; the same object if there are none.

    The argument is never modified, because it may be shared.
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
