"""Supervisor main loop: start the program, obey the control pipe, leave no process behind."""

from __future__ import annotations

import marshal
import os
import select
import sys
import time

from holdfast.process.supervisor.namespaces import enter_namespaces, set_up_mounts, survey_of
from holdfast.process.supervisor.restrictions import exec_command
from holdfast.process.supervisor.syscalls import (
    ASKING_SIGNALS,
    DEATH_SIGNAL,
    KILL,
    LINUX,
    SUBREAPER,
    TERM,
    StepRefused,
    SuppressErrors,
    descendants,
    end_descendants,
    exit_events,
    libc,
    reap,
    send,
    set_signals,
    start_time,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

# Seconds between SIGTERM and SIGKILL when Holdfast itself or the program has ended.
GRACE_ALONE = 1.0

# Interval at which SIGKILL is repeated, and at which exits are polled without signalfd.
_POLL_MS = 20
_LONGEST_MS = 60_000
_REPORTED_MOST = 100
_DUMPABLE = 4


def main() -> None:
    """Execute one order; the arguments are the file descriptors of order, control and report."""
    source, control, report = (int(each) for each in sys.argv[-3:])
    _close_others(source, control, report)
    for descriptor in (source, control, report):
        os.set_inheritable(descriptor, False)
    with open(source, "rb") as file:
        order: dict[str, Any] = marshal.load(file)  # noqa: S302 — written by our parent
    # Only the control pipe ends the supervisor: it must outlive the processes that it ends.
    set_signals(ASKING_SIGNALS, is_ignored=True)
    # Opened before the namespace is set up: a writable file would block the read-only remount.
    order["nothing"] = os.open(os.devnull, os.O_RDWR)
    # Imported only if needed because it is slow, and imported now because a cover may hide its
    # file.
    if order["guard"] is not None:
        import holdfast.process.supervisor.path_survey  # noqa: F401
    try:
        # Cancelled before the start.
        if select.select([control], [], [], 0)[0]:
            _report_exit(report, TERM)
        elif order["has_own_pids"]:
            _run_in_namespace(order, control, report)
        else:
            _run_without_namespace(order, control, report)
    except StepRefused as refused:
        _report(report, refused.line())


def _run_in_namespace(order: dict[str, Any], control: int, report: int) -> None:
    """Run the command under its own PID 1; when that ends, the kernel kills the namespace."""
    enter_namespaces(order["unshare"], maps_user=order["maps_user"])
    heard, ours = os.pipe()
    found, finds = os.pipe()
    watch = _ProcessWatcher(control, order["grace"])
    init = os.fork()
    if init == 0:
        os.close(ours)
        os.close(found)
        _run_init(order, heard, report, finds)
    os.close(heard)
    os.close(finds)
    _close_streams(order)
    with open(found, "rb") as file:
        known = file.read()

    def signal(number: int) -> None:
        if number == KILL:
            send(init, KILL)
            return
        with SuppressErrors(BrokenPipeError):
            os.write(ours, b"T")

    status = watch.wait_for(init, signal)
    if os.WIFSIGNALED(status):
        _report_exit(report, status)
    # Empty if the command was never started.
    if known:
        _restore(order["guard"], marshal.loads(known), report)  # noqa: S302 — written by init


def _run_without_namespace(order: dict[str, Any], control: int, report: int) -> None:
    """Run the program as a subreaper: adopt its orphaned descendants and end them too."""
    if order["unshare"]:
        # First, because a process that is not dumpable cannot map its user.
        enter_namespaces(order["unshare"], maps_user=order["maps_user"])
        known = set_up_mounts(order)
    else:
        survey = survey_of(order["guard"])
        known = survey.known if survey is not None else {}
    if LINUX:
        libc.prctl(SUBREAPER, 1, 0, 0, 0)
        # Processes of the same user must not ptrace the supervisor or read its memory.
        libc.prctl(_DUMPABLE, 0, 0, 0, 0)
    watch = _ProcessWatcher(control, order["grace"])
    begun, begins = os.pipe()
    program = _fork_program(order, report)
    os.close(begins)
    # EOF means that exec has succeeded or failed, because the pipe is close-on-exec.
    os.read(begun, 1)
    os.close(begun)
    _report(report, f"born {program} {start_time(program)}\n".encode())

    groups = [-program]

    def signal(number: int) -> None:
        if number == KILL:
            end_descendants()
        # One signal per process, because a second one could interrupt the clean-up after the first.
        moved = [each for each in descendants() if not groups or not _is_in(each, program)]
        for each in (*groups, *moved):
            send(each, number)

    _report_exit(report, watch.wait_for(program, signal))
    if not LINUX:
        # Orphans are not adopted on this system, so they could not be found later.
        send(-program, KILL)
    # The number of the process group may be reused, because its leader was reaped.
    groups.clear()
    if not order["keeps_background"]:
        watch.stop(signal, GRACE_ALONE)
    while _has_children():
        watch.step(signal)
    _restore(order["guard"], known, report)


def _fork_program(order: dict[str, Any], report: int) -> int:
    """Start the program of the order, and release its streams here."""
    ours = os.getpid()
    program = os.fork()
    if program == 0:
        exec_command(order, report, ours)
    _close_streams(order)
    return program


def _restore(guard: dict[str, Any] | None, known: dict[str, Any], report: int) -> None:
    """Rename protected paths that the command created, and report them."""
    if guard is None:
        return
    from holdfast.process.supervisor.path_survey import restore

    for path in restore(guard, known)[:_REPORTED_MOST]:
        _report(report, b"aside " + os.fsencode(path).hex().encode() + b"\n")


class _ProcessWatcher:
    """Waits for processes to end, and ends them on request or when the control pipe closes.

    `until` is the time at which SIGKILL is sent; `grace` seconds after a request.
    """

    def __init__(self, control: int, grace: float) -> None:
        self.is_stopping = False
        self.until = float("inf")
        self._control = control
        self._grace = grace
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        events = exit_events()
        self._longest = _POLL_MS if events is None else _LONGEST_MS
        if events is not None:
            self._poll.register(events, select.POLLIN)

    def wait_for(self, child: int, signal: Callable[[int], None]) -> int:
        """Wait for a child and return its wait status; `signal` sends one to all processes."""
        while child not in (ended := reap()):
            self.step(signal)
        return ended[child]

    def step(self, signal: Callable[[int], None]) -> None:
        """Wait for an exit, a request or the deadline; after the deadline, kill."""
        left = (self.until - time.monotonic()) * 1000
        if left <= 0:
            signal(KILL)
            left = _POLL_MS
        for descriptor, _ in self._poll.poll(min(left, self._longest)):
            found = os.read(descriptor, 4096)
            if descriptor == self._control:
                self._handle_request(found, signal)

    def _handle_request(self, request: bytes, signal: Callable[[int], None]) -> None:
        if not request:
            self._poll.unregister(self._control)
        self.stop(signal, self._grace if request else GRACE_ALONE)

    def stop(self, signal: Callable[[int], None], seconds: float) -> None:
        """Ask all processes to end, and kill them after so many seconds."""
        self.until = min(self.until, time.monotonic() + seconds)
        if not self.is_stopping:
            self.is_stopping = True
            signal(TERM)


def _run_init(order: dict[str, Any], control: int, report: int, finds: int) -> NoReturn:
    """Run as PID 1 of the namespace until the command ends or no process is left."""
    try:
        libc.prctl(DEATH_SIGNAL, KILL, 0, 0, 0)
        poll = select.poll()
        poll.register(control, select.POLLIN)
        # The supervisor may have died before PR_SET_PDEATHSIG was set (race).
        if any(event & select.POLLHUP for _, event in poll.poll(0)):
            os._exit(0)
        with open(finds, "wb") as file:
            file.write(marshal.dumps(set_up_mounts(order)))
        # Only the supervisor enforces the grace period.
        watch = _ProcessWatcher(control, float("inf"))
        command = _fork_program(order, report)

        def signal(number: int) -> None:
            # -1 signals every process of the namespace except init, whatever its group or session.
            send(-1, number)

        status = watch.wait_for(command, signal)
        while watch.is_stopping and _has_children():
            watch.step(signal)
        _report_exit(report, status)
    except StepRefused as refused:
        _report(report, refused.line())
    except OSError as error:
        _report(report, StepRefused("init", error.errno).line())
    os._exit(0)


def _is_in(process: int, group: int) -> bool:
    with SuppressErrors(ProcessLookupError):
        return os.getpgid(process) == group
    return True


def _has_children() -> bool:
    """Reap, and return whether a child is left; adopted orphans are children, too."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _close_others(*ours: int) -> None:
    """Close other inherited file descriptors; some event loops leak them to children."""
    with SuppressErrors(OSError):
        for name in os.listdir("/dev/fd"):
            if int(name) not in (0, 1, 2, *ours):
                # The listing includes the descriptor of the listing itself, which is closed now.
                with SuppressErrors(OSError):
                    os.close(int(name))


def _close_streams(order: dict[str, Any]) -> None:
    """Replace inherited standard streams, so that readers of the program's output get EOF."""
    for stream in range(3):
        os.dup2(order["nothing"], stream)


def _report_exit(report: int, status: int) -> None:
    _report(report, f"exited {status}\n".encode())


def _report(report: int, line: bytes) -> None:
    # The remaining steps are required even if Holdfast has closed the report pipe.
    with SuppressErrors(OSError):
        os.write(report, line)
