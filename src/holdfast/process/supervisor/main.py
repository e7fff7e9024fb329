"""Supervisor main loop: start the command, obey the control pipe, leave no process behind."""

from __future__ import annotations

import marshal
import os
import select
import sys
import time

from holdfast.process.supervisor.namespaces import enter_namespaces, set_up_mounts, survey_of
from holdfast.process.supervisor.restrictions import exec_command
from holdfast.process.supervisor.syscalls import (
    KILL,
    LINUX,
    SUBREAPER,
    TERM,
    StepRefused,
    SuppressErrors,
    code_of,
    descendants,
    end_descendants,
    libc,
    reap,
    send,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

# Seconds between SIGTERM and SIGKILL; shorter when Holdfast itself has died.
GRACE = 2.0
GRACE_ALONE = 1.0

# Polling interval for process exit, where the kernel has no pidfd.
_LOOK_MS = 20
# Interval at which init reaps orphaned processes.
_TIDY_MS = 500
_TOLD_MOST = 100
_DEATH_SIGNAL, _DUMPABLE = 1, 4


def main() -> None:
    """Execute one order; the arguments are the file descriptors of order, control and report."""
    source, control, report = (int(each) for each in sys.argv[-3:])
    for descriptor in (source, control, report):
        os.set_inheritable(descriptor, False)
    with open(source, "rb") as file:
        order: dict[str, Any] = marshal.load(file)  # noqa: S302 — written by our parent
    # Opened before the namespace is set up: a writable file would block the read-only remount.
    order["nothing"] = os.open(os.devnull, os.O_RDWR)
    # Imported only if needed because it is slow, and imported now because a cover may hide its
    # file.
    if order["guard"] is not None:
        import holdfast.process.supervisor.path_survey  # noqa: F401
    try:
        # Cancelled before the start.
        if select.select([control], [], [], 0)[0]:
            _report_code(report, 128 + TERM)
        elif order["unshare"]:
            _run_in_namespace(order, control, report)
        else:
            _run_without_namespace(order, control, report)
    except StepRefused as refused:
        os.write(report, refused.line())


def _run_in_namespace(order: dict[str, Any], control: int, report: int) -> None:
    """Run the command under its own PID 1; when that ends, the kernel kills the namespace."""
    enter_namespaces(order["unshare"], maps_user=order["maps_user"])
    heard, ours = os.pipe()
    found, finds = os.pipe()
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

    def quell(number: int) -> None:
        if number == KILL:
            send(init, KILL)
            return
        with SuppressErrors(BrokenPipeError):
            os.write(ours, b"T")

    status, _ = _watch(init, control, quell)
    if os.WIFSIGNALED(status):
        _report_code(report, code_of(status))
    # Empty if the command was never started.
    if known:
        _restore(order["guard"], marshal.loads(known), report)  # noqa: S302 — written by init


def _run_without_namespace(order: dict[str, Any], control: int, report: int) -> None:
    """Run the command as a subreaper: adopt its orphaned descendants and end them too."""
    if LINUX:
        libc.prctl(SUBREAPER, 1, 0, 0, 0)
        # Processes of the same user must not ptrace the supervisor or read its memory.
        libc.prctl(_DUMPABLE, 0, 0, 0, 0)
    survey = survey_of(order["guard"])
    known = survey.known if survey is not None else {}
    command = os.fork()
    if command == 0:
        exec_command(order, report)
    _close_streams(order)

    def quell(number: int) -> None:
        # One signal per process, because a second one could interrupt the clean-up after the first.
        moved = [each for each in descendants() if not _is_in_group(each, command)]
        for each in (-command, *moved):
            send(each, number)

    status, until = _watch(command, control, quell)
    while descendants():
        if time.monotonic() >= until:
            end_descendants()
        time.sleep(0.01)
        reap()
    if not LINUX:
        send(-command, KILL)
    _report_code(report, code_of(status))
    _restore(order["guard"], known, report)


def _restore(guard: dict[str, Any] | None, known: dict[str, Any], report: int) -> None:
    """Rename protected paths that the command created, and report them."""
    if guard is None:
        return
    from holdfast.process.supervisor.path_survey import restore

    for path in restore(guard, known)[:_TOLD_MOST]:
        # The rename is required even if Holdfast has closed the report pipe.
        with SuppressErrors(BrokenPipeError):
            os.write(report, b"aside " + os.fsencode(path).hex().encode() + b"\n")


def _watch(child: int, control: int, quell: Callable[[int], None]) -> tuple[int, float]:
    """Wait for a child, and end it on request or when Holdfast dies.

    Returns the wait status, and the deadline by which other processes must have finished.
    """
    poll = select.poll()
    poll.register(control, select.POLLIN)
    look = _poll_exit(child, poll)
    until = 0.0
    while True:
        ended = reap()
        if child in ended:
            return ended[child], until
        left = (until - time.monotonic()) * 1000
        if until and left <= 0:
            quell(KILL)
            left = _LOOK_MS
        waits = [each for each in (look, left if until else None) if each is not None]
        if any(descriptor == control for descriptor, _ in poll.poll(min(waits, default=None))):
            is_asked = bool(os.read(control, 1))
            poll.unregister(control)
            until = time.monotonic() + (GRACE if is_asked else GRACE_ALONE)
            quell(TERM)


def _run_init(order: dict[str, Any], heard: int, report: int, finds: int) -> NoReturn:
    """Run as PID 1 of the namespace until the command ends or no process is left."""
    try:
        libc.prctl(_DEATH_SIGNAL, KILL, 0, 0, 0)
        poll = select.poll()
        poll.register(heard, select.POLLIN)
        # The supervisor may have died before PR_SET_PDEATHSIG was set (race).
        if any(event & select.POLLHUP for _, event in poll.poll(0)):
            os._exit(0)
        with open(finds, "wb") as file:
            file.write(marshal.dumps(set_up_mounts(order)))
        command = os.fork()
        if command == 0:
            exec_command(order, report)
        _close_streams(order)
        _report_code(report, _wait_for_command(command, heard, poll))
    except StepRefused as refused:
        os.write(report, refused.line())
    except OSError as error:
        os.write(report, StepRefused("init", error.errno).line())
    os._exit(0)


def _wait_for_command(command: int, heard: int, poll: select.poll) -> int:
    """Return the command's exit code; after a stop request, wait for all other processes first."""
    look = _poll_exit(command, poll) or _TIDY_MS
    code = None
    is_stopping = False
    while True:
        ended = reap()
        if command in ended:
            code = code_of(ended[command])
            # The pidfd of an exited process stays readable, so polling it would become a busy loop.
            poll, look = select.poll(), _LOOK_MS
        if code is not None and (not is_stopping or _is_alone()):
            return code
        if any(descriptor == heard for descriptor, _ in poll.poll(look)):
            poll.unregister(heard)
            is_stopping = True
            # -1 signals every process of the namespace except init, whatever its group or session.
            send(-1, TERM)


def _poll_exit(child: int, poll: select.poll) -> int | None:
    """Register a pidfd of the child; without pidfd support, return the polling interval."""
    try:
        poll.register(os.pidfd_open(child), select.POLLIN)
    except (AttributeError, OSError):
        return _LOOK_MS
    return None


def _is_in_group(process: int, group: int) -> bool:
    with SuppressErrors(ProcessLookupError):
        return os.getpgid(process) == group
    return True


def _is_alone() -> bool:
    """Return whether no child is left; orphans of the namespace are children of init."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return True
    return False


def _close_streams(order: dict[str, Any]) -> None:
    """Replace inherited standard streams, so that readers of the command's output get EOF."""
    for stream in range(3):
        os.dup2(order["nothing"], stream)


def _report_code(report: int, code: int) -> None:
    os.write(report, f"ended {code}\n".encode())
