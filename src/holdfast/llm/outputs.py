"""The most tokens that a model can write in one answer, by provider and name.

A request that allows more is refused by most providers, so a limit computed from money is held to
this. The numbers are those the providers publish; thinking is part of them.
"""

import re
from collections.abc import Mapping
from typing import Final

from holdfast.domain.models import Model
from holdfast.llm.providers import PROVIDERS

_OPENAI: Final = (
    (r"gpt-3\.5|gpt-4-(turbo|vision|1106|0125)|gpt-4o-2024-05-13", 4_096),
    (r"(chat)?gpt-4o|gpt-4\.5|gpt-5[^/]*-chat", 16_384),
    (r"gpt-4\.1", 32_768),
    (r"gpt-4", 8_192),
    (r"gpt-5", 128_000),
    (r"o1-preview", 32_768),
    (r"o1-mini", 65_536),
    (r"o[134]|codex-mini", 100_000),
)
_BY_KIND: Final[Mapping[str, tuple[tuple[str, int], ...]]] = {
    "anthropic": (
        (r"claude-(2|instant|3-(opus|sonnet|haiku))", 4_096),
        (r"claude-3-5", 8_192),
        (r"claude-opus-4(-[01])?(-20\d{6})?$", 32_000),
        (r"claude-", 64_000),
    ),
    "google": ((r"gemini-(1|2\.0)", 8_192), (r"gemini-", 65_536)),
    "openai-chat": _OPENAI,
    "openai-responses": _OPENAI,
}


def max_output_of(model: Model) -> int | None:
    """Return the most tokens of one answer; nothing for a model that is not in the table."""
    provider = PROVIDERS.get(model.provider)
    families = _BY_KIND.get(provider.kind, ()) if provider else ()
    for names, most in families:
        if re.match(names, model.name.lower()):
            return most
    return None
