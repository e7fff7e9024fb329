"""A planned change of a file: what is checked, shown as a diff, approved and undone."""

import difflib
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Final

from msgspec import Struct

from holdfast.domain.text import visible
from holdfast.domain.tools import ToolClass
from holdfast.process.protected_paths import folded_path, is_sensitive
from holdfast.tools.files.path_walk import Spot
from holdfast.tools.files.read import is_binary
from holdfast.tools.files.replace import Before
from holdfast.tools.tool import Aim

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


_ABSENT: Final = "absent"


class Change(Struct, frozen=True, kw_only=True):
    """What a call would do to a file."""

    resolved: str
    tool_class: ToolClass
    before: Before | None
    # All that the file holds afterwards; of an appending call only what it adds.
    content: bytes
    is_appending: bool = False
    # The handle of what was there, once it is kept.
    undo: str | None = None

    @property
    def replaced(self) -> str:
        """Return what stands for the content that was there."""
        return _ABSENT if self.before is None else hashlib.sha256(self.before.content).hexdigest()

    def aim(self, path: str) -> Aim:
        """Return the change as it is judged and asked about."""
        memory = f"write:{self.resolved.rpartition('/')[0] or '/'}"
        return Aim(
            tool_class=self.tool_class,
            targets=(self.resolved, self.replaced),
            question=self._question(),
            preview={"path": path},
            memory=memory if self.tool_class is ToolClass.WRITE else None,
        )

    def _question(self) -> str:
        path = visible(self.resolved).replace("\n", "\\u000a")
        if self.before is None:
            return f"{path} (new file)\n{addition(self.content)}"
        if self.is_appending:
            return f"{path} (added at the end)\n{addition(self.content)}"
        if is_binary(self.before.content):
            size = len(self.before.content)
            return f"{path} (replaces {size} bytes that are not text)\n{addition(self.content)}"
        return f"{path} (change)\n{diff(self.before.content, self.content)}"


def class_of(spot: Spot) -> ToolClass:
    """Return what a change of the file is: one that is run later is asked about apart."""
    if _is_executable(spot) or any(is_sensitive(folded_path(each)) for each in spot.judged()):
        return ToolClass.SENSITIVE_WRITE
    return ToolClass.WRITE


def _is_executable(spot: Spot) -> bool:
    """Tell whether the file is there and can be executed; a write keeps its mode."""
    if not spot.is_there or spot.leaf is None:
        return False
    try:
        found = os.stat(spot.leaf, dir_fd=spot.folder, follow_symlinks=False)
    # Gone meanwhile; the write itself finds out.
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and bool(found.st_mode & 0o111)


def resolved_of(spot: Spot) -> str:
    """Return where a file is as text, also where a directory above has a name that is none."""
    path = "/" + "/".join(spot.resolved())
    return path.encode("utf-8", "backslashreplace").decode()
