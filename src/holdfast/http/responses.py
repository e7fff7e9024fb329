"""Responses: what a route returns, and how it becomes bytes (ETag, gzip, JSON)."""

import asyncio
import gzip
import hashlib
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct

from holdfast.domain.errors import Code, Conflict

# Below this, compressing costs more than it saves.
GZIP_SMALLEST: Final = 4 << 10
GZIP_LEVEL: Final = 4
# From here on it takes long enough for others to notice.
GZIP_INLINE: Final = 128 << 10
GZIP_HEADERS: Final = {"content-encoding": "gzip", "vary": "Accept-Encoding"}
_encoder = msgspec.json.Encoder()


class Response(Struct, frozen=True, kw_only=True):
    """A whole answer: `content` is encoded as JSON unless it is bytes already."""

    status: int = 200
    content: Any = None
    headers: Mapping[str, str] = {}
    media_type: str = "application/json"
    # A single resource can be asked for again, and changed, only if it is still the same.
    has_etag: bool = False


class StreamWriter(Protocol):
    """What a stream is written to."""

    async def send(self, chunk: bytes, *, is_last: bool = False) -> None:
        """Write a chunk; returns when there is room for the next."""

    def close_after(self) -> None:
        """Close the connection behind the last chunk instead of keeping it for reuse."""

    def abort(self) -> None:
        """Drop the connection with all that waits to be sent."""


class StreamResponse(Struct, frozen=True, kw_only=True):
    """An answer that goes on: `play` sends chunks until it ends, or its reader leaves.

    `close` is awaited in any case, also where there is nothing to play.
    """

    run: Callable[[StreamWriter], Coroutine[Any, Any, None]]
    close: Callable[[], Coroutine[Any, Any, None]] | None = None
    status: int = 200
    headers: Mapping[str, str] = {}
    media_type: str = "text/event-stream; charset=utf-8"


class RenderedResponse(Struct, frozen=True):
    """An answer as it goes out."""

    status: int
    headers: dict[str, str]
    body: bytes


def encode_json(content: Any) -> bytes:
    """Return the JSON of a form."""
    return content if isinstance(content, bytes) else _encoder.encode(content)


def etag_of(content: Any) -> str:
    """Return the strong tag of a form: it changes whenever a byte of it would."""
    return f'"{hashlib.sha256(encode_json(content)).hexdigest()[:32]}"'


def matches_etag(header: str, tag: str) -> bool:
    """Tell whether `If-Match` or `If-None-Match` names the form of a tag."""
    # A weak tag and the tag of the compressed form name the same thing.
    given = (each.strip().removeprefix("W/").replace('-gzip"', '"') for each in header.split(","))
    return any(each in ("*", tag) for each in given)


async def render(
    answer: Response, request_headers: Mapping[str, str], *, is_read: bool
) -> RenderedResponse:
    """Return the answer's bytes, shortened where the caller has them or can unpack them.

    Only who reads can be told to keep what they have: a change has an answer of its own.
    """
    headers = dict(answer.headers)
    body = b"" if answer.content is None else encode_json(answer.content)
    if answer.content is not None:
        headers.setdefault("content-type", answer.media_type)
    if answer.has_etag:
        headers["etag"] = etag_of(body)
        if is_read and matches_etag(request_headers.get("if-none-match", ""), headers["etag"]):
            return RenderedResponse(304, headers, b"")
    # A range is one of the bytes as they are, and not of their packed form.
    if len(body) >= GZIP_SMALLEST and answer.status != 206 and accepts_gzip(request_headers):
        body = await _gzip(body)
        headers |= GZIP_HEADERS
        if "etag" in headers:
            headers["etag"] = gzip_etag(headers["etag"])
    return RenderedResponse(answer.status, headers, body)


def gzip_etag(tag: str) -> str:
    """Return the tag of the compressed form."""
    return f'{tag[:-1]}-gzip"'


def accepts_gzip(request_headers: Mapping[str, str]) -> bool:
    """Tell whether a caller can unpack what is compressed."""
    weights: dict[str, str] = {}
    for each in request_headers.get("accept-encoding", "").lower().split(","):
        name, _, weight = each.partition(";")
        weights[name.strip()] = weight.strip().removeprefix("q=")
    weight = weights.get("gzip", weights.get("*", "0"))
    # Without a weight it is welcome; any weight but nought is one.
    return weight == "" or weight.strip("0.") != ""


async def _gzip(body: bytes) -> bytes:
    # No time in it: the same form gives the same bytes.
    if len(body) <= GZIP_INLINE:
        return gzip.compress(body, GZIP_LEVEL, mtime=0)
    return await asyncio.to_thread(gzip.compress, body, GZIP_LEVEL, mtime=0)


def require_etag_match(headers: Mapping[str, str], form: Any) -> None:
    """Refuse a change that was meant for another state than the present one."""
    wanted = headers.get("if-match")
    if wanted is not None and not matches_etag(wanted, etag_of(form)):
        raise Conflict(
            Code.STALE_ETAG, "It has changed since you read it; read it again, then change it."
        )
