"""MCP over standard input and output: one JSON message per line, with a length limit."""

import asyncio
import logging
from contextlib import suppress
from typing import Any, Final, Protocol

from mcp import types
from mcp.server.lowlevel.server import Server
from mcp.shared.memory import MessageStream, create_client_server_memory_streams
from mcp.shared.message import SessionMessage

from holdfast.mcp.messages import MessageError, parse_message
from holdfast.mcp.server import TOOLS


class OverlongLine:
    """A line above the length limit; its content is discarded."""


class LineBuffer:
    """Splits bytes into lines; discards a line above the limit without buffering it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._partial = bytearray()
        self._is_overlong = False

    def feed(self, chunk: bytes) -> list[bytes | OverlongLine]:
        """Add a chunk and return the completed lines, without blank ones."""
        *ended, begun = chunk.split(b"\n")
        lines: list[bytes | OverlongLine] = []
        for piece in ended:
            self._add(piece)
            lines += self.rest()
        self._add(begun)
        return lines

    def rest(self) -> list[bytes | OverlongLine]:
        """Return the incomplete last line, at the end of the input."""
        begun, self._partial = bytes(self._partial), bytearray()
        was_overlong, self._is_overlong = self._is_overlong, False
        if was_overlong:
            return [OverlongLine()]
        return [begun] if begun.strip() else []

    def _add(self, piece: bytes) -> None:
        if self._is_overlong or len(self._partial) + len(piece) > self._limit:
            self._is_overlong = True
            self._partial.clear()
        else:
            self._partial += piece


log = logging.getLogger(__name__)
LINE_LARGEST: Final = 8 << 20
# Limit of concurrent requests; further input is not read until one completes (back-pressure).
CONCURRENT_MOST: Final = 32
# Grace period for open requests at shutdown.
SHUTDOWN_SECONDS: Final = 10.0
_CHUNK: Final = 1 << 16
_OVERLONG: Final = MessageError(
    types.INVALID_REQUEST, f"A line may have at most {LINE_LARGEST} bytes."
)


class InputStream(Protocol):
    """Input from the client."""

    async def read(self, count: int = -1, /) -> bytes:
        """Return the next bytes; empty at the end."""


class OutputStream(Protocol):
    """Output to the client."""

    def write(self, content: bytes, /) -> None:
        """Buffer bytes."""

    async def drain(self) -> None:
        """Wait until the buffer has room."""


async def serve(
    server: Server[Any], reader: InputStream, writer: OutputStream, *, stop: asyncio.Event
) -> None:
    """Serve a client until it closes its input, or until `stop` is set."""
    async with create_client_server_memory_streams() as (server_side, inside):
        connection = _LineConnection(server_side, writer)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(_run(server, inside))
            writing = tasks.create_task(connection.write_all())
            reading = tasks.create_task(connection.read_all(reader))
            stopping = tasks.create_task(_wait(stop))
            await asyncio.wait(
                {running, writing, reading, stopping}, return_when=asyncio.FIRST_COMPLETED
            )
            reading.cancel()
            stopping.cancel()
            await connection.drain({running, writing})
            running.cancel()
            writing.cancel()


async def _run(server: Server[Any], inside: MessageStream) -> None:
    await server.run(*inside, server.create_initialization_options())


async def _wait(stop: asyncio.Event) -> None:
    await stop.wait()


class _LineConnection:
    """Passes lines to the server and responses back, and tracks open requests."""

    def __init__(self, server_side: MessageStream, writer: OutputStream) -> None:
        self._answers, self._requests = server_side
        self._writer = writer
        self._open_requests: set[types.RequestId] = set()
        # Open requests that write; later requests wait for them, to see their changes.
        self._changing: set[types.RequestId] = set()
        self._free = asyncio.Condition()

    async def read_all(self, reader: InputStream) -> None:
        """Pass on every line until the input ends."""
        lines = LineBuffer(LINE_LARGEST)
        while chunk := await reader.read(_CHUNK):
            for line in lines.feed(chunk):
                await self._take(line)
        for line in lines.rest():
            await self._take(line)

    async def write_all(self) -> None:
        """Write every response until there are no more, or the client closes its end."""
        with suppress(OSError):
            async for each in self._answers:
                if isinstance(each, Exception):
                    continue
                await self._write(each.message)
                await self._mark_answered(each.message)

    async def drain(self, others: set[asyncio.Task[None]]) -> None:
        """Wait for open requests, until the timeout or until the server or the writer ends."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SHUTDOWN_SECONDS), self._free:
                while self._open_requests and not any(task.done() for task in others):
                    await self._free.wait()

    async def _take(self, line: bytes | OverlongLine) -> None:
        message = _OVERLONG if isinstance(line, OverlongLine) else parse_message(line)
        if isinstance(message, MessageError):
            await self._write(message.message())
            return
        if isinstance(message, types.JSONRPCRequest):
            async with self._free:
                await self._free.wait_for(
                    lambda: len(self._open_requests) < CONCURRENT_MOST and not self._changing
                )
                self._open_requests.add(message.id)
                self._changing |= {message.id} if _changes(message) else set()
        elif isinstance(message, types.JSONRPCNotification):
            await self._forget_cancelled(message)
        await self._requests.send(SessionMessage(message))

    async def _forget_cancelled(self, message: types.JSONRPCNotification) -> None:
        """Close a cancelled request, because it gets no response."""
        if message.method == "notifications/cancelled":
            await self._finish_request((message.params or {}).get("requestId"))

    async def _mark_answered(self, message: Any) -> None:
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            await self._finish_request(message.id)

    async def _finish_request(self, request_id: Any) -> None:
        async with self._free:
            for kept in (self._open_requests, self._changing):
                kept.difference_update({each for each in kept if each == request_id})
            self._free.notify_all()

    async def _write(self, message: Any) -> None:
        line = message.model_dump_json(by_alias=True, exclude_unset=True)
        # Lone surrogates cannot be encoded as UTF-8, so they are replaced.
        self._writer.write(line.encode("utf-8", "replace") + b"\n")
        await self._writer.drain()


def _changes(message: types.JSONRPCRequest) -> bool:
    name = (message.params or {}).get("name")
    tool = TOOLS.get(name) if isinstance(name, str) else None
    return message.method == "tools/call" and tool is not None and not tool.is_read_only
