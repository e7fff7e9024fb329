"""Opens files and directories for the tools; every check is made on the open descriptor."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from msgspec import Struct

from holdfast.domain.tools import ResultCode
from holdfast.ports import ToolWorkspace
from holdfast.process.protected_paths import KEY_HEAD, Floors, folded_path, is_private_key
from holdfast.tools.files.errors import (
    linked_twice,
    not_a_file,
    not_found,
    outside,
    protected,
    telling,
    too_large,
)
from holdfast.tools.files.hard_links import Places, ProtectedInodes
from holdfast.tools.files.openat import (
    FOLDER,
    NO_FOLLOW,
    Identity,
    Kernel,
    identities_above,
    identity,
    real_path,
)
from holdfast.tools.files.path_walk import Spot, walked
from holdfast.tools.files.scope import Names, Scope, names_in, scope_of
from holdfast.tools.tool import ToolTrouble

LARGEST: Final = 8 << 20

# Not waiting for the other end of a pipe, nor becoming a terminal's process.
FILE: Final[int] = NO_FOLLOW | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)


class FileSettings(Struct, frozen=True, kw_only=True):
    """What an installation says about files: absolute folders, and names of folders."""

    # Holdfast's own home, and whatever else nobody reads through a tool.
    protected: tuple[str, ...]
    extra_roots: tuple[str, ...] = ()
    # Whose credentials are known under every name that they have.
    user_home: str | None = None
    # Where package managers make hard links, so that a file may be read in spite of them.
    linked_dirs: tuple[str, ...] = ("node_modules", ".venv")


class Doorkeeper:
    """Lets tools through to files, by the rules of an installation."""

    def __init__(self, settings: FileSettings, kernel: Kernel) -> None:
        self.kernel = kernel
        self._extra_roots = settings.extra_roots
        self._linked_dirs = frozenset(settings.linked_dirs)
        self._protected = {*settings.protected, *map(os.path.realpath, settings.protected)}
        self.floors = Floors(names_in(each) for each in self._protected)
        self._user_home = settings.user_home
        self._inodes = ProtectedInodes(self.floors)

    def scope(self, place: ToolWorkspace) -> Scope:
        """Return what a place reaches."""
        return scope_of(place, self._extra_roots)

    @contextmanager
    def way_to(self, scope: Scope, path: str) -> Iterator[Spot]:
        """Walk to what is to be read; links are followed as long as they stay in scope."""
        with walked(scope, path, kernel=self.kernel, follow=True) as spot:
            self._require_not_ours(spot)
            yield spot

    @contextmanager
    def way_to_change(self, scope: Scope, path: str) -> Iterator[Spot]:
        """Walk to a file that is to be written, there or not, and judge where it would be."""
        with walked(scope, path, kernel=self.kernel, follow=False) as spot:
            if spot.leaf is None:
                raise not_a_file(path)
            self._require_unlocked(spot, *spot.judged())
            if (real := self.real_names(spot, spot.folder)) is not None:
                self._require_unlocked(spot, spot.ruled((*real, *spot.missing, spot.leaf)))
            if self.is_closed(spot.folder):
                raise protected(path)
            self._require_not_ours(spot)
            yield spot

    @contextmanager
    def file(self, scope: Scope, spot: Spot) -> Iterator[int]:
        """Open a regular file for reading."""
        self.require_shown(spot, is_folder=False)
        if not spot.is_there:
            raise not_found(spot.path)
        if spot.leaf is None:
            raise not_a_file(spot.path)
        with telling(spot.path), self.opened(scope, spot, spot.folder, spot.leaf) as descriptor:
            yield descriptor

    @contextmanager
    def opened(self, scope: Scope, spot: Spot, folder: int, name: str) -> Iterator[int]:
        """Open a file in a folder that a spot led to; every judgement is on what was opened."""
        # Looked at before, because opening alone makes some devices act.
        if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise not_a_file(spot.path)
        descriptor = os.open(name, os.O_RDONLY | FILE, dir_fd=folder)
        try:
            self.judge(scope, spot, descriptor)
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def folder(self, spot: Spot) -> Iterator[int]:
        """Open a directory for listing."""
        self.require_shown(spot, is_folder=True)
        if not spot.is_there:
            raise not_found(spot.path)
        with telling(spot.path):
            descriptor = os.open(spot.leaf or ".", os.O_RDONLY | FOLDER, dir_fd=spot.folder)
            try:
                real = self.real_names(spot, descriptor)
                if real is not None and self.hides(spot.ruled(real), is_folder=True):
                    raise protected(spot.path)
                if self.is_closed(descriptor):
                    raise protected(spot.path)
                yield descriptor
            finally:
                os.close(descriptor)

    def is_closed(self, folder: int) -> bool:
        """Tell whether an open directory is ours under another name, or the kernel's."""
        return self.kernel.speaks(folder) or identity(folder) in self._ours()

    def hides(self, names: Names, *, is_folder: bool) -> bool:
        """Tell whether something of this name is protected from reading."""
        return self.floors.hides(folded_path(names), is_folder=is_folder)

    def require_shown(self, spot: Spot, *, is_folder: bool) -> None:
        """Refuse a name that is protected, there or not."""
        if any(self.hides(names, is_folder=is_folder) for names in spot.judged()):
            raise protected(spot.path)

    def judge(self, scope: Scope, spot: Spot, descriptor: int) -> None:
        """Refuse an open file by what it is, where it is and how it begins."""
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise not_a_file(spot.path)
        real = self.real_names(spot, descriptor)
        if real is not None and self.hides(spot.ruled(real), is_folder=False):
            raise protected(spot.path)
        if self.kernel.speaks(descriptor):
            raise protected(spot.path)
        if scope.is_jailed and found.st_nlink > 1:
            folders = (real or spot.resolved())[len(spot.root.names) : -1]
            if self._linked_dirs.isdisjoint(folders):
                raise linked_twice(spot.path)
        if found.st_nlink > 1 and self._inodes.holds(found, self._places(scope)):
            raise protected(spot.path)
        if is_private_key(os.pread(descriptor, KEY_HEAD, 0)):
            raise protected(spot.path)

    def _places(self, scope: Scope) -> Places:
        """Return where protected files of this session are known to be."""
        roots = tuple(root.path() for root in scope.roots if root.names and not root.is_scratch)
        base = "/" + "/".join(scope.base)
        return Places(tuple(sorted(self._protected)), roots or (base,), self._user_home)

    def real_names(self, spot: Spot, descriptor: int) -> Names | None:
        """Return where an open thing really is, and refuse it if that is not below the root."""
        path, root = real_path(descriptor), real_path(spot.root_fd)
        if path is None or root is None:
            return None
        real, above = names_in(path), names_in(root)
        if real[: len(above)] != above:
            raise outside(spot.path)
        return real

    def _require_not_ours(self, spot: Spot) -> None:
        # By what it is and not by its name, because a mount gives a folder a second one.
        with telling(spot.path):
            above = set(identities_above(spot.folder, spot.root_fd))
            if not spot.root.is_scratch:
                above.add(identity(spot.root_fd))
            if above & self._ours():
                raise protected(spot.path)

    def _ours(self) -> set[Identity]:
        found = set()
        for path in self._protected:
            with suppress(OSError):
                status = os.stat(path)
                found.add((status.st_dev, status.st_ino))
        return found

    def _require_unlocked(self, spot: Spot, *judged: Names) -> None:
        if any(self.floors.locks(folded_path(names)) for names in judged):
            raise protected(spot.path)


def content_of(descriptor: int, path: str) -> bytes:
    """Read a whole file, however large it claims to be."""
    if os.fstat(descriptor).st_size > LARGEST:
        raise too_large(path, LARGEST)
    parts, left = [], LARGEST + 1
    while left and (part := os.read(descriptor, min(left, 1 << 20))):
        parts.append(part)
        left -= len(part)
    # It may have grown since.
    if not left:
        raise too_large(path, LARGEST)
    return b"".join(parts)


def pass_if_it_may_change(trouble: ToolTrouble) -> None:
    """Let a plan pass what may be otherwise when the call runs; what is forbidden stays so."""
    if trouble.code not in (ResultCode.NOT_FOUND, ResultCode.NOT_A_FILE, ResultCode.FAILED):
        raise trouble
