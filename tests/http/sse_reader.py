"""A reader of event streams: asks an application without a network and hears frame by frame."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message

from holdfast.http.requests import EXTENSION
from tests.stand_ins import PATIENCE

HEARTBEAT: Final = "heartbeat"


@dataclass(frozen=True)
class Frame:
    """What stands between two blank lines."""

    event: str
    id: int | None
    data: Any
    retry: int | None = None


def frame_of(text: str) -> Frame:
    """Return the frame of a block of lines, as a browser would read it."""
    if text == ": hb":
        return Frame(HEARTBEAT, None, None)
    fields = dict(line.split(": ", 1) for line in text.split("\n"))
    return Frame(
        event=fields["event"],
        id=int(fields["id"]) if "id" in fields else None,
        data=json.loads(fields["data"]),
        retry=int(fields["retry"]) if "retry" in fields else None,
    )


class Listener:
    """One open stream: its head, and the frames as they come."""

    def __init__(self, most: int) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.sent = 0
        # After so many chunks there is no room for the next.
        self.most = most
        self.left = asyncio.Event()
        self.room = asyncio.Event()
        self.room.set()
        self.aborted = asyncio.Event()
        self._frames: asyncio.Queue[Frame | None] = asyncio.Queue()
        self._rest = ""
        self._started = asyncio.Event()

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        # A reader that takes nothing holds up whoever writes.
        await self.room.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {n.decode(): v.decode() for n, v in message["headers"]}
            self._started.set()
            return
        self.most -= 1
        if self.most == 0:
            self.room.clear()
        self.body += message["body"]
        self.sent += len(message["body"])
        if self.status == 200:
            *blocks, self._rest = (self._rest + message["body"].decode()).split("\n\n")
            for block in blocks:
                self._frames.put_nowait(frame_of(block))
        if not message.get("more_body", False):
            self._frames.put_nowait(None)

    async def begun(self) -> None:
        """Wait for the head of the answer."""
        async with asyncio.timeout(PATIENCE):
            await self._started.wait()

    async def next(self) -> Frame:
        """Return the next frame."""
        async with asyncio.timeout(PATIENCE):
            frame = await self._frames.get()
        assert frame is not None, "the stream has ended"
        return frame

    async def until(self, event: str) -> list[Frame]:
        """Return the frames up to one of that name."""
        frames = [await self.next()]
        while frames[-1].event != event:
            frames.append(await self.next())
        return frames

    async def ended(self) -> list[Frame]:
        """Return all frames up to the end of the stream."""
        frames: list[Frame] = []
        async with asyncio.timeout(PATIENCE):
            while (frame := await self._frames.get()) is not None:
                frames.append(frame)
        return frames

    def abort(self) -> None:
        """Have the connection dropped."""
        self.aborted.set()
        self.room.set()


@asynccontextmanager
async def listening(
    app: ASGIApp, path: str, secret: str, *, most: int = 1 << 30, **headers: str
) -> AsyncIterator[Listener]:
    """Open a stream; leaving the block leaves the stream, if it has not ended.

    After `most` chunks the reader takes nothing until it is given room again.
    """
    parts = urlsplit(path)
    listener = Listener(most)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    sent = {"host": "127.0.0.1:8765", "authorization": f"Bearer {secret}", **named}
    scope = {
        "type": "http",
        "method": "GET",
        "path": parts.path,
        "query_string": parts.query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
        "extensions": {EXTENSION: {"abort": listener.abort}},
    }
    asking = asyncio.create_task(app(scope, listener.receive, listener.send))  # type: ignore[arg-type]
    try:
        await listener.begun()
        yield listener
    finally:
        listener.left.set()
        listener.room.set()
        async with asyncio.timeout(PATIENCE):
            await asking
