"""The command against a server: a real server process, and a client with a home of its own."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cli.conftest import Ran
from tests.cli.processes import environment, forked
from tests.torture.crew import wait_until


@dataclass(frozen=True)
class Server:
    """A server of a home, where it listens and what opens it."""

    home: Path
    url: str
    secret: str


@contextmanager
def serve(home: Path, **more: str) -> Iterator[Server]:
    """Run a server until the block is left."""
    log = home.parent / f"{home.name}-server.log"
    log.touch()
    process = forked(
        ("serve", "--port", "0", "--json"), environment(home, **more), printed=str(log)
    )
    try:
        wait_until(lambda: '"url"' in log.read_text() or process.poll() is not None)
        card = json.loads(next(line for line in log.read_text().splitlines() if '"url"' in line))
        yield Server(home, card["url"], (home / "token").read_text().strip())
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class Far:
    """Runs the command against the server and, where that is asked for, beside it."""

    server: Server
    run: Callable[..., Ran]
    home: Path

    def __call__(self, *arguments: str, stdin: str = "") -> Ran:
        """Run the command with `--server`, in a home that holds nothing."""
        given = {"HOLDFAST_HOME": str(self.home), "HOLDFAST_TOKEN": self.server.secret}
        with _set(given):
            ran = self.run(*arguments, "--server", self.server.url, stdin=stdin)
        assert not (self.home / "history.db").exists()
        return ran

    def here(self, *arguments: str, stdin: str = "") -> Ran:
        """Run the command on the server's own store."""
        with _set({"HOLDFAST_HOME": str(self.server.home)}):
            return self.run(*arguments, stdin=stdin)

    def both(self, *arguments: str) -> Any:
        """Return the document that both print, having seen that it is one and the same."""
        far, here = self(*arguments, "--json"), self.here(*arguments, "--json")
        assert (far.code, far.err) == (here.code, here.err)
        assert far.document == here.document
        plain, same = self(*arguments), self.here(*arguments)
        assert (plain.code, plain.out, plain.err) == (same.code, same.out, same.err)
        return far.document


@contextmanager
def _set(variables: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
