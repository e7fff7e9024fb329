"""An answer as it arrives, cut into blocks of Markdown.

A block that is whole never changes again, so it can be written for good; what is behind the last
one, the tail, may still become something else. Items of a list are blocks of their own, because
lists are long and people read along.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_HEADING: Final = re.compile(r" {0,3}#{1,6}(?:\s|$)")
_FENCE: Final = re.compile(r"\s*(`{3,}|~{3,})")
_ITEM: Final = re.compile(r"(\s*(?:[-*+]|(\d{1,9})[.)])\s)\s*\S")


class Block(NamedTuple):
    """A piece of Markdown; `is_apart` is whether a blank line stands before it."""

    text: str
    is_apart: bool


class Blocks:
    """Takes text in pieces of any size and gives it back block by block."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._rest = ""
        self._fence = ""
        self._opening = ""
        # Where the text of the open item begins; nothing outside of a list.
        self._inset = 0
        self._is_first = True
        self._is_spaced = False

    def ending(self, lines: int, characters: int) -> str:
        """Return the tail, what belongs to no whole block yet, or as much of its end.

        Code that is cut begins with its fence all the same.
        """
        found = "\n".join([*self._lines[-lines:], self._rest])
        is_cut = len(self._lines) > lines or len(found) > characters
        opening = f"{self._opening}\n" if is_cut and self._fence else ""
        return opening + found[-characters:]

    def add(self, text: str) -> list[Block]:
        """Take a piece of text; return the blocks that it has made whole."""
        *lines, self._rest = (self._rest + text).split("\n")
        return [block for line in lines for block in self._take(line)]

    def finish(self) -> list[Block]:
        """Return what is left; from here on a new text begins."""
        rest, self._rest = self._rest, ""
        found = [*(self._take(rest) if rest else ()), *self._close()]
        self._fence, self._inset, self._is_first, self._is_spaced = "", 0, True, False
        return found

    def _take(self, line: str) -> Iterator[Block]:
        if self._fence:
            self._lines.append(line)
            if _ends(line, self._fence):
                self._fence = ""
                # What stands in an item is a part of it.
                yield from self._close() if not self._inset else ()
        elif not line.strip():
            yield from self._blank()
        else:
            yield from self._text(line)

    def _blank(self) -> Iterator[Block]:
        # An item may go on behind a blank line; the next one tells.
        if self._inset and self._lines:
            self._lines.append("")
            return
        yield from self._close()
        self._is_spaced = True

    def _text(self, line: str) -> Iterator[Block]:
        is_inside = bool(self._inset) and len(line) - len(line.lstrip()) >= 2
        item = _ITEM.match(line)
        if item is not None and self._is_new_item(item, line):
            yield from self._close()
            self._inset = len(item[1])
        elif not is_inside and (_begins_anew(line) or self._lines[-1:] == [""]):
            yield from self._close()
        self._lines.append(line)
        if (found := _FENCE.match(line)) is not None:
            self._fence, self._opening = found[1], line
        elif _HEADING.match(line) and not self._inset:
            yield from self._close()

    def _is_new_item(self, item: re.Match[str], line: str) -> bool:
        if self._inset:
            return len(line) - len(line.lstrip()) < self._inset
        # Inside of a paragraph a year at the beginning of a line is no list.
        return not self._lines or item[2] in (None, "1")

    def _close(self) -> Iterator[Block]:
        lines, is_item = self._lines, bool(self._inset)
        self._lines, self._inset = [], 0
        is_spaced = bool(lines) and not lines[-1]
        while lines and not lines[-1]:
            lines.pop()
        if lines:
            is_apart = not self._is_first and (self._is_spaced or not is_item)
            self._is_first = False
            self._is_spaced = is_spaced
            yield Block("\n".join(lines), is_apart)


def _begins_anew(line: str) -> bool:
    return bool(_HEADING.match(line) or _FENCE.match(line))


def _ends(line: str, fence: str) -> bool:
    told = line.strip()
    return len(told) >= len(fence) and not told.strip(fence[0])
