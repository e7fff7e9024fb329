"""A provider on a real socket: answers as it is told, and keeps what it was sent.

It knows HTTP and nothing of what providers say; that is `dialects.py`.
"""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Reply:
    """One answer: pieces of a body, and how it ends.

    `end` is `whole`, `cut` (the connection is closed in the middle) or `reset` (it breaks).
    `gate` is waited for before the last piece.
    """

    pieces: Sequence[bytes] = ()
    status: int = 200
    headers: tuple[tuple[str, str], ...] = (("content-type", "text/event-stream"),)
    end: str = "whole"
    gate: asyncio.Event | None = None


def refusing(status: int, body: object, *headers: tuple[str, str]) -> Reply:
    """Return an error with a JSON body."""
    return Reply(
        (json.dumps(body).encode(),),
        status=status,
        headers=(("content-type", "application/json"), *headers),
    )


@dataclass(frozen=True)
class Received:
    """A request as it came."""

    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class FakeProvider:
    """Answers the nth request with the nth reply, or each as `answer` says."""

    url: str = ""
    replies: list[Reply] = field(default_factory=list)
    # Makes the reply of a request, where it depends on what was asked.
    answer: "Callable[[Received], Reply] | None" = None
    received: list[Received] = field(default_factory=list)
    connections: int = 0
    # Set when the first request has come.
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    # Set when a client has gone away in the middle of an answer.
    left: asyncio.Event = field(default_factory=asyncio.Event)
    _serving: set[asyncio.Task[None]] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            while request := await _read(reader):
                self.received.append(request)
                self.arrived.set()
                reply = self.answer(request) if self.answer else self.replies.pop(0)
                if not await self._answer(reply, reader, writer):
                    break
        except ConnectionError:
            self.left.set()
        # Ended here and not passed on: the server's own callback would call it a fault.
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()

    async def stop(self) -> None:
        """End every connection."""
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving)

    async def _answer(
        self, reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Send the reply and tell whether the connection can be used again."""
        lines = [f"HTTP/1.1 {reply.status} Told", "transfer-encoding: chunked"]
        lines += [f"{name}: {value}" for name, value in reply.headers]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        for number, piece in enumerate(reply.pieces, start=1):
            if reply.gate and number == len(reply.pieces) and await self._is_left(reply, reader):
                return False
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()
        if reply.end == "whole":
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            return True
        if reply.end == "reset":
            _break(writer)
        return False

    async def _is_left(self, reply: Reply, reader: asyncio.StreamReader) -> bool:
        """Wait for the gate, or for the client to go away."""
        assert reply.gate is not None
        opened = asyncio.create_task(reply.gate.wait())
        gone = asyncio.create_task(reader.read(1))
        await asyncio.wait({opened, gone}, return_when=asyncio.FIRST_COMPLETED)
        for task in (opened, gone):
            task.cancel()
        await asyncio.gather(opened, gone, return_exceptions=True)
        if reply.gate.is_set():
            return False
        self.left.set()
        return True


@asynccontextmanager
async def a_provider() -> AsyncIterator[FakeProvider]:
    """Listen on a free port until the block is left."""
    provider = FakeProvider()
    server = await asyncio.start_server(provider.serve, "127.0.0.1", 0)
    provider.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield provider
    finally:
        server.close()
        await provider.stop()


async def _read(reader: asyncio.StreamReader) -> Received | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = head.rstrip().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(first.split(" ")[1], headers, json.loads(body))


def _break(writer: asyncio.StreamWriter) -> None:
    """Have the system send a reset instead of a farewell."""
    writer.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
    )
    writer.transport.abort()
