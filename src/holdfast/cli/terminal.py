"""The terminal: whether a stream is one, its colours and its size.

Text for people is cleaned by `clean` of `domain/text.py`.
"""

import os
import shutil
import sys
from typing import Final, TextIO

_DEFAULT_SIZE: Final = os.terminal_size((80, 24))


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether the stream is a terminal; a stream closed at the start is None."""
    return stream is not None and not stream.closed and stream.isatty()


def is_colored(stream: TextIO, when: str) -> bool:
    """Return whether colours may be used: always, never, or on a terminal that has them."""
    if when != "auto":
        return when == "always"
    # Set but empty does not count, by the convention of no-color.org.
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return is_terminal(stream) and not plain


def can_redraw(stream: TextIO | None) -> bool:
    """Return whether output can be redrawn: a terminal that can move its cursor."""
    return is_terminal(stream) and os.environ.get("TERM", "dumb") not in {"dumb", "unknown", ""}


def size_of_screen() -> os.terminal_size:
    """Return the columns and rows of the terminal; read each time, because it may be resized."""
    try:
        found = os.get_terminal_size(sys.__stdout__.fileno()) if sys.__stdout__ else _DEFAULT_SIZE
    except (OSError, ValueError):
        found = shutil.get_terminal_size(_DEFAULT_SIZE)
    # A terminal whose size was never set reports 0 by 0.
    return found if all(found) else _DEFAULT_SIZE
