"""Responses: what a route returns, and how it becomes bytes (ETag, gzip, JSON)."""

import asyncio
import gzip
import hashlib
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct

from holdfast.domain.errors import Code, Conflict

# Below this size, compression costs more than it saves.
GZIP_SMALLEST: Final = 4 << 10
GZIP_LEVEL: Final = 4
# Larger bodies are compressed in a thread, because compression would block the event loop.
GZIP_INLINE: Final = 128 << 10
GZIP_HEADERS: Final = {"content-encoding": "gzip", "vary": "Accept-Encoding"}
_encoder = msgspec.json.Encoder()


class Response(Struct, frozen=True, kw_only=True):
    """A complete response: `content` is encoded as JSON unless it is bytes."""

    status: int = 200
    content: Any = None
    headers: Mapping[str, str] = {}
    media_type: str = "application/json"
    # Enables conditional requests (`If-None-Match`, `If-Match`) on a single resource.
    has_etag: bool = False


class StreamWriter(Protocol):
    """The sink of a stream."""

    async def send(self, chunk: bytes, *, is_last: bool = False) -> None:
        """Write a chunk; returns when there is room for the next (back-pressure)."""

    def close_after(self) -> None:
        """Close the connection after the last chunk instead of reusing it."""

    def abort(self) -> None:
        """Drop the connection and everything that is still buffered."""


class StreamResponse(Struct, frozen=True, kw_only=True):
    """A streamed response: `run` sends chunks until it ends or the client disconnects.

    `close` is always awaited, even if `run` was never called.
    """

    run: Callable[[StreamWriter], Coroutine[Any, Any, None]]
    close: Callable[[], Coroutine[Any, Any, None]] | None = None
    status: int = 200
    headers: Mapping[str, str] = {}
    media_type: str = "text/event-stream; charset=utf-8"


class RenderedResponse(Struct, frozen=True):
    """A response as bytes, ready to be sent."""

    status: int
    headers: dict[str, str]
    body: bytes


def encode_json(content: Any) -> bytes:
    """Return the JSON encoding of a value."""
    return content if isinstance(content, bytes) else _encoder.encode(content)


def etag_of(content: Any) -> str:
    """Return the strong ETag of a value: it changes whenever a byte of the JSON changes."""
    return f'"{hashlib.sha256(encode_json(content)).hexdigest()[:32]}"'


def matches_etag(header: str, tag: str) -> bool:
    """Return whether `If-Match` or `If-None-Match` contains an ETag."""
    # A weak tag and the tag of the gzip encoding match the same content.
    given = (each.strip().removeprefix("W/").replace('-gzip"', '"') for each in header.split(","))
    return any(each in ("*", tag) for each in given)


async def render(
    answer: Response, request_headers: Mapping[str, str], *, is_read: bool
) -> RenderedResponse:
    """Return the response as bytes: 304 if the client has them, gzip if the client accepts it.

    Only reads can be answered with 304: a change has a response of its own.
    """
    headers = dict(answer.headers)
    body = b"" if answer.content is None else encode_json(answer.content)
    if answer.content is not None:
        headers.setdefault("content-type", answer.media_type)
    if answer.has_etag:
        headers["etag"] = etag_of(body)
        if is_read and matches_etag(request_headers.get("if-none-match", ""), headers["etag"]):
            return RenderedResponse(304, headers, b"")
    # A range refers to the uncompressed bytes.
    if len(body) >= GZIP_SMALLEST and answer.status != 206 and accepts_gzip(request_headers):
        body = await _gzip(body)
        headers |= GZIP_HEADERS
        if "etag" in headers:
            headers["etag"] = gzip_etag(headers["etag"])
    return RenderedResponse(answer.status, headers, body)


def gzip_etag(tag: str) -> str:
    """Return the ETag of the gzip encoding."""
    return f'{tag[:-1]}-gzip"'


def accepts_gzip(request_headers: Mapping[str, str]) -> bool:
    """Return whether a client accepts gzip."""
    weights: dict[str, str] = {}
    for each in request_headers.get("accept-encoding", "").lower().split(","):
        name, _, weight = each.partition(";")
        weights[name.strip()] = weight.strip().removeprefix("q=")
    weight = weights.get("gzip", weights.get("*", "0"))
    # A coding without a weight is accepted; a weight of 0 refuses it.
    return weight == "" or weight.strip("0.") != ""


async def _gzip(body: bytes) -> bytes:
    # No time in the gzip header: the same content must give the same bytes.
    if len(body) <= GZIP_INLINE:
        return gzip.compress(body, GZIP_LEVEL, mtime=0)
    return await asyncio.to_thread(gzip.compress, body, GZIP_LEVEL, mtime=0)


def require_etag_match(headers: Mapping[str, str], form: Any) -> None:
    """Refuse a change whose `If-Match` does not match the present state."""
    wanted = headers.get("if-match")
    if wanted is not None and not matches_etag(wanted, etag_of(form)):
        raise Conflict(
            Code.STALE_ETAG,
            "The resource has changed since it was read; read it again, then repeat the change.",
        )
