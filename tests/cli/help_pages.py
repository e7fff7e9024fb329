"""The help of every command, on the line and behind a slash, as `docs/cli.md` shows it.

`python -m tests.cli.help_pages` writes it into the page anew; a test compares the two.
"""

import io
import os
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from holdfast.cli.app import COMMANDS, command_line, load_command, run
from holdfast.cli.chat.slash_commands import REGISTRY

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"
_SLASHES = re.compile(r"<!-- slash commands -->\n(?:\|.*\n)*")
_BLOCK = re.compile(r"<!-- help: (?P<path>[^>]*?) ?-->\n```text\n.*?```\n", re.DOTALL)


def command_paths() -> list[tuple[str, ...]]:
    """Return every command and every group, the whole first."""
    return [path for path, _ in commands()]


@cache
def commands() -> tuple[tuple[tuple[str, ...], Any], ...]:
    """Return every command and every group with its path."""
    inner = [each for name in COMMANDS for each in _commands(load_command(name), (name,))]
    return (((), command_line()), *inner)


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, (*path, name))


def help_of(path: tuple[str, ...]) -> str:
    """Return what `--help` prints, on a terminal of 80 columns."""
    printed = io.StringIO()
    with patch.dict(os.environ, {"COLUMNS": "80"}), redirect_stdout(printed):
        code = run([*path, "--help"])
    assert code == 0
    return printed.getvalue()


def rendered(page: str) -> str:
    """Return the page with the help of each command as it is now."""
    whole = _BLOCK.sub(lambda found: block(tuple(found["path"].split())), page)
    return _SLASHES.sub(lambda _: slashes(), whole)


def slashes() -> str:
    """Return the table of what can be typed behind a slash."""
    rows = [f"| `{each.usage.replace('|', chr(92) + '|')}` | {each.help} |" for each in REGISTRY]
    return "\n".join(["<!-- slash commands -->", "| command | to |", "|---|---|", *rows, ""])


def block(path: tuple[str, ...]) -> str:
    """Return the block of a command."""
    name = " ".join(path)
    shown = f"$ holdfast {name} --help".replace("  ", " ")
    return f"<!-- help: {name + ' ' if name else ''}-->\n```text\n{shown}\n{help_of(path)}```\n"


def shown_paths(page: str) -> list[tuple[str, ...]]:
    """Return the commands whose help a page shows."""
    return [tuple(found["path"].split()) for found in _BLOCK.finditer(page)]


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text("utf-8")), "utf-8")
