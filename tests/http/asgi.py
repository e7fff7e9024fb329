"""Asks an application without a network: one request, the whole answer."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp, Message

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        """Return the JSON of the body."""
        return json.loads(self.body)


async def ask(
    app: ASGIApp,
    target: str,
    *,
    method: str = "GET",
    headers: Headers = ((b"host", b"127.0.0.1:8765"),),
    body: bytes | Sequence[Message] = b"",
) -> Answer:
    """Send a request with exactly these headers; the body may be several messages."""
    sent: list[Message] = []
    whole: Message = {"type": "http.request", "body": body, "more_body": False}
    messages = [whole] if isinstance(body, bytes) else list(body)
    path, _, query = target.partition("?")

    async def receive() -> Message:
        if not messages:
            # Whoever has said everything is still there.
            await asyncio.Event().wait()
        return messages.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": list(headers),
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8765),
    }
    await app(scope, receive, send)
    start, *rest = sent
    return Answer(
        status=start["status"],
        headers={name.decode(): value.decode() for name, value in start["headers"]},
        body=b"".join(message.get("body", b"") for message in rest),
    )
