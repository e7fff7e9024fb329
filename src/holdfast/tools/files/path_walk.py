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
from holdfast.tools.files.errors import not_found, outside, telling, through_link
from holdfast.tools.files.openat import FOLDER, PATH_ONLY, Kernel
from holdfast.tools.files.scope import Names, Root, Scope, Spelling, names_in
from holdfast.tools.tool import ToolTrouble

_LINKS_MOST: Final = 40


class Spot(Struct, frozen=True, kw_only=True):
    """Where a path led: an open directory, and a name in it that is no link.

    Without a `leaf` it is the directory itself. `missing` are directories that would have to be
    made. The descriptors belong to whoever walked.
    """

    # As the model gave it.
    path: str
    root: Root
    root_fd: int
    folder: int
    # Below the root, as walked, without the leaf.
    names: Names
    missing: Names = ()
    leaf: str | None
    is_there: bool
    spellings: tuple[Spelling, ...]

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
def walked(scope: Scope, path: str, *, kernel: Kernel, follow: bool) -> Iterator[Spot]:
    """Walk to where a path leads; without `follow` a link anywhere on the way refuses it."""
    names = names_in(_required(path))
    walk = _Walk(scope, kernel, path, follow=follow)
    try:
        with telling(path):
            spot = walk.to(names if path.startswith("/") else scope.base + names)
        yield spot
    finally:
        walk.close()


def _required(path: str) -> str:
    """Return the path, if it is one that a file here can have."""
    if not path or "\0" in path:
        raise ToolTrouble(ResultCode.INVALID_ARGUMENTS, "The path is empty or no file's name.")
    # Shares and devices as Windows spells them; two slashes are a host on some systems.
    if path.startswith(("//", "\\\\")):
        raise outside(path)
    return path


class _Walk:
    """One walk: the directory it stands in, the names that led there, the names to come."""

    def __init__(self, scope: Scope, kernel: Kernel, path: str, *, follow: bool) -> None:
        self._scope = scope
        self._path = path
        self._kernel = kernel
        self._follow = follow
        self._root: Root = scope.roots[0]
        self._root_fd = self._here = -1
        self._names: list[str] = []
        self._ahead: deque[str] = deque()
        self._spellings: list[Spelling] = []
        self._links = 0

    def to(self, names: Sequence[str]) -> Spot:
        """Walk the names; the spot's descriptors are open until `close`."""
        self._start(names)
        if (spot := self._straight()) is not None:
            return spot
        while self._ahead:
            name = self._ahead.popleft()
            if name == "..":
                self._up()
            elif not self._ahead:
                if (target := self._link(name)) is None:
                    return self._spot(name)
                self._turn(target)
            elif (missing := self._down(name)) is not None:
                return missing
        return self._spot(None)

    def close(self) -> None:
        """Close what is open."""
        self._move(-1)
        if self._root_fd >= 0:
            os.close(self._root_fd)
            self._root_fd = -1

    def _start(self, names: Sequence[str]) -> None:
        self.close()
        if (begun := self._scope.begin(names)) is None:
            raise outside(self._path)
        self._root, ahead = begun
        self._root_fd = os.open(self._root.path(), PATH_ONLY | FOLDER)
        self._names, self._ahead = [], deque(ahead)
        self._spell()
        self._move(os.dup(self._root_fd))

    def _straight(self) -> Spot | None:
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
        return self._spot(leaf)

    def _down(self, name: str) -> Spot | None:
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
            raise outside(self._path)
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
            raise through_link(self._path)
        self._links += 1
        if self._links > _LINKS_MOST:
            raise ToolTrouble(ResultCode.NOT_FOUND, f"{self._path} is a link that leads nowhere.")
        if target.startswith("/"):
            self._start(names_in(target) + tuple(self._ahead))
            return
        self._ahead.extendleft(reversed(names_in(target)))
        self._spell()

    def _ends_at(self, name: str) -> Spot:
        if ".." in self._ahead:
            raise not_found(self._path)
        *folders, leaf = name, *self._ahead
        return self._spot(leaf, missing=tuple(folders))

    def _spot(self, leaf: str | None, *, missing: Names = ()) -> Spot:
        return Spot(
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
        self._spellings.append(Spelling(root=self._root, names=spelled))

    def _move(self, descriptor: int) -> None:
        if self._here >= 0:
            os.close(self._here)
        self._here = descriptor
