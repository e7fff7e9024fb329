"""Clients of the MCP surface that say exactly what they want to say, over lines and over HTTP."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from jsonschema import Draft202012Validator

from holdfast import Holdfast
from holdfast.domain.ids import LOCAL_OWNER, Owner, TokenId
from holdfast.domain.tokens import Caller, Scope
from holdfast.mcp.server import TOOLS
from tests.http.v1.client import Visitor
from tests.stand_ins import PATIENCE

Frame = dict[str, Any]

INITIALIZE: Frame = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "tester", "version": "1"},
}


@dataclass(frozen=True)
class Result:
    """What a tool answered: in words, as a form, and whether it refused."""

    words: Any
    form: dict[str, Any]
    is_error: bool

    @property
    def error(self) -> str:
        """Return the code of a refusal."""
        assert self.is_error, self.form
        code: str = self.form["error"]
        return code


class Client(Protocol):
    """Somebody who speaks the protocol."""

    async def call(self, method: str, /, **params: Any) -> Frame:
        """Return the whole answer to a request."""

    async def tool(self, name: str, /, **arguments: Any) -> Result:
        """Return what a tool answers."""


def told(name: str, frame: Frame) -> Result:
    """Return a tool's answer, which always keeps to its schema, in words and as a form."""
    result = frame["result"]
    (block,) = result["content"]
    assert block["type"] == "text"
    form = result["structuredContent"]
    Draft202012Validator(TOOLS[name].output_schema()).validate(form)
    return Result(json.loads(block["text"]), form, result.get("isError", False))


class Line:
    """A client at the other end of two streams of lines."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[Frame] = asyncio.Queue()
        self.written = b""
        self._said: asyncio.Queue[bytes] = asyncio.Queue()
        self._numbers = itertools.count(1)
        self._early: dict[Any, Frame] = {}
        # Whoever does not listen keeps the server from going on.
        self.listens = asyncio.Event()
        self.listens.set()

    async def read(self, _: int = -1, /) -> bytes:
        """Be the server's input."""
        return await self._said.get()

    def write(self, content: bytes, /) -> None:
        """Be the server's output."""
        self.written += content
        for line in content.splitlines():
            self.frames.put_nowait(json.loads(line))

    async def drain(self) -> None:
        """Have room, if somebody listens."""
        await self.listens.wait()

    def say(self, content: bytes) -> None:
        """Send bytes, in whatever pieces."""
        self._said.put_nowait(content)

    def send(self, **message: Any) -> None:
        """Send a message."""
        self.say(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def begin(self, method: str, /, **params: Any) -> int:
        """Send a request and return its number."""
        number = next(self._numbers)
        self.send(id=number, method=method, params=params)
        return number

    async def frame(self) -> Frame:
        """Return what comes next."""
        async with asyncio.timeout(PATIENCE):
            return await self.frames.get()

    async def answer(self, number: Any) -> Frame:
        """Return the answer of a number, whatever comes before it."""
        while number not in self._early:
            frame = await self.frame()
            self._early[frame["id"]] = frame
        return self._early.pop(number)

    async def call(self, method: str, /, **params: Any) -> Frame:
        return await self.answer(self.begin(method, **params))

    async def tool(self, name: str, /, **arguments: Any) -> Result:
        return told(name, await self.call("tools/call", name=name, arguments=arguments))

    async def meet(self) -> None:
        """Shake hands."""
        await self.call("initialize", **INITIALIZE)
        self.send(method="notifications/initialized")


@asynccontextmanager
async def line_to(
    house: Holdfast, *, owner: str = LOCAL_OWNER, scope: Scope = Scope.WRITE, is_met: bool = True
) -> AsyncIterator[Line]:
    """Connect a client with a house; the end of the block is the end of what it says."""
    from holdfast.mcp.server import build_server
    from holdfast.mcp.stdio_transport import serve

    caller = Caller(owner=Owner(owner), scope=scope, token_id=TokenId("t"))
    line, stop = Line(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        serving = tasks.create_task(serve(build_server(house, "0", caller), line, line, stop=stop))
        if is_met:
            await line.meet()
        yield line
        line.say(b"")
        async with asyncio.timeout(PATIENCE):
            await serving


@dataclass(frozen=True)
class Poster:
    """A client that sends every message by itself, over HTTP."""

    visitor: Visitor

    async def call(self, method: str, /, **params: Any) -> Frame:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = await self.visitor.post("/mcp", body)
        assert answer.status == 200, answer.body
        document: Frame = answer.document
        return document

    async def tool(self, name: str, /, **arguments: Any) -> Result:
        return told(name, await self.call("tools/call", name=name, arguments=arguments))
