"""Files written by commands: atomic, readable by their owner only, no overwrite unless forced."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import IO, Final

from holdfast.domain.errors import Code, Conflict, HoldfastError, Invalid

# Errors of a file system without hard links.
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
# Handled by the error renderer, which knows the remedy.
_DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def write_file(path: Path, content: bytes, *, force: bool) -> None:
    """Write a file; an existing one is replaced only with `force`."""
    with open_replacement(path, force=force) as stream:
        stream.write(content)


@contextmanager
def open_replacement(path: Path, *, force: bool) -> Iterator[IO[bytes]]:
    """Write a file in pieces; it gets its name only if the block ends without an error."""
    # Not `Path.is_dir`, which raises for a name that is too long.
    if os.path.isdir(path):
        message = f"{path} is a folder; name a file."
        raise Invalid(Code.NOT_A_FILE, message, {"file": str(path)})
    if not force and os.path.lexists(path):
        raise _exists(path)
    # In the same folder, because a rename is atomic only within one file system.
    draft = path.with_name(f".{token_hex(8)}.tmp")
    _require_folder(path)
    try:
        # Readable by its owner only, because it may contain conversations.
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        _publish(draft, path, force=force)
    except OSError as error:
        raise _write_error(path, error) from None
    finally:
        with suppress(OSError):
            draft.unlink()


def _require_folder(path: Path) -> None:
    # A missing folder is more likely a typing error than intended.
    if not os.path.isdir(path.parent):
        message = f"{path.parent} is not a folder; create it first."
        raise Invalid(Code.NOT_A_FOLDER, message, {"file": str(path)})


def _publish(draft: Path, path: Path, *, force: bool) -> None:
    """Rename the draft to its final name; without `force`, never over an existing file (race)."""
    if not force:
        try:
            os.link(draft, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
        else:
            return
    draft.replace(path)


def _write_error(path: Path, error: OSError) -> HoldfastError | OSError:
    if isinstance(error, FileExistsError):
        return _exists(path)
    if error.errno in _DISK_FULL:
        return error
    message = f"{path} cannot be written: {error.strerror}."
    return Invalid(Code.INVALID_INPUT, message, {"file": str(path)})


def _exists(path: Path) -> Conflict:
    message = f"{path} exists; choose another, or add --force to replace it."
    return Conflict(Code.FILE_EXISTS, message, {"file": str(path)})
