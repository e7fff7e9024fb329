"""A server on a real socket, and callers who say exactly the bytes they want to say."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from holdfast import Holdfast
from holdfast.http.app import AppOptions, create_app
from holdfast.http.server import LOCAL, Exposure, listen, serve
from tests.stand_ins import PATIENCE

_STATUS = re.compile(rb"HTTP/1\.1 ([0-9]{3}) ")


@dataclass(frozen=True)
class Heard:
    """All that came back on a connection; `is_over` if the server has ended it."""

    raw: bytes
    is_over: bool

    @cached_property
    def statuses(self) -> list[int]:
        """Return the status of each answer."""
        return [int(each) for each in _STATUS.findall(self.raw)]

    @property
    def body(self) -> bytes:
        """Return the body of the last answer."""
        return self.raw.rpartition(b"\r\n\r\n")[2]

    @property
    def head(self) -> bytes:
        """Return the head of the first answer."""
        return self.raw.partition(b"\r\n\r\n")[0]


@dataclass(frozen=True)
class Line:
    """Where a server listens."""

    port: int
    tls: ssl.SSLContext | None = None

    def request(self, target: str, *headers: str, method: str = "GET") -> bytes:
        """Return the bytes of a request without a body."""
        lines = [f"{method} {target} HTTP/1.1", f"Host: 127.0.0.1:{self.port}", *headers]
        return "\r\n".join([*lines, "", ""]).encode()

    async def say(self, *pieces: bytes, answers: int | None = None, pause: float = 0) -> Heard:
        """Say something on a new connection and hear what comes, up to its end or a number."""
        return await self.tell(pieces, answers=answers, pause=pause)

    async def tell(
        self, pieces: Iterable[bytes], *, answers: int | None = None, pause: float = 0
    ) -> Heard:
        """Say pieces that may never end; whoever has heard enough says no more."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=self.tls)
        speaking = asyncio.create_task(_speak(writer, pieces, pause))
        try:
            async with asyncio.timeout(PATIENCE):
                return await _heard(reader, answers)
        finally:
            speaking.cancel()
            await asyncio.wait({speaking})
            writer.transport.abort()


async def _speak(writer: asyncio.StreamWriter, pieces: Iterable[bytes], pause: float) -> None:
    # A server that hangs up is what some of them are waiting for.
    with suppress(ConnectionError):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)


async def _heard(reader: asyncio.StreamReader, answers: int | None) -> Heard:
    raw = b""
    while answers is None or not _is_complete(raw, answers):
        try:
            piece = await reader.read(1 << 16)
        except ConnectionResetError:
            # The end, told to somebody who was still speaking.
            piece = b""
        if not piece:
            return Heard(raw, is_over=True)
        raw += piece
    return Heard(raw, is_over=False)


def _is_complete(raw: bytes, answers: int) -> bool:
    """Tell whether so many answers have come, each as long as it says."""
    for _ in range(answers):
        head, end, raw = raw.partition(b"\r\n\r\n")
        if not end:
            return False
        length = re.search(rb"(?i)content-length: ([0-9]+)", head)
        size = int(length[1]) if length else 0
        if len(raw) < size:
            return False
        raw = raw[size:]
    return True


async def well() -> None:
    """Be a store that can be written."""


@asynccontextmanager
async def serving(
    house: Holdfast, *, exposure: Exposure = LOCAL, host: str = "127.0.0.1", **door: Any
) -> AsyncIterator[Line]:
    """Serve a house until the block is left."""
    ready, stop = asyncio.Event(), asyncio.Event()
    with listen(host, 0, exposure) as listener:
        port = listener.getsockname()[1]
        app = create_app(house, well, AppOptions(port=port, has_tls=exposure.is_secure, **door))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(serve(app, listener, ready=ready.set, stop=stop, exposure=exposure))
            async with asyncio.timeout(PATIENCE):
                await ready.wait()
            try:
                yield Line(port, trusting(exposure.certificate))
            finally:
                stop.set()


def trusting(certificate: Path | None) -> ssl.SSLContext | None:
    """Return the TLS of somebody who trusts this one certificate."""
    if certificate is None:
        return None
    context = ssl.create_default_context(cafile=certificate)
    context.check_hostname = False
    return context
