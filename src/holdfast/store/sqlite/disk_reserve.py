"""Reserve of disk space, released when the disk is full and allocated again later.

The released space allows sessions to be stopped, closed or deleted on a full disk.
"""

import errno
import os
from pathlib import Path
from typing import Final

from holdfast.domain.errors import Code, StorageFull, Unavailable

# Enough for the log of closing a few sessions, or of deleting one of average size.
SIZE: Final = 4 << 20
# The disk counts as full with less free space than this, because a message may be as large.
MARGIN: Final = 1 << 20
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class DiskReserve:
    """A preallocated file; while it is missing, urgent work has no reserved space."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_held = self._is_there()
        self.has_room = True

    def take(self) -> bool:
        """Allocate the reserve if possible; return whether the disk has room."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(self._path, flags, 0o600)
            try:
                self.is_held = os.fstat(descriptor).st_size == SIZE or _allocate(descriptor)
            finally:
                os.close(descriptor)
            self.has_room = self.is_held
        except OSError as error:
            # Only ENOSPC and EDQUOT mean a full disk; other errors just prevent the reserve.
            self.has_room = error.errno not in _FULL
        if not self.has_room:
            self.give_up()
        return self.has_room

    def require_room(self) -> None:
        """Raise if the disk has no room beside the reserve; costs two system calls."""
        try:
            found = os.statvfs(self._path.parent)
        except OSError as error:
            message = f"{self._path.parent} cannot be reached: {error.strerror}."
            raise Unavailable(Code.STORE_UNWRITABLE, message) from error
        # Root may use the blocks that the file system reserves.
        blocks = found.f_bfree if os.geteuid() == 0 else found.f_bavail
        # Read after the free space: another process may have released the reserve meanwhile.
        wanted = MARGIN if self._is_there() else MARGIN + SIZE
        if blocks * found.f_frsize < wanted:
            raise disk_full_error()

    def _is_there(self) -> bool:
        try:
            return os.stat(self._path).st_size == SIZE
        except OSError:
            return False

    def give_up(self) -> None:
        """Release the reserve to the full disk."""
        self._path.unlink(missing_ok=True)
        self.is_held = self.has_room = False


def _allocate(descriptor: int) -> bool:
    try:
        # Allocation without writing is cheap, but not every system supports it.
        os.posix_fallocate(descriptor, 0, SIZE)
    except (AttributeError, OSError) as error:
        if getattr(error, "errno", None) in _FULL:
            raise
        return os.write(descriptor, bytes(SIZE)) == SIZE
    return True


def disk_full_error() -> StorageFull:
    """Return the error for a full disk."""
    return StorageFull(
        Code.STORAGE_FULL,
        "The disk is full; nothing was changed. Free some space, or close and delete sessions.",
    )
