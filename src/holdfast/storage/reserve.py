"""A reserve of disk space: given up when the disk is full, so that a session can still be stopped,
closed or deleted; taken again when there is room.
"""

import os
from pathlib import Path
from typing import Final

from holdfast.domain.errors import Code, StorageFull

# Room for the log of a few closings, or of deleting a session of ordinary size.
SIZE: Final = 4 << 20


class Reserve:
    """A file that holds nothing but space."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_held = self.take()

    def take(self) -> bool:
        """Take the space, if the disk has it; tell whether it is held."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(self._path, flags, 0o600)
        except OSError:
            return False
        try:
            self.is_held = os.fstat(descriptor).st_size == SIZE or _filled(descriptor)
        finally:
            os.close(descriptor)
        if not self.is_held:
            self.give_up()
        return self.is_held

    def give_up(self) -> None:
        """Give the space back to the disk."""
        self._path.unlink(missing_ok=True)
        self.is_held = False


def _filled(descriptor: int) -> bool:
    try:
        return os.write(descriptor, bytes(SIZE)) == SIZE
    except OSError:
        return False


def full() -> StorageFull:
    """Return what a caller is told while the disk is full."""
    return StorageFull(
        Code.STORAGE_FULL,
        "The disk is full; nothing was changed. Free some space, or close and delete sessions.",
    )
