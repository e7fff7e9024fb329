"""A reader of streams on a bare socket: it can stop at any byte, and every frame is checked."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.torture.crew import PATIENCE
from tests.torture.frames import Checker, Frame, Frames, NoFrameError
from tests.torture.served import Server

PIECE = 64 << 10


class GoneError(Exception):
    """The connection ended, or the reader has had enough."""


@dataclass(frozen=True)
class Listening:
    """What a reader asks for; `enough` is after how many bytes it hangs up, frame or no frame."""

    session: str
    after: int = 0
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    enough: int = 1 << 62

    @property
    def path(self) -> str:
        """Return what is asked for."""
        return f"/v1/sessions/{self.session}/events?{self.query}"


class Ear:
    """One open stream."""

    def __init__(self, reader: asyncio.StreamReader, wish: Listening, checker: Checker) -> None:
        self._reader = reader
        self._wish = wish
        self._frames = Frames()
        self._left = 0
        self._waiting: list[Frame] = []
        self._checker = checker
        self.check = checker.stream(wish.after, in_pairs="deltas=both" in wish.query)
        self.status = 0
        self.body = b""
        self.head = b""
        self.taken = 0
        # What was heard before the reader hung up, in bytes.
        self.bytes = bytearray()

    @property
    def rest(self) -> bytes:
        """Return what has come of a frame that is not whole."""
        return self._frames.rest

    async def begin(self) -> None:
        """Read the head; a refusal is read to its end."""
        self.head = await self._reader.readuntil(b"\r\n\r\n")
        self.status = int(self.head.split(b" ", 2)[1])
        if self.status != 200:
            size = self.head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]
            self.body = await self._reader.readexactly(int(size or 0))

    async def next(self) -> Frame:
        """Return the next frame; raises GoneError when there is none."""
        while not self._waiting:
            piece = await self._piece()
            try:
                self._waiting = self._frames.feed(piece)
            except NoFrameError as error:
                self._checker.faults.append(f"no frame: {error}")
                raise GoneError from error
        frame = self._waiting.pop(0)
        self.check.heard(frame)
        return frame

    async def _piece(self) -> bytes:
        """Return the next bytes of the body."""
        if self.taken >= self._wish.enough:
            raise GoneError
        try:
            if self._left == 0:
                self._left = int(await self._reader.readuntil(b"\r\n"), 16)
                if self._left == 0:
                    raise GoneError
            most = min(self._left, PIECE, self._wish.enough - self.taken)
            piece = await self._reader.read(most)
            self._left -= len(piece)
            if not piece:
                raise GoneError
            if self._left == 0:
                await self._reader.readexactly(2)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise GoneError from error
        self.taken += len(piece)
        self.bytes += piece
        return piece

    def __aiter__(self) -> AsyncIterator[Frame]:
        return self._all()

    async def _all(self) -> AsyncIterator[Frame]:
        while True:
            try:
                frame = await self.next()
            except GoneError:
                return
            yield frame


@asynccontextmanager
async def listening(server: Server, wish: Listening, checker: Checker) -> AsyncIterator[Ear]:
    """Open a stream, hear it, and hang up without a word."""
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 21)
    ear = Ear(reader, wish, checker)
    try:
        cursor = {"Last-Event-ID": str(wish.after)} if wish.after else {}
        headers = {
            "Host": f"127.0.0.1:{server.port}",
            "Authorization": f"Bearer {server.token}",
            "Accept": "text/event-stream",
            **cursor,
            **wish.headers,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(f"GET {wish.path} HTTP/1.1\r\n{lines}\r\n".encode())
        try:
            await ear.begin()
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise ConnectionResetError("no answer") from error
        yield ear
        ear.check.left()
    finally:
        # Reset, not closed: the other side learns it the hard way.
        writer.transport.abort()


def refusal(ear: Ear) -> tuple[int, str]:
    """Return how a stream was refused."""
    told: dict[str, Any] = msgspec.json.decode(ear.body)
    return ear.status, str(told["error"])
