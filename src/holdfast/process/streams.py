"""Asyncio streams over pipes, and bounded buffers for process output.

`OutputBuffer` retains the beginning and the end, `TailBuffer` only the end. Starting processes does
not belong here.
"""

import asyncio
import os
import re
from asyncio import ReadTransport, StreamReader, StreamReaderProtocol, StreamWriter
from contextlib import suppress
from typing import Final

# Default maximum length of a line.
LINE_LIMIT: Final = 1 << 16
_READ_SIZE: Final = 1 << 18
_CONTINUES: Final = bytes(range(0x80, 0xC0))
# Terminal escape sequences: colours, titles and others.
_ESCAPES: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)|\x1b[ -/]*[0-~]?"
)


class OutputBuffer:
    """Bounded buffer for the beginning and the end of an output."""

    def __init__(self, most: int) -> None:
        self._head_most = self._tail_most = most // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._forgotten = 0

    @property
    def dropped(self) -> int:
        """Return the number of dropped bytes."""
        return self._forgotten + max(0, len(self._tail) - self._tail_most)

    async def fill(self, stream: StreamReader) -> None:
        """Read the stream to EOF; excess bytes are dropped, so that the writer never blocks."""
        with suppress(OSError):
            while chunk := await stream.read(_READ_SIZE):
                self.add(chunk)

    def add(self, chunk: bytes) -> None:
        """Append a chunk."""
        room = self._head_most - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        # Trimmed rarely, because each trim moves the remaining bytes.
        if len(self._tail) > 2 * self._tail_most + _READ_SIZE:
            self._trim()

    def whole(self) -> bytes | None:
        """Return the complete output, or `None` if bytes were dropped."""
        self._trim()
        return None if self.dropped else bytes(self._head + self._tail)

    def text(self) -> str:
        """Return the retained text, with a note on the number of bytes missing in the middle."""
        whole = self.whole()
        if whole is not None:
            return _decode(whole)
        head = self._head[: len(self._head) - trailing_partial_bytes(self._head)]
        tail = self._tail[leading_partial_bytes(self._tail) :]
        cut = len(self._head) - len(head) + len(self._tail) - len(tail)
        missing = self.dropped + cut
        return f"{_decode(head)}\n[… {missing} bytes left out …]\n{_decode(tail)}"

    def _trim(self) -> None:
        excess = len(self._tail) - self._tail_most
        if excess > 0:
            del self._tail[:excess]
            self._forgotten += excess


class TailBuffer(OutputBuffer):
    """Bounded buffer for the end of an output; its text never begins within a character."""

    def __init__(self, most: int) -> None:
        super().__init__(0)
        self._tail_most = most

    def text(self, *, is_over: bool = True) -> str:
        """Return the retained text.

        An incomplete character at the end is omitted, unless the stream is over.
        """
        self._trim()
        start = leading_partial_bytes(self._tail) if self.dropped else 0
        end = len(self._tail) - (0 if is_over else trailing_partial_bytes(self._tail))
        return self._tail[start:end].decode("utf-8", "replace")


def _decode(content: bytes | bytearray) -> str:
    # Replaced because many consumers treat NUL as the end of the text.
    return content.decode("utf-8", "replace").replace("\x00", "\ufffd")


def last_bytes(text: str, most: int) -> str:
    """Return at most this many bytes from the end of a text, in whole characters."""
    return text.encode()[-most:].decode(errors="ignore")


def strip_escapes(text: str) -> str:
    """Return the text without terminal escape sequences."""
    return _ESCAPES.sub("", text)


def leading_partial_bytes(content: bytes | bytearray) -> int:
    """Return the number of bytes at the start that belong to a truncated UTF-8 character."""
    head = content[:3]
    return len(head) - len(head.lstrip(_CONTINUES))


def trailing_partial_bytes(content: bytes | bytearray) -> int:
    """Return the number of bytes of an incomplete UTF-8 character at the end."""
    for back in range(1, min(3, len(content)) + 1):
        byte = content[-back]
        if byte not in _CONTINUES:
            needed = 1 + (byte >= 0xC0) + (byte >= 0xE0) + (byte >= 0xF0)
            return back if needed > back else 0
    return 0


async def open_reader(
    descriptor: int, limit: int = LINE_LIMIT
) -> tuple[StreamReader, ReadTransport]:
    """Return a stream that reads a pipe, and its transport; takes ownership of the descriptor."""
    reader = StreamReader(limit)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
    )
    return reader, transport


async def open_writer(descriptor: int) -> StreamWriter:
    """Return a stream that writes to a pipe; takes ownership of the descriptor.

    `drain` waits until the kernel has accepted all bytes, so that back-pressure is noticed.
    """
    loop = asyncio.get_running_loop()
    # The protocol reads nothing; it is needed because it reports when the pipe is closed.
    transport, protocol = await loop.connect_write_pipe(
        lambda: StreamReaderProtocol(StreamReader()), os.fdopen(descriptor, "wb", 0)
    )
    transport.set_write_buffer_limits(high=0)
    return StreamWriter(transport, protocol, None, loop)
