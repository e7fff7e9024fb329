"""Stands between Holdfast and a program it started, so that nobody outlives either of them.

Run by its path in a bare interpreter, with three descriptors: the order is read from the first,
the
second is listened to for as long as Holdfast lives, and the third tells what becomes of the
program. It starts the program in a session of its own, adopts whatever that leaves behind, and
ends
all of them when it is told to, or when nobody is there any more who could tell it.
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

# Not imported when it runs: each program would wait for that.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

LINUX = sys.platform == "linux"
# How long all have when Holdfast is gone, and how long killing is tried.
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
    """Serve one order."""
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
    """Start the program and tell its number, or tell why it did not run and return 0."""
    heard, failing = os.pipe()
    ours = os.getpid()
    program = os.fork()
    if program == 0:
        _become(order, ours, failing)
    os.close(failing)
    _close_streams()
    # It ends when the program takes over from us in the child.
    trouble = os.read(heard, 100)
    os.close(heard)
    if trouble:
        os.waitpid(program, 0)
        _report_line(report, b"failed " + trouble)
        return 0
    _report_line(report, f"born {program} {_start_of(program)}\n".encode())
    return program


def _become(order: dict[str, Any], keeper: int, failing: int) -> NoReturn:
    """Be the program from here on."""
    stage = "session"
    try:
        os.setsid()
        for number in (*_DEAF, *_IGNORED_BY_PYTHON, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        if LINUX:
            _control_process(_DEATH_SIGNAL, signal.SIGKILL)
            # It may have died before the kernel knew that we want to go with it.
            if os.getppid() != keeper:
                os._exit(127)
        os.umask(order["umask"])
        stage = "folder"
        os.chdir(order["folder"])
        # Asked of the kernel once we are in it, so that no link can be put in between.
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
    """The program's life, as far as it is our business."""

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
        """Bury who died, tell of the program's end, and return whether anybody lives."""
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
                    # Nobody is adopted there, so nobody could be found later.
                    _send(-self._program, signal.SIGKILL)

    def _patience(self) -> float | None:
        if self._until is None:
            return None
        return max(0.0, self._until - time.monotonic()) * 1000

    def _obey(self, orders: bytes) -> bool:
        """Do as told; `False` when nobody will tell anything more."""
        if b"K" in orders:
            self._until = time.monotonic()
        elif b"T" in orders:
            self._signal(signal.SIGTERM)
        if not orders and self._until is None:
            self._signal(signal.SIGTERM)
            self._until = time.monotonic() + ALONE
        return bool(orders)

    def _signal(self, number: int) -> None:
        """Signal the group, or who is left of it and of those who left it."""
        if self._is_over:
            # Not the group: its number may be somebody else's by now.
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
    """Return what else was handed down to us: not every loop starts a process without it."""
    try:
        listed = [int(name) for name in os.listdir("/dev/fd")]
    except OSError:
        return []
    found = []
    for descriptor in set(listed) - {0, 1, 2, *ours}:
        # The listing itself was one of them.
        with suppress(OSError):
            os.fstat(descriptor)
            found.append(descriptor)
    return found


def _close_streams() -> None:
    """Hold none of the program's streams, or they would never end."""
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
    """Return all who come from us, those whose parents are gone, too."""
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
