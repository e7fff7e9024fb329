"""System calls without a Python wrapper, and the error raised when the kernel refuses one."""

from __future__ import annotations

import ctypes
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LINUX = sys.platform == "linux"
# Numbers, because the import of `signal` would delay the start of every command.
KILL, TERM, STOP = 9, 15, 19
ASKING_SIGNALS = (1, 2, TERM)  # SIGHUP, SIGINT
IGNORED_BY_PYTHON = (13, 25)  # SIGPIPE, SIGXFSZ
_CHILD_ENDED = 17 if LINUX else 20
_BLOCK, _SET_MASK = 0, 2
# prctl options: orphaned descendants become children of this process; the signal that this process
# gets when its parent dies.
SUBREAPER, DEATH_SIGNAL = 36, 1

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


def set_signals(numbers: tuple[int, ...], *, is_ignored: bool = False) -> None:
    """Ignore signals, or give them their default action."""
    for number in numbers:
        libc.signal(number, ctypes.c_void_p(1 if is_ignored else 0))


def exit_events() -> int | None:
    """Block SIGCHLD and return a signalfd that is readable when a child has ended, if possible."""
    set_signals((_CHILD_ENDED,))
    if not LINUX:
        return None
    child_ended = ctypes.create_string_buffer(128)
    libc.sigaddset(child_ended, _CHILD_ENDED)
    libc.sigprocmask(_BLOCK, child_ended, None)
    descriptor: int = libc.signalfd(-1, child_ended, os.O_CLOEXEC | os.O_NONBLOCK)
    return descriptor if descriptor >= 0 else None


def reset_signals() -> None:
    """Undo what the interpreter and the supervisor have changed; exec would keep it."""
    set_signals((*ASKING_SIGNALS, *IGNORED_BY_PYTHON))
    if LINUX:
        libc.sigprocmask(_SET_MASK, ctypes.create_string_buffer(128), None)


def reap() -> dict[int, int]:
    """Reap all children that have ended; return the wait status of each."""
    found = {}
    with SuppressErrors(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            found[ended[0]] = ended[1]
    return found


def status_fields(process: int | str) -> list[bytes]:
    """Return the fields of /proc/PID/stat after the name, from the state on; empty if it is gone.

    The name in parentheses may contain any character, so parsing starts after the last one.
    """
    with SuppressErrors(OSError), open(f"/proc/{process}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()
    return []


def start_time(process: int) -> int:
    """Return the start time of a process in clock ticks since boot, or 0 if it is unknown."""
    fields = status_fields(process)
    return int(fields[19]) if fields else 0


def descendants() -> list[int]:
    """Return the living descendants of this process, as far as /proc lists them."""
    parents: dict[int, int] = {}
    with SuppressErrors(FileNotFoundError):
        for name in filter(str.isdecimal, os.listdir("/proc")):
            fields = status_fields(name)
            if fields and fields[0] not in (b"Z", b"X"):
                parents[int(name)] = int(fields[1])
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
