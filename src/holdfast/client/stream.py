"""Resuming event streams: SSE parser, reconnect after the last event, gap detection."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

import msgspec
from msgspec import Struct

from holdfast.client.requests import Requests, error_from_response, invalid_response
from holdfast.client.transport import HttpRequest, HttpStream
from holdfast.domain.errors import (
    HoldfastError,
    Internal,
    LimitReached,
    StorageFull,
    Unavailable,
)

FRAME_LARGEST: Final = 16 << 20
_NUMBER_LONGEST: Final = 18
_END: Final = b"\n\n"


class InvalidStreamError(Exception):
    """The server sent data that violates the stream protocol."""


class SseFrame(Struct, frozen=True, kw_only=True):
    """One SSE frame; a keep-alive has no event name."""

    event: str = ""
    data: bytes = b""
    id: int | None = None
    retry: int | None = None


class SseParser:
    """Incremental SSE parser; buffers an incomplete frame."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[SseFrame]:
        """Return the frames completed by a chunk."""
        found: list[SseFrame] = []
        # Resume where the end could start, so that large frames are not searched in quadratic time.
        start = max(0, len(self._rest) - 1)
        self._rest += chunk
        begin = 0
        while (end := self._rest.find(_END, max(start, begin))) >= 0:
            found.append(_parse_frame(bytes(self._rest[begin:end])))
            begin = end + len(_END)
        del self._rest[:begin]
        if len(self._rest) > FRAME_LARGEST:
            raise InvalidStreamError("a frame has no end")
        return found


def _parse_frame(block: bytes) -> SseFrame:
    fields: dict[str, bytes] = {}
    for line in block.split(b"\n"):
        name, colon, value = line.partition(b":")
        if not name and colon:
            continue
        key = name.decode("ascii", "replace")
        if key in fields:
            raise InvalidStreamError("a frame has a duplicate field")
        fields[key] = value.removeprefix(b" ")
    return SseFrame(
        event=fields.get("event", b"").decode("utf-8", "replace"),
        data=fields.get("data", b""),
        id=_number(fields.get("id")),
        retry=_number(fields.get("retry")),
    )


def _number(value: bytes | None) -> int | None:
    if value is None:
        return None
    if not value.isdigit() or len(value) > _NUMBER_LONGEST:
        raise InvalidStreamError("a sequence number is not a number")
    return int(value)


log = logging.getLogger(__name__)
NOW: Final = "now"
# After this many consecutive protocol errors without progress, retrying cannot help.
INVALID_MOST: Final = 8
_ERROR_BODY_LARGEST: Final = 1 << 20
_RETRYABLE: Final = (Internal, LimitReached, StorageFull, Unavailable)


class Numbered(Protocol):
    """An event with a sequence number."""

    @property
    def sequence(self) -> int: ...


N = TypeVar("N", bound=Numbered)


class StreamGap(Struct, frozen=True, kw_only=True):
    """A range of missing events; `resync` is the path for reading the current state instead."""

    from_sequence: int = msgspec.field(name="from")
    to_sequence: int = msgspec.field(name="to")
    reason: str
    resync: str | None = None


class _Connected(Struct, frozen=True):
    after: int


class _Closing(Struct, frozen=True):
    reason: str
    retry_ms: int = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class FollowRequest(Generic[N]):
    """The stream to follow, its start position, and the decoder of one JSON event."""

    target: str
    after: int | Literal["now"]
    decode: Callable[[bytes], N]


class ResumingStream(Generic[N]):
    """One subscription; closing the generator closes the connection."""

    def __init__(self, requests: Requests, followed: FollowRequest[N]) -> None:
        self._transport = requests.transport
        self._timeouts = requests.timeouts
        self._followed = followed
        self._cursor = None if followed.after == NOW else followed.after
        # Event names already received for the next number, because one number may have several.
        self._words_seen: set[str] = set()
        self._retry: float | None = None
        self._failures = 0
        self._invalid_count = 0
        self._waited = 0.0
        self._has_begun = False
        self._is_over = False

    async def items(self) -> AsyncGenerator[N | StreamGap, None]:
        """Yield every event once and in order; reconnects until the server reports `settled`."""
        while not self._is_over:
            try:
                async with aclosing(self._connection()) as heard:
                    async for item in heard:
                        yield item
            except InvalidStreamError as error:
                self._note_invalid(str(error))
            except _RETRYABLE as error:
                self._note(error)
            if not self._is_over:
                await self._pause()

    async def _connection(self) -> AsyncGenerator[N | StreamGap, None]:
        """Yield the items of one connection, until it breaks or the server closes it."""
        frames = SseParser()
        async with self._transport.stream(self._request()) as stream:
            await self._require_stream(stream)
            is_first = True
            while (chunk := await self._chunk(stream)) is not None:
                for frame in frames.feed(chunk):
                    if is_first:
                        self._begin(frame)
                        is_first = False
                    elif frame.event == "closing":
                        self._end(frame)
                        return
                    else:
                        # Any frame, also a keep-alive, shows that the server is healthy.
                        self._failures = 0
                        for item in self._new_item(frame):
                            yield item
        self._failures += 1

    def _request(self) -> HttpRequest:
        headers = {"accept": "text/event-stream", "cache-control": "no-cache"}
        if self._cursor is not None:
            headers["last-event-id"] = str(self._cursor)
        return HttpRequest(method="GET", target=self._followed.target, headers=headers)

    async def _require_stream(self, stream: HttpStream) -> None:
        if stream.status != 200:
            with self._transport.as_unavailable():
                async with asyncio.timeout(self._timeouts.silence):
                    body = await stream.read(_ERROR_BODY_LARGEST)
            raise error_from_response(stream.status, stream.headers, body)
        if not stream.headers.get("content-type", "").startswith("text/event-stream"):
            raise InvalidStreamError("the response is not an event stream")

    async def _chunk(self, stream: HttpStream) -> bytes | None:
        try:
            with self._transport.as_unavailable():
                async with asyncio.timeout(self._timeouts.silence):
                    return await stream.chunk()
        except Unavailable:
            # Broken or timed out; a stream only ends properly with a `closing` frame.
            return None

    def _begin(self, frame: SseFrame) -> None:
        if frame.event != "connected":
            raise InvalidStreamError("the stream does not start with its first frame")
        after = _decode_frame(frame, _Connected).after
        if self._cursor is not None and after != self._cursor:
            raise InvalidStreamError("the stream starts at the wrong sequence number")
        self._cursor = after
        self._retry = None if frame.retry is None else frame.retry / 1000
        self._has_begun = True

    def _end(self, frame: SseFrame) -> None:
        closing = _decode_frame(frame, _Closing)
        self._retry = max(0, closing.retry_ms) / 1000
        self._is_over = closing.reason == "settled"

    def _new_item(self, frame: SseFrame) -> list[N | StreamGap]:
        """Return the items of a frame that were not yielded before."""
        cursor = self._cursor or 0
        if not frame.event:
            return []
        if frame.event == "gap":
            gap = _decode_frame(frame, StreamGap)
            if frame.id != gap.to_sequence or gap.to_sequence <= cursor:
                raise InvalidStreamError("a gap has the wrong sequence numbers")
            self._require_next(gap.from_sequence)
            self._move_to(gap.to_sequence)
            # A gap without `resync` covers events that the subscription filters out.
            return [] if gap.resync is None else [gap]
        try:
            item = self._followed.decode(frame.data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidStreamError(str(error)) from None
        if item.sequence <= cursor:
            return []
        self._require_next(item.sequence)
        is_new = frame.event not in self._words_seen
        self._words_seen.add(frame.event)
        if frame.id is not None:
            if frame.id != item.sequence:
                raise InvalidStreamError("an event has two sequence numbers")
            self._move_to(frame.id)
        return [item] if is_new else []

    def _require_next(self, sequence: int) -> None:
        # The server must report missing events as a gap; an unreported hole would lose them.
        if sequence > (self._cursor or 0) + 1:
            raise InvalidStreamError("sequence numbers are missing")

    def _move_to(self, sequence: int) -> None:
        self._cursor = sequence
        self._words_seen.clear()
        self._invalid_count = 0

    def _note(self, error: HoldfastError) -> None:
        """Record a retryable error; raise it if no connection ever succeeded within the timeout."""
        log.warning("event stream broke: %s", error.message)
        if not self._has_begun and self._waited >= self._timeouts.request:
            raise error
        wait = error.details.get("retry_after")
        if isinstance(wait, int):
            self._retry = float(wait)
        self._failures += 1

    def _note_invalid(self, what: str) -> None:
        self._invalid_count += 1
        self._failures += 1
        if self._invalid_count >= INVALID_MOST:
            raise invalid_response(self._transport.origin, what) from None
        log.warning("invalid event stream: %s", what)

    async def _pause(self) -> None:
        wait = self._timeouts.before(max(1, self._failures), self._retry)
        self._waited += wait
        await asyncio.sleep(wait)


def _decode_frame(frame: SseFrame, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(frame.data, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidStreamError(str(error)) from None
