"""A shell and a home of their own for one page: what an earlier block made, a later one finds."""

import os
import queue
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

PATIENCE = 60.0

_KEPT = ("LANG", "LD_LIBRARY_PATH", "PYTHONPATH", "TMPDIR")


def environment(folder: Path) -> dict[str, str]:
    """Return what a person's shell would have: our command, a home, and no key of any provider."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    bin_folder = Path(sys.executable).parent
    return kept | {
        "PATH": f"{bin_folder}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "HOME": str(folder),
        "HOLDFAST_HOME": str(folder / "home"),
        "LC_ALL": "C.UTF-8",
        "TERM": "dumb",
        "COLUMNS": "100",
    }


class Shell:
    """Runs commands one after the other in one bash; a command that hangs ends it."""

    def __init__(self, folder: Path) -> None:
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env=environment(folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read)
        self._count = 0

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # The whole group: a page may have left a server running in the background.
        with suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.wait()
        self._reader.join()
        for stream in (self._shell.stdin, self._shell.stdout):
            if stream is not None:
                stream.close()

    def run(self, command: str) -> tuple[int, str]:
        """Run a command and return its status and everything it printed."""
        self._count += 1
        mark = f"--- end of command {self._count}"
        assert self._shell.stdin is not None
        # Braces instead of a subshell, so that variables and folders stay for the next command.
        told = f"status_=$?; echo; echo '{mark}' $status_"
        self._shell.stdin.write(f"{{\n{command}\n}} </dev/null\n{told}\n")
        self._shell.stdin.flush()
        printed: list[str] = []
        while True:
            try:
                line = self._lines.get(timeout=PATIENCE)
            except queue.Empty:
                raise TimeoutError(f"{command!r} did not end; it printed {printed}") from None
            if line.startswith(mark):
                return int(line.removeprefix(mark)), "".join(printed).removesuffix("\n")
            if not line:
                # The command ended the shell itself, as a failing one does after `set -e`.
                return self._shell.wait() or 1, "".join(printed)
            printed.append(line)

    def _read(self) -> None:
        assert self._shell.stdout is not None
        for line in self._shell.stdout:
            self._lines.put(line)
        self._lines.put("")
