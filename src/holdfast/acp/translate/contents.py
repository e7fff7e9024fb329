"""Contents that a program sends: words, media by their handles, and what a call gave back.

The bytes of media are taken out here and named by their hash; whoever writes the row first puts
them where the handles point to.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from holdfast.acp.translate.bounds import bounded
from holdfast.acp.translate.readings import fields, items, word
from holdfast.domain.messages import Media, media_handle
from holdfast.domain.text import storable

_MIME_LONGEST: Final = 255
_NAME_LONGEST: Final = 255


class Content(Struct, frozen=True, kw_only=True):
    """Bytes that have to be on the session's shelf before the row that names them is written."""

    content: bytes
    mime_type: str


class Picture(Struct, frozen=True, kw_only=True):
    """A medium as a row names it, and its bytes."""

    media: Media
    content: Content


def shown(block: object) -> str | Picture | None:
    """Return what a content block shows: words or a medium; nothing if nobody can tell."""
    found = fields(block)
    match found.get("type"):
        case "text":
            text = found.get("text")
            return text if isinstance(text, str) else None
        case "image" | "audio" as kind:
            return _picture(found.get("data"), found.get("mimeType"), kind)
        case "resource":
            return _resource(fields(found.get("resource")))
        case "resource_link":
            uri = word(found.get("uri"), longest=4_096)
            return f"[{word(found.get('name')) or uri}]({uri})" if uri else None
        case _:
            return None


def _resource(resource: Mapping[str, Any]) -> str | Picture | None:
    uri = word(resource.get("uri"), longest=4_096) or ""
    name = uri.rstrip("/").rpartition("/")[2][:_NAME_LONGEST] or None
    text = resource.get("text")
    if isinstance(text, str):
        mime_type = _mime_type(resource.get("mimeType"), "text/plain")
        return _named(storable(text).encode(), mime_type, name)
    return _picture(resource.get("blob"), resource.get("mimeType"), "resource", name)


def _picture(
    data: object, mime_type: object, kind: str, name: str | None = None
) -> str | Picture | None:
    content = _decoded(data)
    if content is None:
        # In words, so that a reader knows there was something.
        return f"[{kind} that cannot be read]"
    return _named(content, _mime_type(mime_type, "application/octet-stream"), name)


def _named(content: bytes, mime_type: str, name: str | None) -> Picture | None:
    if not content:
        return None
    media = Media(
        mime_type=mime_type, ref=media_handle(content), name=name, byte_length=len(content)
    )
    return Picture(media=media, content=Content(content=content, mime_type=mime_type))


def _mime_type(value: object, otherwise: str) -> str:
    found = word(value, longest=_MIME_LONGEST)
    return found.strip().lower() if found else otherwise


def _decoded(data: object) -> bytes | None:
    if not isinstance(data, str):
        return None
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None


class Produce(Struct, frozen=True, kw_only=True):
    """What a call gave back, apart from the program's raw output; `pictures` are still to keep."""

    text: str | None = None
    diffs: tuple[dict[str, Any], ...] = ()
    terminals: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()


def produce_of(content: object) -> Produce:
    """Return what the content of a call holds; what nobody can read is passed over."""
    texts: list[str] = []
    diffs: list[dict[str, Any]] = []
    terminals: list[str] = []
    pictures: list[Picture] = []
    for item in map(fields, items(content)):
        match item.get("type"):
            case "content":
                seen = shown(item.get("content"))
                if isinstance(seen, Picture):
                    pictures.append(seen)
                elif seen:
                    texts.append(storable(seen))
            case "diff":
                diffs.append(_diff(item))
            case "terminal":
                terminals.extend(filter(None, [word(item.get("terminalId"))]))
            case _:
                pass
    return Produce(
        text="\n".join(texts) if texts else None,
        diffs=tuple(diffs),
        terminals=tuple(terminals),
        pictures=tuple(pictures),
    )


class Edit(Struct, frozen=True, kw_only=True):
    """A change of a file as a program shows it: of the whole text, or of a piece of it.

    Without an old text there was none before.
    """

    path: str
    old: str | None = None
    new: str


def edits_of(content: object) -> tuple[Edit, ...]:
    """Return the changes that the content of a call shows; one without a path or text is none."""
    found = []
    for item in map(fields, items(content)):
        path, new, old = item.get("path"), item.get("newText"), item.get("oldText")
        if item.get("type") == "diff" and isinstance(path, str) and isinstance(new, str):
            before = storable(old) if isinstance(old, str) else None
            found.append(Edit(path=storable(path), old=before, new=storable(new)))
    return tuple(found)


def result_of(raw_output: Any, produce: Produce) -> Any:
    """Return the result of a call, not larger than a row may be.

    The raw output, or else the words; beside them what has a form of its own.
    """
    output = produce.text or raw_output if raw_output in (None, "") else raw_output
    media = [
        {"mimeType": each.mime_type, "ref": each.ref, "byte_length": each.byte_length}
        for each in (picture.media for picture in produce.pictures)
    ]
    beside = {"diffs": list(produce.diffs), "terminals": list(produce.terminals), "media": media}
    told = {name: found for name, found in beside.items() if found}
    return bounded({"output": output, **told} if told else output)


def _diff(item: Mapping[str, Any]) -> dict[str, Any]:
    texts = {"path": "path", "old_text": "oldText", "new_text": "newText"}
    found = {ours: item.get(theirs) for ours, theirs in texts.items()}
    return {name: value if isinstance(value, str) else None for name, value in found.items()}
