"""A change as the person who is asked sees it: whole, and with nothing that hides."""

import difflib
import re
from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Final

from holdfast.domain.text import visible

_CONTEXT: Final = 3
# Beyond it the comparison itself would take long, and the old and the new are shown whole.
_COMPARED_MOST: Final = 2000
_FIRST_LINE: Final = re.compile(r"( [-+])(\d+)")
_NO_END: Final = "\\ No newline at end of file"


def diff(before: bytes, after: bytes) -> str:
    """Return a unified diff of two texts; bytes that are no UTF-8 are written out."""
    old, new = _lines(before), _lines(after)
    shared = min(len(old), len(new))
    start = sum(1 for _ in takewhile(lambda at: old[at] == new[at], range(shared)))
    end = sum(1 for _ in takewhile(lambda at: old[-at - 1] == new[-at - 1], range(shared - start)))
    # Only what differs is compared, with some lines around it.
    above, below = max(0, start - _CONTEXT), max(0, end - _CONTEXT)
    return "\n".join(_hunks(old[above : len(old) - below], new[above : len(new) - below], above))


def addition(content: bytes) -> str:
    """Return a new text with a mark before each line, as a diff would show it."""
    return "\n".join(_shown("+", line) for line in _lines(content))


def _hunks(old: list[str], new: list[str], above: int) -> Iterator[str]:
    if max(len(old), len(new)) > _COMPARED_MOST:
        yield f"@@ -{above + 1},{len(old)} +{above + 1},{len(new)} @@"
        yield from (_shown("-", line) for line in old)
        yield from (_shown("+", line) for line in new)
        return
    # Without the two lines that name the files.
    for line in islice(difflib.unified_diff(old, new, n=_CONTEXT), 2, None):
        if line.startswith("@@"):
            yield _moved(line.rstrip("\n"), above)
        else:
            yield _shown(line[0], line[1:])


def _moved(header: str, above: int) -> str:
    """Return the header of a part for the whole, in which it begins further down."""
    return _FIRST_LINE.sub(lambda found: f"{found[1]}{int(found[2]) + above}", header)


def _shown(mark: str, line: str) -> str:
    ending = "" if line.endswith("\n") else f"\n{_NO_END}"
    # A tab is seen where it stands; everything else that is not is written out.
    text = "\t".join(map(visible, line.removesuffix("\n").split("\t")))
    return f"{mark}{text}{ending}"


def _lines(content: bytes) -> list[str]:
    *whole, rest = content.decode("utf-8", "surrogateescape").split("\n")
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])
