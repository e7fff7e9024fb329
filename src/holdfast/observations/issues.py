"""Rejections and warnings of observations: codes, messages and paths."""

import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from holdfast.domain.canonical_json import canonical_text
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.text import is_encodable, storable

ISSUES_MOST: Final = 50
VALUE_LONGEST: Final = 1_000
DEPTH_MOST: Final = 32

# A path in a payload: member names and item numbers, outermost first.
Path = tuple[str | int, ...]


class Issue(Struct, frozen=True, kw_only=True):
    """One violation: its path, the value and the expectation."""

    path: Path
    value: Any = None
    expected: str
    message: str

    @property
    def field(self) -> str:
        """Return the formatted path, for example `actions[2].result`."""
        return format_path(self.path)

    def describe(self) -> dict[str, Any]:
        """Return the issue in its wire format."""
        return {
            "field": self.field,
            "value": echo(self.value),
            "expected": self.expected,
            "message": self.message,
        }


class WarningCode(StrEnum):
    """Problems of an observation that is stored nevertheless: one closed list."""

    CHECKPOINT_OUT_OF_RANGE = "CHECKPOINT_OUT_OF_RANGE"
    DATE_IN_FUTURE = "DATE_IN_FUTURE"
    DATE_IN_PAST = "DATE_IN_PAST"
    DURATION_MISMATCH = "DURATION_MISMATCH"
    ENDED_BEFORE_STARTED = "ENDED_BEFORE_STARTED"
    ENTITY_DELETED = "ENTITY_DELETED"
    NONSTANDARD_RESULT = "NONSTANDARD_RESULT"
    NULL_CLEARED_FIELD = "NULL_CLEARED_FIELD"
    NULL_IGNORED = "NULL_IGNORED"
    STATUS_REGRESSION = "STATUS_REGRESSION"
    TIMESTAMP_ASSUMED_UTC = "TIMESTAMP_ASSUMED_UTC"
    UNKNOWN_FIELD = "UNKNOWN_FIELD"


class SchemaWarning(Struct, frozen=True, kw_only=True):
    """A problem with an observation that is stored nevertheless."""

    code: Annotated[WarningCode, Meta(description="The code of the problem, from a closed list.")]
    field: Annotated[str, Meta(description="The path of the value, for example actions[2].result.")]
    message: Annotated[str, Meta(description="A message for people.")]
    details: Annotated[dict[str, Any], Meta(description="Details for programs.")] = {}


def rejection(issues: Sequence[Issue], *, hint: str = "") -> Invalid:
    """Return the error for an invalid payload; the first issue is repeated at the top level.

    The message contains paths and rules but no values, because it may be logged.
    """
    first = issues[0]
    described = [each.describe() for each in issues[:ISSUES_MOST]]
    return Invalid(
        Code.SCHEMA_VALIDATION_FAILED,
        f"{first.message}.{f' {hint}' if hint else ''}",
        {**described[0], "issues": described},
    )


def format_path(path: Path) -> str:
    """Format a path; the payload itself is the empty string."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return _sendable("".join(parts).removeprefix("."))


def echo(value: Any) -> Any:
    """Return an invalid value in a form that is safe to send back: valid JSON, truncated."""
    shown = _showable(value, 1)
    text = canonical_text(shown)
    return shown if len(text) <= VALUE_LONGEST else f"{text[:VALUE_LONGEST]}…"


def _showable(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return _sendable(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value if not is_long(value) else "…"
    # Values nested too deeply to be accepted are also too deep to be shown.
    if not isinstance(value, dict | list) or depth > DEPTH_MOST:
        return "…"
    if isinstance(value, list):
        return [_showable(each, depth + 1) for each in value]
    return {_sendable(str(name)): _showable(each, depth + 1) for name, each in value.items()}


def _sendable(text: str) -> str:
    return text if is_encodable(text) else storable(text)


def is_long(value: Any) -> bool:
    """Return whether an integer has more digits than can be read or written."""
    return isinstance(value, int) and abs(value) >= _TOO_LONG


DIGITS_MOST: Final = 1_000
_TOO_LONG: Final = 10**DIGITS_MOST
