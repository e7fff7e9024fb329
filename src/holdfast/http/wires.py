"""The wire under a connection: the head of an answer waits for what follows it.

Sent apart they would cost two calls of the system and wake the reader twice.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

# How every head begins, and no frame of a stream does.
_HEAD: Final = b"HTTP/1.1 "
# From here on, copying costs more than the second call.
_JOINED_LARGEST: Final = 64 << 10


class PatientTransport(asyncio.Transport):
    """A transport that keeps a head back until the next write, or until the loop comes round."""

    def __init__(self, transport: asyncio.Transport, soon: Callable[..., Any]) -> None:
        """`soon` calls a function when the loop has done what is ready now."""
        super().__init__()
        self._transport = transport
        self._soon = soon
        self._head = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send, with the head that waits before it."""
        if self._head and len(data) <= _JOINED_LARGEST:
            data, self._head = self._head + data, b""
        elif bytes(data[: len(_HEAD)]) == _HEAD:
            self._flush()
            self._head = bytes(data)
            self._soon(self._flush)
            return
        self._flush()
        self._transport.write(data)

    def close(self) -> None:
        """Close when all is sent."""
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._head = b""
        self._transport.abort()

    def write_eof(self) -> None:
        """Say that nothing follows."""
        self._flush()
        self._transport.write_eof()

    def can_write_eof(self) -> bool:
        """Tell whether the end can be said without closing."""
        return self._transport.can_write_eof()

    def is_closing(self) -> bool:
        """Tell whether it is closed or about to be."""
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        """Take nothing for a while."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take what comes."""
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known of the connection."""
        return self._transport.get_extra_info(name, default)

    def _flush(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)


class LastTransport(asyncio.Transport):
    """What the last answer of a connection is written to; its end is somebody else's to make."""

    def __init__(self, transport: asyncio.Transport, end: Callable[[], None]) -> None:
        """`end` is called instead of closing."""
        super().__init__()
        self._transport = transport
        self._end = end

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send."""
        self._transport.write(data)

    def close(self) -> None:
        """Have the connection ended."""
        self._end()

    def is_closing(self) -> bool:
        """Tell whether it is closed or about to be."""
        return self._transport.is_closing()
