"""Large responses: sent in chunks with back-pressure, within a memory budget.

A small body is an ordinary response. The content of a body is made by its route.
"""

import asyncio
import ctypes
import time
import zlib
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterator,
    Sequence,
)
from contextlib import aclosing
from typing import Any, Final

from msgspec.structs import replace

from holdfast.domain.errors import Code, LimitReached
from holdfast.http.limits import Reservation, ResponseBudget
from holdfast.http.responses import (
    GZIP_HEADERS,
    GZIP_LEVEL,
    Response,
    StreamResponse,
    StreamWriter,
    accepts_gzip,
    encode_json,
    gzip_etag,
    matches_etag,
)
from holdfast.http.routing import RouteHandler, RouteRequest

# From this size on, a body is sent while it is produced instead of being completed in memory.
WHOLE_LARGEST: Final = 512 << 10
CHUNK: Final = 64 << 10
# Send timeout for one chunk.
SEND_SECONDS: Final = 20.0
TOKEN_SECONDS: Final = 2.0
# Approximate memory of one response in progress: a batch of rows, its encoding, a buffer.
STREAM_BYTES: Final = 4 << 20
# A page with a limit ends at this size; the client continues with its cursor.
PAGE_BYTES: Final = 4 << 20
# `M_MMAP_THRESHOLD` of glibc, and the size from which on a block is one of its own.
_APART: Final = -3
_APART_FROM: Final = 256 << 10

Pieces = AsyncGenerator[bytes, None]
JSON: Final = Response()


async def read_in_turn(request: RouteRequest[Any, Any]) -> Response | StreamResponse:
    """Run the handler of a route with large responses, few at a time.

    Only a handler that has read its first rows knows that its response is large. If the budget has
    no room then, the rows are dropped, and the handler runs again when memory is reserved.
    """
    handler = request.route.handler
    request.response_budget.require_turn(request.caller)
    try:
        return await read_in_slot(request, handler)
    except LimitReached as error:
        if error.code is not Code.ANSWER_LIMIT:
            raise
    held = await request.response_budget.wait(request.caller, STREAM_BYTES)
    try:
        answer = await read_in_slot(replace(request, held=held), handler)
    except BaseException:
        held.release()
        raise
    if isinstance(answer, Response):
        held.release()
    return answer


async def read_in_slot(
    request: RouteRequest[Any, Any], handler: RouteHandler
) -> Response | StreamResponse:
    """Run a handler while few others read; the content of its response is encoded."""
    async with request.response_budget.starting:
        answer = await handler(request)
        if isinstance(answer, StreamResponse) or answer.content is None:
            return answer
        # The rows are dropped before the next response is read.
        return replace(answer, content=encode_json(answer.content))


async def respond_in_pieces(
    request: RouteRequest[Any, Any],
    pieces: Pieces,
    like: Response = JSON,
    *,
    tag: str | None = None,
) -> Response | StreamResponse:
    """Return a response whose body is produced in pieces; a small one is an ordinary response.

    Status, media type and headers are those of `like`. With a `tag` the response has an ETag: one
    of its own if it is small, `tag` if it is large. Refuses a large one that the budget has no room
    for, unless memory is reserved already (`read_in_turn`).
    """
    first: list[bytes] = []
    size = 0
    try:
        async for piece in pieces:
            first.append(piece)
            size += len(piece)
            if size > WHOLE_LARGEST:
                held = request.held or request.response_budget.take(request.caller, STREAM_BYTES)
                break
        else:
            return replace(like, content=b"".join(first), has_etag=tag is not None)
    except BaseException:
        await pieces.aclose()
        raise
    if tag is not None and matches_etag(request.headers.get("if-none-match", ""), tag):
        held.release()
        await pieces.aclose()
        return Response(status=304, headers={"etag": tag})
    headers = dict(like.headers) | ({} if tag is None else {"etag": tag})
    # A range refers to the uncompressed bytes.
    is_packed = like.status != 206 and accepts_gzip(request.headers)
    if is_packed:
        headers |= GZIP_HEADERS
        if "etag" in headers:
            headers["etag"] = gzip_etag(headers["etag"])
    sending = _Sending(request, first, pieces, held, is_packed=is_packed)
    return StreamResponse(
        run=sending.run,
        close=sending.close,
        status=like.status,
        headers=headers,
        media_type=like.media_type,
    )


async def stream_json_array(
    batches: AsyncIterator[bytes], *, start: bytes = b"[", end: Callable[[], bytes] = lambda: b"]"
) -> Pieces:
    """Yield a JSON array whose members come in batches; `end` is called after the last batch."""
    yield start
    comma = b""
    async for batch in batches:
        if batch:
            yield comma + batch
            comma = b","
    yield end()


async def encode_members(response_budget: ResponseBudget, forms: Sequence[Any]) -> bytes:
    """Return values as members of a JSON array; encoded in a thread, because one may be large."""
    async with response_budget.encoding:
        return (await asyncio.to_thread(encode_json, forms))[1:-1]


def chunks_of(body: bytes) -> Iterator[bytes]:
    """Yield a body in chunks."""
    for start in range(0, len(body), CHUNK):
        yield body[start : start + CHUNK]


class _Sending:
    """One large response in progress."""

    def __init__(
        self,
        request: RouteRequest[Any, Any],
        first: list[bytes],
        pieces: Pieces,
        held: Reservation,
        *,
        is_packed: bool,
    ) -> None:
        self._request = request
        self._first = first
        self._pieces = pieces
        self._held = held
        self._checked = time.monotonic()
        self._is_packed = is_packed

    async def run(self, wire: StreamWriter) -> None:
        """Send the pieces; disconnect a reader that stops reading or whose token is revoked."""
        source = self._all()
        async with aclosing(_compress(source) if self._is_packed else source) as pieces:
            async for piece in pieces:
                for chunk in chunks_of(piece):
                    if not await self._send_chunk(wire, chunk):
                        wire.abort()
                        return

    async def close(self) -> None:
        """Stop reading from the store and release the reserved bytes."""
        self._first.clear()
        try:
            await self._pieces.aclose()
        finally:
            self._held.release()
            if self._request.response_budget.held == 0:
                await asyncio.to_thread(trim)

    async def _all(self) -> Pieces:
        self._first.reverse()
        while self._first:
            # Popped, so that sent bytes are not held.
            yield self._first.pop()
        while (piece := await self._next()) is not None:
            yield piece

    async def _next(self) -> bytes | None:
        # Store readers are few, and short queries need them too.
        async with self._request.response_budget.making:
            return await anext(self._pieces, None)

    async def _send_chunk(self, wire: StreamWriter, chunk: bytes) -> bool:
        now = time.monotonic()
        caller = self._request.caller
        if caller is not None and now - self._checked >= TOKEN_SECONDS:
            self._checked = now
            if not await self._request.holdfast.tokens.still_valid(caller):
                return False
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await wire.send(chunk)
        except TimeoutError:
            return False
        return True


async def _compress(pieces: AsyncIterator[bytes]) -> Pieces:
    """Yield the same bytes gzip-compressed, one piece at a time."""
    # 16 + the maximum window size selects the gzip format.
    packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    async for piece in pieces:
        for chunk in chunks_of(piece):
            if packed := await asyncio.to_thread(packer.compress, chunk):
                yield packed
    yield packer.flush()


def keep_large_blocks_apart() -> None:
    """Allocate large blocks apart from the heap, so that they return to the system when freed.

    By itself malloc stops doing so after the first large block was freed, and what lies between
    small ones is then kept.
    """
    # Only glibc takes this number; musl has no such function.
    if (choose := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        choose(_APART, _APART_FROM)


def trim() -> None:
    """Return free memory to the system, because malloc would retain the space of large rows."""
    # Only glibc has this function, and only glibc needs it.
    if (release := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        release(0)
