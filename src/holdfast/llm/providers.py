"""Table of providers: base URL, key, protocol, accepted media, maximum output."""

import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.models import MediaLimits, Model
from holdfast.domain.text import did_you_mean

# Kind of OpenAI-compatible providers for which pydantic-ai has no class.
COMPATIBLE: Final = "compatible"


class Provider(Struct, frozen=True, kw_only=True):
    """One provider.

    `kind` is pydantic-ai's name for the provider class, `key` the provider whose key is used,
    `extra` the package extra to install.
    """

    name: str
    key: str
    key_variable: str
    kind: str
    needs_key: bool = True
    # None if there is no default address, so that one must be configured.
    base_url: str | None
    base_url_variable: str | None = None
    # Suffix to append to a base URL from the variable.
    base_url_ending: str = ""
    extra: str = "openai"
    priced_as: str
    # Whether the output limit is the older `max_tokens`; such providers ignore the newer field.
    takes_max_tokens: bool = False


# Providers that accept, and mostly require, `max_completion_tokens` instead of `max_tokens`.
_NEWER: Final = frozenset({"openai", "azure", "cerebras", "groq", "meta", "xai"})


def _compatible(name: str, base_url: str | None, **others: Any) -> Provider:
    """Return an OpenAI-compatible provider with some fields overridden."""
    usual = Provider(
        name=name,
        key=name,
        key_variable=f"{name.upper()}_API_KEY",
        kind=name,
        base_url=base_url,
        priced_as=name,
        takes_max_tokens=name not in _NEWER,
    )
    return replace(usual, **others)


_OPENAI: Final = _compatible(
    "openai",
    "https://api.openai.com/v1",
    kind="openai-chat",
    base_url_variable="OPENAI_BASE_URL",
)
_GOOGLE: Final = Provider(
    name="google",
    key="google",
    key_variable="GEMINI_API_KEY",
    kind="google",
    base_url="https://generativelanguage.googleapis.com",
    base_url_variable="GOOGLE_GEMINI_BASE_URL",
    extra="google",
    priced_as="google",
)
_TABLE: Final = (
    _OPENAI,
    replace(_OPENAI, name="openai-responses", kind="openai-responses"),
    Provider(
        name="anthropic",
        key="anthropic",
        key_variable="ANTHROPIC_API_KEY",
        kind="anthropic",
        base_url="https://api.anthropic.com",
        base_url_variable="ANTHROPIC_BASE_URL",
        extra="anthropic",
        priced_as="anthropic",
    ),
    _GOOGLE,
    _compatible("alibaba", "https://dashscope-intl.aliyuncs.com/compatible-mode/v1"),
    _compatible(
        "azure",
        None,
        key_variable="AZURE_OPENAI_API_KEY",
        base_url_variable="AZURE_OPENAI_ENDPOINT",
        base_url_ending="/openai/v1",
    ),
    _compatible("cerebras", "https://api.cerebras.ai/v1"),
    _compatible("deepseek", "https://api.deepseek.com"),
    _compatible("fireworks", "https://api.fireworks.ai/inference/v1"),
    _compatible("groq", "https://api.groq.com/openai/v1", kind=COMPATIBLE),
    _compatible("meta", "https://api.meta.ai/v1"),
    _compatible(
        "moonshotai", "https://api.moonshot.ai/v1", base_url_variable="MOONSHOTAI_BASE_URL"
    ),
    _compatible("nebius", "https://api.studio.nebius.com/v1"),
    _compatible(
        "ollama",
        "http://localhost:11434/v1",
        base_url_variable="OLLAMA_BASE_URL",
        needs_key=False,
    ),
    _compatible("openrouter", "https://openrouter.ai/api/v1"),
    _compatible("ovhcloud", "https://oai.endpoints.kepler.ai.cloud.ovh.net/v1"),
    _compatible("sambanova", "https://api.sambanova.ai/v1", base_url_variable="SAMBANOVA_BASE_URL"),
    _compatible("together", "https://api.together.xyz/v1"),
    _compatible(
        "vercel", "https://ai-gateway.vercel.sh/v1", key_variable="VERCEL_AI_GATEWAY_API_KEY"
    ),
    _compatible(
        "vllm", "http://localhost:8000/v1", base_url_variable="VLLM_BASE_URL", needs_key=False
    ),
    _compatible("xai", "https://api.x.ai/v1", kind=COMPATIBLE, priced_as="x-ai"),
    _compatible("zai", "https://api.z.ai/api/paas/v4"),
)
PROVIDERS: Final[Mapping[str, Provider]] = {each.name: each for each in _TABLE} | {
    "gemini": _GOOGLE
}
# Providers that need no network.
BUILT_IN: Final = ("offline", "scripted")
# By key provider: the conventional environment variable of its key.
KEY_VARIABLES: Final[Mapping[str, str]] = {each.key: each.key_variable for each in _TABLE}


# By extra: the vendor's package.
_PACKAGES: Final = {"openai": "openai", "anthropic": "anthropic", "google": "google.genai"}


def missing_extra(name: str) -> str | None:
    """Return the extra that must be installed for a provider; `None` if nothing is missing."""
    extra = PROVIDERS[name].extra if name in PROVIDERS else None
    if extra is None or all(map(_is_installed, ("pydantic_ai", _PACKAGES[extra]))):
        return None
    return extra


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    # The package that it would be in is not there.
    except ModuleNotFoundError:
        return False


def base_urls(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the base URLs set in an environment, by provider."""
    found = {}
    for provider in _TABLE:
        if address := environment.get(provider.base_url_variable or "", "").strip():
            ending = provider.base_url_ending
            found[provider.name] = f"{address.rstrip('/').removesuffix(ending)}{ending}"
    return found


def provider_fault(name: str) -> str | None:
    """Return why no provider has this name; `None` if one has."""
    known = sorted({*BUILT_IN, *PROVIDERS})
    if name in known:
        return None
    # The name is not repeated, because a mistyped model may be a key pasted by accident.
    hint = did_you_mean(name.lower(), known)
    return f"The model's provider is unknown{hint}; the providers are {', '.join(known)}."


_MIB: Final = 1 << 20
# Above this count, some providers require smaller images.
_MOST: Final = 20


class _ModelFamily(Struct, frozen=True):
    """Models that match a name pattern, and their media limits."""

    names: str
    intake: MediaLimits


def _family(names: str, total: int, **largest: int) -> _ModelFamily:
    """Return a family; `largest` limits each kind of media, in bytes."""
    types = {each: size for kind, size in largest.items() for each in _KINDS[kind]}
    return _ModelFamily(names, MediaLimits(types=types, most=_MOST, total=total))


_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "pictures": ("image/png", "image/jpeg", "image/gif", "image/webp"),
    "still": ("image/png", "image/jpeg", "image/webp", "image/heic", "image/heif"),
    "documents": ("application/pdf",),
    "texts": ("text/plain",),
    "speech": ("audio/wav", "audio/mpeg"),
    "sounds": ("audio/wav", "audio/mpeg", "audio/aac", "audio/ogg", "audio/flac", "audio/aiff"),
    "films": ("video/mp4", "video/mpeg", "video/quicktime", "video/webm"),
}
_OPENAI_FAMILIES: Final = (
    # Audio models do not accept images, and search models accept only text.
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
_BY_KIND: Final[Mapping[str, tuple[_ModelFamily, ...]]] = {
    "anthropic": (
        _family(
            r"claude-(?!2|instant)",
            20 * _MIB,
            # The limit is five MiB of base64.
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
    "openai-chat": _OPENAI_FAMILIES,
    "openai-responses": _OPENAI_FAMILIES[1:],
}
# Models on other providers: images at most, matched by the original model name.
_OTHER_FAMILIES: Final = (
    _family(r"(.*/)?(o1|o3)-(mini|preview)|.*(audio|realtime|embedding)", 0),
    _family(
        r"(.*/)?(gpt-(4o|4\.1|5)|o3|o4|claude-(?!2|instant)|gemini-|grok-4|llama-?4|pixtral|llava|"
        r"bakllava|moondream|minicpm-v|internvl|gemma-?3(?!.*1b))|.*(vision|[-\d.]vl\b)",
        10 * _MIB,
        pictures=5 * _MIB * 3 // 4,
    ),
)


def media_limits_of(model: Model) -> MediaLimits | None:
    """Return the media that a model accepts; None if it is not known to accept any."""
    provider = PROVIDERS.get(model.provider)
    if provider is None:
        return None
    for family in _BY_KIND.get(provider.kind, _OTHER_FAMILIES):
        # Not compiled in advance, because opening a store imports this module.
        if re.match(family.names, model.name.lower()):
            return family.intake if family.intake.types else None
    return None


_OPENAI_OUTPUTS: Final = (
    (r"gpt-3\.5|gpt-4-(turbo|vision|1106|0125)|gpt-4o-2024-05-13", 4_096),
    (r"(chat)?gpt-4o|gpt-4\.5|gpt-5[^/]*-chat", 16_384),
    (r"gpt-4\.1", 32_768),
    (r"gpt-4", 8_192),
    (r"gpt-5", 128_000),
    (r"o1-preview", 32_768),
    (r"o1-mini", 65_536),
    (r"o[134]|codex-mini", 100_000),
)
_OUTPUTS_BY_KIND: Final[Mapping[str, tuple[tuple[str, int], ...]]] = {
    "anthropic": (
        (r"claude-(2|instant|3-(opus|sonnet|haiku))", 4_096),
        (r"claude-3-5", 8_192),
        (r"claude-opus-4(-[01])?(-20\d{6})?$", 32_000),
        (r"claude-", 64_000),
    ),
    "google": ((r"gemini-(1|2\.0)", 8_192), (r"gemini-", 65_536)),
    "openai-chat": _OPENAI_OUTPUTS,
    "openai-responses": _OPENAI_OUTPUTS,
}


def max_output_of(model: Model) -> int | None:
    """Return the maximum output tokens; None for a model that is not in the table."""
    provider = PROVIDERS.get(model.provider)
    families = _OUTPUTS_BY_KIND.get(provider.kind, ()) if provider else ()
    for names, most in families:
        if re.match(names, model.name.lower()):
            return most
    return None
