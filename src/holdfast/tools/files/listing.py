"""`list_directory`, and the directory walk that `search.py` also uses.

Symbolic links are listed but never followed. Protected entries are omitted and counted.
"""

import os
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager
from threading import Event
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from holdfast.domain.tools import Effect, ResultCode
from holdfast.ports.tools import RequestedCall, ToolWorkspace
from holdfast.process.cancellation import run_in_thread
from holdfast.tools.files.access import FileAccess, read_whole
from holdfast.tools.files.path_walk import PathTarget
from holdfast.tools.files.patterns import glob_matcher
from holdfast.tools.files.read import FilePath, modified_at
from holdfast.tools.files.scope import Names, ToolScope
from holdfast.tools.tool import CallPlan, LocalTool, ToolFailure

Glob = Annotated[str, Meta(min_length=1, max_length=1000)]

_ENTRIES_MOST: Final = 1000
# Limits the entries read, because a directory can be larger than any result.
_SCANNED_MOST: Final = 200_000


class ListDirectoryArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `list_directory` takes."""

    path: FilePath = "."
    depth: Annotated[int, Meta(ge=1, le=5)] = 1
    glob: Glob | None = None


class TreeEntry(Struct, frozen=True, kw_only=True):
    """An entry of a tree: its open directory, its name, and the names that lead to it."""

    folder: int
    name: str
    # Relative to the top of the walk, including the entry's own name.
    names: Names
    found: os.stat_result


class DirectoryTree:
    """Walks a tree breadth-first; the entries of each directory are sorted by name."""

    def __init__(
        self, file_access: FileAccess, scope: ToolScope, path_target: PathTarget, stop: Event
    ) -> None:
        self._file_access = file_access
        self._scope = scope
        self._path_target = path_target
        self._stop = stop
        self.withheld = 0
        self.is_truncated = False
        self._entries_seen = 0

    def entries(self, top: int, *, depth: int, passing: str = "") -> Iterator[TreeEntry]:
        """Yield unprotected entries; the directory of an entry is open until the next one.

        Directories with the name `passing` are not entered.
        """
        ahead: deque[Names] = deque([()])
        while ahead and not self._stop.is_set():
            above = ahead.popleft()
            try:
                folder = self._file_access.kernel.open_folder(top, above, os.O_RDONLY)
            # Removed, replaced or made unreadable since it was listed.
            except OSError:
                continue
            try:
                for entry in self._in(folder, above):
                    is_entered = stat.S_ISDIR(entry.found.st_mode) and entry.name != passing
                    if is_entered and len(entry.names) < depth:
                        ahead.append(entry.names)
                    yield entry
            finally:
                os.close(folder)

    def read(self, entry: TreeEntry) -> bytes:
        """Return the content of a file."""
        with self._open(entry) as descriptor:
            return read_whole(descriptor, self._path_target.path)

    def withholds(self, entry: TreeEntry) -> bool:
        """Return whether a file is protected (private key, hard link), and count it."""
        try:
            with self._open(entry):
                return False
        except ToolFailure as trouble:
            is_denied = trouble.code is ResultCode.PROTECTED_PATH
            self.withheld += is_denied
            return is_denied
        # Unreadable for other reasons, or removed; the entry may still be listed.
        except OSError:
            return False

    def _open(self, entry: TreeEntry) -> AbstractContextManager[int]:
        target, folder = self._path_target, entry.folder
        return self._file_access.open_in(self._scope, target, folder, entry.name)

    def _in(self, folder: int, above: Names) -> Iterator[TreeEntry]:
        if self._file_access.is_closed(folder):
            self.withheld += 1
            return
        for name in self._names_in(folder):
            names = (*above, name)
            try:
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except OSError:
                continue
            whole = self._path_target.root.rule_path(self._path_target.full_names() + names)
            if self._file_access.hides(whole, is_folder=stat.S_ISDIR(found.st_mode)):
                self.withheld += 1
                continue
            yield TreeEntry(folder=folder, name=name, names=names, found=found)

    def _names_in(self, folder: int) -> list[str]:
        names = []
        with os.scandir(folder) as listing:
            for entry in listing:
                if self._entries_seen >= _SCANNED_MOST:
                    self.is_truncated = True
                    break
                self._entries_seen += 1
                names.append(entry.name)
        return sorted(names)


def list_directory_tool(file_access: FileAccess) -> LocalTool[ListDirectoryArguments]:
    """Return the `list_directory` tool."""

    async def plan(workspace: ToolWorkspace, arguments: ListDirectoryArguments) -> CallPlan:
        glob_matcher(arguments.glob)
        return await file_access.plan_read(workspace, arguments.path, "folder")

    async def act(
        workspace: ToolWorkspace, arguments: ListDirectoryArguments, _: RequestedCall
    ) -> dict[str, Any]:
        return await run_in_thread(lambda stop: _list(file_access, workspace, arguments, stop))

    return LocalTool(
        name="list_directory",
        description=(
            "List a directory, up to five levels deep and a thousand entries. A glob without a"
            " slash matches names, one with a slash matches paths below the directory."
            " `withheld` counts protected entries that are not shown."
        ),
        arguments=ListDirectoryArguments,
        effect=lambda _: Effect.PURE,
        plan=plan,
        act=act,
    )


def display_path(path: str, names: Names) -> str:
    """Return an entry's path relative to the directory as the model wrote it, as valid text."""
    above = path.rstrip("/") or "/" * path.startswith("/")
    above = "" if above == "." else above
    below = "/".join(names)
    joined = f"{above}/{below}" if above not in ("", "/") else above + below
    return os.fsencode(joined).decode("utf-8", "replace")


def _list(
    file_access: FileAccess,
    workspace: ToolWorkspace,
    arguments: ListDirectoryArguments,
    stop: Event,
) -> dict[str, Any]:
    fits = glob_matcher(arguments.glob)
    scope = file_access.scope(workspace)
    shown: list[dict[str, Any]] = []
    with (
        file_access.resolve_path(scope, arguments.path) as path_target,
        file_access.folder(path_target) as top,
    ):
        tree = DirectoryTree(file_access, scope, path_target, stop)
        for entry in tree.entries(top, depth=arguments.depth):
            if not fits("/".join(entry.names)):
                continue
            if len(shown) == _ENTRIES_MOST:
                tree.is_truncated = True
                break
            if not (stat.S_ISREG(entry.found.st_mode) and tree.withholds(entry)):
                shown.append(_display_entry(arguments.path, entry))
    return {"entries": shown, "truncated": tree.is_truncated, "withheld": tree.withheld}


def _display_entry(path: str, entry: TreeEntry) -> dict[str, Any]:
    return {
        "path": display_path(path, entry.names),
        "type": _kind(entry.found.st_mode),
        "size_bytes": entry.found.st_size,
        "modified_at": modified_at(entry.found),
    }


def _kind(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "link" if stat.S_ISLNK(mode) else "other"
