"""Drafts of those who work beside the turn: handed over, and waited for until they are on disk."""

import asyncio
from collections import deque
from collections.abc import Sequence

from holdfast.domain.drafts import Draft

Batch = Sequence[Draft]


class Outbox:
    """A queue from many who have something to write to the one who writes."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Batch, asyncio.Future[None]]] = deque()
        self._written: list[asyncio.Future[None]] = []
        self._filled = asyncio.Event()
        self._is_closed = False

    async def record(self, batch: Batch) -> None:
        """Have a batch written; it is on disk when this returns."""
        if self._is_closed:
            # The turn is over: nobody writes, and nobody may act on what was not written.
            raise asyncio.CancelledError
        if not batch:
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((batch, future))
        self._filled.set()
        await future

    def taken(self) -> Batch | None:
        """Return the oldest batch to write, if there is one; those before it are on disk now."""
        self.settle()
        if not self._waiting:
            self._filled.clear()
            return None
        batch, future = self._waiting.popleft()
        self._written.append(future)
        return batch

    def settle(self) -> None:
        """Tell those whose batches were taken that these are on disk."""
        for future in self._written:
            if not future.done():
                future.set_result(None)
        self._written.clear()

    async def filled(self) -> None:
        """Wait until there is something to write."""
        await self._filled.wait()

    def close(self) -> None:
        """Write nothing more; whoever waits is told to stop."""
        self._is_closed = True
        for _, future in self._waiting:
            future.cancel()
        for future in self._written:
            future.cancel()
        self._waiting.clear()
