"""Lines of a zone file: which lines count, and how they are counted part by part."""

import re
from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import Struct

LINES_USUAL: Final = 200
LINES_MOST: Final = 10_000
TEXT_MOST: Final = 8 << 20

# Unicode White_Space in UTF-8, without U+001C to U+001F, which Python strips as well.
_BLANK: Final = re.compile(
    rb"(?:[\t-\r ]|\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f"
    rb"|\xe3\x80\x80)*"
)
# Incomplete UTF-8 prefixes of such a character.
_BEGUN: Final = re.compile(rb"\xc2|\xe1\x9a?|\xe2(?:\x80|\x81)?|\xe3\x80?")
_FILLED: Final = b"x"


class LineCount(Struct, frozen=True):
    r"""Number of lines that are not blank: those ended by `\n`, and the unfinished last one.

    `tail` represents the unfinished line; it is `None` if the text ends with `\n` or is empty.
    It is one letter once the line is not blank, before that at most the prefix of a white-space
    character. So it stays short and counting can continue from it.
    """

    ended: int = 0
    tail: bytes | None = None

    @property
    def lines(self) -> int:
        """Return the number of counted lines."""
        return self.ended + (self.tail is not None and not is_blank(self.tail))


def is_blank(line: bytes) -> bool:
    """Return whether a line contains only white space."""
    # Fast path: most lines begin with a brace or a letter.
    return not (line and 0x20 < line[0] < 0x7F) and _BLANK.fullmatch(line) is not None


def count_lines(before: LineCount, more: bytes) -> LineCount:
    """Return the count after more bytes; independent of how the text is split into pieces."""
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
    """Range of lines; with a generation, only of that version of the content."""

    start: int = 0
    limit: int = LINES_USUAL
    generation: str | None = None


class Lines(Struct, frozen=True, kw_only=True):
    """Counted lines of a file, without their line breaks.

    `torn`: the last line of the file is unfinished (`tail_open`) or not valid JSON.
    """

    lines: tuple[str, ...]
    start: int
    total: int
    generation: str | None
    torn: bool
    tail_open: bool = False

    @property
    def end(self) -> int:
        """Return the number of the line after the last one."""
        return self.start + len(self.lines)


class LineReader:
    """Collects the counted lines of a range from consecutive pieces of a file."""

    def __init__(self, begun: LineCount, start: int, end: int, room: int = TEXT_MOST) -> None:
        """`begun` is the count of everything before the first piece; `room` is in bytes."""
        self._number = begun.ended
        # Only indicates whether the continued line is blank; it is not part of the range.
        self._line = bytearray(begun.tail or b"")
        self._start = start
        self._end = end
        self._room = room
        self.found: list[bytes] = []
        self.is_full = start >= end

    def take(self, piece: bytes) -> None:
        """Add the next piece; lines after the range or over the size limit are dropped."""
        first, *others = piece.split(b"\n")
        self._line += first
        for other in others:
            self._close()
            self._line = bytearray(other)
            if self.is_full:
                return
        if self._number < self._start:
            # Before the range only blankness matters, so a long line is not buffered.
            self._line = bytearray(_stand_in(bytes(self._line)))

    def finish(self) -> None:
        """Treat the bytes after the last line break as a line."""
        if not self.is_full and self._line:
            self._close()

    def _close(self) -> None:
        line = bytes(self._line)
        if is_blank(line):
            return
        if self._number >= self._start:
            # The first line is returned whatever its size, so that a paging reader makes progress.
            if self.found and len(line) > self._room:
                self.is_full = True
                return
            self._room -= len(line)
            self.found.append(line)
        self._number += 1
        self.is_full = self._number >= self._end


def is_document(line: bytes) -> bool:
    """Return whether a line is a complete JSON document."""
    try:
        msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def display_line(lines: list[bytes]) -> Iterator[str]:
    """Yield lines as text; invalid UTF-8 becomes replacement characters."""
    return (line.decode("utf-8", "replace") for line in lines)
