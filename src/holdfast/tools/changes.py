"""A change of a file as it is judged, asked about and undone."""

import hashlib
import os
import stat
from typing import Final

from msgspec import Struct

from holdfast.domain.text import visible
from holdfast.domain.tools import ToolClass
from holdfast.tools.diffs import addition, diff
from holdfast.tools.floors import folded_path, is_sensitive
from holdfast.tools.reading import is_binary
from holdfast.tools.replacing import Before
from holdfast.tools.tool import Aim
from holdfast.tools.walking import Spot

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
