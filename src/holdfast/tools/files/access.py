"""Opens files and directories for the tools; every check uses the open file descriptor."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event
from typing import Final, Literal

from msgspec import Struct

from holdfast.domain.tools import ResultCode, ToolClass
from holdfast.ports.tools import ToolWorkspace
from holdfast.process.cancellation import run_in_thread
from holdfast.process.protected_paths import KEY_HEAD, ProtectedPaths, fold_path, is_private_key
from holdfast.tools.files.errors import (
    hard_linked,
    not_a_file,
    not_found,
    outside_scope,
    protected_path,
    too_large,
    translate_os_errors,
)
from holdfast.tools.files.hard_links import ProtectedInodes, SearchedFolders
from holdfast.tools.files.openat import (
    FOLDER,
    NO_FOLLOW,
    Identity,
    KernelSupport,
    identities_above,
    identity,
    real_path,
)
from holdfast.tools.files.path_walk import PathTarget, walk_path
from holdfast.tools.files.scope import Names, ToolScope, build_scope, split_path
from holdfast.tools.tool import CallPlan, ToolFailure

LARGEST: Final = 8 << 20

# Non-blocking, so that opening a FIFO does not hang; a tty does not become controlling.
FILE: Final[int] = NO_FOLLOW | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)

# What may have changed when the call runs.
_TRANSIENT: Final = frozenset({ResultCode.NOT_FOUND, ResultCode.NOT_A_FILE, ResultCode.FAILED})


class FileSettings(Struct, frozen=True, kw_only=True):
    """File settings of an installation: absolute folders, and names of folders."""

    # Holdfast's home, and other folders that tools must not read.
    protected: tuple[str, ...]
    extra_roots: tuple[str, ...] = ()
    # Home whose credential files are also recognised through hard links.
    user_home: str | None = None
    # Folders in which package managers create hard links; files with several links are allowed.
    linked_dirs: tuple[str, ...] = ("node_modules", ".venv")


class FileAccess:
    """Opens files for tools under the rules of an installation."""

    def __init__(self, settings: FileSettings, kernel: KernelSupport) -> None:
        self.kernel = kernel
        self._extra_roots = settings.extra_roots
        self._linked_dirs = frozenset(settings.linked_dirs)
        self._protected = {*settings.protected, *map(os.path.realpath, settings.protected)}
        self.protected_paths = ProtectedPaths(split_path(each) for each in self._protected)
        self._user_home = settings.user_home
        self._inodes = ProtectedInodes(self.protected_paths)

    def scope(self, workspace: ToolWorkspace) -> ToolScope:
        """Return the scope of a workspace."""
        return build_scope(
            workspace.working_dir, workspace.scratch, workspace.grants, self._extra_roots
        )

    async def plan_read(
        self, workspace: ToolWorkspace, path: str, kind: Literal["file", "folder", "either"]
    ) -> CallPlan:
        """Refuse a path that may not be read; one that is only missing may still come."""

        def check(_: Event) -> None:
            scope = self.scope(workspace)
            try:
                with self.resolve_path(scope, path) as path_target:
                    is_folder = kind == "folder" or (kind == "either" and path_target.is_folder())
                    with self.folder(path_target) if is_folder else self.file(scope, path_target):
                        return
            except ToolFailure as trouble:
                if trouble.code not in _TRANSIENT:
                    raise

        await run_in_thread(check)
        return CallPlan(tool_class=ToolClass.READ, preview={"path": path})

    @contextmanager
    def open_file(self, workspace: ToolWorkspace, path: str) -> Iterator[int]:
        """Open a file of a workspace for reading."""
        scope = self.scope(workspace)
        with (
            self.resolve_path(scope, path) as path_target,
            self.file(scope, path_target) as descriptor,
        ):
            yield descriptor

    @contextmanager
    def resolve_path(self, scope: ToolScope, path: str) -> Iterator[PathTarget]:
        """Resolve a path for reading; symbolic links are followed within the scope."""
        with walk_path(scope, path, kernel=self.kernel, follow=True) as path_target:
            self._require_not_own(path_target)
            yield path_target

    @contextmanager
    def resolve_for_change(self, scope: ToolScope, path: str) -> Iterator[PathTarget]:
        """Resolve a path for writing, existing or not, and check its location."""
        with walk_path(scope, path, kernel=self.kernel, follow=False) as path_target:
            if path_target.leaf is None:
                raise not_a_file(path)
            self._require_unlocked(path_target, *path_target.checked_paths())
            if (real := self.real_names(path_target, path_target.folder)) is not None:
                self._require_unlocked(
                    path_target,
                    path_target.root.rule_path((*real, *path_target.missing, path_target.leaf)),
                )
            if self.is_closed(path_target.folder):
                raise protected_path(path)
            self._require_not_own(path_target)
            yield path_target

    @contextmanager
    def file(self, scope: ToolScope, path_target: PathTarget) -> Iterator[int]:
        """Open a regular file for reading."""
        self.require_readable(path_target, is_folder=False)
        if not path_target.is_there:
            raise not_found(path_target.path)
        if path_target.leaf is None:
            raise not_a_file(path_target.path)
        with (
            translate_os_errors(path_target.path),
            self.open_in(scope, path_target, path_target.folder, path_target.leaf) as descriptor,
        ):
            yield descriptor

    @contextmanager
    def open_in(
        self, scope: ToolScope, path_target: PathTarget, folder: int, name: str
    ) -> Iterator[int]:
        """Open a file in a resolved folder; all checks use the open descriptor (TOCTOU)."""
        # Checked before the open, because opening a device can have side effects.
        if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise not_a_file(path_target.path)
        descriptor = os.open(name, os.O_RDONLY | FILE, dir_fd=folder)
        try:
            self.judge(scope, path_target, descriptor)
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def folder(self, path_target: PathTarget) -> Iterator[int]:
        """Open a directory for listing."""
        self.require_readable(path_target, is_folder=True)
        if not path_target.is_there:
            raise not_found(path_target.path)
        with translate_os_errors(path_target.path):
            descriptor = os.open(
                path_target.leaf or ".", os.O_RDONLY | FOLDER, dir_fd=path_target.folder
            )
            try:
                real = self.real_names(path_target, descriptor)
                if real is not None and self.hides(
                    path_target.root.rule_path(real), is_folder=True
                ):
                    raise protected_path(path_target.path)
                if self.is_closed(descriptor):
                    raise protected_path(path_target.path)
                yield descriptor
            finally:
                os.close(descriptor)

    def is_closed(self, folder: int) -> bool:
        """Return whether an open directory belongs to Holdfast or to a kernel file system."""
        return self.kernel.speaks(folder) or identity(folder) in self._ours()

    def hides(self, names: Names, *, is_folder: bool) -> bool:
        """Return whether a path is protected from reading."""
        return self.protected_paths.hides(fold_path(names), is_folder=is_folder)

    def require_readable(self, path_target: PathTarget, *, is_folder: bool) -> None:
        """Refuse a protected path, whether it exists or not."""
        if any(self.hides(names, is_folder=is_folder) for names in path_target.checked_paths()):
            raise protected_path(path_target.path)

    def judge(self, scope: ToolScope, path_target: PathTarget, descriptor: int) -> None:
        """Refuse an open file by its type, location, hard links or private key header."""
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise not_a_file(path_target.path)
        real = self.real_names(path_target, descriptor)
        if real is not None and self.hides(path_target.root.rule_path(real), is_folder=False):
            raise protected_path(path_target.path)
        if self.kernel.speaks(descriptor):
            raise protected_path(path_target.path)
        if scope.is_jailed and found.st_nlink > 1:
            folders = (real or path_target.full_names())[len(path_target.root.names) : -1]
            if self._linked_dirs.isdisjoint(folders):
                raise hard_linked(path_target.path)
        if found.st_nlink > 1 and self._inodes.holds(found, self._places(scope)):
            raise protected_path(path_target.path)
        if is_private_key(os.pread(descriptor, KEY_HEAD, 0)):
            raise protected_path(path_target.path)

    def _places(self, scope: ToolScope) -> SearchedFolders:
        """Return where protected files of this session may be."""
        roots = tuple(root.path() for root in scope.roots if root.names and not root.is_scratch)
        base = "/" + "/".join(scope.base)
        return SearchedFolders(tuple(sorted(self._protected)), roots or (base,), self._user_home)

    def real_names(self, path_target: PathTarget, descriptor: int) -> Names | None:
        """Return the real path of a descriptor; refuse it if it is not below the root."""
        path, root = real_path(descriptor), real_path(path_target.root_fd)
        if path is None or root is None:
            return None
        real, above = split_path(path), split_path(root)
        if real[: len(above)] != above:
            raise outside_scope(path_target.path)
        return real

    def _require_not_own(self, path_target: PathTarget) -> None:
        # Compared by inode, because a bind mount gives a folder a second path.
        with translate_os_errors(path_target.path):
            above = set(identities_above(path_target.folder, path_target.root_fd))
            if not path_target.root.is_scratch:
                above.add(identity(path_target.root_fd))
            if above & self._ours():
                raise protected_path(path_target.path)

    def _ours(self) -> set[Identity]:
        found = set()
        for path in self._protected:
            with suppress(OSError):
                status = os.stat(path)
                found.add((status.st_dev, status.st_ino))
        return found

    def _require_unlocked(self, path_target: PathTarget, *judged: Names) -> None:
        if any(self.protected_paths.locks(fold_path(names)) for names in judged):
            raise protected_path(path_target.path)


def read_whole(descriptor: int, path: str) -> bytes:
    """Read a whole file, up to the size limit."""
    if os.fstat(descriptor).st_size > LARGEST:
        raise too_large(path, LARGEST)
    parts, left = [], LARGEST + 1
    while left and (part := os.read(descriptor, min(left, 1 << 20))):
        parts.append(part)
        left -= len(part)
    # The file may have grown since fstat.
    if not left:
        raise too_large(path, LARGEST)
    return b"".join(parts)
