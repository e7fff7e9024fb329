"""Event streams that resume by themselves: SSE parser, reconnect from the last event, gap
detection.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

import msgspec
from msgspec import Struct

from holdfast.client.requests import Requests, not_understood, refusal
from holdfast.client.transport import Line, Sent, whole_body
from holdfast.domain.errors import (
    HoldfastError,
    Internal,
    LimitReached,
    StorageFull,
    Unavailable,
)
from holdfast.parsing.http1 import Head, NotHttpError

FRAME_LARGEST: Final = 16 << 20
_NUMBER_LONGEST: Final = 18
_END: Final = b"\n\n"


class NotAStreamError(Exception):
    """The other side does not send what it promised."""


class Frame(Struct, frozen=True, kw_only=True):
    """What stands between two blank lines; one that is only a sign of life has no name."""

    event: str = ""
    data: bytes = b""
    id: int | None = None
    retry: int | None = None


class Frames:
    """Bytes in, frames out; what has not ended yet waits for the rest of it."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[Frame]:
        """Return the frames that are whole by now."""
        found: list[Frame] = []
        # From where it could end, so that a large frame is not searched anew with each piece.
        start = max(0, len(self._rest) - 1)
        self._rest += chunk
        begin = 0
        while (end := self._rest.find(_END, max(start, begin))) >= 0:
            found.append(_frame(bytes(self._rest[begin:end])))
            begin = end + len(_END)
        del self._rest[:begin]
        if len(self._rest) > FRAME_LARGEST:
            raise NotAStreamError("a frame does not end")
        return found


def _frame(block: bytes) -> Frame:
    fields: dict[str, bytes] = {}
    for line in block.split(b"\n"):
        name, colon, value = line.partition(b":")
        if not name and colon:
            continue
        key = name.decode("ascii", "replace")
        if key in fields:
            raise NotAStreamError("a frame says something twice")
        fields[key] = value.removeprefix(b" ")
    return Frame(
        event=fields.get("event", b"").decode("utf-8", "replace"),
        data=fields.get("data", b""),
        id=_number(fields.get("id")),
        retry=_number(fields.get("retry")),
    )


def _number(value: bytes | None) -> int | None:
    if value is None:
        return None
    if not value.isdigit() or len(value) > _NUMBER_LONGEST:
        raise NotAStreamError("a number is none")
    return int(value)


log = logging.getLogger(__name__)
NOW: Final = "now"
# Said to be wrong so often in a row without a step forward, it will be wrong for ever.
NONSENSE_MOST: Final = 8
_REFUSAL_LARGEST: Final = 1 << 20
_MENDABLE: Final = (Internal, LimitReached, StorageFull, Unavailable)


class Numbered(Protocol):
    """News that know their place."""

    @property
    def sequence(self) -> int: ...


N = TypeVar("N", bound=Numbered)


class Gap(Struct, frozen=True, kw_only=True):
    """Numbers that will not come; `resync` is the path at which to read what they told of."""

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
class Wish(Generic[N]):
    """What is followed, from where, and in which words: `decode` makes news of a line of JSON."""

    target: str
    after: int | Literal["now"]
    decode: Callable[[bytes], N]


class Following(Generic[N]):
    """One reader's place. Whoever stops reading closes the generator, and with it the stream."""

    def __init__(self, requests: Requests, wish: Wish[N]) -> None:
        self._transport = requests.transport
        self._patience = requests.patience
        self._wish = wish
        self._cursor = None if wish.after == NOW else wish.after
        # Words of the number after the cursor that were told already: it may have several.
        self._told: set[str] = set()
        self._retry: float | None = None
        self._failures = 0
        self._nonsense = 0
        self._waited = 0.0
        self._has_begun = False
        self._is_over = False

    async def news(self) -> AsyncGenerator[N | Gap, None]:
        """Yield every piece of news once and in order; ends only where the wish says when."""
        while not self._is_over:
            try:
                async with aclosing(self._connection()) as heard:
                    async for item in heard:
                        yield item
            except NotAStreamError as error:
                self._note_nonsense(str(error))
            except _MENDABLE as error:
                self._note(error)
            if not self._is_over:
                await self._pause()

    async def _connection(self) -> AsyncGenerator[N | Gap, None]:
        """Yield what one connection brings, until it breaks or is ended by the server."""
        frames = Frames()
        async with self._transport.stream(self._request()) as (head, line):
            await self._require_stream(head, line)
            is_first = True
            while (chunk := await self._chunk(line)) is not None:
                for frame in frames.feed(chunk):
                    if is_first:
                        self._begin(frame)
                        is_first = False
                    elif frame.event == "closing":
                        self._end(frame)
                        return
                    else:
                        # Whoever tells something, if only that it is alive, is well again.
                        self._failures = 0
                        for item in self._heard(frame):
                            yield item
        self._failures += 1

    def _request(self) -> Sent:
        headers = {"accept": "text/event-stream", "cache-control": "no-cache"}
        if self._cursor is not None:
            headers["last-event-id"] = str(self._cursor)
        return Sent(method="GET", target=self._wish.target, headers=headers)

    async def _require_stream(self, head: Head, line: Line) -> None:
        headers = dict(head.headers)
        if head.status != 200:
            with self._transport.told_as_unavailable():
                async with asyncio.timeout(self._patience.silence):
                    body = await whole_body(line, _REFUSAL_LARGEST)
            raise refusal(head.status, headers, body)
        if not headers.get("content-type", "").startswith("text/event-stream"):
            raise NotAStreamError("this is no event stream")

    async def _chunk(self, line: Line) -> bytes | None:
        try:
            async with asyncio.timeout(self._patience.silence):
                return await line.chunk()
        except (OSError, NotHttpError):
            # Broken or stalled: a stream has no end of its own but the one it tells.
            return None

    def _begin(self, frame: Frame) -> None:
        if frame.event != "connected":
            raise NotAStreamError("it does not begin with its beginning")
        after = _decoded(frame, _Connected).after
        if self._cursor is not None and after != self._cursor:
            raise NotAStreamError("it begins somewhere else")
        self._cursor = after
        self._retry = None if frame.retry is None else frame.retry / 1000
        self._has_begun = True

    def _end(self, frame: Frame) -> None:
        told = _decoded(frame, _Closing)
        self._retry = max(0, told.retry_ms) / 1000
        self._is_over = told.reason == "settled"

    def _heard(self, frame: Frame) -> list[N | Gap]:
        """Return what a frame tells that was not told before."""
        cursor = self._cursor or 0
        if not frame.event:
            return []
        if frame.event == "gap":
            gap = _decoded(frame, Gap)
            if frame.id != gap.to_sequence or gap.to_sequence <= cursor:
                raise NotAStreamError("a gap lies somewhere else")
            self._require_next(gap.from_sequence)
            self._move_to(gap.to_sequence)
            # What the reader did not want is nothing it has missed.
            return [] if gap.resync is None else [gap]
        try:
            item = self._wish.decode(frame.data)
        except (msgspec.DecodeError, RecursionError) as error:
            raise NotAStreamError(str(error)) from None
        if item.sequence <= cursor:
            return []
        self._require_next(item.sequence)
        is_new = frame.event not in self._told
        self._told.add(frame.event)
        if frame.id is not None:
            if frame.id != item.sequence:
                raise NotAStreamError("an event has two numbers")
            self._move_to(frame.id)
        return [item] if is_new else []

    def _require_next(self, sequence: int) -> None:
        # A hole would be news that nobody will ever tell.
        if sequence > (self._cursor or 0) + 1:
            raise NotAStreamError("numbers are missing")

    def _move_to(self, sequence: int) -> None:
        self._cursor = sequence
        self._told.clear()
        self._nonsense = 0

    def _note(self, error: HoldfastError) -> None:
        """Take note of what a later try may mend; where nothing ever worked, not for ever."""
        log.warning("the stream broke: %s", error.message)
        if not self._has_begun and self._waited >= self._patience.request:
            raise error
        wait = error.details.get("retry_after")
        if isinstance(wait, int):
            self._retry = float(wait)
        self._failures += 1

    def _note_nonsense(self, what: str) -> None:
        self._nonsense += 1
        self._failures += 1
        if self._nonsense >= NONSENSE_MOST:
            raise not_understood(self._transport.origin, what) from None
        log.warning("the stream is not understood: %s", what)

    async def _pause(self) -> None:
        wait = self._patience.before(max(1, self._failures), self._retry)
        self._waited += wait
        await asyncio.sleep(wait)


def _decoded(frame: Frame, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(frame.data, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise NotAStreamError(str(error)) from None
