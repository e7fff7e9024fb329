"""Failures of the file tools, with messages for the model."""

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from holdfast.domain.tools import ResultCode
from holdfast.tools.tool import ToolFailure

_REASONS: Final[Mapping[int, tuple[ResultCode, str]]] = {
    errno.ENOENT: (ResultCode.NOT_FOUND, "does not exist"),
    errno.ENOTDIR: (ResultCode.NOT_FOUND, "does not exist: a part of the path is not a directory"),
    # Links are followed by our own walk, so this one was created during it (race).
    errno.ELOOP: (ResultCode.OUTSIDE_SCOPE, "was replaced by a link"),
    errno.EXDEV: (ResultCode.OUTSIDE_SCOPE, "resolves outside the session's file scope"),
    errno.ENXIO: (ResultCode.NOT_A_FILE, "is not a regular file"),
    errno.EISDIR: (ResultCode.NOT_A_FILE, "is a directory"),
    errno.EEXIST: (ResultCode.EXISTS, "already exists"),
    errno.ENAMETOOLONG: (ResultCode.INVALID_ARGUMENTS, "has a name that is too long"),
    errno.EACCES: (ResultCode.FAILED, "is not accessible to Holdfast (permission denied)"),
    errno.EPERM: (ResultCode.FAILED, "is not accessible to Holdfast (operation not permitted)"),
    errno.EROFS: (ResultCode.FAILED, "is on a read-only file system"),
    errno.ENOSPC: (ResultCode.FAILED, "does not fit on the disk (disk full)"),
    errno.EDQUOT: (ResultCode.FAILED, "does not fit on the disk (quota exceeded)"),
}


@contextmanager
def translate_os_errors(path: str) -> Iterator[None]:
    """Translate an `OSError` about a path into a `ToolFailure`."""
    try:
        yield
    except OSError as error:
        code, reason = _REASONS.get(
            error.errno or 0, (ResultCode.FAILED, "cannot be used because of a system error")
        )
        raise ToolFailure(code, f"{path} {reason}.") from error


def outside_scope(path: str) -> ToolFailure:
    """Return the failure for a path outside every root."""
    return ToolFailure(ResultCode.OUTSIDE_SCOPE, f"{path} is outside the session's file scope.")


def through_symlink(path: str) -> ToolFailure:
    """Return the failure for a write through a symbolic link."""
    return ToolFailure(
        ResultCode.OUTSIDE_SCOPE,
        f"{path} contains a symbolic link, and writing through links is not allowed; "
        "name the file itself.",
    )


def hard_linked(path: str) -> ToolFailure:
    """Return the failure for a file that may have another hard link outside."""
    return ToolFailure(
        ResultCode.OUTSIDE_SCOPE,
        f"{path} has more than one hard link, so it may also be outside the file scope.",
    )


def protected_path(path: str) -> ToolFailure:
    """Return the failure for a protected path, which no tier and no approval opens."""
    return ToolFailure(ResultCode.PROTECTED_PATH, f"{path} is protected from agents.")


def not_a_file(path: str) -> ToolFailure:
    """Return the failure for directories, pipes, sockets and devices."""
    return ToolFailure(ResultCode.NOT_A_FILE, f"{path} is not a regular file.")


def not_found(path: str) -> ToolFailure:
    """Return the failure for a missing path."""
    return ToolFailure(ResultCode.NOT_FOUND, f"{path} does not exist.")


def too_large(path: str, most: int) -> ToolFailure:
    """Return the failure for content above the size limit."""
    return ToolFailure(ResultCode.TOO_LARGE, f"{path} is larger than {most >> 20} MiB.")


def binary_file(path: str) -> ToolFailure:
    """Return the failure for binary content."""
    return ToolFailure(ResultCode.BINARY, f"{path} is not a text file.")
