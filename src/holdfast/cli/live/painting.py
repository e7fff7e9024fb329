"""Blocks of Markdown as a terminal shows them, in our own colours and in no others.

Nothing is left out: what looks like HTML is text here. Links are written out, because an address
behind a word could lead anywhere.
"""

import io
import os
import re
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Final

from holdfast.cli.terminal import clean

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.markdown import Markdown

# Colours of the terminal's own palette: it may be light or dark.
_THEME: Final = "ansi_dark"
_PADDING: Final = re.compile(r" +((?:\x1b\[[0-9;]*m)*)$", re.MULTILINE)
_STYLE: Final = re.compile(r"\x1b\[[0-9;]*m")
_SPELLED_OUT: Final = {"html_inline": "text", "softbreak": "hardbreak"}
# A background of its own would be a hole in a light terminal.
_STYLES: Final = {"markdown.code": "bold cyan", "markdown.code_block": "cyan"}
# Less than this nothing fits into.
NARROWEST: Final = 10


def painted(markdown: str, width: int) -> str:
    """Return a block in colours, as lines of at most so many columns, each with its end."""
    drawn = _kinds()(clean(markdown), code_theme=_THEME, hyperlinks=False)
    for token in drawn.parsed:
        _spell_out(token)
    return "".join(f"{line}\n" for line in _printed(drawn, width))


@cache
def _kinds() -> "type[Markdown]":
    """Return Markdown as we draw it; made when it is first needed, because its library is large."""
    from rich.markdown import CodeBlock, Heading, Markdown
    from rich.syntax import Syntax

    class Title(Heading):
        """A heading on the left, like all that is read."""

        LEVEL_ALIGN: ClassVar = {}

    class Code(CodeBlock):
        """Code that stands in a little, without a box that would be copied with it."""

        def __rich_console__(self, *_: Any) -> "Iterable[Any]":
            code = str(self.text).rstrip("\n")
            yield Syntax(code, self.lexer_name, theme=_THEME, word_wrap=True, padding=(0, 2))

    class Drawn(Markdown):
        elements: ClassVar = {
            **Markdown.elements,
            "heading_open": Title,
            "fence": Code,
            "code_block": Code,
        }

    return Drawn


def wrapped(text: str, width: int, style: str = "") -> list[str]:
    """Return plain text as lines of at most so many columns, each in a style of its own."""
    from rich.text import Text

    # A tab would count as one column and be shown as eight.
    told = Text(clean(text).expandtabs(4), style=style)
    return _printed(told, width) or [""]


def _spell_out(token: Any) -> None:
    """Make text of what the library would drop, and keep lines as they were written."""
    if token.type == "html_block":
        token.type, token.info = "code_block", "html"
    for child in token.children or ():
        child.type = _SPELLED_OUT.get(child.type, child.type)


def _printed(thing: Any, width: int) -> list[str]:
    """Return the lines of a thing, without what only fills them up."""
    from rich.console import Console
    from rich.theme import Theme

    stream = io.StringIO()
    console = Console(
        file=stream,
        theme=Theme(_STYLES),
        width=max(width, NARROWEST),
        force_terminal=True,
        # By its name only: what it is written to here is no terminal.
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
