"""Upper bounds of the tokens that providers count for pictures, documents and sound."""

import re
from math import ceil
from typing import Final

from holdfast.domain.models import Model
from holdfast.ports.llm import LlmMedia

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
