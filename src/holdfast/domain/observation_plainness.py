"""What any payload must be, whatever it is about: JSON that every reader understands alike.

Depth, texts, numbers and doubled keys are judged here; its members are, in `observation_schema`.
"""

import math
from collections.abc import Iterator
from typing import Any, Final

from holdfast.domain.observation_documents import Doubled
from holdfast.domain.observation_issues import (
    DEPTH_MOST,
    DIGITS_MOST,
    Issue,
    Path,
    is_long,
    spelled_path,
)
from holdfast.domain.shapes import STRING_LONGEST
from holdfast.domain.texts import is_encodable


def plain_faults(payload: Any) -> list[Issue]:
    """Return each place of a payload that is no plain JSON within our limits."""
    # Nearly all are, and telling that needs no places.
    return [] if _is_plain(payload) else list(_faults(payload, (), 1))


def _is_plain(payload: Any) -> bool:
    """Tell whether all is plain; level by level, because calls take longer than what they find."""
    level, depth = [payload], 0
    while level:
        depth += 1
        below: list[Any] = []
        for each in level:
            kind = type(each)
            if kind is str:
                is_plain = len(each) <= STRING_LONGEST and (each.isascii() or is_encodable(each))
            elif kind is dict:
                is_plain = depth <= DEPTH_MOST and _STR.issuperset(map(type, each))
                below += each
                below += each.values()
            elif kind is list:
                is_plain = depth <= DEPTH_MOST
                below += each
            else:
                is_plain = _fault(each) is None
            if not is_plain:
                return False
        level = below
    return True


def _faults(value: Any, path: Path, depth: int) -> Iterator[Issue]:
    if isinstance(value, dict | list) and depth > DEPTH_MOST:
        message = f"The payload may be nested {DEPTH_MOST} levels deep"
        yield Issue(path=path, value=value, expected=f"max_depth: {DEPTH_MOST}", message=message)
    elif isinstance(value, dict):
        yield from _doubles(value, path)
        for name, each in value.items():
            yield from _told(name if isinstance(name, str) else _NO_NAME, (*path, str(name)))
            yield from _faults(each, (*path, str(name)), depth + 1)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _faults(each, (*path, number), depth + 1)
    else:
        yield from _told(value, path)


def _doubles(value: dict[str, Any], path: Path) -> Iterator[Issue]:
    for name in value.doubled if isinstance(value, Doubled) else ():
        place = (*path, name)
        message = f"{spelled_path(place)} is given more than once"
        yield Issue(path=place, value=value[name], expected="unique_keys", message=message)


def _told(value: Any, path: Path) -> Iterator[Issue]:
    fault = _fault(value)
    if fault is not None:
        expected, rule = fault
        yield Issue(
            path=path, value=value, expected=expected, message=f"{spelled_path(path)} {rule}"
        )


def _fault(value: Any) -> tuple[str, str] | None:
    """Return what is expected of a value that is neither list nor object, and is not."""
    if isinstance(value, str):
        return _text_fault(value)
    if value is None or isinstance(value, bool):
        return None
    if not isinstance(value, int | float):
        return "type: string|number|array|object", "is no JSON"
    if is_long(value) or not (isinstance(value, int) or math.isfinite(value)):
        return "finite", f"must be a finite number of at most {DIGITS_MOST} digits"
    return None


def _text_fault(text: str) -> tuple[str, str] | None:
    if len(text) > STRING_LONGEST:
        return f"max_length: {STRING_LONGEST}", f"has more than {STRING_LONGEST} characters"
    if not text.isascii() and not is_encodable(text):
        return "pattern: well-formed Unicode", "contains half of a surrogate pair"
    return None


_STR: Final = frozenset({str})
# Stands for a key that is no text, which only a program can hand over.
_NO_NAME: Final = object()
