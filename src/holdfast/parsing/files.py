"""Files that strangers made: read whole, if they are plain files of a size and hold text.

What a text means is for others; a fault names no content.
"""

import os
import stat
from pathlib import Path


class FileError(ValueError):
    """The file cannot be read as text; it says why, and `is_missing` whether there is none."""

    def __init__(self, problem: str, *, is_missing: bool = False) -> None:
        super().__init__(problem)
        self.problem = problem
        self.is_missing = is_missing


def read_text(path: Path, *, largest: int) -> str:
    """Return the text of a file, without a byte order mark; raises `FileError`."""
    try:
        # Not waiting, because to open a pipe is to wait for somebody who writes into it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise FileError("there is no such file", is_missing=True) from None
    except (OSError, ValueError) as error:
        raise FileError(f"it cannot be opened ({getattr(error, 'strerror', 'bad name')})") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileError("it is not a file")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(largest + 1)
    except OSError as error:
        raise FileError(f"it cannot be read ({error.strerror})") from None
    finally:
        os.close(descriptor)
    if len(content) > largest:
        raise FileError(f"it is larger than {largest} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileError(f"it is not UTF-8 at byte {error.start + 1}") from None
