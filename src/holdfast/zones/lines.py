"""Lines of a zone's file: which count, and how they are counted part by part."""

import re
from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import Struct

LINES_USUAL: Final = 200
LINES_MOST: Final = 10_000
TEXT_MOST: Final = 8 << 20

# Unicode's White_Space in UTF-8; U+001C to U+001F, which Python strips as well, are not in it.
_BLANK: Final = re.compile(
    rb"(?:[\t-\r ]|\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f"
    rb"|\xe3\x80\x80)*"
)
# How such a character may begin that is not there as a whole yet.
_BEGUN: Final = re.compile(rb"\xc2|\xe1\x9a?|\xe2(?:\x80|\x81)?|\xe3\x80?")
_FILLED: Final = b"x"


class LineCount(Struct, frozen=True):
    r"""How many lines of a text count: those that a `\n` ends, and the one behind the last.

    `tail` stands for the line that goes on, and is nothing where the text ends with a `\n` or is
    empty: once that line counts it is one letter, before that it is at most the beginning of a
    white character. So it is short, and what follows makes of it what it would make of the line.
    """

    ended: int = 0
    tail: bytes | None = None

    @property
    def lines(self) -> int:
        """Return how many lines count."""
        return self.ended + (self.tail is not None and not is_blank(self.tail))


def is_blank(line: bytes) -> bool:
    """Tell whether nothing but white space stands in a line."""
    # Most lines begin with a brace or a letter, which is seen without looking for more.
    return not (line and 0x20 < line[0] < 0x7F) and _BLANK.fullmatch(line) is not None


def count_lines(before: LineCount, more: bytes) -> LineCount:
    """Return the tally of a text that goes on; in whatever pieces it comes, the sum is the same."""
    if not more:
        return before
    lines = more.split(b"\n")
    last = lines.pop()
    if not lines:
        return LineCount(before.ended, _stand_in((before.tail or b"") + last))
    if before.tail:
        lines[0] = before.tail + lines[0]
    ended = before.ended + len(lines) - sum(map(is_blank, lines))
    return LineCount(ended, _stand_in(last) if last else None)


def _stand_in(line: bytes) -> bytes:
    found = _BLANK.match(line)
    rest = line[found.end() :] if found else line
    return rest if not rest or _BEGUN.fullmatch(rest) else _FILLED


class LineQuery(Struct, frozen=True, kw_only=True):
    """Which lines; with a generation, only of the very content that it names."""

    start: int = 0
    limit: int = LINES_USUAL
    generation: str | None = None


class Lines(Struct, frozen=True, kw_only=True):
    """Counted lines of a file, without their ends.

    The file's last line is `torn` when nothing ends it, which is `tail_open`, or when it is no
    JSON.
    """

    lines: tuple[str, ...]
    start: int
    total: int
    generation: str | None
    torn: bool
    tail_open: bool = False

    @property
    def end(self) -> int:
        """Return the number of the line behind the last one here."""
        return self.start + len(self.lines)


class LineReader:
    """Takes a file piece by piece from anywhere in it, and gives the counted lines of a range."""

    def __init__(self, begun: LineCount, start: int, end: int, room: int = TEXT_MOST) -> None:
        """`begun` is the tally of all that stands before the first piece, `room` is in bytes."""
        self._number = begun.ended
        # Only whether the line counts that goes on from before, so it is not one of the range.
        self._line = bytearray(begun.tail or b"")
        self._start = start
        self._end = end
        self._room = room
        self.found: list[bytes] = []
        self.is_full = start >= end

    def take(self, piece: bytes) -> None:
        """Take the next piece; what is behind the range, or over its size, is left."""
        first, *others = piece.split(b"\n")
        self._line += first
        for other in others:
            self._close()
            self._line = bytearray(other)
            if self.is_full:
                return
        if self._number < self._start:
            # However long it is, only whether it counts is wanted of it.
            self._line = bytearray(_stand_in(bytes(self._line)))

    def finish(self) -> None:
        """Take what stands behind the last line break for a line."""
        if not self.is_full and self._line:
            self._close()

    def _close(self) -> None:
        line = bytes(self._line)
        if is_blank(line):
            return
        if self._number >= self._start:
            # The first is given whatever its size: who goes on from here must get further.
            if self.found and len(line) > self._room:
                self.is_full = True
                return
            self._room -= len(line)
            self.found.append(line)
        self._number += 1
        self.is_full = self._number >= self._end


def is_document(line: bytes) -> bool:
    """Tell whether a line is JSON as a whole; one that was cut off is not."""
    try:
        msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def display_line(lines: list[bytes]) -> Iterator[str]:
    """Yield lines as text; what is no UTF-8 is shown as replacement characters."""
    return (line.decode("utf-8", "replace") for line in lines)
