"""Markdown in a terminal: splits a stream into blocks, and renders them with rich."""

import io
import os
import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from holdfast.domain.text import clean

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.markdown import Markdown


_HEADING: Final = re.compile(r" {0,3}#{1,6}(?:\s|$)")
_FENCE: Final = re.compile(r"\s*(`{3,}|~{3,})")
_ITEM: Final = re.compile(r"(\s*(?:[-*+]|(\d{1,9})[.)])\s)\s*\S")


class Block(NamedTuple):
    """A Markdown block; `is_apart` is whether a blank line precedes it."""

    text: str
    is_apart: bool


class BlockSplitter:
    """Splits text that arrives in chunks of any size into blocks."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._rest = ""
        self._fence = ""
        self._opening = ""
        # Column at which the text of the open list item begins; 0 outside of a list.
        self._inset = 0
        self._is_first = True
        self._is_spaced = False

    def ending(self, lines: int, characters: int) -> str:
        """Return the incomplete block, or the end of it.

        Truncated code begins with its fence nevertheless.
        """
        found = "\n".join([*self._lines[-lines:], self._rest])
        is_cut = len(self._lines) > lines or len(found) > characters
        opening = f"{self._opening}\n" if is_cut and self._fence else ""
        return opening + found[-characters:]

    def add(self, text: str) -> list[Block]:
        """Append a chunk of text; return the blocks that it completes."""
        *lines, self._rest = (self._rest + text).split("\n")
        return [block for line in lines for block in self._take(line)]

    def finish(self) -> list[Block]:
        """Return the remaining blocks, and reset for a new text."""
        rest, self._rest = self._rest, ""
        found = [*(self._take(rest) if rest else ()), *self._close()]
        self._fence, self._inset, self._is_first, self._is_spaced = "", 0, True, False
        return found

    def _take(self, line: str) -> Iterator[Block]:
        if self._fence:
            self._lines.append(line)
            if _ends(line, self._fence):
                self._fence = ""
                # Text inside an item is part of it.
                yield from self._close() if not self._inset else ()
        elif not line.strip():
            yield from self._blank()
        else:
            yield from self._text(line)

    def _blank(self) -> Iterator[Block]:
        # An item may continue after a blank line; the next line decides.
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
        # Inside a paragraph, a number such as a year at the start of a line is not a list.
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
    content = line.strip()
    return len(content) >= len(fence) and not content.strip(fence[0])


# Colours of the terminal's own palette: it may be light or dark.
_THEME: Final = "ansi_dark"
_SPELLED_OUT: Final = {"html_inline": "text", "softbreak": "hardbreak"}
_NAMED: Final = re.compile(r"( {0,3}(?:> ?|[-*+] +|\d{1,9}[.)] +)*)\[(?=[^\]]+\]:)")
# A narrower column could not show a readable word.
_COLUMN_NARROWEST: Final = 6


def render_block(markdown: str) -> "Markdown":
    """Return a Markdown block as a printable object."""
    drawn = _kinds()(_escape_definitions(markdown), code_theme=_THEME, hyperlinks=False)
    for token in drawn.parsed:
        _spell_out(token)
    return drawn


def _escape_definitions(markdown: str) -> str:
    """Escape link definitions, because the links that use them are in other blocks."""
    lines = markdown.split("\n")
    for number, line in enumerate(lines):
        # Only at the start of a block: elsewhere they are text already.
        if not _NAMED.match(line):
            break
        lines[number] = _NAMED.sub(r"\1\\[", line)
    return "\n".join(lines)


@cache
def _kinds() -> "type[Markdown]":
    """Return our Markdown class; created on first use, because importing rich is slow."""
    from rich.markdown import CodeBlock, Heading, Markdown, TableElement
    from rich.syntax import Syntax

    class Title(Heading):
        """A left-aligned heading."""

        LEVEL_ALIGN: ClassVar = {}

    class Code(CodeBlock):
        """Indented code without a box, which would be copied with it."""

        def __rich_console__(self, *_: Any) -> "Iterable[Any]":
            code = str(self.text).rstrip("\n")
            yield Syntax(code, self.lexer_name, theme=_THEME, word_wrap=True, padding=(0, 2))

    class Grid(TableElement):
        """A table whose cells are wrapped and never cut; printed as lines if it is too wide."""

        def __rich_console__(self, console: Any, options: Any) -> "Iterable[Any]":
            for table in super().__rich_console__(console, options):
                columns: list[Any] = getattr(table, "columns", [])
                if len(columns) * _COLUMN_NARROWEST > options.max_width:
                    yield from _as_lines(self)
                    return
                for column in columns:
                    column.overflow = "fold"
                yield table

    class Drawn(Markdown):
        elements: ClassVar = {
            **Markdown.elements,
            "heading_open": Title,
            "fence": Code,
            "code_block": Code,
            "table_open": Grid,
        }

    return Drawn


def _as_lines(table: Any) -> "Iterable[Any]":
    from rich.text import Text

    rows = [table.header.row, *(table.body.rows if table.body else ())]
    for row in rows:
        yield Text(" | ").join(cell.content for cell in row.cells)


def _spell_out(token: Any) -> None:
    """Convert tokens that rich would drop to text, and preserve line breaks."""
    if token.type == "html_block":
        token.type, token.info = "code_block", "html"
    for child in token.children or ():
        if child.type == "image":
            _write_out(child)
        elif child.type == "link_open":
            child.attrs["href"] = _address(child, "href")
        child.type = _SPELLED_OUT.get(child.type, child.type)


def _write_out(picture: Any) -> None:
    """Convert an image to text, as links are: `description (URL)`."""
    address = _address(picture, "src")
    picture.content = f"{picture.content} ({address})" if picture.content else address
    picture.type, picture.tag, picture.children = "text", "", None


def _address(token: Any, name: str) -> str:
    address, title = token.attrs.get(name, ""), token.attrs.get("title")
    return f'{address} "{title}"' if title else str(address)


_PADDING: Final = re.compile(r" +((?:\x1b\[[0-9;]*m)*)$", re.MULTILINE)
_STYLE: Final = re.compile(r"\x1b\[[0-9;]*m")
# A background colour would look wrong in a light terminal.
_STYLES: Final = {"markdown.code": "bold cyan", "markdown.code_block": "cyan"}
# Nothing fits into fewer columns.
NARROWEST: Final = 10


def render_markdown(markdown: str, width: int) -> str:
    """Return a rendered block as lines of at most `width` columns, each with its line end."""
    drawn = render_block(clean(markdown))
    return "".join(f"{line}\n" for line in _print_lines(drawn, width))


def wrap_text(text: str, width: int, style: str = "") -> list[str]:
    """Return plain text as lines of at most `width` columns, each styled separately."""
    from rich.text import Text

    # rich counts a tab as one column, but a terminal shows up to eight.
    content = Text(clean(text).expandtabs(4), style=style)
    return _print_lines(content, width) or [""]


def _print_lines(thing: Any, width: int) -> list[str]:
    """Return the printed lines of an object, without trailing padding."""
    from rich.console import Console
    from rich.theme import Theme

    stream = io.StringIO()
    console = Console(
        file=stream,
        theme=Theme(_STYLES),
        width=max(width, NARROWEST),
        force_terminal=True,
        # Colours are chosen by TERM and COLORTERM, because the output here is a string buffer.
        _environ={name: os.environ.get(name, "") for name in ("TERM", "COLORTERM")},
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    console.print(thing)
    lines = _PADDING.sub(r"\1", stream.getvalue()).split("\n")
    seen = [number for number, line in enumerate(lines) if _STYLE.sub("", line)]
    return lines[seen[0] : seen[-1] + 1] if seen else []
