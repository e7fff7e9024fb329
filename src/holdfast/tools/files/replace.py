"""Atomic, durable replacement of a file's content: write beside it, sync, rename."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event
from typing import Final

from msgspec import Struct

from holdfast.domain.tools import ResultCode
from holdfast.tools.files.access import FILE, Doorkeeper, content_of
from holdfast.tools.files.errors import linked_twice, telling
from holdfast.tools.files.openat import FOLDER, NO_FOLLOW, PATH_ONLY
from holdfast.tools.files.path_walk import Spot
from holdfast.tools.files.scope import Scope
from holdfast.tools.tool import ToolTrouble

_NO_HARD_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


class Before(Struct, frozen=True, kw_only=True):
    """A file as it was found: what it held, and whose it was."""

    content: bytes
    mode: int
    uid: int
    gid: int


class Draft(Struct, frozen=True, kw_only=True):
    """What is to be in a file, and the call that wants it there."""

    call: str
    before: Before | None
    content: bytes


def before_change(keeper: Doorkeeper, scope: Scope, spot: Spot) -> Before | None:
    """Return what is there now, if it may be changed; `None` where nothing is."""
    if not spot.is_there:
        return None
    with keeper.file(scope, spot) as descriptor:
        return _before(scope, spot, descriptor)


def replace(keeper: Doorkeeper, spot: Spot, draft: Draft, stop: Event) -> None:
    """Write beside the file and rename; without a `before` nothing is overwritten."""
    leaf, before = spot.leaf or "", draft.before
    with telling(spot.path), _folder(keeper, spot) as folder:
        temporary = _temporary(draft.call)
        _remove(temporary, folder)
        try:
            _write_new(folder, temporary, before, draft.content)
            if stop.is_set():
                raise ToolTrouble(ResultCode.ABORTED, "The call was stopped.")
            if before is None:
                _place_new(folder, temporary, leaf)
            else:
                os.rename(temporary, leaf, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            _remove(temporary, folder)
        _sync_folder(folder)


def tidy(spot: Spot, call: str) -> None:
    """Remove what an attempt at this call has left beside the file when it was cut off."""
    if not spot.missing:
        with telling(spot.path):
            _remove(_temporary(call), spot.folder)


def append(keeper: Doorkeeper, scope: Scope, spot: Spot, before: Before, content: bytes) -> None:
    """Add to a file by one write; a part that was written is taken back."""
    flags = os.O_RDWR | os.O_APPEND | FILE
    with telling(spot.path), _folder(keeper, spot) as folder:
        descriptor = os.open(spot.leaf or "", flags, dir_fd=folder)
        try:
            keeper.judge(scope, spot, descriptor)
            size = os.fstat(descriptor).st_size
            if _before(scope, spot, descriptor).content != before.content:
                raise changed(spot.path)
            if os.write(descriptor, content) != len(content):
                os.ftruncate(descriptor, size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        _sync_folder(folder)


def changed(path: str) -> ToolTrouble:
    """Return the refusal of a file that is not what somebody agreed to change."""
    return ToolTrouble(ResultCode.TARGET_CHANGED, f"{path} has changed; ask for it again.")


def _before(scope: Scope, spot: Spot, descriptor: int) -> Before:
    found = os.fstat(descriptor)
    if scope.is_jailed and found.st_nlink > 1:
        raise linked_twice(spot.path)
    if not found.st_mode & 0o222:
        raise ToolTrouble(ResultCode.FAILED, f"{spot.path} is read-only.")
    content = content_of(descriptor, spot.path)
    # Not who it runs as: whoever wrote the content did not grant that.
    mode = stat.S_IMODE(found.st_mode) & 0o777
    return Before(content=content, mode=mode, uid=found.st_uid, gid=found.st_gid)


@contextmanager
def _folder(keeper: Doorkeeper, spot: Spot) -> Iterator[int]:
    """Open the file's directory, making those that are missing; what fails leaves none of them."""
    folder, made = os.dup(spot.folder), 0
    try:
        for name in spot.missing:
            os.mkdir(name, dir_fd=folder)
            made += 1
            below = os.open(name, PATH_ONLY | FOLDER, dir_fd=folder)
            _sync_folder(folder)
            os.close(folder)
            folder = below
        # Once more, now that it exists: the way down was made by somebody else's rules.
        keeper.real_names(spot, folder)
        yield folder
    except BaseException:
        _unmake(keeper, spot, made)
        raise
    finally:
        os.close(folder)


def _unmake(keeper: Doorkeeper, spot: Spot, made: int) -> None:
    for count in range(made, 0, -1):
        *above, name = spot.missing[:count]
        with suppress(OSError):
            folder = keeper.kernel.open_folder(spot.folder, above, PATH_ONLY)
            try:
                os.rmdir(name, dir_fd=folder)
            finally:
                os.close(folder)


def _temporary(call: str) -> str:
    # Of the call, so that whoever makes it again finds what it left.
    return f".hf-{call[:16]}.tmp"


def _remove(name: str, folder: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def _write_new(folder: int, name: str, before: Before | None, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW
    mode = 0o666 if before is None else 0o600
    with os.fdopen(os.open(name, flags, mode, dir_fd=folder), "wb", buffering=0) as file:
        rest = memoryview(content)
        while rest:
            rest = rest[file.write(rest) :]
        if before is not None:
            # Only root may give a file away; for everybody else it becomes theirs.
            with suppress(PermissionError):
                os.fchown(file.fileno(), before.uid, before.gid)
            os.fchmod(file.fileno(), before.mode)
        os.fsync(file.fileno())


def _place_new(folder: int, temporary: str, leaf: str) -> None:
    """Give the file its name, unless somebody was faster."""
    try:
        os.link(temporary, leaf, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        os.rename(temporary, leaf, src_dir_fd=folder, dst_dir_fd=folder)


def _sync_folder(folder: int) -> None:
    # Opened anew, because a descriptor that only names a directory cannot be synced.
    try:
        descriptor = os.open(".", os.O_RDONLY | FOLDER, dir_fd=folder)
    # A directory may be writable and not readable.
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
