"""What a process prints, as far as it is kept: the beginning, the end, and how much was between."""

import asyncio
from typing import Final

_CHUNK: Final = 1 << 18
_CONTINUES: Final = range(0x80, 0xC0)


class Kept:
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
        while chunk := await stream.read(_CHUNK):
            self.add(chunk)

    def add(self, chunk: bytes) -> None:
        """Take what came next."""
        room = self._half - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        # Cut now and then, because each cut moves what is left.
        if len(self._tail) > 2 * self._half + _CHUNK:
            self._trim()

    def whole(self) -> bytes | None:
        """Return all that came, if all of it was kept."""
        self._trim()
        return None if self.dropped else bytes(self._head + self._tail)

    def text(self) -> str:
        """Return what was kept, and between beginning and end how much is missing."""
        whole = self.whole()
        if whole is not None:
            return _decoded(whole)
        head, tail = _whole_end(self._head), _whole_start(self._tail)
        cut = len(self._head) - len(head) + len(self._tail) - len(tail)
        missing = self.dropped + cut
        return f"{_decoded(head)}\n[… {missing} bytes left out …]\n{_decoded(tail)}"

    def _trim(self) -> None:
        excess = len(self._tail) - self._half
        if excess > 0:
            del self._tail[:excess]
            self._forgotten += excess


def _decoded(content: bytes | bytearray) -> str:
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
