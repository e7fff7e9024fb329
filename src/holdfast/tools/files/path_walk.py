"""Path resolution by file descriptor from a root.

No symbolic link and no race (TOCTOU) can redirect it.
"""

import os
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from msgspec import Struct

from holdfast.domain.tools import ResultCode
from holdfast.tools.files.errors import (
    not_found,
    outside_scope,
    through_symlink,
    translate_os_errors,
)
from holdfast.tools.files.openat import FOLDER, PATH_ONLY, KernelSupport
from holdfast.tools.files.scope import Names, ScopeRoot, ToolScope, split_path
from holdfast.tools.tool import ToolFailure

_LINKS_MOST: Final = 40


class PathTarget(Struct, frozen=True, kw_only=True):
    """The result of a path walk: an open directory, and a name in it that is not a link.

    Without a `leaf` it is the directory itself. `missing` are directories that would have to be
    created. `walk_path` owns the descriptors and closes them.
    """

    # As the model wrote it.
    path: str
    root: ScopeRoot
    root_fd: int
    folder: int
    # Relative to the root, as walked, without the leaf.
    names: Names
    missing: Names = ()
    leaf: str | None
    is_there: bool
    # Every form in which the path was written during the walk, as the rules check it.
    spellings: tuple[Names, ...]

    def full_names(self) -> Names:
        """Return the names of the file, starting at the file system root."""
        leaf = () if self.leaf is None else (self.leaf,)
        return self.root.names + self.names + self.missing + leaf

    def is_folder(self) -> bool:
        """Return whether the target is an existing directory."""
        if self.leaf is None or not self.is_there:
            return self.leaf is None
        with translate_os_errors(self.path):
            found = os.stat(self.leaf, dir_fd=self.folder, follow_symlinks=False)
        return stat.S_ISDIR(found.st_mode)

    def checked_paths(self) -> set[Names]:
        """Return every form of the path that the rules must check."""
        return {*self.spellings, self.root.rule_path(self.full_names())}


@contextmanager
def walk_path(
    scope: ToolScope, path: str, *, kernel: KernelSupport, follow: bool
) -> Iterator[PathTarget]:
    """Resolve a path; without `follow`, any symbolic link on the way is refused."""
    names = split_path(_require_valid(path))
    walk = _Walk(scope, kernel, path, follow=follow)
    try:
        with translate_os_errors(path):
            path_target = walk.to(names if path.startswith("/") else scope.base + names)
        yield path_target
    finally:
        walk.close()


def _require_valid(path: str) -> str:
    """Return the path if it is valid; refuse empty paths and NUL."""
    if not path or "\0" in path:
        raise ToolFailure(
            ResultCode.INVALID_ARGUMENTS, "The path is empty or not a valid file name."
        )
    # UNC paths of Windows; on some systems two slashes name a host.
    if path.startswith(("//", "\\\\")):
        raise outside_scope(path)
    return path


class _Walk:
    """The state of one walk: current directory, names walked, names ahead."""

    def __init__(self, scope: ToolScope, kernel: KernelSupport, path: str, *, follow: bool) -> None:
        self._scope = scope
        self._path = path
        self._kernel = kernel
        self._follow = follow
        self._root: ScopeRoot = scope.roots[0]
        self._root_fd = self._here = -1
        self._names: list[str] = []
        self._ahead: deque[str] = deque()
        self._spellings: list[Names] = []
        self._links = 0

    def to(self, names: Sequence[str]) -> PathTarget:
        """Walk the names; the descriptors of the result are open until `close`."""
        self._start(names)
        if (path_target := self._straight()) is not None:
            return path_target
        while self._ahead:
            name = self._ahead.popleft()
            if name == "..":
                self._up()
            elif not self._ahead:
                if (target := self._link(name)) is None:
                    return self._path_target(name)
                self._turn(target)
            elif (missing := self._down(name)) is not None:
                return missing
        return self._path_target(None)

    def close(self) -> None:
        """Close all descriptors."""
        self._move(-1)
        if self._root_fd >= 0:
            os.close(self._root_fd)
            self._root_fd = -1

    def _start(self, names: Sequence[str]) -> None:
        self.close()
        if (begun := self._scope.begin(names)) is None:
            raise outside_scope(self._path)
        self._root, ahead = begun
        self._root_fd = os.open(self._root.path(), PATH_ONLY | FOLDER)
        self._names, self._ahead = [], deque(ahead)
        self._spell()
        self._move(os.dup(self._root_fd))

    def _straight(self) -> PathTarget | None:
        """Open the whole path in one call, if it contains no link and no `..`."""
        *folders, leaf = self._ahead or [".."]
        if ".." in (*folders, leaf):
            return None
        try:
            self._move(self._kernel.open_folder(self._root_fd, folders, PATH_ONLY))
        # The walk name by name finds and reports the cause.
        except OSError:
            return None
        if self._link(leaf) is not None:
            self._move(os.dup(self._root_fd))
            return None
        self._names = folders
        return self._path_target(leaf)

    def _down(self, name: str) -> PathTarget | None:
        """Enter a directory or follow a link; for a missing name return the target."""
        try:
            self._move(os.open(name, PATH_ONLY | FOLDER, dir_fd=self._here))
        except FileNotFoundError:
            return self._ends_at(name)
        except OSError:
            if (target := self._link(name)) is None:
                raise
            self._turn(target)
            return None
        self._names.append(name)
        return None

    def _up(self) -> None:
        if not self._names:
            raise outside_scope(self._path)
        self._names.pop()
        # Reopened from the root: the kernel's `..` of a moved directory could lead outside (race).
        self._move(self._kernel.open_folder(self._root_fd, self._names, PATH_ONLY))

    def _link(self, name: str) -> str | None:
        """Return the target of a symbolic link; `None` for anything else."""
        try:
            return os.readlink(name, dir_fd=self._here)
        # Not a link, or missing.
        except OSError:
            return None

    def _turn(self, target: str) -> None:
        if not self._follow:
            raise through_symlink(self._path)
        self._links += 1
        if self._links > _LINKS_MOST:
            raise ToolFailure(ResultCode.NOT_FOUND, f"{self._path} is a dangling link.")
        if target.startswith("/"):
            self._start(split_path(target) + tuple(self._ahead))
            return
        self._ahead.extendleft(reversed(split_path(target)))
        self._spell()

    def _ends_at(self, name: str) -> PathTarget:
        if ".." in self._ahead:
            raise not_found(self._path)
        *folders, leaf = name, *self._ahead
        return self._path_target(leaf, missing=tuple(folders))

    def _path_target(self, leaf: str | None, *, missing: Names = ()) -> PathTarget:
        return PathTarget(
            path=self._path,
            root=self._root,
            root_fd=self._root_fd,
            folder=self._here,
            names=tuple(self._names),
            missing=missing,
            leaf=leaf,
            is_there=leaf is None or (not missing and self._exists(leaf)),
            spellings=tuple(self._spellings),
        )

    def _exists(self, name: str) -> bool:
        try:
            os.stat(name, dir_fd=self._here, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def _spell(self) -> None:
        # With the names that a later `..` removes.
        names = tuple(name for name in (*self._names, *self._ahead) if name != "..")
        self._spellings.append(self._root.rule_path(self._root.names + names))

    def _move(self, descriptor: int) -> None:
        if self._here >= 0:
            os.close(self._here)
        self._here = descriptor
