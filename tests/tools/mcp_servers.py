"""MCP servers for tests: a book that says what the program does, and ways to run it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from holdfast.ports.tools import CallOutcome, PlannedCall, ToolWorkspace
from holdfast.tools.mcp.client import McpSettings
from holdfast.tools.mcp.tools import McpTools
from holdfast.tools.toolbox import LocalToolbox
from tests.tools.http_hosts import a_place, asked
from tests.tools.process_fixture import marked

PROGRAM = Path(__file__).with_name("mcp_program.py")
PLAIN = Path(__file__).with_name("mcp_plain.py")
ECHO = {
    "name": "echo",
    "description": "Says it again.",
    "inputSchema": {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
        "additionalProperties": False,
    },
}


class Book:
    """What a server does, as a file that can be rewritten while it runs."""

    def __init__(self, folder: Path, name: str = "book") -> None:
        self.path = folder / f"{name}.json"
        self.write(tools=[ECHO])

    def write(self, **content: Any) -> None:
        """Have the server do this from now on."""
        written = self.path.with_suffix(".new")
        written.write_text(json.dumps(content))
        written.replace(self.path)

    @property
    def calls(self) -> list[Any]:
        """Return every call that reached the server."""
        path = self.path.with_suffix(".calls")
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def metas(self) -> list[Any]:
        """Return what was said about every call that reached the server."""
        path = self.path.with_suffix(".metas")
        return [json.loads(line) for line in path.read_text().splitlines()]

    @property
    def readers(self) -> list[int]:
        """Return the processes that have this book on their command line."""
        return marked(str(self.path))

    def kill(self) -> None:
        """End the server that reads this book, as a crash would."""
        for pid in self.readers:
            os.kill(pid, signal.SIGKILL)

    def entry(self, id: str = "books", **more: Any) -> dict[str, Any]:
        """Return the declaration of a server that is started at once, and reads this book."""
        args = ["-P", "-S", str(PLAIN), str(self.path)]
        return {"id": id, "transport": "stdio", "command": sys.executable, "args": args, **more}

    def configured(self, **more: Any) -> dict[str, Any]:
        """Return the same server as the user configures it, under a name of its own."""
        return {key: value for key, value in self.entry(**more).items() if key != "id"}

    def full_entry(self, id: str = "books", **more: Any) -> dict[str, Any]:
        """Return the declaration of a server on the protocol's own package."""
        args = ["-P", str(PROGRAM), str(self.path), "stdio"]
        return {"id": id, "transport": "stdio", "command": sys.executable, "args": args, **more}

    @contextmanager
    def listening(self, how: str, *more: str, port: int = 0) -> Iterator[int]:
        """Run the server on a port of this machine."""
        argv = [sys.executable, "-P", str(PROGRAM), str(self.path), how, str(port), *more]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                yield int(process.stdout.readline())
            finally:
                process.kill()


def a_tool(name: str, **more: Any) -> dict[str, Any]:
    """Return a definition that takes anything."""
    return {"name": name, "inputSchema": {"type": "object"}, **more}


def welcoming(**more: Any) -> McpSettings:
    """Return settings of somebody who agrees to whatever an agent wants to have started."""
    return McpSettings(consent=lambda _: True, **more)


def with_servers(folder: Path, *entries: Mapping[str, Any], **more: Any) -> ToolWorkspace:
    """Return a workplace whose agent has declared these servers."""
    return a_place(servers=entries, working_dir=str(folder), scratch=str(folder), **more)


class Hands:
    """Calls tools of MCP servers through a toolbox, looked up anew each time."""

    def __init__(self, tools: McpTools, place: ToolWorkspace) -> None:
        self.tools = tools
        self.place = place

    async def plan(self, name: str, **arguments: Any) -> PlannedCall | CallOutcome:
        """Judge a call."""
        return await (await self._toolbox(name)).plan(
            self._granting(name), asked(name, **arguments)
        )

    async def run(self, planned: PlannedCall) -> CallOutcome:
        """Do what was planned, if it is still the same."""
        name = planned.asked.name
        return await (await self._toolbox(name)).run(self._granting(name), planned)

    async def call(self, name: str, **arguments: Any) -> CallOutcome:
        """Judge a call and do it, as if somebody had agreed."""
        planned = await self.plan(name, **arguments)
        return await self.run(planned) if isinstance(planned, PlannedCall) else planned

    async def _toolbox(self, name: str) -> LocalToolbox:
        tool = await self.tools.find(self.place, name)
        return LocalToolbox([tool] if tool else [])

    def _granting(self, name: str) -> ToolWorkspace:
        return msgspec.structs.replace(self.place, tools=frozenset({name}))
