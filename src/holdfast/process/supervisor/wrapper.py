"""Run one command with its protected paths covered, below the supervisor of an ACP terminal.

This is not a second supervisor: it obeys no control pipe, leaves signals to the command, and exits
as the command does. It is a command prefix, because the tools decide on the covers, and the ACP
client, which starts the terminal, must not depend on them.

The arguments are the order and the argv of the command. The names of its environment variables
carry a prefix, so that none of them takes effect before the covers are mounted. When the command
has ended, its background processes are ended too, and protected paths that it created are renamed.
"""

from __future__ import annotations

import marshal
import os
import sys
import time

from holdfast.process.supervisor.namespaces import cover, enter_namespaces
from holdfast.process.supervisor.path_survey import ASIDE, restore
from holdfast.process.supervisor.restrictions import confine
from holdfast.process.supervisor.syscalls import (
    ASKING_SIGNALS,
    KILL,
    SUBREAPER,
    TERM,
    StepRefused,
    descendants,
    end_descendants,
    libc,
    reap,
    reset_signals,
    send,
    set_signals,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

# Equals `ports.COVERED_VARIABLE`, which a bare interpreter cannot import.
VARIABLE = "+"
# Seconds between SIGTERM and SIGKILL for background processes.
_GRACE = 1.0


def main() -> NoReturn:
    """Run the command and exit with its status."""
    order: dict[str, Any] = marshal.loads(bytes.fromhex(sys.argv[2]))  # noqa: S302 — by our parent
    words = sys.argv[3:]
    folder = os.getcwd()
    try:
        enter_namespaces(order["unshare"], maps_user=order["maps_user"])
        known = cover(order)
        # The current directory still refers to the file tree below the new mounts.
        os.chdir(folder)
    except StepRefused as refused:
        reason = f"{refused.stage} ({os.strerror(refused.problem)})"
        os.write(2, f"protected paths cannot be covered here: {reason}\n".encode())
        os._exit(126)
    # Termination signals are ignored: the command handles them, and `restore` must run afterwards.
    set_signals(ASKING_SIGNALS, is_ignored=True)
    libc.prctl(SUBREAPER, 1, 0, 0, 0)
    command = os.fork()
    if command == 0:
        _become(order, words)
    _, status = os.waitpid(command, 0)
    _end_background()
    _restore(order["guard"], known)
    if os.WIFSIGNALED(status):
        ended_by = os.WTERMSIG(status)
        if ended_by != KILL:
            set_signals((ended_by,))
        os.kill(os.getpid(), ended_by)
    os._exit(os.WEXITSTATUS(status))


def _end_background() -> None:
    """End what the command has left running: it could create protected paths after `restore`."""
    for each in descendants():
        send(each, TERM)
    until = time.monotonic() + _GRACE
    while descendants():
        if time.monotonic() >= until:
            end_descendants()
        time.sleep(0.01)
        reap()


def _restore(guard: dict[str, Any], known: dict[str, Any]) -> None:
    try:
        moved = restore(guard, known)
    except StepRefused as refused:
        message = f"new protected paths cannot be found: {os.strerror(refused.problem)}\n"
        os.write(2, message.encode())
        return
    for path in moved:
        message = f"{path} is protected: the new file was renamed to end in {ASIDE}\n"
        os.write(2, os.fsencode(message))


def _become(order: dict[str, Any], words: list[str]) -> NoReturn:
    environment = {
        name[len(VARIABLE) :]: value
        for name, value in os.environ.items()
        if name.startswith(VARIABLE)
    }
    try:
        reset_signals()
        confine(order)
        os.execve(words[0], words, environment)  # noqa: S606 — no shell
    except (OSError, StepRefused) as trouble:
        os.write(2, f"the command cannot be run: {trouble}\n".encode())
    os._exit(126)
