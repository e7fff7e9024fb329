"""Cheap clients: prebuilt bytes on plain sockets, so that what is measured is the server."""

import asyncio
import re
import time
from typing import Final, cast

_LENGTH: Final = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_READ: Final = 1 << 18


class Caller:
    """Asks, and reads the whole answer, on one connection or on a new one for each request."""

    def __init__(self, port: int, token: str, *, keeps: bool = True) -> None:
        self._port = port
        self._keeps = keeps
        self._head = f"host: 127.0.0.1:{port}\r\nauthorization: Bearer {token}\r\n".encode()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def __aenter__(self) -> "Caller":
        await self._connect()
        return self

    async def __aexit__(self, *error: object) -> None:
        _, writer = self._both
        writer.close()

    def post(self, path: str, body: bytes) -> bytes:
        """Return the bytes of a request that makes something."""
        return (
            b"POST %s HTTP/1.1\r\n%scontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
            % (
                path.encode(),
                self._head,
                len(body),
                body,
            )
        )

    def get(self, path: str) -> bytes:
        """Return the bytes of a request that reads a stream."""
        return b"GET %s HTTP/1.1\r\n%saccept: text/event-stream\r\n\r\n" % (
            path.encode(),
            self._head,
        )

    async def ask(self, request: bytes) -> bytes:
        """Send a request and return the body of its answer, which must be one of success."""
        reader, writer = await self._ready()
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        found = _LENGTH.search(head)
        body = await reader.readexactly(int(found[1])) if found else b""
        if not head.startswith(b"HTTP/1.1 2"):
            raise AssertionError(head + body)
        return body

    async def follow(
        self, request: bytes, first: bytes, last: bytes | None = None
    ) -> tuple[float, bytes]:
        """Read a stream; return when its first words came, and the rest up to the last ones."""
        reader, writer = await self._ready()
        writer.write(request)
        await reader.readuntil(first)
        came = time.perf_counter()
        return came, await reader.readuntil(last) if last else b""

    async def _ready(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if not self._keeps:
            self._both[1].close()
            await self._connect()
        return self._both

    async def _connect(self) -> None:
        self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=_READ)

    @property
    def _both(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is None:
            raise AssertionError("not connected")
        return self._streams


class Counter(asyncio.Protocol):
    """A reader of a stream that only notes when how many events had come."""

    MARK: Final = b"\nid: "

    def __init__(self, request: bytes, *, keeps: bool = False) -> None:
        """One that `keeps` has the bytes afterwards."""
        self._request = request
        self._rest = b""
        self._kept: list[bytes] | None = [] if keeps else None
        self.begun = asyncio.get_running_loop().create_future()
        self.count = 0
        # When, and how many there were then.
        self.arrivals: list[tuple[float, int]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask at once."""
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        """Count; a mark may come in two pieces."""
        now = time.time()
        if self._kept is not None:
            self._kept.append(data)
        whole = self._rest + data
        self.count += whole.count(self.MARK)
        self._rest = whole[-len(self.MARK) + 1 :]
        self.arrivals.append((now, self.count))
        if not self.begun.done() and b"event: connected" in data:
            self.begun.set_result(None)

    @property
    def kept(self) -> bytes:
        """Return all that came."""
        return b"".join(self._kept or ())
