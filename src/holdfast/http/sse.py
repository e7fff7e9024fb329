"""Server-sent events: framing, one open stream, and all open streams watched by one timer.

The JSON of an event is `wire/events.py`; the route is `v1/events.py`.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import msgspec

from holdfast.api import LocalHoldfast
from holdfast.domain.errors import Code, HoldfastError
from holdfast.domain.events import Gap
from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import SessionState
from holdfast.domain.tokens import Caller
from holdfast.http.metrics import Metrics
from holdfast.http.responses import StreamWriter
from holdfast.ports.system import Frame, Item, end_of
from holdfast.services.background_tasks import Background
from holdfast.services.event_stream import EventBatch, StreamReader

SSE_HEADERS: Final = {
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
}
HEARTBEAT: Final = b": hb\n\n"
_encoder = msgspec.json.Encoder()


def control_frame(name: str, data: dict[str, Any], *, retry: int) -> bytes:
    """Return a frame about the stream itself; `retry` is the client's reconnect delay in ms."""
    return b"retry: %d\nevent: %s\ndata: %s\n\n" % (retry, name.encode(), _encoder.encode(data))


def gap_frame(first: int, last: int, *, reason: str, resync: str | None) -> bytes:
    """Return the frame for a range of sequence numbers that will not be sent."""
    data = {"from": first, "to": last, "reason": reason, "resync": resync}
    return b"id: %d\nevent: gap\ndata: %s\n\n" % (last, _encoder.encode(data))


def event_frames(sequence: int, words: Sequence[tuple[str, bytes]]) -> bytes:
    """Return the frames of one event, a name and a line of JSON each.

    Only the last one has an id, so a cut between two frames repeats the first and loses nothing.
    """
    frames = [b"event: %s\ndata: %s\n\n" % (name.encode(), data) for name, data in words]
    if frames:
        frames[-1] = b"id: %d\n" % sequence + frames[-1]
    return b"".join(frames)


class FrameRenderer:
    """Formats items as frames, with the event types that one reader wants.

    Filtered events are sent as one gap, together with the next item.
    """

    def __init__(self, format_event: Callable[[Frame], bytes], resync: str) -> None:
        """`resync` is the URL at which pruned events can be read."""
        self._format_event = format_event
        self._resync = resync
        self._hidden: tuple[int, int] | None = None

    def frames(self, item: Item) -> bytes:
        """Return the frames of the next item; empty if the reader's filter drops it."""
        frame = self.format_item(item)
        if frame:
            before, self._hidden = self._hidden, None
            return _filtered_gap_frame(before) + frame
        first = self._hidden[0] if self._hidden else end_of(item)
        self._hidden = (first, end_of(item))
        return b""

    @property
    def is_hiding(self) -> bool:
        """Return whether filtered events have not been sent as a gap yet."""
        return self._hidden is not None

    def take_gap(self, sent_through: int) -> tuple[bytes, int]:
        """Return the gap for the events filtered since a number, and the last number it covers.

        There is none if an unsent event lies between them.
        """
        before, self._hidden = self._hidden, None
        if before is None or before[0] != sent_through + 1:
            return b"", sent_through
        return _filtered_gap_frame(before), before[1]

    def format_item(self, item: Item) -> bytes:
        """Return the frames of an item by itself."""
        if isinstance(item, Gap):
            return gap_frame(
                item.from_sequence, item.to_sequence, reason=item.reason, resync=self._resync
            )
        return self._format_event(item)


def _filtered_gap_frame(numbers: tuple[int, int] | None) -> bytes:
    return gap_frame(*numbers, reason="filtered", resync=None) if numbers else b""


# A little less than the documented interval, because the timer only ticks.
HEARTBEAT_SECONDS: Final = 13.0
CLOSE_SECONDS: Final = 1.0
RETRY: Final = 1000
CYCLE_RETRY: Final = 100
CHUNK_LARGEST: Final = 64 << 10
# Larger batches are not shared: they are catch-up reads of a single reader.
SHARED_MOST: Final = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamRequest:
    """What a reader requested."""

    session_id: SessionId
    after: int
    # The session state at the time the request was validated.
    head: SessionState
    # Formatters of the API in use: for an event, for a session status, and the URL for a resync.
    format_event: Callable[[Frame], bytes]
    status_word: Callable[[SessionState], str]
    resync: str
    until_settled: bool = False


class StreamRegistry(Protocol):
    """Registry of open streams."""

    def add(self, stream: "SseStream") -> None:
        """Register an open stream."""

    def remove(self, stream: "SseStream", delivered: int) -> None:
        """Remove a stream that has ended."""


class SseStream:
    """A stream that is ready to run."""

    def __init__(
        self,
        holdfast: LocalHoldfast,
        registry: StreamRegistry,
        caller: Caller,
        request: StreamRequest,
        ends_at: float,
    ) -> None:
        self._holdfast = holdfast
        self._registry = registry
        self._request = request
        self._ends_at = ends_at
        self._renderer = FrameRenderer(request.format_event, request.resync)
        self._reader: StreamReader | None = None
        self._wire: StreamWriter | None = None
        self._task: asyncio.Task[Any] | None = None
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._ending: tuple[str, int] | None = None
        self._waiting = 0
        self._heartbeat_at = time.monotonic()
        self._sent_through = request.after
        self._unsent = b""
        self._delivered = 0
        self.caller = caller

    async def run(self, wire: StreamWriter) -> None:
        """Send events until the stream is ended or cancelled."""
        self._task = asyncio.current_task()
        self._registry.add(self)
        try:
            await self._read(wire)
        except HoldfastError as error:
            self._ending = (_REASONS.get(error.code, "shutdown"), RETRY)
        except asyncio.CancelledError:
            # A cancellation without a reason means that the client has disconnected.
            if self._ending is None or self._task is None:
                raise
            self._task.uncancel()
        finally:
            self._registry.remove(self, self._delivered)
            if self._heartbeat_task is not None:
                self._heartbeat_task.cancel()
        await self._send_close(wire)

    def end(self, reason: str, *, retry: int = RETRY) -> None:
        """End the stream; the client gets the reason and a reconnect delay."""
        if self._ending is None and self._task is not None:
            self._ending = (reason, retry)
            self._task.cancel()

    def check_timeout(self, now: float) -> None:
        """End the stream if its lifetime is over or its reader has stopped reading."""
        if self._reader is not None and self._waiting and self._reader.is_too_slow:
            self.end("slow")
        elif now >= self._ends_at:
            self.end("cycle", retry=CYCLE_RETRY)

    def send_heartbeat(self, now: float) -> None:
        """Send a heartbeat if one is due."""
        # A stalled reader would not read the heartbeat either: it is sent with the next write.
        if self._wire is not None and not self._waiting and self._is_heartbeat_due(now):
            self._heartbeat_task = asyncio.create_task(self._write(self._wire, b""))

    def _is_heartbeat_due(self, now: float) -> bool:
        return self._ending is None and now - self._heartbeat_at >= HEARTBEAT_SECONDS

    async def _read(self, wire: StreamWriter) -> None:
        request = self._request
        events = self._holdfast.events
        owner, after = self.caller.owner, request.after
        async with events.reader(
            owner, request.session_id, after=after, state=request.head
        ) as reader:
            self._reader = reader
            self._heartbeat_at = time.monotonic()
            self._unsent = self._connected_frame()
            # If there are events to send at once, they go into one packet with the head.
            if after >= request.head.events and not self._is_finished:
                await self._write(wire, b"")
            self._wire = wire
            while not self._is_finished:
                await self._send_items(wire, await reader.read())
                if reader.is_too_slow:
                    self._ending = ("slow", RETRY)
                    return
            self._ending = ("settled", RETRY)

    @property
    def _is_finished(self) -> bool:
        """Return whether everything the reader wanted to wait for has been sent."""
        return self._request.until_settled and self._reader is not None and self._reader.is_settled

    def _connected_frame(self) -> bytes:
        head = self._holdfast.sessions.seen(self._request.head)
        data = {
            "session_id": head.session_id,
            "after": self._request.after,
            "head": head.events,
            "status": self._request.status_word(head),
        }
        return control_frame("connected", data, retry=RETRY)

    async def _send_items(self, wire: StreamWriter, items: list[Item]) -> None:
        """Send events in chunks; the position is updated per chunk, because any may be the last.

        A chunk is formatted only when there is room for it, so a slow reader holds one copy.
        """
        self._delivered += len(items)
        if chunk := self._shared_chunk(items):
            if self._is_finished:
                # The end frame follows at once, and both go into one packet.
                self._unsent += chunk
            else:
                await self._write(wire, chunk)
            self._sent_through = end_of(items[-1])
            return
        for chunk, last in _chunks(self._frame_items(items)):
            await self._write(wire, chunk)
            self._sent_through = last
            if items:
                # A long page takes a while: yield to the event loop.
                await asyncio.sleep(0)

    def _shared_chunk(self, items: list[Item]) -> bytes | None:
        """Return the items as one chunk, formatted once for all readers at the same position.

        None if the chunk cannot be shared: it is too large or contains filtered events.
        """
        reader, format_event = self._reader, self._request.format_event
        first = items[0]
        # A gap may have been cut for one reader only.
        if reader is None or self._renderer.is_hiding or isinstance(first, Gap):
            return None
        if (made := reader.batch(format_event, items)) is not None:
            return made
        if not reader.is_live or len(items) > SHARED_MOST:
            return None
        frames = [self._renderer.format_item(item) for item in items]
        chunk = b"".join(frames)
        if not all(frames) or len(chunk) > CHUNK_LARGEST:
            return None
        reader.share(format_event, EventBatch(items[-1], len(items), chunk))
        return chunk

    def _frame_items(self, items: list[Item]) -> Iterator[tuple[bytes, int]]:
        items.reverse()
        while items:
            # Popped, so that a page of the log is held no longer than necessary.
            item = items.pop()
            # Filtered events are sent as a gap with the next frame.
            if frames := self._renderer.frames(item):
                yield frames, end_of(item)

    async def _write(self, wire: StreamWriter, chunk: bytes, *, is_last: bool = False) -> None:
        now = time.monotonic()
        if self._is_heartbeat_due(now):
            self._heartbeat_at = now
            chunk = HEARTBEAT + chunk
        if self._unsent:
            chunk, self._unsent = self._unsent + chunk, b""
        self._waiting += 1
        try:
            # If it is cancelled while it waits for room, none of the chunk has been written.
            await wire.send(chunk, is_last=is_last)
        finally:
            self._waiting -= 1

    async def _send_close(self, wire: StreamWriter) -> None:
        reason, retry = self._ending or ("cycle", CYCLE_RETRY)
        if reason == "slow":
            # The end frame would wait behind everything that was not read.
            wire.abort()
            return
        if reason in _FINAL:
            wire.close_after()
        hidden, self._sent_through = self._renderer.take_gap(self._sent_through)
        data = {"reason": reason, "after": self._sent_through, "retry_ms": retry}
        goodbye = hidden + control_frame("closing", data, retry=retry)
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._write(wire, goodbye, is_last=True)
        except TimeoutError:
            # The reader has stopped reading, so it would not read the end either.
            wire.abort()


# A reader that may not reconnect gets its connection closed: otherwise it would stay open, idle.
_FINAL: Final = frozenset({"revoked", "deleted"})
_REASONS: Final = {Code.SESSION_NOT_FOUND: "deleted", Code.STORE_CLOSED: "shutdown"}


def _chunks(frames: Iterable[tuple[bytes, int]]) -> Iterator[tuple[bytes, int]]:
    """Yield the frames in chunks: few enough to be quick, small enough to be bounded."""
    batch: list[bytes] = []
    size = last = 0
    for frame, number in frames:
        if batch and size + len(frame) > CHUNK_LARGEST:
            yield b"".join(batch), last
            batch, size = [], 0
        batch.append(frame)
        size += len(frame)
        last = number
    if batch:
        yield b"".join(batch), last


TICK_SECONDS: Final = 1.0
TOKEN_SECONDS: Final = 1.0
LIFE_SECONDS: Final = 300.0
LIFE_SPREAD: Final = 0.2
# At shutdown the reconnects of all readers are spread over this many milliseconds.
RETURN_SPREAD: Final = 2000
# With more readers than this, they are asked to wait for a restarted server: clients that fail to
# connect would otherwise all retry at the same time.
MANY_READERS: Final = 30
BUSY_RETRY: Final = 2000


class OpenStreams(Background):
    """All open streams of one process; a context manager that runs their timer."""

    def __init__(
        self,
        holdfast: LocalHoldfast,
        metrics: Metrics,
        jitter: Callable[[], float],
        *,
        life: float = LIFE_SECONDS,
    ) -> None:
        """`jitter` returns numbers from 0 to 1, which spread the ends and reconnects of streams."""
        super().__init__()
        self._holdfast = holdfast
        self._metrics = metrics
        self._jitter = jitter
        self._life = life
        self._streams: set[SseStream] = set()
        # For requests that wait; set because the server stops.
        self.closing: Final = asyncio.Event()

    async def __aenter__(self) -> "OpenStreams":
        await super().__aenter__()
        self.start(self._watch())
        return self

    def stream(self, caller: Caller, request: StreamRequest) -> SseStream:
        """Return a stream that is ready to run."""
        spread = 1 + LIFE_SPREAD * (2 * self._jitter() - 1)
        return SseStream(
            self._holdfast, self, caller, request, time.monotonic() + self._life * spread
        )

    def close(self) -> None:
        """End every stream because the server stops; spread the reconnects of their readers."""
        self.closing.set()
        count = len(self._streams)
        first = BUSY_RETRY if count > MANY_READERS else CYCLE_RETRY
        for number, stream in enumerate(sorted(self._streams, key=lambda _: self._jitter())):
            # A few reconnects are spread less widely than many.
            stream.end(
                "shutdown", retry=first + RETURN_SPREAD * number // max(count, 2 * MANY_READERS)
            )

    def add(self, stream: SseStream) -> None:
        """Register an open stream."""
        self._streams.add(stream)
        self._metrics.open_streams = len(self._streams)

    def remove(self, stream: SseStream, delivered: int) -> None:
        """Remove a stream that has ended."""
        self._streams.discard(stream)
        self._metrics.open_streams = len(self._streams)
        self._metrics.delivered_events += delivered

    async def _watch(self) -> None:
        checked = time.monotonic()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = time.monotonic()
            for stream in tuple(self._streams):
                stream.send_heartbeat(now)
                stream.check_timeout(now)
            if now - checked >= TOKEN_SECONDS:
                checked = now
                await self._check_tokens()

    async def _check_tokens(self) -> None:
        for caller in {stream.caller.token_id: stream.caller for stream in self._streams}.values():
            # While the store cannot be read, the token is assumed to be valid.
            with contextlib.suppress(HoldfastError):
                if not await self._holdfast.tokens.still_valid(caller):
                    for stream in tuple(self._streams):
                        if stream.caller.token_id == caller.token_id:
                            stream.end("revoked")
