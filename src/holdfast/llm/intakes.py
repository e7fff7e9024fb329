"""Which media a model reads, by provider and name: what nobody is sure of is not sent.

The bounds are those the providers publish, as bytes before the third that base64 adds.
"""

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from holdfast.domain.models import MediaLimits, Model
from holdfast.llm.providers import PROVIDERS

_MIB: Final = 1 << 20
# Beyond so many, some want every picture to be smaller.
_MOST: Final = 20


class _Family(Struct, frozen=True):
    """Models by their names."""

    names: re.Pattern[str]
    intake: MediaLimits


def _family(names: str, total: int, **largest: int) -> _Family:
    """Return a family; `largest` bounds each kind of media, in bytes."""
    types = {each: size for kind, size in largest.items() for each in _KINDS[kind]}
    return _Family(re.compile(names), MediaLimits(types=types, most=_MOST, total=total))


_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "pictures": ("image/png", "image/jpeg", "image/gif", "image/webp"),
    "still": ("image/png", "image/jpeg", "image/webp", "image/heic", "image/heif"),
    "documents": ("application/pdf",),
    "texts": ("text/plain",),
    "speech": ("audio/wav", "audio/mpeg"),
    "sounds": ("audio/wav", "audio/mpeg", "audio/aac", "audio/ogg", "audio/flac", "audio/aiff"),
    "films": ("video/mp4", "video/mpeg", "video/quicktime", "video/webm"),
}
_OPENAI: Final = (
    # Those that hear do not see, and those that are told to search take words.
    _family(r"gpt-(4o-)?audio", 20 * _MIB, speech=20 * _MIB),
    _family(r".*(audio|realtime|transcribe|tts|image|search|embedding|codex-mini)", 0),
    _family(
        r"(chat)?gpt-(4o|4\.1|4\.5|5)|o1(?!-mini|-preview)|o3(?!-mini)|o4",
        20 * _MIB,
        pictures=20 * _MIB,
        documents=20 * _MIB,
        texts=_MIB,
    ),
    _family(r"gpt-4-turbo", 20 * _MIB, pictures=20 * _MIB),
)
_BY_KIND: Final[Mapping[str, tuple[_Family, ...]]] = {
    "anthropic": (
        _family(
            r"claude-(?!2|instant)",
            20 * _MIB,
            # Five mebibytes of base64.
            pictures=5 * _MIB * 3 // 4,
            documents=20 * _MIB,
            texts=_MIB,
        ),
    ),
    "google": (
        _family(r".*(embedding|tts|live|image-generation)", 0),
        _family(
            r"gemini-",
            14 * _MIB,
            still=14 * _MIB,
            documents=14 * _MIB,
            texts=_MIB,
            sounds=14 * _MIB,
            films=14 * _MIB,
        ),
    ),
    "openai-chat": _OPENAI,
    "openai-responses": _OPENAI[1:],
}
# Served by others: pictures at most, and by the name that their makers gave them.
_ELSEWHERE: Final = (
    _family(r"(.*/)?(o1|o3)-(mini|preview)|.*(audio|realtime|embedding)", 0),
    _family(
        r"(.*/)?(gpt-(4o|4\.1|5)|o3|o4|claude-(?!2|instant)|gemini-|grok-4|llama-?4|pixtral|llava|"
        r"bakllava|moondream|minicpm-v|internvl|gemma-?3(?!.*1b))|.*(vision|[-\d.]vl\b)",
        10 * _MIB,
        pictures=5 * _MIB * 3 // 4,
    ),
)


def intake_of(model: Model) -> MediaLimits | None:
    """Return what a model takes beside words; nothing for one that is not known to take any."""
    provider = PROVIDERS.get(model.provider)
    if provider is None:
        return None
    for family in _BY_KIND.get(provider.kind, _ELSEWHERE):
        if family.names.match(model.name.lower()):
            return family.intake if family.intake.types else None
    return None
