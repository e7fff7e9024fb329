"""A fake model server, a program of its own: four providers' forms, no network, no weights.

`python -m tests.interop.model_server` prints its address and serves until its input ends. What it
was asked can be read at `GET /requests`.
"""

import argparse
import asyncio
import gzip
import json
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import h11

from tests.interop.asked import decoded
from tests.interop.forms import CHAT_FORM, CONTENTS_FORM, MESSAGES_FORM, RESPONSES_FORM, Form
from tests.interop.words import Answer, answer_to

MODEL: Final = "fake-model"
JSON: Final = (("content-type", "application/json"),)
EVENTS: Final = (("content-type", "text/event-stream"), ("cache-control", "no-cache"))
_CONTENT: Final = re.compile(r"/models/[^/]+:(?P<verb>\w+)$")


@dataclass(frozen=True)
class Received:
    """A request as it came, without its headers, which hold keys."""

    method: str
    target: str
    body: dict[str, Any]

    @property
    def path(self) -> str:
        """Return the path without its query."""
        return self.target.partition("?")[0].rstrip("/")


@dataclass
class ModelServer:
    """Answers everybody, and keeps what it was asked."""

    url: str = ""
    received: list[Received] = field(default_factory=list)
    _serving: set[asyncio.Task[Any]] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        talk = _Talk(reader, writer)
        try:
            while (request := await talk.next()) is not None:
                self.received.append(request)
                if not await self._answer(talk, request):
                    break
        except (ConnectionError, h11.RemoteProtocolError, h11.LocalProtocolError):
            pass
        # Ended here and not passed on: the server's own callback would call it a fault.
        except asyncio.CancelledError:
            pass
        finally:
            self._serving.discard(task)
            writer.close()

    async def stop(self) -> None:
        """End every connection."""
        tasks = [*self._serving]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)

    async def _answer(self, talk: "_Talk", request: Received) -> bool:
        """Answer a request and tell whether the connection can be used again."""
        if request.method == "HEAD":
            return await talk.whole(200, b"")
        if request.method == "GET":
            return await talk.whole(200, json.dumps(self._shown(request.path)).encode())
        if request.path.endswith(("/count_tokens", ":countTokens")):
            return await talk.whole(200, b'{"input_tokens": 9, "totalTokens": 9}')
        found = form_of(request.path)
        if found is None:
            return await talk.whole(404, b'{"error": {"message": "no such path"}}')
        form, is_streamed = found
        asked = form.read(request.body, is_streamed)
        answer = answer_to(asked)
        if answer.refusal is not None:
            return await talk.whole(
                answer.refusal, json.dumps(form.refusal(answer.refusal)).encode()
            )
        if not asked.is_streamed:
            return await talk.whole(200, form.document(answer.saying))
        return await talk.streamed(form.stream(answer.saying), answer)

    def _shown(self, path: str) -> object:
        if path == "/requests":
            return [{"target": each.target, "body": each.body} for each in self.received]
        if path.endswith("/models"):
            return _MODELS
        return {"id": MODEL, "object": "model", "type": "model", "display_name": MODEL}


# The three forms of a list of models, at once: each reader takes its own keys.
_MODELS: Final = {
    "object": "list",
    "data": [{"id": MODEL, "object": "model", "type": "model", "owned_by": "nobody"}],
    "has_more": False,
    "models": [{"name": f"models/{MODEL}", "slug": MODEL, "displayName": MODEL}],
}


def form_of(path: str) -> tuple[Form, bool] | None:
    """Return the form that is spoken at a path, and whether the path itself asks for a stream."""
    if found := _CONTENT.search(path):
        return CONTENTS_FORM, found["verb"] == "streamGenerateContent"
    ends = {
        "/chat/completions": CHAT_FORM,
        "/responses": RESPONSES_FORM,
        "/messages": MESSAGES_FORM,
    }
    return next(((form, False) for end, form in ends.items() if path.endswith(end)), None)


class _Talk:
    """One connection, request by request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._wire = h11.Connection(h11.SERVER)

    async def next(self) -> Received | None:
        """Return the next request with its whole body; nothing at the end."""
        head = await self._event()
        if not isinstance(head, h11.Request):
            return None
        body = b""
        while not isinstance(event := await self._event(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                return None
            body += bytes(event.data)
        if dict(head.headers).get(b"content-encoding") == b"gzip":
            body = gzip.decompress(body)
        method = head.method.decode()
        given = decoded(body) if method == "POST" else {}
        return Received(method, head.target.decode(), given)

    async def whole(self, status: int, body: bytes) -> bool:
        """Send an answer at once."""
        headers = [*JSON, ("content-length", str(len(body)))]
        await self._send(h11.Response(status_code=status, headers=headers))
        # Left out of what is sent where only the head was asked for.
        if body:
            await self._send(h11.Data(data=body))
        await self._send(h11.EndOfMessage())
        return self._again()

    async def streamed(self, pieces: list[bytes], answer: Answer) -> bool:
        """Send an answer piece by piece, to its end or not."""
        await self._send(h11.Response(status_code=200, headers=list(EVENTS)))
        # One event is left out, so that what was cut is not whole by accident.
        shown = pieces if answer.end == "whole" else pieces[: len(pieces) // 2 + 1]
        for piece in shown:
            if answer.pause and await self._is_left(answer.pause):
                return False
            await self._send(h11.Data(data=piece))
        if answer.end == "hang":
            await self._reader.read(1)
        if answer.end != "whole":
            return False
        await self._send(h11.EndOfMessage())
        return self._again()

    async def _is_left(self, seconds: float) -> bool:
        """Wait between two pieces; a client that goes away meanwhile is noticed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return not await self._reader.read(1)
        return False

    def _again(self) -> bool:
        if self._wire.our_state is h11.MUST_CLOSE:
            return False
        self._wire.start_next_cycle()
        return True

    async def _event(self) -> Any:
        while (event := self._wire.next_event()) is h11.NEED_DATA:
            if self._wire.they_are_waiting_for_100_continue:
                await self._send(h11.InformationalResponse(status_code=100, headers=[]))
            self._wire.receive_data(await self._reader.read(65_536))
        return event

    async def _send(self, event: Any) -> None:
        data = self._wire.send(event)
        if data:
            self._writer.write(data)
            await self._writer.drain()


@asynccontextmanager
async def a_model_server(port: int = 0) -> AsyncIterator[ModelServer]:
    """Listen until the block is left."""
    model = ModelServer()
    server = await asyncio.start_server(model.serve, "127.0.0.1", port)
    model.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield model
    finally:
        server.close()
        await model.stop()


async def _run(port: int, until: Callable[[], Awaitable[object]]) -> None:
    async with a_model_server(port) as model:
        print(model.url, flush=True)
        await until()


def main() -> None:
    """Serve until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    port = parser.parse_args().port
    asyncio.run(_run(port, partial(asyncio.to_thread, sys.stdin.read)))


if __name__ == "__main__":
    main()
