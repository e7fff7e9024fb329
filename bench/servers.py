"""Servers as processes of their own: the real one, and the bare one beside it."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

COMMAND = str(Path(sys.executable).parent / "holdfast")


@dataclass(frozen=True)
class Server:
    """A server that answers, and what it has used."""

    port: int
    token: str
    pid: int

    @property
    def cpu(self) -> float:
        """Return the seconds of processor time that it has used; 0 where the system hides it."""
        told = Path(f"/proc/{self.pid}/stat")
        if not told.exists():
            return 0.0
        fields = told.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def memory(self) -> float:
        """Return the megabytes that it holds."""
        return memory_of(self.pid)


def memory_of(pid: int) -> float:
    """Return the megabytes that a process holds."""
    told = subprocess.run(
        ["ps", "-o", "rss=", "-p", str(pid)], check=True, capture_output=True, text=True
    )
    return int(told.stdout) / 1024


@contextmanager
def holdfast_server(home: Path) -> Iterator[Server]:
    """Run `holdfast serve` on a free port."""
    more = {"HOLDFAST_HOME": str(home)}
    command = [COMMAND, "--json", "serve", "--port", "0"]
    with _running(command, more) as (process, line):
        url = msgspec.json.decode(line)["url"]
        token = (home / "token").read_text().strip()
        yield Server(int(url.rpartition(":")[2]), token, process.pid)


@contextmanager
def bench_server(module: str, *arguments: str) -> Iterator[Server]:
    """Run a server of our own that prints its port and its token."""
    with _running([sys.executable, "-m", module, *arguments], {}) as (process, line):
        port, _, token = line.partition(" ")
        yield Server(int(port), token.strip(), process.pid)


@contextmanager
def _running(
    command: list[str], more: dict[str, str]
) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    with subprocess.Popen(
        command,
        env={**os.environ, "HOLDFAST_LOG": "warning", **more},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline()
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(20)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run clients on the loop that costs them least."""
    from holdfast.cli.command import loop_factory

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(work)
