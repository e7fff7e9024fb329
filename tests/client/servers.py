"""Servers for a client to talk to: a real house on a real socket, and impostors that misbehave."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from holdfast import Holdfast
from holdfast.client import Timeouts
from holdfast.http.app import AppOptions, create_app
from holdfast.http.server import listen, serve, url_of

# Quick enough for a test, and still in the right order.
QUICK = Timeouts(request=5.0, silence=5.0, pause=0.01, longest=0.05)


@dataclass(frozen=True)
class Served:
    """Where a house is, and what opens it."""

    url: str
    secret: str


@asynccontextmanager
async def serving(house: Holdfast, *, life: float = 300.0, port: int = 0) -> AsyncIterator[Served]:
    """Serve a house; `life` is how long a stream lasts before its reader has to come back."""

    async def well() -> None:
        """Be a store that can be written."""

    with listen("127.0.0.1", port) as listener:
        _, secret = await house.tokens.ensure_local()
        app = create_app(house, well, AppOptions(port=listener.getsockname()[1], life=life))
        ready, stop = asyncio.Event(), asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(serve(app, listener, ready=ready.set, stop=stop))
            await ready.wait()
            try:
                yield Served(url_of(listener), secret)
            finally:
                stop.set()


@dataclass
class Call:
    """One connection to an impostor: what was asked, and what is answered."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    head: str
    body: bytes

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers by their lower-case names."""
        pairs = (line.split(": ", 1) for line in self.head.split("\r\n")[1:])
        return {name.lower(): value for name, value in pairs}

    async def say(self, text: str) -> None:
        """Send something."""
        self.writer.write(text.encode())
        await self.writer.drain()

    async def answer(self, status: int, body: str, *headers: str) -> None:
        """Send a whole answer."""
        lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body.encode())}", *headers]
        await self.say("\r\n".join([*lines, "", body]))

    async def stream(self, *frames: str) -> None:
        """Begin a stream without a known end, as a cut connection leaves it."""
        await self.say("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        await self.say("".join(frames))


Act = Callable[[Call], Awaitable[None]]


@dataclass
class Impostor:
    """Answers each request with the next act; the last one is repeated."""

    acts: list[Act]
    calls: list[Call] = field(default_factory=list)
    url: str = ""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().removesuffix("\r\n\r\n")
            call = Call(reader, writer, head, b"")
            length = int(call.headers.get("content-length", "0"))
            call.body = await reader.readexactly(length)
            act = self.acts[min(len(self.calls), len(self.acts) - 1)]
            self.calls.append(call)
            await act(call)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def impostor(*acts: Act) -> AsyncIterator[Impostor]:
    """Run a server that misbehaves."""
    actor = Impostor(list(acts))
    server = await asyncio.start_server(actor, "127.0.0.1", 0)
    try:
        actor.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield actor
    finally:
        server.close()
        await server.wait_closed()


def connected(after: int, *, retry: int = 1) -> str:
    """Return the first frame of a stream."""
    return f'retry: {retry}\nevent: connected\ndata: {{"after":{after},"head":0}}\n\n'


def closing(reason: str, *, retry: int = 1) -> str:
    """Return the last frame of a stream."""
    return f'event: closing\ndata: {{"reason":"{reason}","retry_ms":{retry}}}\n\n'


def event(sequence: int, word: str = "x", *, id: bool = True) -> str:
    """Return the frame of an event."""
    data = (
        f'{{"id":"e{sequence}","session_id":"s","sequence":{sequence},"event_type":"{word}",'
        f'"data":{{}},"created_at":"2026-01-02T03:04:05.678901Z"}}'
    )
    return f"{f'id: {sequence}' + chr(10) if id else ''}event: {word}\ndata: {data}\n\n"


def gap(first: int, last: int, resync: str = '"/v1/sessions/s/messages"') -> str:
    """Return the frame of numbers that will not come."""
    data = f'{{"from":{first},"to":{last},"reason":"pruned","resync":{resync}}}'
    return f"id: {last}\nevent: gap\ndata: {data}\n\n"


def silent() -> Act:
    """Return an act that hangs up without a word."""

    async def act(call: Call) -> None:
        """Hang up."""

    return act


def streaming(*frames: str) -> Act:
    """Return an act that streams these frames and hangs up."""

    async def act(call: Call) -> None:
        await call.stream(*frames)

    return act


def answering(status: int, body: str, *headers: str) -> Act:
    """Return an act that answers."""

    async def act(call: Call) -> None:
        await call.answer(status, body, *headers)

    return act
