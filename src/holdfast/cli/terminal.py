"""What a terminal may be shown: foreign text passes `clean`, and nothing else does.

Storage and `--json` keep every character; only what a person sees is cleaned. Where somebody has
to agree to a text, nothing of it is left out: `spelled_out` shows what cannot be seen.
"""

import os
import re
import shutil
import sys
from typing import Final, TextIO

# Whole sequences first, so that no rubbish such as "[31m" is left of the usual ones.
_SEQUENCE: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-~]"
)
# C0 but tab and newline, delete, C1, and the characters that turn the reading direction.
_CONTROL: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
# What takes no room, wherever it stands; and what joins or parts letters, beside Latin ones,
# which nothing joins. Between others it belongs to how a language, or a picture, is written.
_HIDDEN: Final = re.compile(
    "[\xad\u200b\u2028\u2029\u2060-\u2065\u206a-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e0fff\ud800-\udfff]"
    "|(?<![^\x00-\u024f\u2000-\u206f])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\u024f\u2000-\u206f])"
)
# And what takes no room: it could make two different texts look the same.
_UNSEEN: Final = re.compile(
    f"{_CONTROL.pattern}|[\xad\u034f\u115f\u1160\u180b-\u180f\u200b-\u200d\u2028\u2029\u2060-\u2065"
    "\u206a-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff\ud800-\udfff]"
)

_DEFAULT_SIZE: Final = os.terminal_size((80, 24))


def clean(text: str) -> str:
    """Return the text without anything that steers a terminal or hides; newline and tab stay."""
    return _HIDDEN.sub("", _CONTROL.sub("", _SEQUENCE.sub("", text)))


def escape_hidden(text: str) -> str:
    """Return the text with everything that steers or hides written as a code; nothing is lost."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str, *, longest: int = 300) -> str:
    """Return the text clean and on one line, cut with an ellipsis."""
    collapsed = " ".join(clean(text).split())
    return collapsed if len(collapsed) <= longest else f"{collapsed[: longest - 1]}…"


def is_terminal(stream: TextIO | None) -> bool:
    """Tell whether a person sits at the stream; there is none where it was closed at the start."""
    return stream is not None and not stream.closed and stream.isatty()


def is_colored(stream: TextIO, when: str) -> bool:
    """Tell whether colours may be used: always, never, or on a terminal that has them."""
    if when != "auto":
        return when == "always"
    # Set but empty does not count, by the convention of no-color.org.
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return is_terminal(stream) and not plain


def can_redraw(stream: TextIO | None) -> bool:
    """Tell whether what is shown can be drawn anew: a terminal that can move its cursor."""
    return is_terminal(stream) and os.environ.get("TERM", "dumb") not in {"dumb", "unknown", ""}


def size_of_screen() -> os.terminal_size:
    """Return the columns and rows of the terminal; it may have been resized since."""
    try:
        found = os.get_terminal_size(sys.__stdout__.fileno()) if sys.__stdout__ else _DEFAULT_SIZE
    except (OSError, ValueError):
        found = shutil.get_terminal_size(_DEFAULT_SIZE)
    # A terminal that was told nothing about itself says that it has no room at all.
    return found if all(found) else _DEFAULT_SIZE
