"""Requests in the words of the server: typed bodies and answers, sent again where that is safe."""

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct

from holdfast.client.errors import not_understood, refusal
from holdfast.client.patience import Patience
from holdfast.client.tolerance import decoded
from holdfast.client.transport import ANSWER_SECONDS, Received, Sent, Transport, whole_body
from holdfast.domain.errors import NotFound, Unavailable

T = TypeVar("T")

_JSON: Final = {"content-type": "application/json"}
_encoder = msgspec.json.Encoder()


class Requests:
    """Asks one server; every request may be sent again unless it says otherwise."""

    def __init__(self, transport: Transport, patience: Patience) -> None:
        self.transport: Final = transport
        self.patience: Final = patience

    async def get(self, path: str, kind: type[T], query: Struct | None = None) -> T:
        """Return what stands at a path."""
        return self._decoded(await self._asked(_sent("GET", path, query)), kind)

    async def content(self, path: str, query: Struct | None = None) -> bytes:
        """Return the bytes that stand at a path."""
        return (await self._asked(_sent("GET", path, query))).body

    async def pieces(self, path: str, query: Struct | None = None) -> AsyncGenerator[bytes, None]:
        """Yield the bytes that stand at a path as they come; this is not sent again by itself."""
        async with self.transport.stream(_sent("GET", path, query)) as (head, line):
            if head.status >= 300:
                with self.transport.told_as_unavailable():
                    body = await whole_body(line)
                raise refusal(head.status, dict(head.headers), body)
            while True:
                with self.transport.told_as_unavailable():
                    async with asyncio.timeout(ANSWER_SECONDS):
                        chunk = await line.chunk()
                if chunk is None:
                    return
                yield chunk

    async def post(self, path: str, body: Any, kind: type[T], *, seconds: float | None = None) -> T:
        """Send a body; with `seconds` it may take longer, and is not sent again by itself."""
        sent = Sent(
            method="POST",
            target=path,
            headers=_JSON,
            body=_encoder.encode(body),
            seconds=seconds or ANSWER_SECONDS,
            repeatable=seconds is None,
        )
        return self._decoded(await self._asked(sent), kind)

    async def put(self, path: str, body: Struct, kind: type[T]) -> T:
        """Put something in the place of what stands at a path; it is not sent again by itself."""
        sent = Sent(
            method="PUT",
            target=path,
            headers=_JSON,
            body=_encoder.encode(body),
            repeatable=False,
        )
        return self._decoded(await self._asked(sent), kind)

    async def patch(self, path: str, body: Struct, kind: type[T]) -> T:
        """Change what stands at a path."""
        sent = Sent(method="PATCH", target=path, headers=_JSON, body=_encoder.encode(body))
        return self._decoded(await self._asked(sent), kind)

    async def delete(self, path: str, query: Struct | None = None) -> None:
        """Remove what stands at a path."""
        await self._asked(_sent("DELETE", path, query))

    async def remove(self, path: str, kind: type[T]) -> T:
        """Remove what stands at a path, and return what was there; not sent again by itself."""
        sent = Sent(method="DELETE", target=path, repeatable=False)
        return self._decoded(await self._asked(sent), kind)

    async def _asked(self, sent: Sent) -> Received:
        received, attempts = await self._got_through(sent)
        if received.status < 300:
            return received
        error = refusal(received.status, received.headers, received.body)
        # Removed by the try whose answer was lost.
        if sent.method == "DELETE" and attempts > 1 and isinstance(error, NotFound):
            return received
        raise error

    async def _got_through(self, sent: Sent) -> tuple[Received, int]:
        """Return the answer, and how many tries it took."""
        ends_at = time.monotonic() + self.patience.request
        for attempt in itertools.count(1):
            try:
                return await self.transport.ask(sent), attempt
            except Unavailable:
                wait = self.patience.before(attempt)
                if not sent.repeatable or time.monotonic() + wait > ends_at:
                    raise
            await asyncio.sleep(wait)
        raise AssertionError("it is tried until it is done or given up")

    def _decoded(self, received: Received, kind: type[T]) -> T:
        try:
            return decoded(received.body, kind)
        except (msgspec.DecodeError, RecursionError) as error:
            raise not_understood(self.transport.origin, str(error)) from None


def path_of(*segments: str) -> str:
    """Return the path of these segments, whatever characters they have."""
    return "".join(f"/{quote(segment, safe='')}" for segment in segments)


def query_of(query: Struct | None) -> str:
    """Return a query as a path carries it; what is as the server would have it is left out."""
    if query is None:
        return ""
    pairs: list[tuple[str, str]] = []
    for field in msgspec.structs.fields(query):
        value = getattr(query, field.name)
        if value != field.default:
            values = value if isinstance(value, tuple) else (value,)
            pairs += [(field.encode_name, _text(each)) for each in values]
    return f"?{urlencode(pairs)}" if pairs else ""


def _sent(method: str, path: str, query: Struct | None) -> Sent:
    headers: Mapping[str, str] = {"accept": "application/json"} if method == "GET" else {}
    return Sent(method=method, target=path + query_of(query), headers=headers)


def _text(value: Any) -> str:
    told = msgspec.to_builtins(value)
    return str(told).lower() if isinstance(told, bool) else str(told)
