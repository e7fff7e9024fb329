"""Converts content blocks of a client into message parts, and parts into blocks."""

import base64
import binascii
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.acp.server.errors import invalid_params
from holdfast.domain.messages import Media, Part, Text

Block = dict[str, Any]
# Stores content and returns its handle; returns the content of a handle.
StoreMedia = Callable[[bytes, str], Awaitable[str]]
ReadMedia = Callable[[str], Awaitable[bytes | None]]


class TextBlock(Struct, frozen=True, tag="text"):
    """Plain text."""

    text: str


class ImageBlock(Struct, frozen=True, tag="image", rename="camel"):
    """An image in base64."""

    data: str
    mime_type: str


class AudioBlock(Struct, frozen=True, tag="audio", rename="camel"):
    """Audio, which our capabilities do not offer."""

    data: str
    mime_type: str


class LinkBlock(Struct, frozen=True, tag="resource_link", rename="camel"):
    """A link to a resource."""

    uri: str
    name: str = ""


class EmbeddedResource(Struct, frozen=True, rename="camel"):
    """The content of a resource: text, or bytes in base64."""

    uri: str
    text: str | None = None
    blob: str | None = None
    mime_type: str | None = None


class ResourceBlock(Struct, frozen=True, tag="resource"):
    """A resource with its content."""

    resource: EmbeddedResource


ContentBlock = TextBlock | ImageBlock | AudioBlock | LinkBlock | ResourceBlock


async def read_parts(blocks: list[Any], keep: StoreMedia) -> tuple[Part, ...]:
    """Return the parts of a prompt."""
    try:
        given = msgspec.convert(blocks, list[ContentBlock])
    except msgspec.ValidationError as error:
        raise invalid_params(f"The prompt is not valid: {error}.") from None
    # Checked before any image is stored, so that a refused prompt leaves no media behind.
    if any(isinstance(block, AudioBlock) for block in given):
        raise invalid_params("Audio is not supported; see the capabilities.")
    return tuple([await _part(block, keep) for block in given])


async def _part(block: ContentBlock, keep: StoreMedia) -> Part:
    match block:
        case TextBlock(text=text):
            return Text(text=text)
        case ImageBlock(data=data, mime_type=kind) | AudioBlock(data=data, mime_type=kind):
            return await _media_part(data, kind, keep)
        case LinkBlock(uri=uri, name=name):
            return Text(text=f"\n[{name or uri}]({uri})\n")
        case ResourceBlock(resource=whole):
            return await _resource(whole, keep)


async def _resource(whole: EmbeddedResource, keep: StoreMedia) -> Part:
    if whole.text is not None:
        # Delimited, so that the model can distinguish the resource from the user's own text.
        return Text(text=f'\n<resource uri="{whole.uri}">\n{whole.text}\n</resource>\n')
    kind = whole.mime_type or ""
    if whole.blob is not None and kind.startswith("image/"):
        return await _media_part(whole.blob, kind, keep)
    return Text(text=f"\n[{whole.uri}]({whole.uri})\n")


async def _media_part(data: str, kind: str, keep: StoreMedia) -> Media:
    try:
        content = base64.b64decode(data, validate=True)
    except binascii.Error:
        raise invalid_params("An image is not valid base64.") from None
    return Media(mime_type=kind, ref=await keep(content, kind), byte_length=len(content))


def text_block(text: str) -> Block:
    """Return a text block."""
    return {"type": "text", "text": text}


async def content_block(part: Text | Media, read: ReadMedia) -> Block:
    """Return a part as a block; a medium that is missing or not an image becomes a link."""
    if isinstance(part, Text):
        return text_block(part.text)
    content = await read(part.ref) if part.mime_type.startswith("image/") else None
    if content is None:
        name = part.name or part.mime_type
        return {"type": "resource_link", "uri": part.ref, "name": name, "mimeType": part.mime_type}
    data = base64.b64encode(content).decode()
    return {"type": "image", "data": data, "mimeType": part.mime_type}
