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
from holdfast.process.protected_paths import fold_path, is_sensitive
from holdfast.tools.files.path_walk import PathTarget
from holdfast.tools.files.read import is_binary
from holdfast.tools.files.replace import FileBefore
from holdfast.tools.tool import CallPlan

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


def diff_of_new(content: bytes) -> str:
    """Return a new text with a mark before each line, as a diff would show it."""
    return "\n".join(_diff_line("+", line) for line in _lines(content))


def _hunks(old: list[str], new: list[str], above: int) -> Iterator[str]:
    if max(len(old), len(new)) > _COMPARED_MOST:
        yield f"@@ -{above + 1},{len(old)} +{above + 1},{len(new)} @@"
        yield from (_diff_line("-", line) for line in old)
        yield from (_diff_line("+", line) for line in new)
        return
    # Without the two lines that name the files.
    for line in islice(difflib.unified_diff(old, new, n=_CONTEXT), 2, None):
        if line.startswith("@@"):
            yield _shift_header(line.rstrip("\n"), above)
        else:
            yield _diff_line(line[0], line[1:])


def _shift_header(header: str, above: int) -> str:
    """Return the header of a part for the whole, in which it begins further down."""
    return _FIRST_LINE.sub(lambda found: f"{found[1]}{int(found[2]) + above}", header)


def _diff_line(mark: str, line: str) -> str:
    ending = "" if line.endswith("\n") else f"\n{_NO_END}"
    # A tab is seen where it stands; everything else that is not is written out.
    text = "\t".join(map(visible, line.removesuffix("\n").split("\t")))
    return f"{mark}{text}{ending}"


def _lines(content: bytes) -> list[str]:
    *whole, rest = content.decode("utf-8", "surrogateescape").split("\n")
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])


_ABSENT: Final = "absent"


class FileChange(Struct, frozen=True, kw_only=True):
    """What a call would do to a file."""

    resolved: str
    tool_class: ToolClass
    before: FileBefore | None
    # All that the file holds afterwards; of an appending call only what it adds.
    content: bytes
    is_appending: bool = False
    # The handle of what was there, once it is kept.
    undo: str | None = None

    @property
    def replaced(self) -> str:
        """Return what stands for the content that was there."""
        return _ABSENT if self.before is None else hashlib.sha256(self.before.content).hexdigest()

    def aim(self, path: str) -> CallPlan:
        """Return the change as it is judged and asked about."""
        memory = f"write:{self.resolved.rpartition('/')[0] or '/'}"
        return CallPlan(
            tool_class=self.tool_class,
            targets=(self.resolved, self.replaced),
            question=self._question(),
            preview={"path": path},
            memory=memory if self.tool_class is ToolClass.WRITE else None,
        )

    def _question(self) -> str:
        path = visible(self.resolved).replace("\n", "\\u000a")
        if self.before is None:
            return f"{path} (new file)\n{diff_of_new(self.content)}"
        if self.is_appending:
            return f"{path} (added at the end)\n{diff_of_new(self.content)}"
        if is_binary(self.before.content):
            size = len(self.before.content)
            return f"{path} (replaces {size} bytes that are not text)\n{diff_of_new(self.content)}"
        return f"{path} (change)\n{diff(self.before.content, self.content)}"


def change_class(path_target: PathTarget) -> ToolClass:
    """Return what a change of the file is: one that is run later is asked about apart."""
    if _is_executable(path_target) or any(
        is_sensitive(fold_path(each)) for each in path_target.judged()
    ):
        return ToolClass.SENSITIVE_WRITE
    return ToolClass.WRITE


def _is_executable(path_target: PathTarget) -> bool:
    """Tell whether the file is there and can be executed; a write keeps its mode."""
    if not path_target.is_there or path_target.leaf is None:
        return False
    try:
        found = os.stat(path_target.leaf, dir_fd=path_target.folder, follow_symlinks=False)
    # Gone meanwhile; the write itself finds out.
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and bool(found.st_mode & 0o111)


def resolved_path(path_target: PathTarget) -> str:
    """Return where a file is as text, also where a directory above has a name that is none."""
    path = "/" + "/".join(path_target.resolved())
    return path.encode("utf-8", "backslashreplace").decode()
