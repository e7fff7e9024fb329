"""What a call changes, line by line, as its own words say it: for people who were not asked."""

import difflib
from collections.abc import Mapping
from typing import Any, Final

SHOWN_MOST: Final = 30


def change_lines(name: str, arguments: Mapping[str, Any]) -> list[str]:
    """Return the lines of a change with a mark before each; nothing for calls that change none.

    A long one is cut: what was done is in the file, and this only tells of it.
    """
    match name, arguments:
        case "edit_file", {"old": str(old), "new": str(new)}:
            found = _differences(old, new)
        case "write_file", {"content": str(content)}:
            found = [f"+{line}" for line in content.splitlines()]
        case _:
            return []
    left = len(found) - SHOWN_MOST
    return found if left <= 0 else [*found[:SHOWN_MOST], f"… {left} more lines"]


def _differences(old: str, new: str) -> list[str]:
    told = difflib.ndiff(old.splitlines(), new.splitlines())
    # The library marks with two characters, and explains itself with question marks.
    return [f"{line[0]}{line[2:]}" for line in told if line[0] != "?"]
