"""Editors for tests: a client of the protocol, written apart from our code, on raw lines.

It talks to a house in this process, or to the real command.
"""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from holdfast import __version__
from holdfast.acp.rpc.connection import AcpConnection
from holdfast.acp.server.agent import AcpServeOptions, ClientInput, serve
from holdfast.acp.server.session_folders import SessionFolders
from holdfast.api import Holdfast
from holdfast.app import open_holdfast
from holdfast.client.requests import new_id
from holdfast.config import Config
from holdfast.execution.coordinator import RunScope
from holdfast.services.agents import BUILT_IN
from tests.cli.processes import COMMAND, environment

PATIENCE = 30.0
LIMIT = 64 << 20
Frame = dict[str, Any]
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Editor:
    """One client: sends requests, keeps every frame it got, answers what it is asked."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self.frames: list[Frame] = []
        # What is answered to a question; nothing leaves it open.
        self.answer: Callable[[Frame], Frame | None] = lambda _: selected("allow_once")
        self._ids = 100

    async def say(self, line: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(line)
        await self.writer.drain()

    async def send(self, **message: Any) -> None:
        """Send one message."""
        await self.say(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def frame(self) -> Frame:
        """Return the next line, and answer it if it is a question."""
        async with asyncio.timeout(PATIENCE):
            line = await self._reader.readline()
        assert line.endswith(b"\n"), f"the conversation ended with {line!r}"
        frame = json.loads(line)
        assert frame.pop("jsonrpc") == "2.0"
        self.frames.append(frame)
        if frame.get("method") == "session/request_permission":
            answer = self.answer(frame)
            if answer is not None:
                await self.send(id=frame["id"], **answer)
        return dict(frame)

    async def begin(self, method: str, **params: Any) -> int:
        """Send a request and return its id."""
        self._ids += 1
        await self.send(id=self._ids, method=method, params=params)
        return self._ids

    async def reply(self, number: Any) -> Frame:
        """Return the reply to a request; what comes before it is kept."""
        while True:
            frame = await self.frame()
            if "method" not in frame and frame["id"] == number:
                del frame["id"]
                return frame

    async def call(self, method: str, **params: Any) -> Frame:
        """Ask, and return the reply without its id."""
        return await self.reply(await self.begin(method, **params))

    async def until(self, wanted: Callable[[Frame], bool]) -> Frame:
        """Read up to a frame and return it."""
        while not wanted(frame := await self.frame()):
            pass
        return frame

    async def meet(self) -> None:
        """Shake hands."""
        await self.call("initialize", protocolVersion=1)

    async def opened(self, folder: Path, **more: Any) -> str:
        """Open a session and return its id."""
        params = {"cwd": str(folder), "mcpServers": []} | more
        opened = await self.call("session/new", **params)
        assert "result" in opened, opened
        return str(opened["result"]["sessionId"])

    async def prompt(self, session: str, text: str) -> Frame:
        """Say something and return the reply."""
        return await self.call("session/prompt", sessionId=session, prompt=words(text))

    def updates(self) -> list[Frame]:
        """Return the updates that came since this was asked for last, without their session."""
        found = [each["params"]["update"] for each in self.frames if is_update(each)]
        self.frames.clear()
        return found

    def deafen(self) -> None:
        """Read no more: the pipe is closed at this end."""
        self._reader._transport.close()  # type: ignore[attr-defined]

    async def rest(self) -> bytes:
        """Return all that still comes."""
        async with asyncio.timeout(PATIENCE):
            return await self._reader.read()


def words(text: str) -> list[Frame]:
    """Return a prompt of words."""
    return [{"type": "text", "text": text}]


def selected(option: str) -> Frame:
    """Return the answer of somebody who took an option."""
    return {"result": {"outcome": {"outcome": "selected", "optionId": option}}}


def is_update(frame: Frame) -> bool:
    """Tell whether a frame is an update."""
    return frame.get("method") == "session/update"


def is_question(frame: Frame) -> bool:
    """Tell whether a frame asks for a permission."""
    return frame.get("method") == "session/request_permission"


def masked(value: Any, names: dict[str, str] | None = None) -> Any:
    """Return frames with every id of ours replaced by `#1`, `#2`, … in their order."""
    found = dict(names or {})

    def name(match: re.Match[str]) -> str:
        return found.setdefault(match[0], f"#{len(found) + 1}")

    return json.loads(_UUID.sub(name, json.dumps(value)))


def chunk(text: str, message: str = "#1", kind: str = "agent_message_chunk") -> Frame:
    """Return words as an update."""
    content = {"type": "text", "text": text}
    return {"sessionUpdate": kind, "content": content, "messageId": message}


@asynccontextmanager
async def house_for(home: Path, root: Path, **settings: Any) -> AsyncIterator[Holdfast]:
    """Open a house as the command does."""
    config = Config(home=home, workspace_root=root, **settings)
    async with open_holdfast(config=config, scope=RunScope.OWN) as house:
        yield house


@asynccontextmanager
async def editor_of(house: Holdfast, **terms: Any) -> AsyncIterator[Editor]:
    """Talk to a house in this process; leaving the block is the end of the input."""
    places = SessionFolders(agent=BUILT_IN)
    agreed = AcpServeOptions(version=__version__, folders=places, new_id=new_id, **terms)
    ours, theirs = await _pair(), await _pair()
    said = ClientInput(ours[0])
    serving = asyncio.create_task(serve(house, AcpConnection(said, theirs[1]), agreed, said.ended))
    editor = Editor(theirs[0], ours[1])
    try:
        yield editor
    finally:
        ours[1].close()
        async with asyncio.timeout(PATIENCE):
            await serving
        await editor.rest()


@asynccontextmanager
async def here(home: Path, root: Path, **settings: Any) -> AsyncIterator[tuple[Holdfast, Editor]]:
    """Open a house and talk to it, hands shaken."""
    async with house_for(home, root, **settings) as house, editor_of(house) as editor:
        await editor.meet()
        editor.frames.clear()
        yield house, editor


async def _pair() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    out, into = os.pipe()
    reader = asyncio.StreamReader(limit=LIMIT)
    await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(out, "rb", 0)
    )
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(into, "wb", 0)
    )
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)


class Process(Editor):
    """The real command with a client at its pipes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        assert process.stdin is not None
        super().__init__(process.stdout, process.stdin)
        self.process = process

    async def ended(self) -> int:
        """Close the input, and return the exit code."""
        self.writer.close()
        async with asyncio.timeout(PATIENCE):
            await self._reader.read()
            return await self.process.wait()


@asynccontextmanager
async def command(home: Path, folder: Path, *arguments: str, **more: str) -> AsyncIterator[Process]:
    """Run `holdfast acp` in a folder; whatever the test does, it is gone afterwards."""
    process = await asyncio.create_subprocess_exec(
        *(COMMAND, "acp", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=LIMIT,
        cwd=folder,
        env=environment(home, **more),
    )
    editor = Process(process)
    try:
        yield editor
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        editor.writer.close()
        await editor.rest()
        await process.wait()
