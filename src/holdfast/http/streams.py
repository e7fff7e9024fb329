"""Open streams: all of them watched by one clock.

One task looks after every stream once a second: heartbeats, the end of a connection's time,
tokens that were revoked, readers that have stopped reading. So a stream costs nothing while
nothing happens.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable
from typing import Final

from holdfast.domain.errors import HoldfastError
from holdfast.domain.ids import TokenId
from holdfast.domain.tokens import Caller
from holdfast.http.feeds import CYCLE_RETRY, Feed, Wish
from holdfast.http.house import House
from holdfast.http.metrics import Metrics
from holdfast.services.background import Background

TICK_SECONDS: Final = 1.0
TOKEN_SECONDS: Final = 2.0
LIFE_SECONDS: Final = 300.0
LIFE_SPREAD: Final = 0.2
# So many are asked to come back in a second after a restart, and so many are let in.
RETURNS_A_SECOND: Final = 30
# So long after it began a server may be met by all the readers of the one before it.
YOUNG_SECONDS: Final = 30.0
# Nobody waits longer in the line, however many stand in it.
PLACE_SECONDS: Final = 7.0
# A crowd is sent away until there is a server again: who finds none comes back with others.
CROWD_RETRY: Final = 2000


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
        self._began = time.monotonic()
        self._lines: dict[TokenId, _Line] = {}

    async def __aenter__(self) -> "Streams":
        await super().__aenter__()
        self.start(self._watch())
        return self

    def feed(self, caller: Caller, wish: Wish) -> Feed:
        """Return a stream that is ready to be played."""
        spread = 1 + LIFE_SPREAD * (2 * self._luck() - 1)
        return Feed(self._house, self, caller, wish, time.monotonic() + self._life * spread)

    def close(self) -> None:
        """End every stream, because the server stops; their readers come back one by one."""
        first = CROWD_RETRY if len(self._feeds) > RETURNS_A_SECOND else CYCLE_RETRY
        for number, feed in enumerate(sorted(self._feeds, key=lambda _: self._luck())):
            feed.end("shutdown", retry=first + 1000 * number // RETURNS_A_SECOND)

    async def admitted(self, caller: Caller, wish: Wish) -> None:
        """Wait in the line of those who come back to a new server, but not for long.

        Asked to come back one by one they still come together, if they found nobody meanwhile.
        Each token has a line of its own, so that nobody holds up the readers of another.
        """
        if not wish.after or time.monotonic() - self._began >= YOUNG_SECONDS:
            return
        line = self._lines.setdefault(caller.token_id, _Line())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PLACE_SECONDS):
                await line.passed()

    def joined(self, feed: Feed) -> None:
        """Note that a stream is open."""
        self._feeds.add(feed)
        self._metrics.open_streams = len(self._feeds)

    def left(self, feed: Feed, delivered: int) -> None:
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
                feed.beat(now)
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


class _Line:
    """Those who come back with one token: each is let in some time after the one before."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._passed_at = -math.inf

    async def passed(self) -> None:
        """Wait for one's turn."""
        async with self._lock:
            # Since the one before was let in: a busy server would otherwise let many in at once.
            await asyncio.sleep(self._passed_at + 1 / RETURNS_A_SECOND - time.monotonic())
            self._passed_at = time.monotonic()
