"""The real command in processes of its own: run to its end, kept running, or at a terminal."""

import os
import pty
import re
import select
import signal
import subprocess
import sysconfig
import tempfile
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.torture.nursery import COMMAND_LINE, Forked, Surroundings, nursery

COMMAND = str(Path(sysconfig.get_path("scripts")) / "holdfast")
PATIENCE = 30.0


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return a person's environment: a home, and no key of any provider."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    return kept | {"HOLDFAST_HOME": str(home), "LC_ALL": "C.UTF-8", "COLUMNS": "100"} | more


def ran(
    home: Path, *arguments: str, stdin: str = "", more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env=environment(home, **(more or {})),
    )


def forked(words: Sequence[str], environment: dict[str, str], **streams: str) -> Forked:
    """Start the command where all of it is loaded already; `streams` are the files it has."""
    around = Surroundings(environment=environment, folder=os.getcwd(), **streams)
    return nursery().born(COMMAND_LINE, {"words": words}, around)


def beside(
    home: Path, *arguments: str, stdin: str = "", more: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end beside what a test is about; forked, because starting is not."""
    with tempfile.TemporaryDirectory() as folder:
        read, out, err = (Path(folder) / name for name in ("in", "out", "err"))
        read.write_text(stdin, "utf-8")
        streams = {"read": str(read), "printed": str(out), "told": str(err)}
        around = environment(home, **(more or {}))
        code = forked(arguments, around, **streams).wait(PATIENCE)
        printed, told = out.read_text("utf-8"), err.read_text("utf-8")
    return subprocess.CompletedProcess(arguments, code, printed, told)


@contextmanager
def running(
    home: Path, *arguments: str, more: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Keep the command running; whatever the test does, it is gone afterwards."""
    process = subprocess.Popen(
        [COMMAND, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(home, **(more or {})),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


class Terminal:
    """A person's terminal with the command in it: type, and wait for what appears."""

    def __init__(
        self, home: Path, *arguments: str, columns: int = 100, term: str = "xterm"
    ) -> None:
        self._keyboard, self._screen = pty.openpty()
        termios.tcsetwinsize(self._screen, (24, columns))
        around = environment(home, TERM=term, COLUMNS=str(columns), PROMPT_TOOLKIT_NO_CPR="1")
        self._process = forked(arguments, around, terminal=os.ttyname(self._screen))
        self.shown = ""
        self._read_to = 0

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._keyboard, text.encode())

    def wait_for(self, text: str) -> str:
        """Return what appeared up to a text that was not seen before."""
        deadline = time.monotonic() + PATIENCE
        while (at := self.plain.find(text, self._read_to)) < 0:
            if not self._read(deadline):
                raise AssertionError(f"{text!r} never appeared in {self.plain[self._read_to :]!r}")
        seen = self.plain[self._read_to : at]
        self._read_to = at + len(text)
        return seen

    @property
    def plain(self) -> str:
        """Return what appeared without the sequences that move and colour."""
        return re.sub(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[=>]|\r", "", self.shown)

    def ended(self) -> int:
        """Wait for the command to end and return its exit code."""
        deadline = time.monotonic() + PATIENCE
        while self._read(deadline):
            pass
        return self._process.wait(timeout=PATIENCE)

    def send(self, number: signal.Signals) -> None:
        """Send the command a signal."""
        self._process.send_signal(number)

    def close(self) -> None:
        """Take the terminal away, and whatever is left in it."""
        self._process.kill()
        self._process.wait()
        self._let_go_of_screen()
        os.close(self._keyboard)

    def _read(self, deadline: float) -> bool:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([self._keyboard], [], [], left)[0]:
            return False
        try:
            data = os.read(self._keyboard, 65_536)
        except OSError:
            # On Linux the end of the other side shows as an error.
            return False
        # Kept open until the command has it: without anybody there, reading would end at once.
        self._let_go_of_screen()
        self.shown += data.decode(errors="replace")
        return bool(data)

    def _let_go_of_screen(self) -> None:
        if self._screen >= 0:
            os.close(self._screen)
            self._screen = -1


@contextmanager
def at_terminal(
    home: Path, *arguments: str, columns: int = 100, term: str = "xterm"
) -> Iterator[Terminal]:
    """Run the command at a terminal."""
    terminal = Terminal(home, *arguments, columns=columns, term=term)
    try:
        yield terminal
    finally:
        terminal.close()
