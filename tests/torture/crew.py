"""The processes of a row: started with a mark, killed by number, never left behind."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.torture.machine import MARK, carriers, state_of
from tests.torture.nursery import FORKED, ROOT, Process, Surroundings, nursery

# What takes longer hangs; a slow machine that is shared with others takes much of it.
PATIENCE = 300.0
# How a program ends in which Python itself, and not what it runs, had no memory to go on.
STARVED = 9
# How one ends in which nothing goes on any more.
HUNG = 10


class Crew:
    """Starts client programs and ends all of them at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.mark = secrets.token_hex(8)
        self.processes: list[Process] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        for pid in carriers(self.mark):
            os.kill(pid, signal.SIGKILL)

    def start(self, program: str, **options: Any) -> Process:
        """Start a program of `clients` with its options; what it prints goes to a log."""
        if program in FORKED:
            return self.fork(program, options, os.environ)
        given = json.dumps(options, default=str)
        return self.launch(
            program,
            [sys.executable, "-m", "tests.torture.clients", program, given],
            os.environ | {"PYTHONFAULTHANDLER": "1"},
        )

    def fork(
        self, program: str, options: Mapping[str, Any], environment: Mapping[str, str]
    ) -> Process:
        """Start a program where it is loaded already; what it prints goes to a log."""
        log = self._next_log(program)
        around = Surroundings(environment={**environment, MARK: self.mark}, printed=str(log))
        born = nursery().born(program, options, around)
        self.processes.append(born)
        return born

    def launch(
        self, name: str, command: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start any command; what it prints goes to a log."""
        with self._next_log(name).open("wb") as log:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**environment, MARK: self.mark},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def run(self, program: str, **options: Any) -> int:
        """Run a program to its end and return its status; a signal is a negative number."""
        return self.start(program, **options).wait(timeout=PATIENCE)

    def stop(self, *processes: Process) -> list[int]:
        """Ask programs to end in good order and return their statuses."""
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        return [process.wait(timeout=PATIENCE) for process in processes]

    def freeze(self, *processes: Process) -> None:
        """Stop programs where they are: none of them says another word."""
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        wait_until(lambda: all(state_of(each.pid) in {"T", "Z", ""} for each in processes))

    def log_of(self, process: Process) -> str:
        """Return what a program printed."""
        number = self.processes.index(process)
        (path,) = self.folder.glob(f"{number:04}-*.log")
        return path.read_text(errors="replace")

    def _next_log(self, name: str) -> Path:
        log = self.folder / f"{len(self.processes):04}-{name}.log"
        log.touch()
        return log


def wait_until(condition: Callable[[], bool]) -> float:
    """Look until a condition holds and return the seconds it took; one that never does fails."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > PATIENCE:
            raise TimeoutError(f"nothing after {PATIENCE} s")
        time.sleep(0.01)
    return time.monotonic() - start
