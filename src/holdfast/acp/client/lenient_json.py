"""Lenient readers for decoded JSON: a value of the expected type, or nothing."""

from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

from holdfast.domain.text import storable

# Nobody counts further, and a store need not hold what nobody counts.
COUNT_MOST: Final = 2**53


def read_object(value: object) -> Mapping[str, Any]:
    """Return an object's fields; nothing else has any."""
    return value if isinstance(value, dict) else {}


def read_list(value: object) -> list[Any]:
    """Return a list's items; nothing else has any."""
    return value if isinstance(value, list) else []


def read_text(value: object, *, longest: int | None = None) -> str | None:
    """Return a text as a row can hold it, or nothing."""
    return storable(value[:longest]) if isinstance(value, str) else None


def read_word(value: object, *, longest: int = 256) -> str | None:
    """Return a text that says something, or nothing."""
    found = read_text(value, longest=longest)
    return found if found and found.strip() else None


def read_name(value: object) -> str | None:
    """Return what something is called, also when its name is a number."""
    if isinstance(value, int) and not isinstance(value, bool):
        # Cut before it is written out: to spell a number of a million digits takes long.
        return str(value) if abs(value) <= COUNT_MOST else None
    return read_word(value)


def read_count(value: object) -> int | None:
    """Return a number of things, or nothing."""
    amount_ = read_amount(value)
    return int(amount_) if amount_ is not None else None


def read_amount(value: object) -> float | None:
    """Return a number that is not below zero and can be calculated with, or nothing."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    # Compared before it is converted: a whole number may be larger than any other.
    return value if 0 <= value <= COUNT_MOST and isfinite(value) else None
