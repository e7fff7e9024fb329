"""The workspace a session runs against: given by the surface that opens it, fixed for its life."""

import re
from pathlib import PurePath
from typing import Final

from msgspec import Struct

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.texts import is_encodable
from holdfast.domain.tools import FsTier

VARIABLES_MOST: Final = 64
VARIABLE_LARGEST: Final = 8 << 10
_VARIABLE: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Selection(Struct, frozen=True, kw_only=True):
    """Lines of a file that the person has marked."""

    file: str
    start_line: int
    end_line: int


class SessionContext(Struct, frozen=True, kw_only=True):
    """Where work happens; `variables` are plain text and never carry a secret."""

    working_dir: str
    active_file: str | None = None
    selection: Selection | None = None
    git_ref: str | None = None
    fs_scope_tier: FsTier = FsTier.SANDBOXED
    variables: dict[str, str] = {}

    def __post_init__(self) -> None:
        wrong = list(dict.fromkeys(_faults(self)))
        if wrong:
            raise Invalid(
                Code.INVALID_CONTEXT,
                f"The session's context is not valid; look at: {', '.join(wrong)}.",
                {"fields": wrong},
            )


def _faults(context: SessionContext) -> list[str]:
    """Return the paths of the fields that break a rule, never their values."""
    marked = context.selection
    rules = {
        "working_dir": PurePath(context.working_dir).is_absolute() and _clean(context.working_dir),
        "active_file": context.active_file is None or _filled(context.active_file),
        "selection.file": marked is None or _filled(marked.file),
        "selection.start_line": marked is None or marked.start_line >= 0,
        "selection.end_line": marked is None or marked.end_line >= marked.start_line,
        "git_ref": context.git_ref is None or _filled(context.git_ref),
        "variables": len(context.variables) <= VARIABLES_MOST,
    }
    # Paths and no values: a value may be what must not be shown.
    wrong = [field for field, holds in rules.items() if not holds]
    return wrong + [
        f"variables.{key}" if _VARIABLE.fullmatch(key) else "variables"
        for key, value in context.variables.items()
        if not (_VARIABLE.fullmatch(key) and _fits(value))
    ]


def _fits(value: str) -> bool:
    return _clean(value) and len(value.encode()) <= VARIABLE_LARGEST


def _filled(text: str) -> bool:
    return bool(text.strip()) and _clean(text)


def _clean(text: str) -> bool:
    return "\x00" not in text and is_encodable(text)
