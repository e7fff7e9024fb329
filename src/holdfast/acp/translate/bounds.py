"""Values that a program sends, as a row can hold them: not too large, and nested no deeper."""

import re
from typing import Any, Final

import msgspec

from holdfast.domain.text import storable

RESULT_LARGEST: Final = 4 << 20
DEEPEST: Final = 64
_MARK_ROOM: Final = 64
_TEXTS: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"')
_SAME: Final = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))


def bounded(value: Any, largest: int = RESULT_LARGEST) -> Any:
    """Return a value as a row can hold it; one that is too large becomes a text that is cut."""
    if isinstance(value, str):
        return cut(storable(value), largest)
    encoded = _encoded(value)
    # Seen by its length first: what is cut anyway need not be looked through.
    if encoded is None or (len(encoded) <= largest and not _is_clean(encoded)):
        value = _rebuilt(value, 0)
        encoded = msgspec.json.encode(value)
    return value if len(encoded) <= largest else cut(encoded.decode(), largest)


def cut(text: str, largest: int) -> str:
    """Return a text of so many bytes at most, with a mark where it was cut."""
    # Characters first: most texts are short, and need not be encoded to see it.
    if 4 * len(text) <= largest:
        return text
    encoded = text.encode()
    if len(encoded) <= largest:
        return text
    head = encoded[: max(largest - _MARK_ROOM, 0)].decode(errors="ignore")
    return f"{head}\n[… {len(encoded) - len(head.encode())} bytes cut]"


def _encoded(value: Any) -> bytes | None:
    try:
        return msgspec.json.encode(value)
    except (RecursionError, TypeError, ValueError, OverflowError, msgspec.MsgspecError):
        return None


def _is_clean(encoded: bytes) -> bool:
    """Tell whether a value can be written down as it is."""
    return b"\\u0000" not in encoded and _depth_fits(encoded)


def _depth_fits(encoded: bytes) -> bool:
    """Tell whether a value is not nested too deeply, without walking through it."""
    if encoded.count(b"[") + encoded.count(b"{") <= DEEPEST:
        return True
    brackets = _TEXTS.sub(b"", encoded).translate(_SAME, _NO_BRACKETS)
    # Each pass takes the innermost ones away.
    for _ in range(DEEPEST):
        if not brackets:
            return True
        brackets = brackets.replace(b"[]", b"")
    return not brackets


def _rebuilt(value: Any, depth: int) -> Any:
    if depth > DEEPEST:
        return "[nested too deeply]"
    match value:
        case str():
            return storable(value)
        case dict():
            return {storable(key): _rebuilt(each, depth + 1) for key, each in value.items()}
        case list():
            return [_rebuilt(each, depth + 1) for each in value]
        case _:
            return value
