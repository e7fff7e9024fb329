"""Content that an agent sends: text, media, diffs; limited in size and depth for a stored row."""

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from holdfast.acp.client.lenient_json import read_list, read_object, read_word
from holdfast.acp.client.unreported_changes import texts_in
from holdfast.domain.messages import Media, media_handle
from holdfast.domain.text import storable

RESULT_LARGEST: Final = 4 << 20
DEEPEST: Final = 64
_MARK_ROOM: Final = 64
_TEXTS: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"')
_SAME: Final = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))


def limit_value(value: Any, largest: int = RESULT_LARGEST) -> Any:
    """Return a value that a row can hold; one that is too large becomes a truncated text."""
    if isinstance(value, str):
        return truncate(storable(value), largest)
    encoded = _encode(value)
    # The length is checked first, because a value that is truncated anyway needs no deeper check.
    if encoded is None or (len(encoded) <= largest and not _is_clean(encoded)):
        value = _rebuild(value, 0)
        encoded = msgspec.json.encode(value)
    return value if len(encoded) <= largest else truncate(encoded.decode(), largest)


def truncate(text: str, largest: int) -> str:
    """Return a text of at most `largest` bytes, with a marker where it was truncated."""
    # A UTF-8 character has at most 4 bytes, so most texts need not be encoded for the check.
    if 4 * len(text) <= largest:
        return text
    encoded = text.encode()
    if len(encoded) <= largest:
        return text
    head = encoded[: max(largest - _MARK_ROOM, 0)].decode(errors="ignore")
    return f"{head}\n[… {len(encoded) - len(head.encode())} bytes cut]"


def _encode(value: Any) -> bytes | None:
    try:
        return msgspec.json.encode(value)
    except (RecursionError, TypeError, ValueError, OverflowError, msgspec.MsgspecError):
        return None


def _is_clean(encoded: bytes) -> bool:
    """Return whether a value can be stored unchanged: no NUL character, not nested too deeply."""
    return b"\\u0000" not in encoded and _depth_fits(encoded)


def _depth_fits(encoded: bytes) -> bool:
    """Return whether the nesting depth is within the limit, without recursion."""
    if encoded.count(b"[") + encoded.count(b"{") <= DEEPEST:
        return True
    brackets = _TEXTS.sub(b"", encoded).translate(_SAME, _NO_BRACKETS)
    # Each pass removes the innermost pairs.
    for _ in range(DEEPEST):
        if not brackets:
            return True
        brackets = brackets.replace(b"[]", b"")
    return not brackets


def _rebuild(value: Any, depth: int) -> Any:
    if depth > DEEPEST:
        return "[nested too deeply]"
    match value:
        case str():
            return storable(value)
        case dict():
            return {storable(key): _rebuild(each, depth + 1) for key, each in value.items()}
        case list():
            return [_rebuild(each, depth + 1) for each in value]
        case _:
            return value


_MIME_LONGEST: Final = 255
_NAME_LONGEST: Final = 255


class MediaBlock(Struct, frozen=True, kw_only=True):
    """A medium as a row refers to it, and its bytes, which must be stored before the row."""

    media: Media
    content: bytes


def read_block(block: object) -> str | MediaBlock | None:
    """Return the text or medium of a content block; `None` if it is not readable."""
    found = read_object(block)
    match found.get("type"):
        case "text":
            text = found.get("text")
            return text if isinstance(text, str) else None
        case "image" | "audio" as kind:
            return _media_block(found.get("data"), found.get("mimeType"), kind)
        case "resource":
            return _resource_block(read_object(found.get("resource")))
        case "resource_link":
            uri = read_word(found.get("uri"), longest=4_096)
            return f"[{read_word(found.get('name')) or uri}]({uri})" if uri else None
        case _:
            return None


def _resource_block(resource: Mapping[str, Any]) -> str | MediaBlock | None:
    uri = read_word(resource.get("uri"), longest=4_096) or ""
    name = uri.rstrip("/").rpartition("/")[2][:_NAME_LONGEST] or None
    text = resource.get("text")
    if isinstance(text, str):
        mime_type = _mime_type(resource.get("mimeType"), "text/plain")
        return _named_media(storable(text).encode(), mime_type, name)
    return _media_block(resource.get("blob"), resource.get("mimeType"), "resource", name)


def _media_block(
    data: object, mime_type: object, kind: str, name: str | None = None
) -> str | MediaBlock | None:
    content = _decode(data)
    if content is None:
        # A placeholder text, so that a reader knows that something is missing.
        return f"[{kind} that cannot be read]"
    return _named_media(content, _mime_type(mime_type, "application/octet-stream"), name)


def _named_media(content: bytes, mime_type: str, name: str | None) -> MediaBlock | None:
    if not content:
        return None
    media = Media(
        mime_type=mime_type, ref=media_handle(content), name=name, byte_length=len(content)
    )
    return MediaBlock(media=media, content=content)


def _mime_type(value: object, otherwise: str) -> str:
    found = read_word(value, longest=_MIME_LONGEST)
    return found.strip().lower() if found else otherwise


def _decode(data: object) -> bytes | None:
    if not isinstance(data, str):
        return None
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None


_CODE_BLOCK: Final = re.compile(r"\A`{3,}\w*\n(.*?)\n?`{3,}\Z", re.DOTALL)


class ToolCallContent(Struct, frozen=True, kw_only=True):
    """The content of a call without its raw output; `pictures` are not stored yet."""

    text: str | None = None
    diffs: tuple[dict[str, Any], ...] = ()
    terminals: tuple[str, ...] = ()
    pictures: tuple[MediaBlock, ...] = ()


def read_call_content(content: object) -> ToolCallContent:
    """Parse the content of a call; ignores unreadable items."""
    texts: list[str] = []
    diffs: list[dict[str, Any]] = []
    terminals: list[str] = []
    pictures: list[MediaBlock] = []
    for item in map(read_object, read_list(content)):
        match item.get("type"):
            case "content":
                seen = read_block(item.get("content"))
                if isinstance(seen, MediaBlock):
                    pictures.append(seen)
                elif seen:
                    texts.append(storable(seen))
            case "diff":
                diffs.append(_diff(item))
            case "terminal":
                terminals.extend(filter(None, [read_word(item.get("terminalId"))]))
            case _:
                pass
    return ToolCallContent(
        text="\n".join(texts) if texts else None,
        diffs=tuple(diffs),
        terminals=tuple(terminals),
        pictures=tuple(pictures),
    )


class FileEdit(Struct, frozen=True, kw_only=True):
    """A file change as the agent shows it: of the whole text or of a part.

    `old` is `None` for a new file.
    """

    path: str
    old: str | None = None
    new: str


def read_edits(content: object) -> tuple[FileEdit, ...]:
    """Return the diffs in the content of a call; ignores those without a path or new text."""
    found = []
    for item in map(read_object, read_list(content)):
        path, new, old = item.get("path"), item.get("newText"), item.get("oldText")
        if item.get("type") == "diff" and isinstance(path, str) and isinstance(new, str):
            before = storable(old) if isinstance(old, str) else None
            found.append(FileEdit(path=storable(path), old=before, new=storable(new)))
    return tuple(found)


def call_result(raw_output: Any, produce: ToolCallContent) -> Any:
    """Return the result of a call, limited to the size of a row.

    The output is the raw output or else the text; diffs, terminals, media and a text that is not in
    the raw output are added to it.
    """
    output = produce.text or raw_output if raw_output in (None, "") else raw_output
    text = produce.text or ""
    # Some agents repeat the raw output as a Markdown code block.
    words = _CODE_BLOCK.sub(r"\1", text.strip())
    is_shown = not words or any(words in each for each in texts_in(output))
    media = [
        {"mimeType": each.mime_type, "ref": each.ref, "byte_length": each.byte_length}
        for each in (picture.media for picture in produce.pictures)
    ]
    beside: dict[str, Any] = {
        "text": None if is_shown else text,
        "diffs": list(produce.diffs),
        "terminals": list(produce.terminals),
        "media": media,
    }
    extra = {name: found for name, found in beside.items() if found}
    return limit_value({"output": output, **extra} if extra else output)


def _diff(item: Mapping[str, Any]) -> dict[str, Any]:
    texts = {"path": "path", "old_text": "oldText", "new_text": "newText"}
    found = {ours: item.get(theirs) for ours, theirs in texts.items()}
    return {name: value if isinstance(value, str) else None for name, value in found.items()}
