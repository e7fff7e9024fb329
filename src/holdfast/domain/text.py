"""Text rules: what text may contain, how untrusted text is displayed, and a size estimate of a
value.
"""

import json
import re
from typing import Any, Final

from holdfast.domain.errors import Code, Invalid


def require_text(text: str, *, field: str, longest: int, shortest: int = 0) -> str:
    """Return the text unchanged, or refuse it naming the field, never the value."""
    if not shortest <= len(text) <= longest:
        raise Invalid(
            Code.INVALID_TEXT,
            f"{field} must have {shortest} to {longest} characters, not {len(text)}.",
            {"field": field, "length": len(text)},
        )
    if "\x00" in text:
        raise Invalid(
            Code.INVALID_TEXT, f"{field} must not contain a NUL character.", {"field": field}
        )
    return require_encodable(text, field=field)


def require_encodable(text: str, *, field: str) -> str:
    """Return the text unchanged, or refuse one that has no UTF-8 form."""
    if not is_encodable(text):
        raise Invalid(
            Code.INVALID_TEXT, f"{field} must not contain a lone surrogate.", {"field": field}
        )
    return text


def is_encodable(text: str) -> bool:
    """Tell whether the text has a UTF-8 form."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def storable(text: str) -> str:
    """Replace what no row can hold: NUL, and halves of a surrogate pair that lost each other."""
    if text.isascii() and "\x00" not in text:
        return text
    # Joined first, because whoever sends it may cut between the halves of one character.
    units = text.replace("\x00", "\ufffd").encode("utf-16-le", "surrogatepass")
    return units.decode("utf-16-le", "replace")


def require_tags(tags: tuple[str, ...]) -> tuple[str, ...]:
    """Return the tags without repeats, in their order, or refuse them."""
    # In the order they were given, which is how people sort them.
    distinct = tuple(dict.fromkeys(tags))
    if len(distinct) > 50:
        raise Invalid(Code.INVALID_TEXT, "At most 50 tags.", {"field": "tags"})
    for tag in distinct:
        require_text(tag, field="tags", shortest=1, longest=64)
    return distinct


# Controls, and the marks that turn, join or hide what stands next to them.
_UNSEEN: Final = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff\ud800-\udfff]"
)


def visible(text: str) -> str:
    """Return the text with everything that hides written out; only the ends of lines stay."""
    return _escape(text.replace("\\", "\\\\"))


def quote(text: str) -> str:
    """Return a text of several lines moved in, so that none of them can pass for one of ours."""
    return "\n".join(f"  {line}" for line in visible(text).split("\n"))


def visible_json(value: Any) -> str:
    """Return a value as JSON over several lines, moved in, with everything that hides escaped."""
    text = _escape(json.dumps(value, ensure_ascii=False, indent=2))
    return "\n".join(f"  {line}" for line in text.split("\n"))


def _escape(text: str) -> str:
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


# So much is worked through in less time than it takes to have somebody else do it.
LIGHT: Final = 64 << 10
_OF_A_VALUE: Final = 16


def is_small(value: Any) -> bool:
    """Tell whether a value can be looked through at once; a heavy one is soon given up."""
    left, waiting = LIGHT, [value]
    while waiting and left > 0:
        each = waiting.pop()
        left -= _OF_A_VALUE
        if isinstance(each, str | bytes | bytearray | memoryview):
            left -= len(each)
        elif isinstance(each, dict | list | tuple):
            left -= _OF_A_VALUE * len(each)
            # What is too many is not even put down to be looked at.
            if left > 0:
                waiting += each.values() if isinstance(each, dict) else each
    return left > 0
