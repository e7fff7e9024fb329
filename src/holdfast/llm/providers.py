"""The providers by name: where they answer, whose key they take, which package speaks to them.

A table and how to look into it; nothing here imports a vendor's package or reads the environment.
"""

import difflib
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

# The kind of a provider that speaks as OpenAI does and for which pydantic-ai has no class.
COMPATIBLE: Final = "compatible"


class Provider(Struct, frozen=True, kw_only=True):
    """One provider.

    `kind` is the name under which pydantic-ai knows the classes to build, `key` the provider whose
    key is used, `extra` what has to be installed.
    """

    name: str
    key: str
    key_variable: str
    kind: str
    needs_key: bool = True
    # None: there is no address that is right for everybody, so one has to be set.
    base_url: str | None
    base_url_variable: str | None = None
    # What a base URL out of the variable still lacks.
    base_url_ending: str = ""
    extra: str = "openai"
    priced_as: str
    # Whether the output limit is the older `max_tokens`: where it is, a newer field is ignored.
    takes_max_tokens: bool = False


# Those that know, and mostly want, `max_completion_tokens` in the place of `max_tokens`.
_NEWER: Final = frozenset({"openai", "azure", "cerebras", "groq", "meta", "xai"})


def _compatible(name: str, base_url: str | None, **others: Any) -> Provider:
    """Return a provider that speaks as OpenAI does, with what else differs from the usual."""
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

# By the provider whose key it is: the variable that people have set for their other programs.
KEY_VARIABLES: Final[Mapping[str, str]] = {each.key: each.key_variable for each in _TABLE}


def base_urls(environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the base URLs that an environment sets, by provider."""
    found = {}
    for provider in _TABLE:
        if address := environment.get(provider.base_url_variable or "", "").strip():
            ending = provider.base_url_ending
            found[provider.name] = f"{address.rstrip('/').removesuffix(ending)}{ending}"
    return found


def nearest(name: str, known: tuple[str, ...]) -> str | None:
    """Return the known name that looks most like the given one, if any does."""
    close = difflib.get_close_matches(name.lower(), known, n=1)
    return close[0] if close else None
