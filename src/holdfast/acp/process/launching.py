"""What is started and where, how it is known afterwards, and why it could not be.

Starting it is `children.py`'s work.
"""

import errno
import marshal
import os
import shutil
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

_UMASK: Final = 0o077
# What another attempt may not meet again.
_PASSING: Final = {errno.EAGAIN, errno.ENOMEM, errno.ENFILE, errno.EMFILE, errno.ETXTBSY}


class Limits(Struct, frozen=True, kw_only=True):
    """What a program may take; nothing is bounded unless it is said."""

    nice: int = 0
    address_space: int | None = None
    cpu_seconds: int | None = None
    processes: int | None = None


UNLIMITED: Final = Limits()


class Start(Struct, frozen=True, kw_only=True):
    """What is started, where, and with which environment: all of it, nothing of ours is added.

    The environment has to hold `HOLDFAST_SESSION_ID`, by which an orphan is known. `wrap` is a
    command that runs the other one, such as a sandbox with its options. A folder that `is_pinned`
    is a real path, and whatever else stands there when the program starts is not entered.
    """

    argv: tuple[str, ...]
    folder: str
    environment: Mapping[str, str]
    limits: Limits = UNLIMITED
    wrap: tuple[str, ...] = ()
    is_pinned: bool = False


class NotStarted(Exception):  # noqa: N818 — it says what is, not what went wrong
    """A program that did not run: the step that failed, and the system's number for why.

    The steps: `find`, `keeper`, `session`, `folder`, `limits`, `start`.
    """

    def __init__(self, stage: str, problem: int) -> None:
        super().__init__(f"{stage}: {os.strerror(problem)}")
        self.stage = stage
        self.problem = problem
        self.reason = os.strerror(problem).lower()

    @property
    def can_pass(self) -> bool:
        """Tell whether another attempt may come out differently."""
        return self.problem in _PASSING


def find(command: str, environment: Mapping[str, str]) -> str | None:
    """Return the file that a command names, by the environment's `PATH` if it is a bare name.

    Nothing is looked for relative to a folder, because the repository is where it would be found.
    """
    if os.path.dirname(command):
        is_program = os.path.isabs(command) and shutil.which(command) is not None
        return command if is_program else None
    folders = environment.get("PATH", os.defpath).split(os.pathsep)
    absolute = os.pathsep.join(each for each in folders if os.path.isabs(each))
    return shutil.which(command, path=absolute) if absolute else None


def order_of(start: Start) -> bytes:
    """Return what the keeper is told; raises `NotStarted` where there is no such program."""
    argv = (*start.wrap, *start.argv)
    program = find(argv[0], start.environment)
    if program is None:
        raise NotStarted("find", errno.ENOENT)
    given: dict[str, Any] = {
        "program": program,
        "argv": list(argv),
        "folder": start.folder,
        "is_pinned": start.is_pinned,
        "environment": dict(start.environment),
        "umask": _UMASK,
        "nice": start.limits.nice,
        "address_space": start.limits.address_space,
        "cpu_seconds": start.limits.cpu_seconds,
        "processes": start.limits.processes,
    }
    return marshal.dumps(given)
