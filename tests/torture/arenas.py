"""A folder to work in and a world around it that no call may show, list or change."""

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from holdfast.domain.tools import FsTier, ToolClass
from holdfast.ports.tools import CallOutcome, PlannedCall
from holdfast.tools.files.openat import KernelSupport
from tests.tools.file_fixture import CANARY, Workshop
from tests.torture.spellings import furnish

T = TypeVar("T")

SENTINEL = "sentinel-51c2"
MEMORY = Path("/dev/shm")

# What each tool is given besides a path.
CALLS: dict[str, dict[str, Any]] = {
    "read_file": {},
    "list_directory": {"depth": 2},
    "find_text": {"pattern": f"{CANARY}|:"},
    "write_file": {"content": "written by a tool\n", "create_dirs": True},
    "edit_file": {"old": "i", "new": "j"},
}


class Arena(Workshop):
    """A workshop whose forbidden folders are watched: our home, and the outside if there is one."""

    def __init__(self, folder: Path, *, tier: FsTier, kernel: KernelSupport | None = None) -> None:
        super().__init__(folder, tier=tier, kernel=kernel)
        self.forbidden = [self.home] if tier is FsTier.FULL else [self.home, self.outside]
        if tier is FsTier.FULL:
            (self.outside / "canary.txt").write_text("open to all\n")
        for each in self.forbidden:
            (each / "sub").mkdir()
            for name in ("canary.txt", "file.txt", SENTINEL, f"sub/{SENTINEL}"):
                (each / name).write_text(f"{CANARY} is mine\n")
        words = ("inside", "outside", "home")
        self.words = {word: str(getattr(self, word)) for word in words}
        self._before = self.state()

    def furnish(self) -> None:
        """Put links that lead out into the working directory."""
        furnish(self.inside, self.words)

    def state(self) -> dict[str, tuple[int, int, int, bytes]]:
        """Return all that there is in the forbidden folders."""
        found = {}
        for top in self.forbidden:
            for folder, _, files in os.walk(top):
                for path in (folder, *(f"{folder}/{name}" for name in files)):
                    # Scratch lies in the home and belongs to the session.
                    if path.startswith(str(self.scratch)) or path == str(self.home):
                        continue
                    known = os.lstat(path)
                    content = Path(path).read_bytes() if path != folder else b""
                    found[path] = (known.st_ino, known.st_mode, known.st_mtime_ns, content)
        return found

    def is_safe(self, planned: PlannedCall) -> bool:
        """Tell whether a call that is granted everything would stay within the arena."""
        if planned.tool_class is ToolClass.READ:
            path = os.path.join(self.inside, planned.asked.arguments["path"])
            try:
                return os.path.realpath(path).startswith(str(self.inside.parent))
            except (OSError, ValueError):
                return False
        return str(planned.memory).startswith(f"write:{self.inside.parent}")

    async def attempt(self, tool: str, path: str) -> CallOutcome | None:
        """Plan and run a call; nothing that would reach beyond the arena is run."""
        planned = await self.plan(tool, path=path, **CALLS[tool])
        if isinstance(planned, CallOutcome):
            return planned
        if self.place.grants[1].fs is FsTier.FULL and not self.is_safe(planned):
            return None
        return await self.run(planned)

    def escaped(self, done: CallOutcome, *, changed: bool = True) -> bool:
        """Tell whether a call showed or changed what it must not."""
        shown = json.dumps(done.result, ensure_ascii=False)
        return CANARY in shown or SENTINEL in shown or (changed and self.state() != self._before)


class WithoutThreads(ThreadPoolExecutor):
    """Does work where it is asked for: who calls one tool after the other only waits for threads.

    The race is with another process, and every open is the same.
    """

    def submit(self, work: Callable[..., Any], /, *given: Any, **more: Any) -> Future[Any]:
        done = Future[Any]()
        try:
            done.set_result(work(*given, **more))
        except Exception as error:  # noqa: BLE001 — it is for whoever awaits it
            done.set_exception(error)
        return done


def run_without_threads(work: Coroutine[Any, Any, T]) -> T:
    """Run many calls, one after the other."""
    with asyncio.Runner() as runner:
        runner.get_loop().set_default_executor(WithoutThreads())
        return runner.run(work)


@contextmanager
def quick_folder(otherwise: Path) -> Iterator[Path]:
    """Lend a folder in memory, where a thousand syncs cost nothing, if there is one."""
    if not os.access(MEMORY, os.W_OK):
        yield otherwise
        return
    folder = Path(tempfile.mkdtemp(dir=MEMORY))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
