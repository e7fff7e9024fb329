"""Where clients are born: a process that has loaded everything, and forks when it is asked to.

To load Holdfast takes longer than most clients live. One that was forked is a process like any
other: its number, memory and files are its own, and it dies alone.
"""

import atexit
import faulthandler
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, Protocol

from holdfast.wiring import TURN_MODULES
from tests.torture.machine import MARK, NAME_LONGEST

ROOT = Path(__file__).resolve().parents[2]
# Who plays on a home; whoever runs out of something or is watched from outside is started anew.
FORKED = (
    "asking",
    "backing",
    "desks",
    "dying",
    "hammer",
    "importing",
    "lines",
    "load",
    "migrating",
)
FORKED += ("asking", "points", "repeats", "restoring", "serve")
LOADED = (*TURN_MODULES, "tests.torture.clients.__main__")
# The command itself, for who needs a server and is not about how it starts.
COMMAND_LINE = "holdfast"
LOADED += (
    "holdfast.cli.app",
    "holdfast.cli.commands.serve",
    "holdfast.http.app",
    "holdfast.mcp.http_transport",
)


class Process(Protocol):
    """What can be said to any process, however it was started."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int, /) -> None: ...
    def kill(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a client finds: its environment, its folder, and the files that are its streams."""

    environment: dict[str, str]
    folder: str = str(ROOT)
    read: str = os.devnull
    printed: str = os.devnull
    # Where errors are told, if apart from what is printed.
    told: str = ""
    # A terminal instead of all of these; keys become signals there.
    terminal: str = ""


class Forked:
    """A client that was forked; a signal is a negative status."""

    def __init__(self, nursery: "Nursery", pid: int) -> None:
        self._nursery = nursery
        self._handle = os.pidfd_open(pid)
        self._status: int | None = None
        self.pid = pid

    def poll(self) -> int | None:
        """Return the status, or nothing while it lives."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended and return the status."""
        status = self._ended(timeout)
        if status is None:
            raise TimeoutError(f"process {self.pid} lives after {timeout} s")
        return status

    def send_signal(self, sig: int) -> None:
        """Send it a signal while it lives."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._handle, sig)

    def kill(self) -> None:
        """End it where it is."""
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        if self._status is None and select.select([self._handle], [], [], timeout)[0]:
            self._status = self._nursery.asked("status", self.pid)
            os.close(self._handle)
        return self._status


class Nursery:
    """The process that forks, seen from outside."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.torture.nursery"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self.close)

    def born(self, program: str, options: Mapping[str, Any], around: Surroundings) -> Forked:
        """Have a client forked."""
        return Forked(self, self.asked("fork", program, options, asdict(around)))

    def asked(self, *words: Any) -> int:
        """Return the number that is the answer to some words."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(words, default=str)}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End it; nobody is born any more."""
        self._process.communicate()


@cache
def nursery() -> Nursery:
    """Return the one of this run, started when it is first needed."""
    return Nursery()


def main() -> None:
    """Fork, and tell how the forked have ended, until nobody asks any more."""
    for name in (*LOADED, *(f"tests.torture.clients.{each}" for each in FORKED)):
        importlib.import_module(name)
    gc.freeze()
    for line in sys.stdin:
        match json.loads(line):
            case ["fork", program, options, around]:
                pid = os.fork()
                if pid == 0:
                    _live(program, options, Surroundings(**around))
                print(pid, flush=True)
            case ["status", pid]:
                print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _live(program: str, options: dict[str, Any], around: Surroundings) -> NoReturn:
    """Be the client, with an environment and streams of its own, and never come back."""
    os.environ.clear()
    os.environ.update(around.environment)
    os.chdir(around.folder)
    # What a process was started with cannot be seen to change; its name can.
    Path("/proc/self/comm").write_text(around.environment.get(MARK, program)[:NAME_LONGEST])
    if around.terminal:
        _take(around.terminal)
    else:
        os.dup2(os.open(around.read, os.O_RDONLY), 0)
        for number, path in ((1, around.printed), (2, around.told or around.printed)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
    faulthandler.enable()
    status = 1
    try:
        status = _run(program, options)
    except BaseException:  # noqa: BLE001 — whatever it was, it ends the process, and is told
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def _take(terminal: str) -> None:
    """Make a terminal one's own, as a shell would have it."""
    os.setsid()
    # The first one that the leader of a session opens is its controlling terminal.
    screen = os.open(terminal, os.O_RDWR)
    for number in range(3):
        os.dup2(screen, number)
    os.close(screen)
    sys.stdin, sys.stdout = open(0), open(1, "w", buffering=1)  # noqa: SIM115 — for all its life
    sys.stderr = open(2, "w", buffering=1)  # noqa: SIM115


def _run(program: str, options: dict[str, Any]) -> int:
    from holdfast.cli.main import main as command
    from tests.torture.clients.__main__ import run

    if program == COMMAND_LINE:
        sys.argv = [COMMAND_LINE, *options["words"]]
        return command()
    run(program, options)
    return 0


if __name__ == "__main__":
    main()
