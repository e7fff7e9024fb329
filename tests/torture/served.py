"""`holdfast serve` as others see it: a command, a port that stays its own, a token in a file."""

import contextlib
import json
import os
import random
import re
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from tests.cli.processes import COMMAND
from tests.torture.clients.house import settings
from tests.torture.crew import PATIENCE, Crew, wait_until
from tests.torture.nursery import COMMAND_LINE, Process

# Below what the kernel lends to clients: one of those would meet itself on a port nobody holds.
PORTS = range(20_000, 32_000)


class Server:
    """One server of a home, killed and started again as often as a row likes."""

    def __init__(
        self, crew: Crew, home: Path, *, fault: str = "", model: str = "", forked: bool = False
    ) -> None:
        """`fault` is what a control breaks on purpose, by its name in `misled`.

        `forked` is for rows that are about neither its start nor its memory.
        """
        self._crew = crew
        self._forked = forked and not fault
        self._fault = fault
        self._model = model or str(settings(home).default_model)
        self.home = home
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: Process | None = None

    @property
    def token(self) -> str:
        """Return what opens every door of the server."""
        return (self.home / "token").read_text().strip()

    @property
    def card(self) -> dict[str, Any]:
        """Return what the server said when it was ready."""
        found = re.search(r"^\{.*\}$", self.log, re.MULTILINE)
        assert found, self.log
        told: dict[str, Any] = json.loads(found[0])
        return told

    @property
    def log(self) -> str:
        """Return all that the running server has printed."""
        assert self.process is not None
        return self._crew.log_of(self.process)

    @property
    def pid(self) -> int:
        """Return the number of the running process."""
        assert self.process is not None
        return self.process.pid

    def start(self, *arguments: str) -> float:
        """Start the server and return the seconds until it said that it is ready."""
        begun = time.monotonic()
        self.begin(*arguments)
        wait_until(self._is_ready)
        return time.monotonic() - begun

    def begin(self, *arguments: str) -> None:
        """Start the server and do not wait for it."""
        misled = [sys.executable, "-m", "tests.torture.misled", self._fault]
        command = misled if self._fault else [COMMAND]
        environment = {"HOLDFAST_HOME": str(self.home), "HOLDFAST_MODEL": self._model}
        environment = os.environ | environment | {"PYTHONFAULTHANDLER": "1"}
        words = ["serve", "--port", str(self.port), "--json", *arguments]
        if self._forked:
            self.process = self._crew.fork(COMMAND_LINE, {"words": words}, environment)
        else:
            self.process = self._crew.launch("server", [*command, *words], environment)

    def kill(self) -> None:
        """Kill the server where it is; it must have lived until now."""
        assert self.process is not None
        assert self.process.poll() is None, self.log
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Ask the server to end, which it does in good order and without a word of complaint."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=PATIENCE) == 0, self.log

    def resident(self) -> int:
        """Return how much memory the server has, in bytes."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) * 1024

    def sockets(self) -> int:
        """Return how many sockets the server holds, its own for listening among them."""
        found = 0
        for number in os.listdir(f"/proc/{self.pid}/fd"):
            # Closed since it was listed.
            with contextlib.suppress(OSError):
                found += os.readlink(f"/proc/{self.pid}/fd/{number}").startswith("socket:")
        return found

    def _is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log
        return '"url"' in self.log


def free_port() -> int:
    """Return a port that nobody listens on and no client gets by chance."""
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("every port is taken")
