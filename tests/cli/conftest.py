"""What the tests of the command line share: the command in this process, and its stdin."""

import io
import json
import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.app import run
from holdfast.cli.logs import JsonFormatter, PlainFormatter
from tests.new_homes import furnish

# What is read from a real screen needs a program that has one.
collect_ignore = [] if shutil.which("tmux") else ["test_screens.py"]


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Return the one JSON document on stdout."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """Return the JSON lines on stdout."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> Any:
        """Return the error's body, the last line on stderr."""
        return json.loads(self.err.splitlines()[-1])


Cli = Callable[..., Ran]


@pytest.fixture
def cli(home: Path, cli_without_home: Cli) -> Cli:
    """Run a command in this process, in a home of its own; `stdin` is what is piped into it."""

    def run_in_home(*arguments: str, stdin: str | bytes = "") -> Ran:
        furnish(home)
        return cli_without_home(*arguments, stdin=stdin)

    return run_in_home


@pytest.fixture
def cli_without_home(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cli]:
    """Run a command as `cli` does, where no home exists yet."""
    monkeypatch.setenv("HOLDFAST_HOME", str(home))
    monkeypatch.setenv("COLUMNS", "80")

    def ran(*arguments: str, stdin: str | bytes = "") -> Ran:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        capsys.readouterr()
        code = run(arguments)
        told = capsys.readouterr()
        return Ran(code, told.out, told.err)

    yield ran
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler.formatter, PlainFormatter | JsonFormatter):
            root.removeHandler(handler)
    root.setLevel(logging.WARNING)


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """Write a script and return the name of the model that plays it."""

    def written(text: str) -> str:
        file = tmp_path / "script.yaml"
        file.write_text(text)
        return f"scripted:{file}"

    return written


@pytest.fixture
def chatted(cli: Cli, home: Path) -> str:
    """Have one conversation of one turn, and return its session's id."""
    furnish(home)
    lines = cli("chat", "What is 2+3?", "--json").lines
    return str(lines[0]["sessionId"])
