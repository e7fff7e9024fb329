"""Open streams: each a reader of the log, all of them watched by one clock.

One task looks after every stream once a second: heartbeats, the end of a connection's time,
tokens that were revoked, readers that have stopped reading. So a stream costs nothing while
nothing happens.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from holdfast.domain.errors import Code, HoldfastError
from holdfast.domain.events import SessionClosed, TurnEnded
from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import Session
from holdfast.domain.tokens import Caller
from holdfast.http.answers import Wire
from holdfast.http.house import House
from holdfast.http.metrics import Metrics
from holdfast.http.sse import HEARTBEAT, Rendering, control_frame
from holdfast.services.background import Background
from holdfast.services.tails import Item, News, Reader

TICK_SECONDS: Final = 1.0
# A little under what is promised, because the clock only ticks.
HEARTBEAT_SECONDS: Final = 13.0
TOKEN_SECONDS: Final = 2.0
LIFE_SECONDS: Final = 300.0
LIFE_SPREAD: Final = 0.2
RETRY: Final = 1000
CYCLE_RETRY: Final = 100
# So many come back in a second after a restart, and not all at once.
RETURNS_A_SECOND: Final = 40
CHUNK_LARGEST: Final = 64 << 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """What a reader asked for."""

    session_id: SessionId
    after: int
    # The surface's own words: for an event, for where a session stands, for what was pruned.
    frame: Callable[[News], bytes]
    standing: Callable[[Session], str]
    resync: str
    until_settled: bool = False


class Streams(Background):
    """All open streams of one process. Use as a context manager: it runs the clock."""

    def __init__(
        self,
        house: House,
        metrics: Metrics,
        luck: Callable[[], float],
        *,
        life: float = LIFE_SECONDS,
    ) -> None:
        """`luck` gives numbers from 0 to 1, which spread the ends and returns of connections."""
        super().__init__()
        self._house = house
        self._metrics = metrics
        self._luck = luck
        self._life = life
        self._feeds: set[Feed] = set()

    async def __aenter__(self) -> "Streams":
        await super().__aenter__()
        self.start(self._watch())
        return self

    def feed(self, caller: Caller, wish: Wish) -> "Feed":
        """Return a stream that is ready to be played."""
        spread = 1 + LIFE_SPREAD * (2 * self._luck() - 1)
        return Feed(self._house, self, caller, wish, time.monotonic() + self._life * spread)

    def close(self) -> None:
        """End every stream, because the server stops; their readers come back one by one."""
        for number, feed in enumerate(sorted(self._feeds, key=lambda _: self._luck())):
            feed.end("shutdown", retry=CYCLE_RETRY + 1000 * number // RETURNS_A_SECOND)

    def joined(self, feed: "Feed") -> None:
        """Note that a stream is open."""
        self._feeds.add(feed)
        self._metrics.open_streams = len(self._feeds)

    def left(self, feed: "Feed", delivered: int) -> None:
        """Note that a stream has ended."""
        self._feeds.discard(feed)
        self._metrics.open_streams = len(self._feeds)
        self._metrics.delivered_events += delivered

    async def _watch(self) -> None:
        checked = time.monotonic()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = time.monotonic()
            for feed in tuple(self._feeds):
                if feed.is_beat_due(now):
                    self.start(feed.beat())
                feed.look(now)
            if now - checked >= TOKEN_SECONDS:
                checked = now
                await self._check_tokens()

    async def _check_tokens(self) -> None:
        for caller in {feed.caller.token_id: feed.caller for feed in self._feeds}.values():
            # A store that cannot be asked just now says nothing about a token.
            with contextlib.suppress(HoldfastError):
                if not await self._house.tokens.still_valid(caller):
                    for feed in tuple(self._feeds):
                        if feed.caller.token_id == caller.token_id:
                            feed.end("revoked")


class Feed:
    """One stream: a reader, the words it wants, and the wire it is written to."""

    def __init__(
        self, house: House, streams: Streams, caller: Caller, wish: Wish, ends_at: float
    ) -> None:
        self._house = house
        self._streams = streams
        self._wish = wish
        self._ends_at = ends_at
        self._rendering = Rendering(wish.frame, wish.resync)
        self._reader: Reader | None = None
        self._wire: Wire | None = None
        self._task: asyncio.Task[Any] | None = None
        self._ending: tuple[str, int] | None = None
        self._is_sending = False
        self._beaten_at = time.monotonic()
        self._told = 0
        self._delivered = 0
        self.caller = caller

    async def play(self, wire: Wire) -> None:
        """Write the log onto the wire until somebody ends it."""
        self._wire = wire
        self._task = asyncio.current_task()
        self._told = self._wish.after
        self._streams.joined(self)
        try:
            await self._read(wire)
        except HoldfastError as error:
            self._ending = (_REASONS.get(error.code, "shutdown"), RETRY)
        except asyncio.CancelledError:
            # Cancelled without a reason means that the reader has left.
            if self._ending is None or self._task is None:
                raise
            self._task.uncancel()
        finally:
            self._streams.left(self, self._delivered)
        await self._say_goodbye(wire)

    def end(self, reason: str, *, retry: int = RETRY) -> None:
        """End the stream; its reader is told why, and where to go on."""
        if self._ending is None and self._task is not None:
            self._ending = (reason, retry)
            self._task.cancel()

    def look(self, now: float) -> None:
        """End the stream if its time is over, or nobody reads what is sent."""
        if self._reader is not None and self._is_sending and self._reader.is_too_slow:
            self.end("slow")
        elif now >= self._ends_at:
            self.end("cycle", retry=CYCLE_RETRY)

    def is_beat_due(self, now: float) -> bool:
        """Tell whether the reader should hear that we are alive."""
        # Whoever does not take what was sent would not take this either.
        return not self._is_sending and now - self._beaten_at >= HEARTBEAT_SECONDS

    async def beat(self) -> None:
        """Send a heartbeat."""
        self._beaten_at = time.monotonic()
        if self._wire is not None and self._ending is None:
            await self._wire.send(HEARTBEAT)

    async def _read(self, wire: Wire) -> None:
        wish = self._wish
        events = self._house.events
        async with events.reader(self.caller.owner, wish.session_id, after=wish.after) as reader:
            self._reader = reader
            session = await self._session()
            await self._send(wire, [self._connected(session, reader.head)])
            is_settled = _is_settled(session)
            while not (wish.until_settled and is_settled and reader.cursor >= reader.head):
                items = await reader.read()
                await self._send(wire, self._rendering.frames(items))
                self._told = reader.cursor
                self._delivered += len(items)
                if reader.is_too_slow:
                    self._ending = ("slow", RETRY)
                    return
                if wish.until_settled and any(_may_settle(item) for item in items):
                    is_settled = _is_settled(await self._session())
            self._ending = ("settled", RETRY)

    async def _session(self) -> Session:
        return await self._house.sessions.get(self.caller.owner, self._wish.session_id)

    def _connected(self, session: Session, head: int) -> bytes:
        data = {
            "session_id": session.id,
            "after": self._wish.after,
            "head": head,
            "status": self._wish.standing(session),
        }
        return control_frame("connected", data, retry=RETRY)

    async def _send(self, wire: Wire, frames: list[bytes]) -> None:
        self._is_sending = True
        try:
            for chunk in _chunks(frames):
                await wire.send(chunk)
        finally:
            self._is_sending = False

    async def _say_goodbye(self, wire: Wire) -> None:
        reason, retry = self._ending or ("cycle", CYCLE_RETRY)
        if reason == "slow":
            # It would wait behind all that was not read.
            wire.abort()
            return
        data = {"reason": reason, "after": self._told, "retry_ms": retry}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TICK_SECONDS):
                hidden = self._rendering.hidden()
                await self._send(wire, [*hidden, control_frame("closing", data, retry=retry)])


_REASONS: Final = {Code.SESSION_NOT_FOUND: "deleted", Code.STORE_CLOSED: "shutdown"}


def _chunks(frames: list[bytes]) -> list[bytes]:
    """Return the frames in pieces: few enough to be quick, small enough to be bounded."""
    chunks: list[bytes] = []
    batch: list[bytes] = []
    size = 0
    for frame in frames:
        if batch and size + len(frame) > CHUNK_LARGEST:
            chunks.append(b"".join(batch))
            batch, size = [], 0
        batch.append(frame)
        size += len(frame)
    if batch:
        chunks.append(b"".join(batch))
    return chunks


def _is_settled(session: Session) -> bool:
    return session.turn <= session.settled


def _may_settle(item: Item) -> bool:
    return isinstance(item, News) and isinstance(item.event.payload, TurnEnded | SessionClosed)
