"""Limits of what runs at once: places in one event loop, and daemon threads for functions."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue


class Limit:
    """A number of places; those who wait get one in their order. Belongs to one event loop."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: deque[asyncio.Future[None]] = deque()

    def try_take(self) -> bool:
        """Take a place if one is free."""
        if self._free <= 0 or self._waiting:
            return False
        self._free -= 1
        return True

    async def take(self) -> None:
        """Take a place; waits until one is free."""
        if self.try_take():
            return
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(ready)
        try:
            await ready
        except asyncio.CancelledError:
            # Race: the place may have been given just before the cancellation.
            if ready.done() and not ready.cancelled():
                self.release()
            else:
                with suppress(ValueError):
                    self._waiting.remove(ready)
            raise

    def release(self) -> None:
        """Give a place back."""
        while self._waiting:
            ready = self._waiting.popleft()
            if not ready.done():
                ready.set_result(None)
                return
        self._free += 1


class Threads:
    """Daemon threads that are reused; a function that never returns does not keep the process."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._count = 0

    def run(self, work: Callable[[], None]) -> None:
        """Run work in a thread; the caller limits how many run at once."""
        with self._lock:
            is_new = self._idle == 0
            self._idle -= 0 if is_new else 1
            self._count += is_new
        self._work.put(work)
        if is_new:
            threading.Thread(target=self._serve, name="holdfast-function", daemon=True).start()

    def close(self) -> None:
        """End the threads as soon as each has nothing to do."""
        for _ in range(self._count):
            self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            with self._lock:
                self._idle += 1
