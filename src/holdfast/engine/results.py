"""Results as a model sees them: no bytes inside, and not longer than a model can use.

What is cut is kept whole on the session's shelf, and the cut names the handle.
"""

import base64
import binascii
import re
from typing import Any, Final

import msgspec

from holdfast.ports import Shelf

LARGEST: Final = 48 << 10
LINES_MOST: Final = 1_500
_DATA: Final = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,([A-Za-z0-9+/=]{64,})")


async def bounded(result: Any, shelf: Shelf) -> Any:
    """Return the result with its bytes on the shelf and its length bounded."""
    plain = await without_bytes(result, shelf)
    if _fits(plain):
        return plain
    if isinstance(plain, dict):
        cut = await _with_cut_texts(plain, shelf)
        if _fits(cut):
            return cut
    return await _cut(_text(plain), shelf, LARGEST, LINES_MOST)


async def without_bytes(value: Any, shelf: Shelf) -> Any:
    """Return the value with inline media replaced by their handles."""
    if isinstance(value, str):
        return await _without_data(value, shelf) if ";base64," in value else value
    if isinstance(value, dict):
        if found := await _media(value, shelf):
            return found
        return {key: await without_bytes(inner, shelf) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [await without_bytes(inner, shelf) for inner in value]
    return value


async def _media(value: dict[str, Any], shelf: Shelf) -> dict[str, Any] | None:
    """Return an object that carries base64 as one that carries a handle."""
    mime_type = value.get("mimeType") or value.get("mime_type") or value.get("media_type")
    content = _decoded(value.get("data"))
    if not isinstance(mime_type, str) or content is None:
        return None
    handle = await shelf.keep(content, mime_type=mime_type)
    kept = {key: inner for key, inner in value.items() if key != "data"}
    return {**kept, "ref": handle, "byte_length": len(content)}


async def _without_data(text: str, shelf: Shelf) -> str:
    pieces, end = [], 0
    for match in _DATA.finditer(text):
        content = _decoded(match[2])
        if content is None:
            continue
        handle = await shelf.keep(content, mime_type=match[1])
        pieces += [text[end : match.start()], handle]
        end = match.end()
    return "".join([*pieces, text[end:]])


def _decoded(data: object) -> bytes | None:
    if not isinstance(data, str):
        return None
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None


async def _with_cut_texts(result: dict[str, Any], shelf: Shelf) -> dict[str, Any]:
    """Cut the long texts of a result, each to its share, so that its other fields stay as is."""
    texts = {key: inner for key, inner in result.items() if isinstance(inner, str)}
    rest = {key: inner for key, inner in result.items() if key not in texts}
    room = LARGEST - len(_text(rest).encode())
    share = max(room // max(len(texts), 1) - 1_024, 1_024)
    lines = LINES_MOST // max(len(texts), 1)
    cut = {
        key: inner if _is_small(inner, share, lines) else await _cut(inner, shelf, share, lines)
        for key, inner in texts.items()
    }
    return {key: cut.get(key, inner) for key, inner in result.items()}


async def _cut(text: str, shelf: Shelf, largest: int, lines_most: int) -> str:
    """Return the first and the last half, and between them what is missing and where it is."""
    whole = text.encode(errors="replace")
    handle = await shelf.keep(whole)
    head = _first(text, largest // 2, lines_most // 2)
    tail = _first(text[::-1], largest // 2, lines_most // 2)[::-1]
    omitted = len(whole) - len(head.encode(errors="replace")) - len(tail.encode(errors="replace"))
    mark = f"[… {omitted} bytes omitted; read_output reads them from {handle} …]"
    return f"{head}\n{mark}\n{tail}"


def _first(text: str, largest: int, lines_most: int) -> str:
    """Return the beginning of a text, cut at a character."""
    lines = text[:largest].split("\n", lines_most)[:lines_most]
    return "\n".join(lines).encode(errors="replace")[:largest].decode(errors="ignore")


def _fits(value: Any) -> bool:
    return _is_small(_text(value), LARGEST, LINES_MOST)


def _is_small(text: str, largest: int, lines_most: int) -> bool:
    return len(text.encode(errors="replace")) <= largest and text.count("\n") < lines_most


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
