"""Content blocks of a client, made parts of a message, and parts made blocks again."""

import base64
import binascii
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.acp.server.errors import invalid_params
from holdfast.domain.messages import Media, Part, Text

Block = dict[str, Any]
# Stores a content and returns its handle, or gives back the one that is stored under a handle.
StoreMedia = Callable[[bytes, str], Awaitable[str]]
ReadMedia = Callable[[str], Awaitable[bytes | None]]


class TextBlock(Struct, frozen=True, tag="text"):
    """Words."""

    text: str


class ImageBlock(Struct, frozen=True, tag="image", rename="camel"):
    """A picture in base64."""

    data: str
    mime_type: str


class AudioBlock(Struct, frozen=True, tag="audio", rename="camel"):
    """A sound, which we have not offered to take."""

    data: str
    mime_type: str


class LinkBlock(Struct, frozen=True, tag="resource_link", rename="camel"):
    """Something that can be read elsewhere."""

    uri: str
    name: str = ""


class EmbeddedResource(Struct, frozen=True, rename="camel"):
    """Something with what is in it: words, or bytes in base64."""

    uri: str
    text: str | None = None
    blob: str | None = None
    mime_type: str | None = None


class ResourceBlock(Struct, frozen=True, tag="resource"):
    """Something that is given whole."""

    resource: EmbeddedResource


ContentBlock = TextBlock | ImageBlock | AudioBlock | LinkBlock | ResourceBlock


async def read_parts(blocks: list[Any], keep: StoreMedia | None) -> tuple[Part, ...]:
    """Return the parts of a prompt; without `keep`, pictures are refused."""
    try:
        given = msgspec.convert(blocks, list[ContentBlock])
    except msgspec.ValidationError as error:
        raise invalid_params(f"The prompt is not valid: {error}.") from None
    # A picture that cannot be kept must not leave the ones before it behind.
    for block in given:
        if isinstance(block, AudioBlock):
            raise invalid_params("Sound is not understood; the capabilities say so.")
    return tuple([await _part(block, keep) for block in given if not isinstance(block, AudioBlock)])


async def _part(
    block: TextBlock | ImageBlock | LinkBlock | ResourceBlock, keep: StoreMedia | None
) -> Part:
    match block:
        case TextBlock(text=text):
            return Text(text=text)
        case ImageBlock(data=data, mime_type=kind):
            return await _media_part(data, kind, keep)
        case LinkBlock(uri=uri, name=name):
            return Text(text=f"\n[{name or uri}]({uri})\n")
        case ResourceBlock(resource=whole):
            return await _resource(whole, keep)


async def _resource(whole: EmbeddedResource, keep: StoreMedia | None) -> Part:
    if whole.text is not None:
        # Told apart from what the person says, by words that no file has to end with.
        return Text(text=f'\n<resource uri="{whole.uri}">\n{whole.text}\n</resource>\n')
    kind = whole.mime_type or ""
    if whole.blob is not None and kind.startswith("image/") and keep is not None:
        return await _media_part(whole.blob, kind, keep)
    return Text(text=f"\n[{whole.uri}]({whole.uri})\n")


async def _media_part(data: str, kind: str, keep: StoreMedia | None) -> Media:
    if keep is None:
        raise invalid_params("Pictures cannot be sent here; the capabilities say so.")
    try:
        content = base64.b64decode(data, validate=True)
    except binascii.Error:
        raise invalid_params("A picture is not valid base64.") from None
    return Media(mime_type=kind, ref=await keep(content, kind), byte_length=len(content))


def text_block(text: str) -> Block:
    """Return words as a block."""
    return {"type": "text", "text": text}


async def content_block(part: Text | Media, read: ReadMedia) -> Block:
    """Return a part of a message as a block; of what is no picture, or is gone, only the name."""
    if isinstance(part, Text):
        return text_block(part.text)
    content = await read(part.ref) if part.mime_type.startswith("image/") else None
    if content is None:
        name = part.name or part.mime_type
        return {"type": "resource_link", "uri": part.ref, "name": name, "mimeType": part.mime_type}
    data = base64.b64encode(content).decode()
    return {"type": "image", "data": data, "mimeType": part.mime_type}
