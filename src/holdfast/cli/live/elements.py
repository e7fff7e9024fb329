"""The elements of Markdown as we draw them, of which nothing is left out.

What the library behind it would drop or cut is made text: pictures, titles of links, HTML, names
for addresses, and tables with more columns than there is room for.
"""

import re
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.markdown import Markdown

# Colours of the terminal's own palette: it may be light or dark.
_THEME: Final = "ansi_dark"
_SPELLED_OUT: Final = {"html_inline": "text", "softbreak": "hardbreak"}
_NAMED: Final = re.compile(r"( {0,3}(?:> ?|[-*+] +|\d{1,9}[.)] +)*)\[(?=[^\]]+\]:)")
# A column with less room than this shows no word that could be read.
_COLUMN_NARROWEST: Final = 6


def drawing_of(markdown: str) -> "Markdown":
    """Return a block of Markdown that can be printed."""
    drawn = _kinds()(_with_names(markdown), code_theme=_THEME, hyperlinks=False)
    for token in drawn.parsed:
        _spell_out(token)
    return drawn


def _with_names(markdown: str) -> str:
    """Return a block whose names for addresses are text: whoever uses them stands in another."""
    lines = markdown.split("\n")
    for number, line in enumerate(lines):
        # Only at its beginning: behind anything else they are text already.
        if not _NAMED.match(line):
            break
        lines[number] = _NAMED.sub(r"\1\\[", line)
    return "\n".join(lines)


@cache
def _kinds() -> "type[Markdown]":
    """Return Markdown as we draw it; made when it is first needed, because its library is large."""
    from rich.markdown import CodeBlock, Heading, Markdown, TableElement
    from rich.syntax import Syntax

    class Title(Heading):
        """A heading on the left, like all that is read."""

        LEVEL_ALIGN: ClassVar = {}

    class Code(CodeBlock):
        """Code that stands in a little, without a box that would be copied with it."""

        def __rich_console__(self, *_: Any) -> "Iterable[Any]":
            code = str(self.text).rstrip("\n")
            yield Syntax(code, self.lexer_name, theme=_THEME, word_wrap=True, padding=(0, 2))

    class Grid(TableElement):
        """A table whose cells are folded and never cut; lines where it is too wide for that."""

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
    """Make text of what the library would drop, and keep lines as they were written."""
    if token.type == "html_block":
        token.type, token.info = "code_block", "html"
    for child in token.children or ():
        if child.type == "image":
            _write_out(child)
        elif child.type == "link_open":
            child.attrs["href"] = _address(child, "href")
        child.type = _SPELLED_OUT.get(child.type, child.type)


def _write_out(picture: Any) -> None:
    """Make a picture text, as links are: `what it shows (address)`."""
    address = _address(picture, "src")
    picture.content = f"{picture.content} ({address})" if picture.content else address
    picture.type, picture.tag, picture.children = "text", "", None


def _address(token: Any, name: str) -> str:
    address, title = token.attrs.get(name, ""), token.attrs.get("title")
    return f'{address} "{title}"' if title else str(address)
