"""What came and was not taken yet, in its order and within a bound."""

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")
K = TypeVar("K")


class Inbox(Generic[T]):
    """A queue between one who brings and one who takes; sizes are bytes of the line.

    It is full when one of both bounds is reached, so the last item may reach beyond.
    """

    def __init__(self, *, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._items: deque[tuple[T, int]] = deque()
        self._bytes = 0
        self._is_closed = False
        self._brought = asyncio.Event()
        self._taken = asyncio.Event()

    @property
    def is_full(self) -> bool:
        """Tell whether whoever brings more has to wait."""
        return len(self._items) >= self._most or self._bytes >= self._most_bytes

    async def room(self) -> None:
        """Wait until it is not full; for the one who brings."""
        while self.is_full:
            self._taken.clear()
            await self._taken.wait()

    def push(self, item: T, size: int = 0) -> None:
        """Add an item, room or not."""
        self._items.append((item, size))
        self._bytes += size
        self._brought.set()

    def close(self) -> None:
        """Take no more; what is there can still be taken."""
        self._is_closed = True
        self._brought.set()

    def clear(self) -> None:
        """Forget what is there, so that whoever brings more need not wait."""
        self._items.clear()
        self._bytes = 0
        self._taken.set()

    async def take(self) -> T | None:
        """Return the oldest item, or nothing when no other can come."""
        while not self._items:
            if self._is_closed:
                return None
            self._brought.clear()
            await self._brought.wait()
        return self._oldest()

    def ready(self, kind: type[K]) -> K | None:
        """Return the oldest item at once, if one is there and it is of a kind."""
        oldest = self._items[0][0] if self._items else None
        if not isinstance(oldest, kind):
            return None
        self._oldest()
        return oldest

    def _oldest(self) -> T:
        item, size = self._items.popleft()
        self._bytes -= size
        self._taken.set()
        return item
