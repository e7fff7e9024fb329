"""What a connection reads from and writes to, its limits, and its bounded inbox (back-pressure)."""

import asyncio
from collections import deque
from typing import Final, Generic, Protocol, TypeVar

from msgspec import Struct

from holdfast.acp.rpc.framing import LINE_LIMIT


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    """How much one side may ask of the other.

    `noise_*` is how much that is no message may come before the first message does; then the
    other side is taken for a program of another kind. `None` takes any amount.
    """

    line: int = LINE_LIMIT
    queued: int = 1024
    queued_bytes: int = 16 << 20
    open_requests: int = 64
    write_seconds: float = 30.0
    noise_lines: int | None = None
    noise_bytes: int | None = None


DEFAULT_LIMITS: Final = ConnectionLimits()


class ByteReader(Protocol):
    """Where bytes come from; an `asyncio.StreamReader` is one."""

    async def read(self, count: int = -1, /) -> bytes:
        """Return what is there, at most so much; nothing at the end."""


class ByteWriter(Protocol):
    """Where bytes go to; an `asyncio.StreamWriter` is one."""

    def write(self, content: bytes, /) -> None:
        """Take a whole line."""

    async def drain(self) -> None:
        """Wait until there is room again."""

    def close(self) -> None:
        """Take no more."""

    async def wait_closed(self) -> None:
        """Wait until nothing is held any more."""


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
