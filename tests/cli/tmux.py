"""A terminal that shows what a person would see: the command in tmux, its screen read as text."""

import os
import shlex
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir
from uuid import uuid4

from tests.cli.processes import COMMAND, PATIENCE, environment

_PAUSE = 0.05
_ENDED = "[ended with "


class Screen:
    """A terminal of a size, with the command in it: type, press keys, and look."""

    def __init__(self, socket: str) -> None:
        self._socket = socket

    def type(self, text: str) -> None:
        """Type a text as it stands."""
        self._tmux("send-keys", "-l", text)

    def press(self, *keys: str) -> None:
        """Press keys by their names."""
        self._tmux("send-keys", *keys)

    def say(self, text: str) -> None:
        """Type a line, and send it."""
        self.type(text)
        self.press("Enter")

    def shown(self, *, all: bool = False, coded: bool = False) -> str:
        """Return what is on the screen, lines without blanks at their ends.

        `all` is with what has scrolled away, `coded` with colours.
        """
        options = [*(["-S", "-"] if all else []), *(["-e"] if coded else [])]
        return self._tmux("capture-pane", "-p", *options)

    def lines(self) -> list[str]:
        """Return all lines there have been; one that was too long for a row is whole again."""
        shown = self._tmux("capture-pane", "-p", "-J", "-S", "-")
        return [line.rstrip() for line in shown.rstrip().split("\n")]

    def wait_for(self, *texts: str) -> str:
        """Return all there has been as soon as all of the texts are in it."""
        deadline = time.monotonic() + PATIENCE
        while not all(text in (seen := "\n".join(self.lines())) for text in texts):
            if time.monotonic() > deadline:
                raise AssertionError(f"{texts} never appeared in:\n{seen}")
            time.sleep(_PAUSE)
        return seen

    def wait_until_gone(self, text: str) -> None:
        """Return as soon as the screen does not show a text any more."""
        deadline = time.monotonic() + PATIENCE
        while text in (seen := self.shown()):
            if time.monotonic() > deadline:
                raise AssertionError(f"{text!r} never went away from:\n{seen}")
            time.sleep(_PAUSE)

    def ended(self) -> int:
        """Wait for the command to end, and return its exit code."""
        return int(self.wait_for(_ENDED).rpartition(_ENDED)[2].partition("]")[0])

    def _tmux(self, *words: str) -> str:
        return subprocess.run(
            ["tmux", "-S", self._socket, "-f", "/dev/null", *words],
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE,
        ).stdout


@contextmanager
def on_screen(
    home: Path,
    *arguments: str,
    size: tuple[int, int] = (80, 40),
    more: Mapping[str, str] | None = None,
) -> Iterator[Screen]:
    """Run the command on a screen of so many columns and rows."""
    # Not below a test's own folder: the name of a socket must be short.
    socket = str(Path(gettempdir()) / f"screen-{uuid4().hex[:12]}")
    given = environment(home)
    # The screen's own size counts, as it would for a person.
    del given["COLUMNS"]
    # In the shell, because tmux says itself what terminal it is.
    special = [f"{name}={value}" for name, value in (more or {}).items()]
    told = shlex.join(["env", *special, COMMAND, *arguments])
    shell = f'{told}; echo "{_ENDED}$?]"; cat'
    words = ["tmux", "-S", socket, "-f", "/dev/null"]
    columns, rows = map(str, size)
    setting = [word for name, value in given.items() for word in ("-e", f"{name}={value}")]
    subprocess.run(
        [*words, "new-session", "-d", "-x", columns, "-y", rows, *setting, "sh", "-c", shell],
        check=True,
        timeout=PATIENCE,
        env={name: os.environ[name] for name in ("PATH",)} | {"LC_ALL": "C.UTF-8"},
    )
    try:
        yield Screen(socket)
    finally:
        _kill_what_runs(words)
        subprocess.run([*words, "kill-server"], check=False, timeout=PATIENCE, capture_output=True)
        Path(socket).unlink(missing_ok=True)


def _kill_what_runs(words: list[str]) -> None:
    """End the command at once: a closed terminal would let it leave in its own time."""
    panes = [*words, "list-panes", "-F", "#{pane_pid}"]
    shell = subprocess.run(panes, check=False, timeout=PATIENCE, capture_output=True, text=True)
    if shell.stdout.strip():
        kill = ["pkill", "-KILL", "-P", shell.stdout.strip()]
        subprocess.run(kill, check=False, timeout=PATIENCE)
