"""The other end of a connection, in the hand of a test: it says any bytes and reads what comes."""

import json
import os
from asyncio import ReadTransport, StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from holdfast.acp.rpc.connection import AcpConnection
from holdfast.process.streams import open_reader, open_writer


class Far:
    """Two pipes, seen from the other side."""

    def __init__(self, reader: StreamReader, pipe: ReadTransport, writer: StreamWriter) -> None:
        self._reader = reader
        self._pipe = pipe
        self._heard = b""
        self.writer = writer

    async def say(self, *messages: Any) -> None:
        """Send messages, each on a line."""
        await self.say_bytes(b"".join(json.dumps(each).encode() + b"\n" for each in messages))

    async def say_bytes(self, content: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(content)
        await self.writer.drain()

    async def hear(self) -> dict[str, Any]:
        """Return the next message that was sent to this side."""
        while b"\n" not in self._heard:
            chunk = await self._reader.read(1 << 16)
            assert chunk, self._heard
            self._heard += chunk
        line, _, self._heard = self._heard.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    async def rest(self) -> bytes:
        """Return what else was sent, to the end."""
        return self._heard + await self._reader.read()

    def stop_talking(self) -> None:
        """Close the direction to the connection."""
        self.writer.close()

    def stop_listening(self) -> None:
        """Close the direction from the connection."""
        self._pipe.close()


@asynccontextmanager
async def connected(**options: Any) -> AsyncIterator[tuple[AcpConnection, Far]]:
    """Yield a connection and its other end; both are closed afterwards."""
    to_far, from_near = os.pipe()
    to_near, from_far = os.pipe()
    near_reader, near_pipe = await open_reader(to_near)
    far_reader, far_pipe = await open_reader(to_far)
    far = Far(far_reader, far_pipe, await open_writer(from_far))
    connection = AcpConnection(near_reader, await open_writer(from_near), **options)
    try:
        yield connection, far
    finally:
        far.stop_listening()
        await connection.aclose()
        near_pipe.close()
        far.writer.transport.abort() if far.writer.transport.get_write_buffer_size() else None
        far.stop_talking()
