"""The index of a true repository: held while a commit is made, and replaced as a whole."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.domain.tools import ResultCode
from holdfast.tools.tool import ToolTrouble


@contextmanager
def index_locked(git_dir: str) -> Iterator["Lock"]:
    """Hold git's own lock on the index, so that nobody stages meanwhile."""
    folder = os.open(git_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        try:
            mode = os.stat("index", dir_fd=folder, follow_symlinks=False).st_mode & 0o777
        except FileNotFoundError:
            mode = 0o644
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        try:
            descriptor = os.open("index.lock", flags, mode, dir_fd=folder)
        except FileExistsError:
            raise ToolTrouble(
                ResultCode.FAILED, "Another git process is at work in this repository."
            ) from None
        # The one who makes a file gives it less than was asked for.
        os.fchmod(descriptor, mode)
        lock = Lock(folder, descriptor)
        try:
            yield lock
        finally:
            lock.release()
    finally:
        os.close(folder)


class Lock:
    """The lock on an index, which becomes the index or goes away."""

    def __init__(self, folder: int, descriptor: int) -> None:
        self._folder = folder
        self._descriptor = descriptor
        self._is_index = False

    def install(self, index: str) -> None:
        """Make a file's content the index."""
        with open(index, "rb") as file:
            content = memoryview(file.read())
            written = os.fstat(file.fileno()).st_mtime_ns
        while content:
            content = content[os.write(self._descriptor, content) :]
        # Git takes what changed later than its index for changed, however alike it looks.
        os.utime(self._descriptor, ns=(written, written))
        os.fsync(self._descriptor)
        os.rename("index.lock", "index", src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._is_index = True

    def release(self) -> None:
        """Let others at the index."""
        os.close(self._descriptor)
        if not self._is_index:
            os.unlink("index.lock", dir_fd=self._folder)
