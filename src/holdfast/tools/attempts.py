"""What a call was about to do to a file, noted before it is done.

A call that was cut off is made again under the same key. The note tells its own work from
somebody else's, and what was there before it from what is there because of it.
"""

import hashlib
import os
from typing import Final

import msgspec
from msgspec import Struct

from holdfast.domain.tools import ResultCode
from holdfast.ports import RequestedCall
from holdfast.tools.tool import ToolTrouble

_LARGEST: Final = 4096


class Attempt(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The last change that a session has begun.

    `work` stands for a file and all that it holds afterwards, `before` is the handle of what it
    held until then.
    """

    call: str
    work: str
    before: str | None


def call_of(asked: RequestedCall) -> str:
    """Return what a call is known by, however often it is made."""
    return hashlib.sha256(f"{asked.name} {asked.idempotency_key}".encode()).hexdigest()


def work_of(resolved: str, after: bytes) -> str:
    """Return what no other file and no other content has."""
    return hashlib.sha256(resolved.encode() + b"\x00" + after).hexdigest()


def note(scratch: str, attempt: Attempt) -> None:
    """Write down what is about to be done; it is on disk when this returns.

    Only the last one is kept, because the calls of a session run one after the other.
    """
    try:
        _write(_path(scratch), msgspec.json.encode(attempt))
    except OSError as error:
        raise ToolTrouble(
            ResultCode.FAILED, "What is about to be done cannot be noted, so it was not done."
        ) from error


def noted(scratch: str, call: str) -> Attempt | None:
    """Return the last change that was begun, if it was this call's."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(_path(scratch), flags), "rb") as file:
            found = msgspec.json.decode(file.read(_LARGEST), type=Attempt)
    except (OSError, msgspec.DecodeError):
        # Not there, or not whole: then nothing was begun after it.
        return None
    return found if found.call == call else None


def _write(path: str, content: bytes) -> None:
    written = f"{path}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(written, flags, 0o600), "wb", buffering=0) as file:
        file.write(content)
        os.fsync(file.fileno())
    os.rename(written, path)
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _path(scratch: str) -> str:
    # Beside the folder and not in it: that one is the agent's.
    return f"{os.path.realpath(scratch)}.attempt"
