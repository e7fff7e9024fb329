"""Results as a model sees them: no bytes inside, and not longer than a model can use.

What is cut is kept whole on the session's shelf, and the cut names the handle.
"""

import asyncio
import base64
import binascii
import re
from collections.abc import Callable, Collection
from operator import is_
from typing import Any, Final

import msgspec

from holdfast.domain.messages import media_handle
from holdfast.domain.text import is_small, storable
from holdfast.engine.cancellation import finish_despite_cancel
from holdfast.ports import OutputStore

LARGEST: Final = 48 << 10
LINES_MOST: Final = 1_500
DEEPEST: Final = 64
# What a value raises that no row can hold: too deep, or made of what JSON has no word for.
UNSHOWABLE: Final = (RecursionError, TypeError, ValueError, OverflowError, msgspec.MsgspecError)

# Room for the line between the halves, and no text is cut to less than can be read.
_MARK_ROOM: Final = 256
_SHARE_SMALLEST: Final = 1_024
_MIME_LONGEST: Final = 255
_BYTES_KEYS: Final = ("data", "blob")
_PLAIN: Final = frozenset({int, float, bool, type(None)})
_DATA: Final = re.compile(
    r"data:([\w.+-]+/[\w.+-]+)(?:;[\w.+-]+=[\w.+-]+)*;base64,([A-Za-z0-9+/]{64,}={0,2})"
)


async def limit_result(result: Any, shelf: OutputStore) -> Any:
    """Return the result with its bytes on the shelf and its length bounded.

    Raises one of `UNSHOWABLE` for what cannot be written down at all.
    """
    bounding = _Bounding()
    if not is_small(result):
        # What a tool has done cannot be done again to see what came of it.
        return await finish_despite_cancel(_kept(result, bounding, shelf))
    shown = bounding.shown(result)
    if bounding.has_taken:
        await finish_despite_cancel(bounding.put_on(shelf))
    return shown


async def _kept(result: Any, bounding: "_Bounding", shelf: OutputStore) -> Any:
    # Apart, because it is large: others must not wait until ten megabytes are looked through.
    shown = await asyncio.to_thread(bounding.shown, result)
    # Only now, because what cannot be encoded leaves nothing behind.
    await bounding.put_on(shelf)
    return shown


async def replace_bytes(value: Any, shelf: OutputStore | None) -> Any:
    """Return the value with inline media replaced by their handles; without a shelf as it is.

    Raises `ValueError` for what is nested too deeply.
    """
    moving = _Moving()
    moved = moving.moved(value)
    if shelf is None:
        return value
    await moving.put_on(shelf)
    return moved


class _Moving:
    """Takes the bytes out of a value, in one pass and without waiting for anybody."""

    def __init__(self, mend: Callable[[str], str] = str) -> None:
        self._mend = mend
        self._taken: dict[str, tuple[bytes, str]] = {}

    @property
    def has_taken(self) -> bool:
        """Tell whether there is something to be put anywhere."""
        return bool(self._taken)

    async def put_on(self, shelf: OutputStore) -> None:
        """Put what was taken where its handles say it is."""
        for content, mime_type in self._taken.values():
            await shelf.keep(content, mime_type=mime_type)

    def take(self, content: bytes, mime_type: str) -> str:
        """Return the handle of what is to be put on the shelf."""
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
            text = self._mend(value)
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
        return self._mend(key) if isinstance(key, str) else key

    def _without_media(self, value: dict[str, Any]) -> dict[str, Any]:
        """Return an object that carries base64 as one that carries a handle."""
        mime_type = value.get("mimeType") or value.get("mime_type") or value.get("media_type")
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


def _are_same(some: Collection[Any], others: Collection[Any]) -> bool:
    # What is the same is let go of: a second tree of that size would have the whole process wait
    # for the collection of garbage that is none.
    return len(some) == len(others) and all(map(is_, some, others))


def _decoded(data: object) -> bytes | None:
    if not isinstance(data, str):
        return None
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None


class _Bounding(_Moving):
    """Makes a result as short as a model can use it, too."""

    def __init__(self) -> None:
        super().__init__(storable)

    def shown(self, result: Any) -> Any:
        """Return the result without bytes, and cut where it is too long."""
        plain = self.moved(result)
        if _fits(plain):
            return plain
        if isinstance(plain, dict):
            cut = self._with_cut_texts(plain)
            if _fits(cut):
                return cut
        return self._cut(_text(plain), LARGEST, LINES_MOST)

    def _with_cut_texts(self, result: dict[str, Any]) -> dict[str, Any]:
        """Cut the long texts of a result, each to its share, so that its other fields stay."""
        texts = {key: inner for key, inner in result.items() if isinstance(inner, str)}
        rest = {key: "" if key in texts else inner for key, inner in result.items()}
        # Without a text the rest is all of it, which does not fit.
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
        """Return the first and the last half, and between them what is missing and where it is."""
        whole = text.encode()
        size, lines = max(largest - _MARK_ROOM, 0) // 2, max(lines_most - 1, 0) // 2
        head = _first(text[:size], size, lines)
        tail = _first(text[: -size - 1 : -1], size, lines)[::-1]
        omitted = len(whole) - len(head.encode()) - len(tail.encode())
        handle = self.take(whole, "text/plain")
        mark = f"[… {omitted} bytes omitted; read_output reads them from {handle} …]"
        return f"{head}\n{mark}\n{tail}"


def _weight(text: str) -> float:
    """Return how much longer a text is inside JSON, where a line's end takes two characters."""
    return _size([text]) / max(len(text.encode()), 1)


def _first(text: str, largest: int, lines_most: int) -> str:
    """Return the beginning of a text, cut at a character."""
    lines = text.split("\n", lines_most)[:lines_most]
    return "\n".join(lines).encode()[:largest].decode(errors="ignore")


def _fits(value: Any) -> bool:
    # By the longest text first: to write down what is far too long would take long, too.
    texts = value.values() if isinstance(value, dict) else (value,)
    if any(isinstance(text, str) and len(text) > LARGEST for text in texts):
        return False
    return _size(value) <= LARGEST and _lines(value) <= LINES_MOST


def _size(value: Any) -> int:
    return len(_text(value).encode())


def _lines(value: Any) -> int:
    """Return how many lines the texts of a value have, wherever they stand in it."""
    if isinstance(value, str):
        return value.count("\n") + 1
    inner = value.values() if isinstance(value, dict) else value
    return sum(map(_lines, inner)) if isinstance(value, dict | list) else 0


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
