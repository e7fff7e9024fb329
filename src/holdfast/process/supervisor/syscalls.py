"""System calls without a Python wrapper, and the error raised when the kernel refuses one."""

from __future__ import annotations

import ctypes
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LINUX = sys.platform == "linux"
KILL, TERM, STOP = 9, 15, 19
# prctl option: orphaned descendants become children of this process.
SUBREAPER = 36

libc = ctypes.CDLL(None, use_errno=True)


class StepRefused(Exception):  # noqa: N818 — a refusal by the kernel
    """A set-up step that this system refused."""

    def __init__(self, stage: str, problem: int | None) -> None:
        super().__init__(stage)
        self.stage = stage
        self.problem = problem or 0

    def line(self) -> bytes:
        """Return the report line for Holdfast."""
        return f"refused {self.stage} {self.problem}\n".encode()


class SuppressErrors:
    """Suppress exceptions of the given types; `contextlib` would be slow to import."""

    def __init__(self, *kinds: type[BaseException]) -> None:
        self._kinds = kinds

    def __enter__(self) -> None:
        """Enter the context."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        """Leave the context and suppress the given exception types."""
        return kind is not None and issubclass(kind, self._kinds)


def require(stage: str, result: int) -> int:
    """Return the result of a C library call; raise `StepRefused` if it failed."""
    if result < 0:
        raise StepRefused(stage, ctypes.get_errno())
    return result


def system(stage: str, *given: Any) -> int:
    """Make a system call by its number; raise `StepRefused` if it failed."""
    return require(stage, libc.syscall(*given))


def send(target: int, number: int) -> None:
    """Send a signal; a process that no longer exists is ignored."""
    with SuppressErrors(OSError):
        os.kill(target, number)


def code_of(status: int) -> int:
    """Return the exit code by shell convention: 128 + n for death by signal n."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def reap() -> dict[int, int]:
    """Reap all children that have ended; return the wait status of each."""
    found = {}
    with SuppressErrors(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found[ended[0]] = ended[1]
    return found


def descendants() -> list[int]:
    """Return the living descendants of this process, as far as /proc lists them."""
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
    """Kill all descendants of this process."""
    # SIGSTOP first, because a process that forks faster than /proc is read would escape SIGKILL.
    for number in (STOP, KILL):
        for each in descendants():
            send(each, number)
