"""Media in requests: found in rows by handle, loaded when a request is about to be sent.

Media that a model does not accept, or that exceed a limit, are described in text, so that the
conversation can continue. When not all fit, the newest are sent. Also the upper bounds of the
tokens that providers count for them.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any, Final

from msgspec.structs import replace

from holdfast.domain.errors import Internal
from holdfast.domain.messages import Media, Part, Text, media_hash
from holdfast.domain.models import MediaLimits, Model
from holdfast.ports.llm import LlmMedia, LlmMessage
from holdfast.ports.tools import OutputStore

REFUSED: Final = "the provider rejected a request with it"
_MIB: Final = 1 << 20
_IN_A_RESULT_MOST: Final = 16
_DEEPEST: Final = 64
HANDLES: Final = "media://"
_MIME_KEYS: Final = ("mimeType", "mime_type", "media_type")
# Common aliases of the registered types.
_ALIASES: Final = {"image/jpg": "image/jpeg", "audio/mp3": "audio/mpeg", "audio/x-wav": "audio/wav"}


def media_of(parts: Sequence[Part]) -> list[LlmMedia]:
    """Return the media of a row, each with its offset in the row's text."""
    found: list[LlmMedia] = []
    at = 0
    for part in parts:
        if isinstance(part, Text):
            at += len(part.text)
        elif isinstance(part, Media):
            found.append(
                LlmMedia(ref=part.ref, mime_type=_type(part.mime_type), name=part.name, at=at)
            )
    return found


def media_in(result: Any, text: str) -> tuple[LlmMedia, ...]:
    """Return the distinct media of a tool result whose text has `HANDLES`, placed after it."""
    found: dict[str, LlmMedia] = {}
    for ref, mime_type in _handles(result):
        if len(found) < _IN_A_RESULT_MOST:
            found.setdefault(ref, LlmMedia(ref=ref, mime_type=_type(mime_type), at=len(text)))
    return tuple(found.values())


def _handles(value: Any, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield handles that have a type; a bare handle may refer to any content."""
    if depth > _DEEPEST:
        return
    if isinstance(value, Mapping):
        ref = value.get("ref")
        mime_type = next((value[key] for key in _MIME_KEYS if key in value), None)
        if isinstance(ref, str) and isinstance(mime_type, str) and media_hash(ref) is not None:
            yield ref, mime_type
    inner = value.values() if isinstance(value, Mapping) else value
    if isinstance(value, Mapping | list | tuple):
        for each in inner:
            yield from _handles(each, depth + 1)


def _type(mime_type: str) -> str:
    bare = mime_type.partition(";")[0].strip().lower()
    return _ALIASES.get(bare, bare)


def describe_media(
    messages: Iterable[LlmMessage], *, why: str | None = None
) -> tuple[LlmMessage, ...]:
    """Return the messages with their media replaced by descriptions."""
    return tuple(
        _insert_descriptions(message, [_unshown(each, why) for each in message.media])
        if message.media
        else message
        for message in messages
    )


async def attach_media(
    messages: tuple[LlmMessage, ...], shelf: OutputStore | None, intake: MediaLimits | None
) -> tuple[LlmMessage, ...]:
    """Return the messages with the media that the model accepts; describes the others."""
    if shelf is None or intake is None:
        return describe_media(messages)
    fetching = _Fetching(shelf, intake)
    newest_first = [await fetching.fetched(message) for message in reversed(messages)]
    return tuple(reversed(newest_first))


class _Fetching:
    """Loads the media of one request within the limits of its model."""

    def __init__(self, shelf: OutputStore, intake: MediaLimits) -> None:
        self._shelf = shelf
        self._intake = intake
        self._count = 0
        self._size = 0

    async def fetched(self, message: LlmMessage) -> LlmMessage:
        if not message.media:
            return message
        return _insert_descriptions(message, [await self._one(each) for each in message.media])

    async def _one(self, media: LlmMedia) -> LlmMedia | str:
        """Return the media with its content, or the text that describes it."""
        largest = self._intake.types.get(media.mime_type)
        if largest is None:
            return _unshown(media)
        # Checked before reading, so that media over the limit are not loaded.
        if self._count >= self._intake.most:
            return _unshown(media, f"a request has at most {self._intake.most}, the newest")
        try:
            found = await self._shelf.read(media.ref)
        except Internal:
            return _unshown(media, "it is damaged in the store")
        if found is None:
            return _unshown(media, "the session does not have it")
        why = self._objection(found.content, media.mime_type, largest)
        if why is not None:
            return _unshown(media, why)
        self._count += 1
        self._size += len(found.content)
        return replace(media, content=found.content)

    def _objection(self, content: bytes, mime_type: str, largest: int) -> str | None:
        if len(content) > largest:
            return f"the model accepts at most {_size(largest)} of this type"
        if self._size + len(content) > self._intake.total:
            return f"a request has at most {_size(self._intake.total)}, the newest"
        # The provider would refuse this request and every later one.
        if not matches_media_type(content, mime_type):
            return f"it is not {mime_type}"
        return None


def _insert_descriptions(message: LlmMessage, shown: Sequence[LlmMedia | str]) -> LlmMessage:
    """Insert descriptions on separate lines at the media's offsets, before loaded content."""
    text, end, follows_words = "", 0, False
    kept: list[LlmMedia] = []
    for media, each in zip(message.media, shown, strict=True):
        said, end = message.text[end : media.at], media.at
        text = _on_its_line(text, said) if follows_words else text + said
        # A tool result already names its media and must stay as the tool returned it.
        words = _words(each) if message.role != "tool" else ""
        text = _on_its_line(text, words)
        follows_words = bool(words)
        if isinstance(each, LlmMedia):
            kept.append(replace(each, at=len(text)))
    said = message.text[end:]
    text = _on_its_line(text, said) if follows_words else text + said
    return replace(message, text=text, media=tuple(kept))


def _on_its_line(text: str, more: str) -> str:
    is_apart = text.endswith("\n") or more.startswith("\n")
    return f"{text}\n{more}" if text and more and not is_apart else text + more


def _words(shown: LlmMedia | str) -> str:
    if isinstance(shown, str):
        return shown
    return f"[attached: {shown.name}]" if shown.name else ""


def _unshown(media: LlmMedia, why: str | None = None) -> str:
    name = f"{media.name}, " if media.name else ""
    reason = f": {why}" if why else ""
    return f"[attached: {name}{media.mime_type}; its content is not shown{reason}]"


def _size(count: int) -> str:
    return f"{count / _MIB:.3g} MiB" if count >= _MIB else f"{count} bytes"


_LOOK: Final = 1_024


def _begins(*starts: bytes) -> Callable[[bytes], bool]:
    return lambda content: content.startswith(starts)


def _riff(kind: bytes) -> Callable[[bytes], bool]:
    return lambda content: content.startswith(b"RIFF") and content[8:12] == kind


def _boxed(content: bytes) -> bool:
    return content[4:8] == b"ftyp"


def _is_text(content: bytes) -> bool:
    try:
        words = content.decode()
    except UnicodeDecodeError:
        return False
    return bool(words.strip()) and "\x00" not in words


_LOOKS: Final[Mapping[str, Callable[[bytes], bool]]] = {
    "application/pdf": lambda content: b"%PDF-" in content[:_LOOK],
    "audio/flac": _begins(b"fLaC"),
    # An MPEG frame without an ID3 tag begins with eleven set bits.
    "audio/mpeg": _begins(b"ID3", *(bytes((0xFF, second)) for second in range(0xE0, 0x100))),
    "audio/ogg": _begins(b"OggS"),
    "audio/wav": _riff(b"WAVE"),
    "image/gif": _begins(b"GIF87a", b"GIF89a"),
    "image/heic": _boxed,
    "image/heif": _boxed,
    "image/jpeg": _begins(b"\xff\xd8\xff"),
    "image/png": _begins(b"\x89PNG\r\n\x1a\n"),
    "image/webp": _riff(b"WEBP"),
    "text/plain": _is_text,
    "video/mp4": _boxed,
}


def matches_media_type(content: bytes, mime_type: str) -> bool:
    """Return whether the content matches the type; an unknown type matches any content."""
    look = _LOOKS.get(mime_type)
    return bool(content) and (look is None or look(content))


# Anthropic counts a token for 750 pixels, and scales a picture down to 4,784 tokens.
_PIXELS_OF_ANTHROPIC: Final = 750
_MOST_OF_ANTHROPIC: Final = 5_000
# OpenAI scales a picture to at most 8 tiles (768 x 2,048 pixels in tiles of 512), at 85 tokens and
# 170 for each tile; gpt-4o-mini counts 2,833 and 5,667.
_OPENAI_TILED: Final = 85 + 8 * 170
_OPENAI_MINI: Final = 2_833 + 8 * 5_667
# Newer models of OpenAI count patches of 32 x 32 pixels, at most 10,000, at up to 2.46 tokens.
_PATCH: Final = 32
_PATCHES_MOST: Final = 10_000
_TOKENS_OF_PATCH: Final = 2.46
# Gemini counts 258 tokens for each tile; the side of a tile is two thirds of the picture's shorter
# side, from 256 to 768 pixels. Gemini 3 counts up to 2,240 for a picture of any size.
_TILE_TOKENS: Final = 258
_TILE_SIDES: Final = (256, 768)
_PICTURE_LEAST: Final = 2_240
# The models of others cut a picture into patches of at least 14 x 14 pixels.
_FINEST_PIXELS: Final = 14 * 14
# The most for a picture, also if its size cannot be read (HEIC): larger ones are scaled down or
# refused. Gemini counts 31,218 tokens for 8,000 x 8,000 pixels.
_PICTURE_MOST: Final = 50_000
# Providers count the text and a picture of each page, and both are compressed: neither bytes nor
# pages bound them. A request cannot be longer than the model's context window.
_UNKNOWN_WINDOW: Final = 1_000_000
# Gemini counts 32 tokens for a second of sound, OpenAI fewer. A second of these formats has more
# bytes than that, even of silence; one of FLAC or Ogg may have fewer.
_SOUND_BY_BYTES: Final = frozenset({"audio/wav", "audio/mpeg", "audio/aac", "audio/aiff"})
Size = tuple[int, int]


def media_tokens(model: Model, media: LlmMedia) -> int:
    """Return the maximum number of tokens that the model's provider counts for the media."""
    if media.mime_type.startswith("image/"):
        return _picture_tokens(model, picture_size(media.content))
    if media.mime_type in _SOUND_BY_BYTES or media.mime_type.startswith("text/"):
        return len(media.content)
    return model.context_window or _UNKNOWN_WINDOW


def _picture_tokens(model: Model, size: Size | None) -> int:
    if model.provider == "anthropic":
        pixels = size[0] * size[1] if size else _MOST_OF_ANTHROPIC * _PIXELS_OF_ANTHROPIC
        return min(ceil(pixels / _PIXELS_OF_ANTHROPIC) + 1, _MOST_OF_ANTHROPIC)
    # Also under the names of those that pass requests on to OpenAI.
    if "gpt-4o-mini" in model.name:
        return _OPENAI_MINI
    if size is None:
        return _PICTURE_MOST
    width, height = size
    patches = min(ceil(width / _PATCH) * ceil(height / _PATCH), _PATCHES_MOST)
    of_openai = max(_OPENAI_TILED, ceil(patches * _TOKENS_OF_PATCH))
    if model.provider.startswith("openai"):
        return of_openai
    least, most = _TILE_SIDES
    side = min(max(min(size) * 2 // 3, least), most)
    of_google = max(_PICTURE_LEAST, ceil(width / side) * ceil(height / side) * _TILE_TOKENS)
    if model.provider.startswith("google"):
        return min(of_google, _PICTURE_MOST)
    return min(max(of_openai, of_google, ceil(width * height / _FINEST_PIXELS)), _PICTURE_MOST)


def picture_size(content: bytes) -> Size | None:
    """Return width and height from the header of a PNG, GIF, JPEG or WebP; `None` if unread."""
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        found = (_big(content[16:20]), _big(content[20:24]))
    elif content.startswith((b"GIF87a", b"GIF89a")):
        found = (_little(content[6:8]), _little(content[8:10]))
    elif content.startswith(b"\xff\xd8"):
        found = _jpeg_size(content)
    elif content.startswith(b"RIFF") and content[8:12] == b"WEBP":
        found = _webp_size(content)
    else:
        found = (0, 0)
    return found if min(found) > 0 else None


# Markers of JPEG frames, which contain the size: all of C0 to CF but tables and arithmetic coding.
_FRAMES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
# Markers that are not followed by a length.
_BARE: Final = frozenset({0x01, *range(0xD0, 0xD9)})


def _jpeg_size(content: bytes) -> Size:
    at = 2
    while at + 9 <= len(content) and content[at] == 0xFF:
        marker = content[at + 1]
        if marker in _FRAMES:
            return _big(content[at + 7 : at + 9]), _big(content[at + 5 : at + 7])
        if marker == 0xFF:
            at += 1
        elif marker in _BARE:
            at += 2
        else:
            at += 2 + _big(content[at + 2 : at + 4])
    return 0, 0


_VP8: Final = re.compile(rb"VP8 .{4}.{3}\x9d\x01\x2a(.{2})(.{2})", re.DOTALL)
_VP8_SIDE: Final = 0x3FFF


def _webp_size(content: bytes) -> Size:
    match content[12:16]:
        case b"VP8X":
            return _little(content[24:27]) + 1, _little(content[27:30]) + 1
        case b"VP8L":
            bits = _little(content[21:25])
            return (bits & _VP8_SIDE) + 1, (bits >> 14 & _VP8_SIDE) + 1
        case _:
            found = _VP8.match(content, 12)
            if found is None:
                return 0, 0
            return _little(found[1]) & _VP8_SIDE, _little(found[2]) & _VP8_SIDE


def _big(content: bytes) -> int:
    return int.from_bytes(content, "big")


def _little(content: bytes) -> int:
    return int.from_bytes(content, "little")
