"""Open streams: all of them watched by one clock.

One task looks after every stream once a second: heartbeats, the end of a connection's time,
tokens that were revoked, readers that have stopped reading. So a stream costs nothing while
nothing happens.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final

from holdfast.domain.errors import HoldfastError
from holdfast.domain.tokens import Caller
from holdfast.http.feeds import CYCLE_RETRY, Feed, Wish
from holdfast.http.house import House
from holdfast.http.metrics import Metrics
from holdfast.services.background_tasks import Background

TICK_SECONDS: Final = 1.0
TOKEN_SECONDS: Final = 1.0
LIFE_SECONDS: Final = 300.0
LIFE_SPREAD: Final = 0.2
# A server that stops spreads the returns of its readers over so many milliseconds.
RETURN_SPREAD: Final = 2000
# More readers than this are asked to wait until there is a server again: who finds none comes back
# with the others.
CROWD: Final = 30
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

    async def __aenter__(self) -> "Streams":
        await super().__aenter__()
        self.start(self._watch())
        return self

    def feed(self, caller: Caller, wish: Wish) -> Feed:
        """Return a stream that is ready to be played."""
        spread = 1 + LIFE_SPREAD * (2 * self._luck() - 1)
        return Feed(self._house, self, caller, wish, time.monotonic() + self._life * spread)

    def close(self) -> None:
        """End every stream, because the server stops; the returns of their readers are spread."""
        count = len(self._feeds)
        first = CROWD_RETRY if count > CROWD else CYCLE_RETRY
        for number, feed in enumerate(sorted(self._feeds, key=lambda _: self._luck())):
            # Few are not spread as widely as many.
            feed.end("shutdown", retry=first + RETURN_SPREAD * number // max(count, 2 * CROWD))

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
