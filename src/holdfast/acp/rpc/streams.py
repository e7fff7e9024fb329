"""Byte stream protocols, the limits of a connection, and its bounded inbox (back-pressure)."""

import asyncio
from collections import deque
from typing import Final, Generic, Protocol, TypeVar

from msgspec import Struct

from holdfast.acp.rpc.framing import LINE_LIMIT


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    """Resource limits of a connection.

    `noise_*` limits the junk before the first message; above it the connection is lost with
    `noise`, because the peer is probably not an ACP program. `None` means no limit.
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
    """A byte source, such as an `asyncio.StreamReader`."""

    async def read(self, count: int = -1, /) -> bytes:
        """Return available bytes, at most `count`; empty at end of file."""


class ByteWriter(Protocol):
    """A byte sink, such as an `asyncio.StreamWriter`."""

    def write(self, content: bytes, /) -> None:
        """Buffer a whole line."""

    async def drain(self) -> None:
        """Wait until the buffer has room again."""

    def close(self) -> None:
        """Accept no more data."""

    async def wait_closed(self) -> None:
        """Wait until the buffer is flushed and the stream is closed."""


T = TypeVar("T")


class Inbox(Generic[T]):
    """A bounded queue between one producer and one consumer; sizes are bytes of the line.

    It is full when either limit is reached, so the last item may exceed the byte limit.
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
        """Return whether the producer has to wait."""
        return len(self._items) >= self._most or self._bytes >= self._most_bytes

    async def room(self) -> None:
        """Wait until the queue is not full; called by the producer."""
        while self.is_full:
            self._taken.clear()
            await self._taken.wait()

    def push(self, item: T, size: int = 0) -> None:
        """Add an item, even when the queue is full."""
        self._items.append((item, size))
        self._bytes += size
        self._brought.set()

    def close(self) -> None:
        """Accept no more items; queued items can still be taken."""
        self._is_closed = True
        self._brought.set()

    async def wait(self) -> bool:
        """Wait until an item is queued or `wake` is called; `False` when closed and empty."""
        if not self._items and not self._is_closed:
            self._brought.clear()
            await self._brought.wait()
        return bool(self._items) or not self._is_closed

    def wake(self) -> None:
        """Make the consumer's `wait` return."""
        self._brought.set()

    def peek(self) -> T | None:
        """Return the oldest item, if there is one."""
        return self._items[0][0] if self._items else None

    def pop(self) -> T | None:
        """Remove and return the oldest item, if there is one."""
        if not self._items:
            return None
        item, size = self._items.popleft()
        self._bytes -= size
        self._taken.set()
        return item
