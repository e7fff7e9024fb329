"""A reserve of disk space: given up when the disk is full, so that a session can still be stopped,
closed or deleted; taken again when there is room.
"""

import errno
import os
from pathlib import Path
from typing import Final

from holdfast.domain.errors import Code, StorageFull, Unavailable

# Room for the log of a few closings, or of deleting a session of ordinary size.
SIZE: Final = 4 << 20
# With less than this beside the reserve the disk counts as full: a message may be as large.
MARGIN: Final = 1 << 20
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class DiskReserve:
    """A file that holds nothing but space; without one, urgent work has no room of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_held = path.is_file() and path.stat().st_size == SIZE
        self.has_room = True

    def take(self) -> bool:
        """Take the space, if the disk has it; tell whether the disk has room."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(self._path, flags, 0o600)
            try:
                self.is_held = os.fstat(descriptor).st_size == SIZE or _filled(descriptor)
            finally:
                os.close(descriptor)
            self.has_room = self.is_held
        except OSError as error:
            # Whatever else is in the way of a reserve does not make the disk full.
            self.has_room = error.errno not in _FULL
        if not self.has_room:
            self.give_up()
        return self.has_room

    def require_room(self) -> None:
        """Refuse while the disk has no room beside the reserve; costs one system call."""
        try:
            found = os.statvfs(self._path.parent)
        except OSError as error:
            message = f"{self._path.parent} cannot be reached: {error.strerror}."
            raise Unavailable(Code.STORE_UNWRITABLE, message) from error
        # Root may use the blocks that the file system keeps back from others.
        blocks = found.f_bfree if os.geteuid() == 0 else found.f_bavail
        wanted = MARGIN if self.is_held else MARGIN + SIZE
        if blocks * found.f_frsize < wanted:
            raise disk_full_error()

    def give_up(self) -> None:
        """Give the space back to the disk, which has no room."""
        self._path.unlink(missing_ok=True)
        self.is_held = self.has_room = False


def _filled(descriptor: int) -> bool:
    try:
        # Space that is taken and not written costs nothing; not every system can.
        os.posix_fallocate(descriptor, 0, SIZE)
    except (AttributeError, OSError) as error:
        if getattr(error, "errno", None) in _FULL:
            raise
        return os.write(descriptor, bytes(SIZE)) == SIZE
    return True


def disk_full_error() -> StorageFull:
    """Return what a caller is told while the disk is full."""
    return StorageFull(
        Code.STORAGE_FULL,
        "The disk is full; nothing was changed. Free some space, or close and delete sessions.",
    )
