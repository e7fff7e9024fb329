"""How questions show what was not written by us: whole, and with nothing that cannot be seen."""

import json
import re
from typing import Any, Final

# Controls, and the marks that turn, join or hide what stands next to them.
_UNSEEN: Final = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff\ud800-\udfff]"
)


def visible(text: str) -> str:
    """Return the text with everything that hides written out; only the ends of lines stay."""
    return _written_out(text.replace("\\", "\\\\"))


def quoted(text: str) -> str:
    """Return a text of several lines moved in, so that none of them can pass for one of ours."""
    return "\n".join(f"  {line}" for line in visible(text).split("\n"))


def visible_json(value: Any) -> str:
    """Return a value as JSON over several lines, moved in, with everything that hides escaped."""
    text = _written_out(json.dumps(value, ensure_ascii=False, indent=2))
    return "\n".join(f"  {line}" for line in text.split("\n"))


def _written_out(text: str) -> str:
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
