"""Lenient readers for decoded JSON: return a value of the expected type, or nothing."""

from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

from holdfast.domain.text import storable

# Integers up to this limit are exact in every JSON implementation.
COUNT_MOST: Final = 2**53


def read_object(value: object) -> Mapping[str, Any]:
    """Return the value if it is an object; otherwise an empty one."""
    return value if isinstance(value, dict) else {}


def read_list(value: object) -> list[Any]:
    """Return the value if it is a list; otherwise an empty one."""
    return value if isinstance(value, list) else []


def read_text(value: object, *, longest: int | None = None) -> str | None:
    """Return the value if it is a text, in a form that can be stored."""
    return storable(value[:longest]) if isinstance(value, str) else None


def read_word(value: object, *, longest: int = 256) -> str | None:
    """Return the value if it is a text that is not blank."""
    found = read_text(value, longest=longest)
    return found if found and found.strip() else None


def read_name(value: object) -> str | None:
    """Return a name or id; accepts integers as well as texts."""
    if isinstance(value, int) and not isinstance(value, bool):
        # Compared first, because converting an integer of a million digits takes very long.
        return str(value) if abs(value) <= COUNT_MOST else None
    return read_word(value)


def read_count(value: object) -> int | None:
    """Return the value if it is a valid count."""
    amount_ = read_amount(value)
    return int(amount_) if amount_ is not None else None


def read_amount(value: object) -> float | None:
    """Return the value if it is a finite number from zero to `COUNT_MOST`."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    # Compared before `isfinite`, which raises on an integer too large for a float.
    return value if 0 <= value <= COUNT_MOST and isfinite(value) else None
