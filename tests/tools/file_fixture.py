"""A folder to work in, a world outside of it, and the tools as a session has them."""

import hashlib
import itertools
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from holdfast.domain.tools import FsTier, Grant
from holdfast.ports.tools import CallOutcome, PlannedCall, RequestedCall, Slice, ToolWorkspace
from holdfast.tools.files.openat import KernelSupport
from holdfast.tools.files.tools import FileSettings, file_tools
from holdfast.tools.session_tools import checkpoint_tool, read_output_tool
from holdfast.tools.toolbox import LocalToolbox

CANARY = "canary-7f3a"
NOW = datetime(2026, 1, 2, 3, 4, 5, 678_900, tzinfo=UTC)


class ShelfInMemory:
    """Keeps contents as long as the test lives."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    async def keep(self, content: bytes, *, mime_type: str = "text/plain") -> str:
        handle = f"media://{hashlib.sha256(content).hexdigest()}"
        self.kept[handle] = content
        return handle

    async def read(self, handle: str, *, start: int = 0, end: int | None = None) -> Slice | None:
        if handle not in self.kept:
            return None
        content = self.kept[handle]
        return Slice(content=content[start:end], start=start, total=len(content))


class Workshop:
    """Folders `inside` (the working directory), `scratch`, `home` (ours) and `outside`."""

    def __init__(
        self,
        folder: Path,
        *,
        tier: FsTier = FsTier.SANDBOXED,
        kernel: KernelSupport | None = None,
        extra_roots: tuple[str, ...] = (),
    ) -> None:
        self.inside, self.outside = folder / "inside", folder / "outside"
        self.scratch, self.home = folder / "home" / "scratch", folder / "home"
        for each in (self.inside, self.outside, self.scratch):
            each.mkdir(parents=True, exist_ok=True)
        (self.outside / "canary.txt").write_text(CANARY)
        self.shelf = ShelfInMemory()
        settings = FileSettings(protected=(str(self.home),), extra_roots=extra_roots)
        self.toolbox = LocalToolbox(
            (*file_tools(settings, kernel), read_output_tool(), checkpoint_tool(lambda: NOW))
        )
        self.place = ToolWorkspace(
            session="s1",
            working_dir=str(self.inside),
            scratch=str(self.scratch),
            grants=(Grant(fs=FsTier.FULL), Grant(fs=tier)),
            tools=self.toolbox.names,
            shelf=self.shelf,
        )
        self._numbers = itertools.count(1)

    def use_shelf(self, shelf: ShelfInMemory) -> None:
        """Keep contents elsewhere from now on."""
        self.shelf = shelf
        self.place = msgspec.structs.replace(self.place, shelf=shelf)

    def put(self, path: str, content: str | bytes = "text\n") -> Path:
        """Make a file inside, with its directories."""
        file = self.inside / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return file

    async def plan(self, tool: str, /, **arguments: Any) -> PlannedCall | CallOutcome:
        """Plan a call as a model would make it."""
        id = f"c{next(self._numbers)}"
        asked = RequestedCall(id=id, name=tool, arguments=arguments, idempotency_key=f"s1:{id}")
        return await self.toolbox.plan(self.place, asked)

    async def call(self, tool: str, /, **arguments: Any) -> CallOutcome:
        """Plan a call and run it, as if everything that had to be asked was allowed."""
        planned = await self.plan(tool, **arguments)
        return planned if isinstance(planned, CallOutcome) else await self.run(planned)

    async def run(self, planned: PlannedCall | CallOutcome) -> CallOutcome:
        """Run what was planned."""
        assert isinstance(planned, PlannedCall), planned
        return await self.toolbox.run(self.place, planned)


def told(done: PlannedCall | CallOutcome) -> tuple[str, str]:
    """Return how a call was refused: its status and code."""
    assert isinstance(done, CallOutcome), done
    assert done.error is not None, done
    return str(done.status), str(done.error.code)


def result(done: CallOutcome) -> Any:
    """Return what a call brought."""
    assert done.error is None, done
    return done.result
