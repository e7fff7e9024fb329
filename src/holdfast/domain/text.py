"""Text rules: validation, safe display of untrusted text, and a size estimate of values."""

import difflib
import json
import re
from collections.abc import Iterable
from typing import Any, Final

from holdfast.domain.errors import Code, Invalid


def require_str(value: Any, *, field: str) -> None:
    """Refuse a name or id that is not a string."""
    if not isinstance(value, str):
        raise wrong_type(value, field=field, rule=f"{field} must be a str")


def require_int(value: Any, *, field: str) -> None:
    """Refuse a value that is not an int; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(value, field=field, rule=f"{field} must be an int")


def wrong_type(value: Any, *, field: str, rule: str) -> Invalid:
    """Return the error for a value of the wrong type, which names the type and not the value."""
    return Invalid(Code.INVALID_INPUT, f"{rule}, not {type(value).__name__}.", {"field": field})


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
    """Return the text unchanged, or refuse one that cannot be encoded as UTF-8."""
    if not is_encodable(text):
        raise Invalid(
            Code.INVALID_TEXT, f"{field} must not contain a lone surrogate.", {"field": field}
        )
    return text


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return the similar names as a question in parentheses, or nothing if none is similar."""
    found = difflib.get_close_matches(name, sorted(known), n=3, cutoff=cutoff)
    return f" (did you mean {' or '.join(found)}?)" if found else ""


def is_encodable(text: str) -> bool:
    """Return whether the text can be encoded as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def storable(text: str) -> str:
    """Replace what cannot be stored: NUL and lone surrogates."""
    if text.isascii() and "\x00" not in text:
        return text
    # Join surrogate pairs first, because a sender may split a character between its halves.
    units = text.replace("\x00", "\ufffd").encode("utf-16-le", "surrogatepass")
    return units.decode("utf-16-le", "replace")


def require_tags(tags: tuple[str, ...]) -> tuple[str, ...]:
    """Return the tags without duplicates in the given order, or refuse them."""
    # Given order, because it is chosen by the user.
    distinct = tuple(dict.fromkeys(tags))
    if len(distinct) > 50:
        raise Invalid(Code.INVALID_TEXT, "There may be at most 50 tags.", {"field": "tags"})
    for tag in distinct:
        require_text(tag, field="tags", shortest=1, longest=64)
    return distinct


# Control characters, and characters that reorder, join or hide text (Trojan Source).
_INVISIBLE: Final = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff\ud800-\udfff"
)
_UNSEEN: Final = re.compile(f"[\t{_INVISIBLE}]")


def visible(text: str) -> str:
    """Return the text with hidden characters escaped; only line breaks are left as they are."""
    return _escape(text.replace("\\", "\\\\"))


def quote(text: str) -> str:
    """Return a text with every line indented, so that none can imitate Holdfast's own output."""
    return "\n".join(f"  {line}" for line in visible(text).split("\n"))


def visible_json(value: Any) -> str:
    """Return a value as indented JSON, with hidden characters escaped."""
    text = _escape(json.dumps(value, ensure_ascii=False, indent=2))
    return "\n".join(f"  {line}" for line in text.split("\n"))


def _escape(text: str) -> str:
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


# Below this size, processing in place is faster than handing over to a worker thread.
LIGHT: Final = 64 << 10
_OF_A_VALUE: Final = 16


def is_small(value: Any) -> bool:
    """Return whether a value is small enough to process in place; stops early on a large one."""
    left, waiting = LIGHT, [value]
    while waiting and left > 0:
        each = waiting.pop()
        left -= _OF_A_VALUE
        if isinstance(each, str | bytes | bytearray | memoryview):
            left -= len(each)
        elif isinstance(each, dict | list | tuple):
            left -= _OF_A_VALUE * len(each)
            # An oversized container is not even queued.
            if left > 0:
                waiting += each.values() if isinstance(each, dict) else each
    return left > 0


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
_UNPRINTED: Final = re.compile(f"[{_INVISIBLE}]")


# Against terminal escape injection. Storage and `--json` have every character; only text shown to
# people is cleaned. Where a person must approve a text, nothing is removed: `escape_hidden` shows
# invisible characters as codes.
def clean(text: str) -> str:
    """Return the text without control sequences and invisible characters; newline and tab stay."""
    return _HIDDEN.sub("", _CONTROL.sub("", _SEQUENCE.sub("", text)))


def escape_hidden(text: str) -> str:
    """Return the text with control and invisible characters written as codes; lossless."""
    return _UNPRINTED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str, *, longest: int = 300) -> str:
    """Return the text cleaned and on one line, cut with an ellipsis."""
    collapsed = " ".join(clean(text).split())
    return collapsed if len(collapsed) <= longest else f"{collapsed[: longest - 1]}…"
