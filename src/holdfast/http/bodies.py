"""Large answers: sent in pieces with back-pressure, within a memory budget, to readers that read.

A body that is small is an ordinary answer. What is in a body is the business of its route.
"""

import asyncio
import time
import zlib
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
)
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from holdfast.domain.errors import Code, LimitReached
from holdfast.domain.ids import TokenId
from holdfast.domain.tokens import Caller
from holdfast.http.answers import (
    GZIP_LEVEL,
    PACKED,
    Answer,
    Stream,
    Wire,
    encoded,
    is_matched,
    packed_tag,
    takes_gzip,
)

if TYPE_CHECKING:
    from holdfast.http.table import Asked

# From here on an answer counts against the budget, and is written in chunks.
LARGE: Final = 64 << 10
# From here on a body is not completed in memory, but sent while it is made.
WHOLE_LARGEST: Final = 512 << 10
CHUNK: Final = 64 << 10
# How long a reader may take for one chunk.
SEND_SECONDS: Final = 20.0
TOKEN_SECONDS: Final = 2.0
# What answers that were not read yet may take: those of one token, and of all.
CALLER_BYTES: Final = 24 << 20
TOTAL_BYTES: Final = 64 << 20
# About what one answer takes while it is made: a batch of rows, its encoded form, a buffer.
STREAM_BYTES: Final = 4 << 20
# Longer than a reader that stopped reading keeps its place.
WAIT_SECONDS: Final = 25.0
WAITING_MOST: Final = 16
RETRY_SECONDS: Final = 5
# A page that was asked for with a limit ends here, and goes on with its cursor.
PAGE_BYTES: Final = 4 << 20

Pieces = AsyncGenerator[bytes, None]
JSON: Final = Answer()


class Room:
    """Memory budget of answers that are being sent."""

    def __init__(self) -> None:
        self._of: Counter[TokenId | None] = Counter()
        self._all = 0
        self._waiting = 0
        self._freed = asyncio.Event()
        # Several at a time would only take the interpreter away from one another.
        self.encoding: Final = asyncio.Semaphore(1)
        # For what has to be read whole before it is counted.
        self.reading: Final = asyncio.Semaphore(2)

    @property
    def held(self) -> int:
        """Return how many bytes are held now."""
        return self._all

    def take(self, caller: Caller | None, size: int, *, always: bool = False) -> "Held":
        """Hold so many bytes for a caller, or refuse; `always` holds them in any case."""
        if not always and not self._fits(caller, size):
            raise _crowded()
        who = caller.token_id if caller else None
        self._of[who] += size
        self._all += size
        return Held(self, who, size)

    def require(self, caller: Caller | None) -> None:
        """Refuse a caller whose answers that were not read have used up the budget."""
        if not self._fits(caller, LARGE):
            raise _crowded()

    async def wait(self, caller: Caller | None, size: int) -> "Held":
        """Hold so many bytes as soon as they are free; refuse after a while, or in a crowd."""
        if self._fits(caller, size) or self._waiting >= WAITING_MOST:
            return self.take(caller, size)
        self._waiting += 1
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                while not self._fits(caller, size):
                    await self._freed.wait()
        except TimeoutError:
            raise _crowded() from None
        finally:
            self._waiting -= 1
        return self.take(caller, size)

    def release(self, who: TokenId | None, size: int) -> None:
        """Return bytes to the budget."""
        self._of[who] -= size
        if self._of[who] <= 0:
            del self._of[who]
        self._all -= size
        self._freed.set()
        self._freed = asyncio.Event()

    def _fits(self, caller: Caller | None, size: int) -> bool:
        own = self._of[caller.token_id if caller else None]
        # One that is larger than the budget is admitted alone.
        is_own = own == 0 or own + size <= CALLER_BYTES
        return is_own and (self._all == 0 or self._all + size <= TOTAL_BYTES)


class Held:
    """Bytes of the budget, until they are released."""

    def __init__(self, room: Room, who: TokenId | None, size: int) -> None:
        self._room = room
        self._who = who
        self._size = size

    def release(self) -> None:
        """Return the bytes; a second time changes nothing."""
        size, self._size = self._size, 0
        if size:
            self._room.release(self._who, size)


async def in_pieces(
    asked: "Asked[Any, Any]", pieces: Pieces, like: Answer = JSON, *, tag: str | None = None
) -> Answer | Stream:
    """Return an answer whose body is made piece by piece; a small one is an ordinary answer.

    Its status, media type and headers are those of `like`. With a `tag`, the answer has an ETag:
    one of its own when it is small, this one when it is large.
    """
    first: list[bytes] = []
    size = 0
    try:
        async for piece in pieces:
            first.append(piece)
            size += len(piece)
            if size > WHOLE_LARGEST:
                held = await asked.room.wait(asked.caller, STREAM_BYTES)
                break
        else:
            return replace(like, content=b"".join(first), has_etag=tag is not None)
    except BaseException:
        await pieces.aclose()
        raise
    if tag is not None and is_matched(asked.headers.get("if-none-match", ""), tag):
        held.release()
        await pieces.aclose()
        return Answer(status=304, headers={"etag": tag})
    headers = dict(like.headers) | ({} if tag is None else {"etag": tag})
    # A range is one of the bytes as they are, and not of their packed form.
    is_packed = like.status != 206 and takes_gzip(asked.headers)
    if is_packed:
        headers |= PACKED
        if "etag" in headers:
            headers["etag"] = packed_tag(headers["etag"])
    sending = _Sending(asked, first, pieces, held, is_packed=is_packed)
    return Stream(
        play=sending.play,
        close=sending.close,
        status=like.status,
        headers=headers,
        media_type=like.media_type,
    )


async def joined(
    batches: AsyncIterator[bytes], *, start: bytes = b"[", end: Callable[[], bytes] = lambda: b"]"
) -> Pieces:
    """Yield a JSON array whose members come in batches, between a start and an end made last."""
    yield start
    comma = b""
    async for batch in batches:
        if batch:
            yield comma + batch
            comma = b","
    yield end()


async def members(room: Room, forms: Iterable[Any]) -> bytes:
    """Return forms as members of a JSON array, made in a thread: one of them may be large."""
    async with room.encoding:
        return await asyncio.to_thread(lambda: b",".join(map(encoded, forms)))


def chunks_of(body: bytes) -> Iterator[bytes]:
    """Yield a body in chunks that are written one after the other."""
    for start in range(0, len(body), CHUNK):
        yield body[start : start + CHUNK]


class _Sending:
    """One large answer on its way."""

    def __init__(
        self,
        asked: "Asked[Any, Any]",
        first: list[bytes],
        pieces: Pieces,
        held: Held,
        *,
        is_packed: bool,
    ) -> None:
        self._asked = asked
        self._first = first
        self._pieces = pieces
        self._held = held
        self._checked = time.monotonic()
        self._is_packed = is_packed

    async def play(self, wire: Wire) -> None:
        """Send the pieces; a reader that stops reading is disconnected, and so is a revoked one."""
        source = self._all()
        async with aclosing(_packed(source) if self._is_packed else source) as pieces:
            async for piece in pieces:
                for chunk in chunks_of(piece):
                    if not await self._is_sent(wire, chunk):
                        wire.abort()
                        return

    async def close(self) -> None:
        """Stop reading, and return what was held."""
        self._first.clear()
        try:
            await self._pieces.aclose()
        finally:
            self._held.release()

    async def _all(self) -> Pieces:
        self._first.reverse()
        while self._first:
            # Taken out, so that nothing is kept that was sent.
            yield self._first.pop()
        async for piece in self._pieces:
            yield piece

    async def _is_sent(self, wire: Wire, chunk: bytes) -> bool:
        now = time.monotonic()
        caller = self._asked.caller
        if caller is not None and now - self._checked >= TOKEN_SECONDS:
            self._checked = now
            if not await self._asked.house.tokens.still_valid(caller):
                return False
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await wire.send(chunk)
        except TimeoutError:
            return False
        return True


async def _packed(pieces: AsyncIterator[bytes]) -> Pieces:
    """Yield the same bytes compressed, without holding more than one piece of them."""
    # 16 + the largest window makes the format gzip.
    packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    async for piece in pieces:
        for chunk in chunks_of(piece):
            if packed := await asyncio.to_thread(packer.compress, chunk):
                yield packed
    yield packer.flush()


def _crowded() -> LimitReached:
    return LimitReached(
        Code.ANSWER_LIMIT,
        "Too many large answers are on their way; read or end the others, ask for less with "
        "`limit`, or come back in a while.",
        {"retry_after": RETRY_SECONDS},
    )
