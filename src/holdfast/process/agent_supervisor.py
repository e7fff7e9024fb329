"""Supervisor between Holdfast and an agent process; no descendant outlives either of them.

It is run by path in a bare interpreter, with three file descriptors: order, control and report. It
starts the program in its own session, adopts its orphaned descendants, and ends all of them on
request or when the control pipe closes because Holdfast has died.
"""

from __future__ import annotations

import ctypes
import errno
import marshal
import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress

# Not imported at run time, because it would delay the start of every program.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

LINUX = sys.platform == "linux"
# Grace period in seconds when Holdfast has died, and how long SIGKILL is repeated.
ALONE = 1.0
EARNEST = 2.0

_DEATH_SIGNAL = 1
_ADOPT = 36
_LOOK = 0.01
_DEAF = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_BOUNDS = {
    "address_space": resource.RLIMIT_AS,
    "cpu_seconds": resource.RLIMIT_CPU,
    "processes": resource.RLIMIT_NPROC,
}


def main() -> None:
    """Execute one order."""
    source, control, report = (int(each) for each in sys.argv[1:4])
    for descriptor in _others_than(source, control, report):
        os.close(descriptor)
    for descriptor in (source, control, report):
        os.set_inheritable(descriptor, False)
    with open(source, "rb") as file:
        order: dict[str, Any] = marshal.load(file)  # noqa: S302 — written by our parent
    for number in _DEAF:
        signal.signal(number, signal.SIG_IGN)
    rung, ring = os.pipe()
    os.set_blocking(ring, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ring)
    if LINUX:
        _control_process(_ADOPT, 1)
    program = _start_program(order, report)
    if program:
        order.clear()
        _Watch(program, control, report).until_all_are_gone(rung)


def _start_program(order: dict[str, Any], report: int) -> int:
    """Start the program and report its PID; on failure report the reason and return 0."""
    heard, failing = os.pipe()
    ours = os.getpid()
    program = os.fork()
    if program == 0:
        _become(order, ours, failing)
    os.close(failing)
    _close_streams()
    # EOF means that exec succeeded, because the pipe is close-on-exec.
    trouble = os.read(heard, 100)
    os.close(heard)
    if trouble:
        os.waitpid(program, 0)
        _report_line(report, b"failed " + trouble)
        return 0
    _report_line(report, f"born {program} {_start_of(program)}\n".encode())
    return program


def _become(order: dict[str, Any], keeper: int, failing: int) -> NoReturn:
    """Turn this child into the program; does not return."""
    stage = "session"
    try:
        os.setsid()
        for number in (*_DEAF, *_IGNORED_BY_PYTHON, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        if LINUX:
            _control_process(_DEATH_SIGNAL, signal.SIGKILL)
            # The supervisor may have died before PR_SET_PDEATHSIG was set (race).
            if os.getppid() != keeper:
                os._exit(127)
        os.umask(order["umask"])
        stage = "folder"
        os.chdir(order["folder"])
        # Checked after chdir, so that a symbolic link cannot be swapped in between (TOCTOU).
        if order["is_pinned"] and os.getcwd() != order["folder"]:
            raise OSError(errno.ELOOP, "somewhere else")
        stage = "limits"
        if order["nice"]:
            os.nice(order["nice"])
        for name, bound in _BOUNDS.items():
            if order[name] is not None:
                resource.setrlimit(bound, (order[name], order[name]))
        stage = "start"
        os.execve(order["program"], order["argv"], order["environment"])  # noqa: S606 — no shell
    except (OSError, ValueError) as trouble:
        os.write(failing, f"{stage} {getattr(trouble, 'errno', None) or 22}\n".encode())
    finally:
        os._exit(127)


class _Watch:
    """Watches the program and its descendants until all have ended."""

    def __init__(self, program: int, control: int, report: int) -> None:
        self._program = program
        self._control = control
        self._report = report
        self._is_over = False
        self._until: float | None = None

    def until_all_are_gone(self, rung: int) -> None:
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(rung, select.POLLIN)
        while self._any_alive():
            for descriptor, _ in poll.poll(self._patience()):
                orders = os.read(descriptor, 64)
                if descriptor == self._control and not self._obey(orders):
                    poll.unregister(descriptor)
            if self._until is not None and time.monotonic() >= self._until:
                self._kill()
                return

    def _any_alive(self) -> bool:
        """Reap ended processes, report the program's exit, and return whether any is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._program:
                self._is_over = True
                _report_line(self._report, f"exited {status}\n".encode())
                if not LINUX:
                    # Orphans are not adopted on this system, so they could not be found later.
                    _send(-self._program, signal.SIGKILL)

    def _patience(self) -> float | None:
        if self._until is None:
            return None
        return max(0.0, self._until - time.monotonic()) * 1000

    def _obey(self, orders: bytes) -> bool:
        """Execute control commands; return `False` at EOF."""
        if b"K" in orders:
            self._until = time.monotonic()
        elif b"T" in orders:
            self._signal(signal.SIGTERM)
        if not orders and self._until is None:
            self._signal(signal.SIGTERM)
            self._until = time.monotonic() + ALONE
        return bool(orders)

    def _signal(self, number: int) -> None:
        """Signal the process group, or all descendants if the program has already ended."""
        if self._is_over:
            # The group number may have been reused after the program ended.
            for pid in _descendants():
                _send(pid, number)
        else:
            _send(-self._program, number)

    def _kill(self) -> None:
        until = time.monotonic() + EARNEST
        while self._any_alive() and time.monotonic() < until:
            if not self._is_over:
                _send(-self._program, signal.SIGKILL)
            for pid in _descendants():
                _send(pid, signal.SIGKILL)
            time.sleep(_LOOK)


def _control_process(what: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(what, value, 0, 0, 0)


def _others_than(*ours: int) -> list[int]:
    """Return inherited file descriptors other than ours; some event loops leak them to children."""
    try:
        listed = [int(name) for name in os.listdir("/dev/fd")]
    except OSError:
        return []
    found = []
    for descriptor in set(listed) - {0, 1, 2, *ours}:
        # The listing includes the descriptor of the listing itself, which is closed now.
        with suppress(OSError):
            os.fstat(descriptor)
            found.append(descriptor)
    return found


def _close_streams() -> None:
    """Replace inherited standard streams; otherwise readers of the program's output get no EOF."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    os.close(nothing)


def _report_line(report: int, line: bytes) -> None:
    with suppress(OSError):
        os.write(report, line)


def _send(pid: int, number: int) -> None:
    with suppress(OSError):
        os.kill(pid, number)


def _start_of(pid: int) -> int:
    fields = _status(pid)
    return int(fields[19]) if fields else 0


def _descendants() -> list[int]:
    """Return all descendants, including those whose parents have ended."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if LINUX else ():
        fields = _status(int(name)) if name.isdecimal() else []
        if fields:
            children.setdefault(int(fields[1]), []).append(int(name))
    found = list(children.get(os.getpid(), []))
    for pid in found:
        found += children.get(pid, [])
    return found


def _status(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


if __name__ == "__main__":
    main()
