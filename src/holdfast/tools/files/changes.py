"""A planned change of a file: it is checked, shown as a diff, approved and can be undone."""

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
# Above this size the comparison would be slow, so old and new text are shown whole.
_COMPARED_MOST: Final = 2000
_FIRST_LINE: Final = re.compile(r"( [-+])(\d+)")
_NO_END: Final = "\\ No newline at end of file"


def diff(before: bytes, after: bytes) -> str:
    """Return a unified diff of two texts; bytes that are not UTF-8 are escaped."""
    old, new = _lines(before), _lines(after)
    shared = min(len(old), len(new))
    start = sum(1 for _ in takewhile(lambda at: old[at] == new[at], range(shared)))
    end = sum(1 for _ in takewhile(lambda at: old[-at - 1] == new[-at - 1], range(shared - start)))
    # Only the differing part and its context lines are compared.
    above, below = max(0, start - _CONTEXT), max(0, end - _CONTEXT)
    return "\n".join(_hunks(old[above : len(old) - below], new[above : len(new) - below], above))


def diff_of_new(content: bytes) -> str:
    """Return a new text in which each line has a `+`, as in a diff."""
    return "\n".join(_diff_line("+", line) for line in _lines(content))


def _hunks(old: list[str], new: list[str], above: int) -> Iterator[str]:
    if max(len(old), len(new)) > _COMPARED_MOST:
        yield f"@@ -{above + 1},{len(old)} +{above + 1},{len(new)} @@"
        yield from (_diff_line("-", line) for line in old)
        yield from (_diff_line("+", line) for line in new)
        return
    # Skips the two header lines with file names.
    for line in islice(difflib.unified_diff(old, new, n=_CONTEXT), 2, None):
        if line.startswith("@@"):
            yield _shift_header(line.rstrip("\n"), above)
        else:
            yield _diff_line(line[0], line[1:])


def _shift_header(header: str, above: int) -> str:
    """Shift the line numbers of a hunk header, because only a part was compared."""
    return _FIRST_LINE.sub(lambda found: f"{found[1]}{int(found[2]) + above}", header)


def _diff_line(mark: str, line: str) -> str:
    ending = "" if line.endswith("\n") else f"\n{_NO_END}"
    # Tabs are shown as they are; all other invisible characters are escaped.
    text = "\t".join(map(visible, line.removesuffix("\n").split("\t")))
    return f"{mark}{text}{ending}"


def _lines(content: bytes) -> list[str]:
    *whole, rest = content.decode("utf-8", "surrogateescape").split("\n")
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])


_ABSENT: Final = "absent"


class FileChange(Struct, frozen=True, kw_only=True):
    """The effect of a call on a file."""

    resolved: str
    tool_class: ToolClass
    before: FileBefore | None
    # The complete new content; for an appending call only the added part.
    content: bytes
    is_appending: bool = False
    # Handle of the old content, once it is stored.
    undo: str | None = None

    @classmethod
    def of(
        cls,
        path_target: PathTarget,
        before: FileBefore | None,
        content: bytes,
        *,
        is_appending: bool = False,
    ) -> "FileChange":
        """Return the change of a resolved path."""
        return cls(
            resolved=resolved_path(path_target),
            tool_class=change_class(path_target),
            before=before,
            content=content,
            is_appending=is_appending,
        )

    @property
    def old_digest(self) -> str:
        """Return a digest of the old content."""
        return _ABSENT if self.before is None else hashlib.sha256(self.before.content).hexdigest()

    def aim(self, path: str) -> CallPlan:
        """Return the plan of the change, with the approval question."""
        memory = f"write:{self.resolved.rpartition('/')[0] or '/'}"
        return CallPlan(
            tool_class=self.tool_class,
            targets=(self.resolved, self.old_digest),
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
    """Return the tool class of a change; files that are run later are sensitive."""
    if _is_executable(path_target) or any(
        is_sensitive(fold_path(each)) for each in path_target.checked_paths()
    ):
        return ToolClass.SENSITIVE_WRITE
    return ToolClass.WRITE


def _is_executable(path_target: PathTarget) -> bool:
    """Return whether the file exists and is executable; a write preserves its mode."""
    if not path_target.is_there or path_target.leaf is None:
        return False
    try:
        found = os.stat(path_target.leaf, dir_fd=path_target.folder, follow_symlinks=False)
    # Removed meanwhile; the write itself reports it.
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and bool(found.st_mode & 0o111)


def resolved_path(path_target: PathTarget) -> str:
    """Return the resolved path as text; names that are not valid UTF-8 are escaped."""
    path = "/" + "/".join(path_target.full_names())
    return path.encode("utf-8", "backslashreplace").decode()
