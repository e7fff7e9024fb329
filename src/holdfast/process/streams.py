"""Pipes as asyncio streams, and bounded buffers for what a process prints.

`OutputBuffer` keeps beginning and end, `TailBuffer` the end only. Starting processes is elsewhere.

"""

import asyncio
import os
import re
from asyncio import ReadTransport, StreamReader, StreamReaderProtocol, StreamWriter
from contextlib import suppress
from typing import Final

_READ_SIZE: Final = 1 << 18
_CONTINUES: Final = range(0x80, 0xC0)


class OutputBuffer:
    """One stream's output within a bound."""

    def __init__(self, most: int) -> None:
        self._half = most // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._forgotten = 0

    @property
    def dropped(self) -> int:
        """Return how many bytes were not kept."""
        return self._forgotten + max(0, len(self._tail) - self._half)

    async def fill(self, stream: asyncio.StreamReader) -> None:
        """Read the stream to its end; what does not fit is read, too, and forgotten."""
        while chunk := await stream.read(_READ_SIZE):
            self.add(chunk)

    def add(self, chunk: bytes) -> None:
        """Take what came next."""
        room = self._half - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        # Cut now and then, because each cut moves what is left.
        if len(self._tail) > 2 * self._half + _READ_SIZE:
            self._trim()

    def whole(self) -> bytes | None:
        """Return all that came, if all of it was kept."""
        self._trim()
        return None if self.dropped else bytes(self._head + self._tail)

    def text(self) -> str:
        """Return what was kept, and between beginning and end how much is missing."""
        whole = self.whole()
        if whole is not None:
            return _decode(whole)
        head, tail = _whole_end(self._head), _whole_start(self._tail)
        cut = len(self._head) - len(head) + len(self._tail) - len(tail)
        missing = self.dropped + cut
        return f"{_decode(head)}\n[… {missing} bytes left out …]\n{_decode(tail)}"

    def _trim(self) -> None:
        excess = len(self._tail) - self._half
        if excess > 0:
            del self._tail[:excess]
            self._forgotten += excess


def _decode(content: bytes | bytearray) -> str:
    # NUL ends a text in too many places between here and a screen.
    return content.decode("utf-8", "replace").replace("\x00", "\ufffd")


def _whole_end(content: bytearray) -> bytearray:
    """Return the bytes without a character that was cut at their end."""
    for back in range(1, min(4, len(content)) + 1):
        byte = content[-back]
        if byte not in _CONTINUES:
            needed = 1 + (byte >= 0xC0) + (byte >= 0xE0) + (byte >= 0xF0)
            return content[:-back] if needed > back else content
    return content


def _whole_start(content: bytearray) -> bytearray:
    """Return the bytes without the rest of a character that was cut at their start."""
    lost = 0
    while lost < min(3, len(content)) and content[lost] in _CONTINUES:
        lost += 1
    return content[lost:]


_TAIL_READ_SIZE: Final = 1 << 16
# Colours, titles and other orders to a terminal.
_ESCAPES: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)|\x1b[ -/]*[0-~]?"
)


class TailBuffer:
    """Keeps so many bytes, and forgets the oldest ones first: whole characters."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept = bytearray()
        self._is_cut = False

    @property
    def is_cut(self) -> bool:
        """Tell whether something was forgotten."""
        return self._is_cut or len(self._kept) > self._most

    def add(self, chunk: bytes) -> None:
        """Take what came next."""
        self._kept += chunk
        # Cut now and then, because each cut moves what is left.
        if len(self._kept) > 2 * self._most:
            self._trim()

    def text(self, *, is_over: bool = True) -> str:
        """Return what is kept.

        A character of which only the beginning came is left out, unless nothing more will come.
        """
        self._trim()
        kept = self._kept
        if not is_over:
            kept = kept[: len(kept) - _partial_character(kept)]
        return kept.decode("utf-8", "replace")

    def _trim(self) -> None:
        if len(self._kept) > self._most:
            self._kept = _last_characters(self._kept, self._most)
            self._is_cut = True


async def fill_tail(ring: TailBuffer, stream: StreamReader) -> None:
    """Read a stream to its end; what does not fit is read, too, and forgotten."""
    with suppress(OSError):
        while chunk := await stream.read(_TAIL_READ_SIZE):
            ring.add(chunk)


def last_bytes(text: str, most: int) -> str:
    """Return so many bytes of the end of a text, and whole characters of it."""
    return _last_characters(bytearray(text.encode()), most).decode()


def strip_escapes(text: str) -> str:
    """Return the text without orders to a terminal."""
    return _ESCAPES.sub("", text)


def _last_characters(content: bytearray, most: int) -> bytearray:
    """Return the last bytes, without the rest of a character that was cut at their start."""
    start = max(0, len(content) - most)
    if start == 0:
        return content
    lost = 0
    while lost < 3 and start + lost < len(content) and content[start + lost] in _CONTINUES:
        lost += 1
    return content[start + lost :]


def _partial_character(content: bytearray) -> int:
    """Return how many bytes at the end begin a character and do not end it."""
    for back in range(1, min(3, len(content)) + 1):
        byte = content[-back]
        if byte not in _CONTINUES:
            needed = 1 + (byte >= 0xC0) + (byte >= 0xE0) + (byte >= 0xF0)
            return back if needed > back else 0
    return 0


async def open_reader(descriptor: int) -> tuple[StreamReader, ReadTransport]:
    """Return a stream that reads a pipe, and what closes it; the descriptor is taken over."""
    reader = StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
    )
    return reader, transport


async def open_writer(descriptor: int) -> StreamWriter:
    """Return a stream that writes a pipe; the descriptor is taken over.

    It is drained when the system has taken all, so that who reads nothing is noticed.
    """
    loop = asyncio.get_running_loop()
    # Nothing is read by it: it is there because it knows when the pipe is closed.
    transport, protocol = await loop.connect_write_pipe(
        lambda: StreamReaderProtocol(StreamReader()), os.fdopen(descriptor, "wb", 0)
    )
    transport.set_write_buffer_limits(high=0)
    return StreamWriter(transport, protocol, None, loop)
