"""Terminal output: removes control sequences from foreign text (terminal escape injection).

Storage and `--json` have every character; only text shown to people is cleaned. Where a person must
approve a text, nothing is removed: `escape_hidden` shows invisible characters as codes.
"""

import os
import re
import shutil
import sys
from typing import Final, TextIO

# Complete sequences first, so that no remainder such as "[31m" is left of them.
_SEQUENCE: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)
# C0 except tab and newline, delete, C1, and bidirectional control characters.
_CONTROL: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
# Zero-width characters anywhere, and joiners next to Latin letters, which have no use there.
# Between other letters joiners are part of a script or an emoji.
_HIDDEN: Final = re.compile(
    "[\xad\u200b\u2028\u2029\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e0fff\ud800-\udfff]"
    "|(?<![^\x00-\u024f\u2000-\u206f])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\u024f\u2000-\u206f])"
)
# Also zero-width characters: they could make two different texts look the same.
_UNSEEN: Final = re.compile(
    f"{_CONTROL.pattern}|[\xad\u034f\u115f\u1160\u180b-\u180f\u200b-\u200d\u2028\u2029\u2060-\u2065"
    "\u206a-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff\ud800-\udfff]"
)

_DEFAULT_SIZE: Final = os.terminal_size((80, 24))


def clean(text: str) -> str:
    """Return the text without control sequences and invisible characters; newline and tab stay."""
    return _HIDDEN.sub("", _CONTROL.sub("", _SEQUENCE.sub("", text)))


def escape_hidden(text: str) -> str:
    """Return the text with control and invisible characters written as codes; lossless."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str, *, longest: int = 300) -> str:
    """Return the text cleaned and on one line, cut with an ellipsis."""
    collapsed = " ".join(clean(text).split())
    return collapsed if len(collapsed) <= longest else f"{collapsed[: longest - 1]}…"


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
