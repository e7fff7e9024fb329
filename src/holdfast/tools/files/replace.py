"""Atomic, durable replacement of a file: write a temporary file, fsync, rename."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event
from typing import Final

from msgspec import Struct

from holdfast.domain.tools import ResultCode
from holdfast.tools.files.access import FILE, FileAccess, read_whole
from holdfast.tools.files.errors import hard_linked, translate_os_errors
from holdfast.tools.files.openat import FOLDER, NO_FOLLOW, PATH_ONLY
from holdfast.tools.files.path_walk import PathTarget
from holdfast.tools.files.scope import ToolScope
from holdfast.tools.tool import ToolFailure

_NO_HARD_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


class FileBefore(Struct, frozen=True, kw_only=True):
    """A file before the change: its content, mode and owner."""

    content: bytes
    mode: int
    uid: int
    gid: int


def read_before(
    file_access: FileAccess, scope: ToolScope, path_target: PathTarget
) -> FileBefore | None:
    """Return the current file, if it may be changed; `None` if it does not exist."""
    if not path_target.is_there:
        return None
    with file_access.file(scope, path_target) as descriptor:
        return _before(scope, path_target, descriptor)


def replace(
    file_access: FileAccess,
    path_target: PathTarget,
    before: FileBefore | None,
    content: bytes,
    *,
    call: str,
    stop: Event,
) -> None:
    """Write a temporary file and rename it; without a `before` nothing is overwritten."""
    leaf = path_target.leaf or ""
    with translate_os_errors(path_target.path), _folder(file_access, path_target) as folder:
        temporary = _temporary(call)
        _remove(temporary, folder)
        try:
            _write_new(folder, temporary, before, content)
            if stop.is_set():
                raise ToolFailure(ResultCode.ABORTED, "The call was stopped.")
            if before is None:
                _place_new(folder, temporary, leaf)
            else:
                os.rename(temporary, leaf, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            _remove(temporary, folder)
        _sync_folder(folder)


def remove_leftover(path_target: PathTarget, call: str) -> None:
    """Remove the temporary file of an interrupted attempt at this call."""
    if not path_target.missing:
        with translate_os_errors(path_target.path):
            _remove(_temporary(call), path_target.folder)


def append(
    file_access: FileAccess,
    scope: ToolScope,
    path_target: PathTarget,
    before: FileBefore,
    content: bytes,
) -> None:
    """Append to a file with one write; a partial write is truncated again."""
    flags = os.O_RDWR | os.O_APPEND | FILE
    with translate_os_errors(path_target.path), _folder(file_access, path_target) as folder:
        descriptor = os.open(path_target.leaf or "", flags, dir_fd=folder)
        try:
            file_access.judge(scope, path_target, descriptor)
            size = os.fstat(descriptor).st_size
            if _before(scope, path_target, descriptor).content != before.content:
                raise changed_error(path_target.path)
            if os.write(descriptor, content) != len(content):
                os.ftruncate(descriptor, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        _sync_folder(folder)


def changed_error(path: str) -> ToolFailure:
    """Return the failure for a file that has changed since the approval."""
    return ToolFailure(ResultCode.TARGET_CHANGED, f"{path} has changed; request the call again.")


def _before(scope: ToolScope, path_target: PathTarget, descriptor: int) -> FileBefore:
    found = os.fstat(descriptor)
    if scope.is_jailed and found.st_nlink > 1:
        raise hard_linked(path_target.path)
    if not found.st_mode & 0o222:
        raise ToolFailure(ResultCode.FAILED, f"{path_target.path} is read-only.")
    content = read_whole(descriptor, path_target.path)
    # Without setuid and setgid, because they were not granted to the new content.
    mode = stat.S_IMODE(found.st_mode) & 0o777
    return FileBefore(content=content, mode=mode, uid=found.st_uid, gid=found.st_gid)


@contextmanager
def _folder(file_access: FileAccess, path_target: PathTarget) -> Iterator[int]:
    """Open the file's directory and create missing ones; removes them again on failure."""
    folder, made = os.dup(path_target.folder), 0
    try:
        for name in path_target.missing:
            os.mkdir(name, dir_fd=folder)
            made += 1
            below = os.open(name, PATH_ONLY | FOLDER, dir_fd=folder)
            _sync_folder(folder)
            os.close(folder)
            folder = below
        # Checked again, because a created folder may have been replaced meanwhile (race).
        file_access.real_names(path_target, folder)
        yield folder
    except BaseException:
        _remove_folders(file_access, path_target, made)
        raise
    finally:
        os.close(folder)


def _remove_folders(file_access: FileAccess, path_target: PathTarget, made: int) -> None:
    for count in range(made, 0, -1):
        *above, name = path_target.missing[:count]
        with suppress(OSError):
            folder = file_access.kernel.open_folder(path_target.folder, above, PATH_ONLY)
            try:
                os.rmdir(name, dir_fd=folder)
            finally:
                os.close(folder)


def _temporary(call: str) -> str:
    # Derived from the call, so that a repeated call finds its leftover.
    return f".hf-{call[:16]}.tmp"


def _remove(name: str, folder: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def _write_new(folder: int, name: str, before: FileBefore | None, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW
    mode = 0o666 if before is None else 0o600
    with os.fdopen(os.open(name, flags, mode, dir_fd=folder), "wb", buffering=0) as file:
        rest = memoryview(content)
        while rest:
            rest = rest[file.write(rest) :]
        if before is not None:
            # Only root may change the owner; otherwise the file belongs to this user.
            with suppress(PermissionError):
                os.fchown(file.fileno(), before.uid, before.gid)
            os.fchmod(file.fileno(), before.mode)
        os.fsync(file.fileno())


def _place_new(folder: int, temporary: str, leaf: str) -> None:
    """Give the file its final name, unless that name exists by now."""
    try:
        os.link(temporary, leaf, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        os.rename(temporary, leaf, src_dir_fd=folder, dst_dir_fd=folder)


def _sync_folder(folder: int) -> None:
    # Opened again, because an O_PATH descriptor cannot be synced.
    try:
        descriptor = os.open(".", os.O_RDONLY | FOLDER, dir_fd=folder)
    # A directory may be writable without being readable.
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
