"""Path resolution by descriptor from a root, so that no symlink and no race (TOCTOU) can redirect
it.
"""

import os
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
from holdfast.tools.files.scope import Names, PathSpelling, ScopeRoot, ToolScope, split_path
from holdfast.tools.tool import ToolFailure

_LINKS_MOST: Final = 40


class PathTarget(Struct, frozen=True, kw_only=True):
    """Where a path led: an open directory, and a name in it that is no link.

    Without a `leaf` it is the directory itself. `missing` are directories that would have to be
    made. The descriptors belong to whoever walked.
    """

    # As the model gave it.
    path: str
    root: ScopeRoot
    root_fd: int
    folder: int
    # Below the root, as walked, without the leaf.
    names: Names
    missing: Names = ()
    leaf: str | None
    is_there: bool
    spellings: tuple[PathSpelling, ...]

    def resolved(self) -> Names:
        """Return the names of the file from the file system's root on."""
        leaf = () if self.leaf is None else (self.leaf,)
        return self.root.names + self.names + self.missing + leaf

    def judged(self) -> set[Names]:
        """Return every name of the file that rules look at."""
        return {*(each.whole() for each in self.spellings), self.ruled(self.resolved())}

    def ruled(self, names: Names) -> Names:
        """Return what rules look at of a whole path: in our own folder, what is below it."""
        return names[len(self.root.names) :] if self.root.is_scratch else names


@contextmanager
def walk_path(
    scope: ToolScope, path: str, *, kernel: KernelSupport, follow: bool
) -> Iterator[PathTarget]:
    """Walk to where a path leads; without `follow` a link anywhere on the way refuses it."""
    names = split_path(_require_valid(path))
    walk = _Walk(scope, kernel, path, follow=follow)
    try:
        with translate_os_errors(path):
            path_target = walk.to(names if path.startswith("/") else scope.base + names)
        yield path_target
    finally:
        walk.close()


def _require_valid(path: str) -> str:
    """Return the path, if it is one that a file here can have."""
    if not path or "\0" in path:
        raise ToolFailure(ResultCode.INVALID_ARGUMENTS, "The path is empty or no file's name.")
    # Shares and devices as Windows spells them; two slashes are a host on some systems.
    if path.startswith(("//", "\\\\")):
        raise outside_scope(path)
    return path


class _Walk:
    """One walk: the directory it stands in, the names that led there, the names to come."""

    def __init__(self, scope: ToolScope, kernel: KernelSupport, path: str, *, follow: bool) -> None:
        self._scope = scope
        self._path = path
        self._kernel = kernel
        self._follow = follow
        self._root: ScopeRoot = scope.roots[0]
        self._root_fd = self._here = -1
        self._names: list[str] = []
        self._ahead: deque[str] = deque()
        self._spellings: list[PathSpelling] = []
        self._links = 0

    def to(self, names: Sequence[str]) -> PathTarget:
        """Walk the names; the spot's descriptors are open until `close`."""
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
        """Close what is open."""
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
        """Go all the way at once, where no link and no `..` is in the way."""
        *folders, leaf = self._ahead or [".."]
        if ".." in (*folders, leaf):
            return None
        try:
            self._move(self._kernel.open_folder(self._root_fd, folders, PATH_ONLY))
        # Whatever it was, walking name by name finds and tells it.
        except OSError:
            return None
        if self._link(leaf) is not None:
            self._move(os.dup(self._root_fd))
            return None
        self._names = folders
        return self._path_target(leaf)

    def _down(self, name: str) -> PathTarget | None:
        """Enter a directory or turn at a link; where nothing is there, tell where that is."""
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
        # Not the kernel's `..`: a directory that was moved away meanwhile would lead outside.
        self._move(self._kernel.open_folder(self._root_fd, self._names, PATH_ONLY))

    def _link(self, name: str) -> str | None:
        """Return where a name points to, if it is a link."""
        try:
            return os.readlink(name, dir_fd=self._here)
        # No link, or nothing at all.
        except OSError:
            return None

    def _turn(self, target: str) -> None:
        if not self._follow:
            raise through_symlink(self._path)
        self._links += 1
        if self._links > _LINKS_MOST:
            raise ToolFailure(ResultCode.NOT_FOUND, f"{self._path} is a link that leads nowhere.")
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
        names = (*self._names, *self._ahead)
        spelled = tuple(name for name in names if name != "..")
        self._spellings.append(PathSpelling(root=self._root, names=spelled))

    def _move(self, descriptor: int) -> None:
        if self._here >= 0:
            os.close(self._here)
        self._here = descriptor
