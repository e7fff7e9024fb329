"""Blocks of Markdown as a terminal shows them, in our own colours and in no others.

Nothing is left out: what looks like HTML is text here. Links and pictures are written out, because
an address behind a word could lead anywhere.
"""

import io
import os
import re
from typing import Any, Final

from holdfast.cli.live.elements import drawing_of
from holdfast.cli.terminal import clean

_PADDING: Final = re.compile(r" +((?:\x1b\[[0-9;]*m)*)$", re.MULTILINE)
_STYLE: Final = re.compile(r"\x1b\[[0-9;]*m")
# A background of its own would be a hole in a light terminal.
_STYLES: Final = {"markdown.code": "bold cyan", "markdown.code_block": "cyan"}
# Less than this nothing fits into.
NARROWEST: Final = 10


def painted(markdown: str, width: int) -> str:
    """Return a block in colours, as lines of at most so many columns, each with its end."""
    drawn = drawing_of(clean(markdown))
    return "".join(f"{line}\n" for line in _printed(drawn, width))


def wrapped(text: str, width: int, style: str = "") -> list[str]:
    """Return plain text as lines of at most so many columns, each in a style of its own."""
    from rich.text import Text

    # A tab would count as one column and be shown as eight.
    told = Text(clean(text).expandtabs(4), style=style)
    return _printed(told, width) or [""]


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
