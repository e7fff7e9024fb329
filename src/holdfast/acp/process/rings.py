"""The newest bytes of an output, within a bound."""

import re
from asyncio import StreamReader
from contextlib import suppress
from typing import Final

_CHUNK: Final = 1 << 16
_CONTINUES: Final = range(0x80, 0xC0)
# Colours, titles and other orders to a terminal.
_ORDERS: Final = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\|$)|\x1b[ -/]*[0-~]?"
)


class Ring:
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
            kept = kept[: len(kept) - _begun(kept)]
        return kept.decode("utf-8", "replace")

    def _trim(self) -> None:
        if len(self._kept) > self._most:
            self._kept = _whole_start(self._kept, self._most)
            self._is_cut = True


async def fill(ring: Ring, stream: StreamReader) -> None:
    """Read a stream to its end; what does not fit is read, too, and forgotten."""
    with suppress(OSError):
        while chunk := await stream.read(_CHUNK):
            ring.add(chunk)


def newest(text: str, most: int) -> str:
    """Return so many bytes of the end of a text, and whole characters of it."""
    return _whole_start(bytearray(text.encode()), most).decode()


def plain(text: str) -> str:
    """Return the text without orders to a terminal."""
    return _ORDERS.sub("", text)


def _whole_start(content: bytearray, most: int) -> bytearray:
    """Return the last bytes, without the rest of a character that was cut at their start."""
    start = max(0, len(content) - most)
    if start == 0:
        return content
    lost = 0
    while lost < 3 and start + lost < len(content) and content[start + lost] in _CONTINUES:
        lost += 1
    return content[start + lost :]


def _begun(content: bytearray) -> int:
    """Return how many bytes at the end begin a character and do not end it."""
    for back in range(1, min(3, len(content)) + 1):
        byte = content[-back]
        if byte not in _CONTINUES:
            needed = 1 + (byte >= 0xC0) + (byte >= 0xE0) + (byte >= 0xF0)
            return back if needed > back else 0
    return 0
