"""Calls to the kernel that Python does not know, and what is said when one is refused."""

from __future__ import annotations

import ctypes
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LINUX = sys.platform == "linux"
KILL, TERM, STOP = 9, 15, 19

libc = ctypes.CDLL(None, use_errno=True)


class StepRefused(Exception):  # noqa: N818 — it is what the kernel said
    """A step that this system did not let us take."""

    def __init__(self, stage: str, problem: int | None) -> None:
        super().__init__(stage)
        self.stage = stage
        self.problem = problem or 0

    def line(self) -> bytes:
        """Return what Holdfast is told."""
        return f"refused {self.stage} {self.problem}\n".encode()


class SuppressErrors:
    """Lets errors of some kinds pass without a word."""

    def __init__(self, *kinds: type[BaseException]) -> None:
        self._kinds = kinds

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        """End, and swallow what was named."""
        return kind is not None and issubclass(kind, self._kinds)


def require(stage: str, result: int) -> int:
    """Return what a call of the C library gave, if it did not fail."""
    if result < 0:
        raise StepRefused(stage, ctypes.get_errno())
    return result


def system(stage: str, *given: Any) -> int:
    """Make a system call by its number."""
    return require(stage, libc.syscall(*given))


def send(target: int, number: int) -> None:
    """Send a signal to whoever still is there."""
    with SuppressErrors(OSError):
        os.kill(target, number)


def code_of(status: int) -> int:
    """Return how a process ended, as shells count it."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def reap() -> dict[int, int]:
    """Collect the children that have ended; returns the status of each."""
    found = {}
    with SuppressErrors(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found[ended[0]] = ended[1]
    return found


def descendants() -> list[int]:
    """Return everybody who comes from us and lives, as far as this system tells."""
    parents: dict[int, int] = {}
    with SuppressErrors(FileNotFoundError):
        for name in filter(str.isdecimal, os.listdir("/proc")):
            with SuppressErrors(OSError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                if state not in (b"Z", b"X"):
                    parents[int(name)] = int(parent)
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found - {os.getpid()})


def end_descendants() -> None:
    """Kill everybody who comes from us."""
    # Stopped first, because somebody who forks as fast as we look would never be caught.
    for number in (STOP, KILL):
        for each in descendants():
            send(each, number)
