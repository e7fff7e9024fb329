"""Limit tool results for the model: no inline bytes and a bounded length.

Cut content is stored in full in the session's output store; the cut names its handle.
"""

import asyncio
import base64
import binascii
import re
from collections.abc import Collection
from operator import is_
from typing import Any, Final

import msgspec

from holdfast.domain.messages import media_handle
from holdfast.domain.text import is_small, storable
from holdfast.engine.cancellation import finish_despite_cancel
from holdfast.ports.tools import OutputStore

LARGEST: Final = 48 << 10
LINES_MOST: Final = 1_500
DEEPEST: Final = 64
# Raised for a value that a row cannot hold: nested too deeply or not representable in JSON.
UNSHOWABLE: Final = (RecursionError, TypeError, ValueError, OverflowError, msgspec.MsgspecError)

# Space for the line between the halves; a text is never cut to an unreadable size.
_MARK_ROOM: Final = 256
_SHARE_SMALLEST: Final = 1_024
_MIME_LONGEST: Final = 255
_BYTES_KEYS: Final = ("data", "blob")
_MIME_KEYS: Final = ("mimeType", "mime_type", "media_type")
# A result with fewer characters has fewer lines and bytes than a row may have.
_PLAIN_LONGEST: Final = 1_024
_PLAIN: Final = frozenset({int, float, bool, type(None)})
_DATA: Final = re.compile(
    r"data:([\w.+-]+/[\w.+-]+)(?:;[\w.+-]+=[\w.+-]+)*;base64,([A-Za-z0-9+/]{64,}={0,2})"
)


async def limit_result(result: Any, shelf: OutputStore) -> Any:
    """Return the result with its bytes moved to the store and its length bounded.

    Raises one of `UNSHOWABLE` for a value that cannot be stored.
    """
    if _is_plain(result):
        # Refuses what cannot be encoded, such as too large a number.
        msgspec.json.encode(result)
        return result
    bounding = _Bounding()
    if not is_small(result):
        # Finishes despite cancellation: the call cannot be repeated to get its result again.
        return await finish_despite_cancel(_store_result(result, bounding, shelf))
    shown = bounding.shown(result)
    if bounding.has_taken:
        await finish_despite_cancel(bounding.put_on(shelf))
    return shown


def _is_plain(result: Any) -> bool:
    """Return whether a result is short and without bytes at first sight, as most results are."""
    waiting, left = [result], _PLAIN_LONGEST
    # Grows in the loop. Its bound also bounds the depth.
    for each in waiting:
        if isinstance(each, str):
            left -= len(each)
            if left < 0 or not each.isascii() or "\x00" in each or ";base64," in each:
                return False
        elif type(each) is dict:
            if not each.keys().isdisjoint(_MIME_KEYS):
                return False
            waiting += each
            waiting += each.values()
        elif type(each) is list:
            waiting += each
        elif type(each) not in _PLAIN:
            return False
        if len(waiting) > DEEPEST:
            return False
    return True


async def _store_result(result: Any, bounding: "_Bounding", shelf: OutputStore) -> Any:
    # In a thread, because scanning a large result would block the event loop.
    shown = await asyncio.to_thread(bounding.shown, result)
    # Stored last, so that a value that cannot be encoded leaves nothing behind.
    await bounding.put_on(shelf)
    return shown


class _Bounding:
    """Moves the bytes out of a result and limits its length, in one synchronous pass."""

    def __init__(self) -> None:
        self._taken: dict[str, tuple[bytes, str]] = {}

    @property
    def has_taken(self) -> bool:
        """Return whether there is content to store."""
        return bool(self._taken)

    async def put_on(self, shelf: OutputStore) -> None:
        """Store the content under its handles."""
        for content, mime_type in self._taken.values():
            await shelf.keep(content, mime_type=mime_type)

    def take(self, content: bytes, mime_type: str) -> str:
        """Return the handle of content that will be stored."""
        handle = media_handle(content)
        self._taken[handle] = content, mime_type[:_MIME_LONGEST]
        return handle

    def moved(self, value: Any, depth: int = 0) -> Any:
        """Return the value without bytes, and with texts that a row can hold."""
        if depth > DEEPEST:
            raise ValueError("nested too deeply")
        if type(value) in _PLAIN:
            return value
        if isinstance(value, str):
            text = storable(value)
            return _DATA.sub(self._handle_of_url, text) if ";base64," in text else text
        if isinstance(value, bytes | bytearray | memoryview):
            return self.take(bytes(value), "application/octet-stream")
        if isinstance(value, dict):
            shown = self._without_media(value)
            fields = {self._key(key): self.moved(each, depth + 1) for key, each in shown.items()}
            is_same = _are_same(fields, shown) and _are_same(fields.values(), shown.values())
            return shown if is_same else fields
        if isinstance(value, list | tuple):
            items = [self.moved(each, depth + 1) for each in value]
            return value if isinstance(value, list) and _are_same(items, value) else items
        return value

    def _key(self, key: Any) -> Any:
        return storable(key) if isinstance(key, str) else key

    def _without_media(self, value: dict[str, Any]) -> dict[str, Any]:
        """Replace base64 data in an object by a handle."""
        mime_type = next(filter(None, map(value.get, _MIME_KEYS)), None)
        if not isinstance(mime_type, str):
            return value
        for key in _BYTES_KEYS:
            content = _decoded(value.get(key))
            if content is not None:
                handle = self.take(content, storable(mime_type))
                kept = {name: inner for name, inner in value.items() if name != key}
                return {**kept, "ref": handle, "byte_length": len(content)}
        return value

    def _handle_of_url(self, url: re.Match[str]) -> str:
        content = _decoded(url[2])
        return url[0] if content is None else self.take(content, url[1])

    def shown(self, result: Any) -> Any:
        """Return the result without bytes, cut where it is too long."""
        plain = self.moved(result)
        if _fits(plain):
            return plain
        if isinstance(plain, dict):
            cut = self._with_cut_texts(plain)
            if _fits(cut):
                return cut
        return self._cut(_text(plain), LARGEST, LINES_MOST)

    def _with_cut_texts(self, result: dict[str, Any]) -> dict[str, Any]:
        """Cut the long texts of a result, each to its share, so that the other fields fit."""
        texts = {key: inner for key, inner in result.items() if isinstance(inner, str)}
        rest = {key: "" if key in texts else inner for key, inner in result.items()}
        # Without texts there is nothing to cut, and the result does not fit.
        if not texts or not _fits(rest):
            return result
        share = max((LARGEST - _size(rest)) // len(texts), _SHARE_SMALLEST)
        lines = (LINES_MOST - _lines(rest)) // len(texts)
        cut = {}
        for key, text in texts.items():
            if len(text) <= share and _size([text]) <= share and _lines(text) <= lines:
                continue
            weight = max(_weight(text[:share]), _weight(text[-share:]))
            cut[key] = self._cut(text, int(share / weight), lines)
        return {**result, **cut}

    def _cut(self, text: str, largest: int, lines_most: int) -> str:
        """Return the first and the last part, with a mark that names the omitted bytes."""
        whole = text.encode()
        size, lines = max(largest - _MARK_ROOM, 0) // 2, max(lines_most - 1, 0) // 2
        state = _first(text[:size], size, lines)
        tail = _first(text[: -size - 1 : -1], size, lines)[::-1]
        omitted = len(whole) - len(state.encode()) - len(tail.encode())
        handle = self.take(whole, "text/plain")
        mark = f"[… {omitted} bytes omitted; read_output reads them from {handle} …]"
        return f"{state}\n{mark}\n{tail}"


def _are_same(some: Collection[Any], others: Collection[Any]) -> bool:
    # Reuse unchanged values: a second tree of that size would trigger a garbage collection,
    # which pauses the whole process.
    return len(some) == len(others) and all(map(is_, some, others))


def _decoded(data: object) -> bytes | None:
    if not isinstance(data, str):
        return None
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None


def _weight(text: str) -> float:
    """Return the growth factor of a text in JSON, where a newline takes two characters."""
    return _size([text]) / max(len(text.encode()), 1)


def _first(text: str, largest: int, lines_most: int) -> str:
    """Return the beginning of a text, cut at a character boundary."""
    lines = text.split("\n", lines_most)[:lines_most]
    return "\n".join(lines).encode()[:largest].decode(errors="ignore")


def _fits(value: Any) -> bool:
    # Check text lengths first: encoding a value that is far too long is slow.
    texts = value.values() if isinstance(value, dict) else (value,)
    if any(isinstance(text, str) and len(text) > LARGEST for text in texts):
        return False
    size = _size(value)
    # Each line takes at least a byte.
    return size <= LARGEST and (size < LINES_MOST or _lines(value) <= LINES_MOST)


def _size(value: Any) -> int:
    return len(_text(value).encode())


def _lines(value: Any) -> int:
    """Return the number of lines in all texts of a value."""
    if isinstance(value, str):
        return value.count("\n") + 1
    inner = value.values() if isinstance(value, dict) else value
    return sum(map(_lines, inner)) if isinstance(value, dict | list) else 0


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
