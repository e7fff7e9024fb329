"""The table of providers: complete, and true to the packages that speak to them."""

import pytest

from holdfast.llm.providers import (
    BUILT_IN,
    COMPATIBLE,
    KEY_VARIABLES,
    PROVIDERS,
    base_urls,
    missing_extra,
    provider_fault,
)
from tests.marks import each_case

pytestmark = pytest.mark.slow

# Those whose own class wants an address, or has none that it could be compared with.
ELSEWHERE = {"azure", "ollama", "vllm", "openai-responses"}


@each_case(
    "name",
    sorted(
        name
        for name, each in PROVIDERS.items()
        if each.kind != COMPATIBLE and name not in ELSEWHERE
    ),
)
def test_a_provider_is_where_its_own_package_looks_for_it(name: str) -> None:
    from pydantic_ai.providers import infer_provider_class

    provider = PROVIDERS[name]
    kind = "openai" if provider.kind == "openai-chat" else provider.kind
    built = infer_provider_class(kind)(api_key="x")  # type: ignore[call-arg]

    assert built.base_url.rstrip("/") == provider.base_url


def test_the_variables_that_vendors_define_are_honoured() -> None:
    environment = {
        "OPENAI_BASE_URL": "http://localhost:1/v1",
        "ANTHROPIC_BASE_URL": "http://localhost:2",
        "GOOGLE_GEMINI_BASE_URL": "http://localhost:3",
        "OLLAMA_BASE_URL": " http://localhost:4/v1 ",
        "VLLM_BASE_URL": "",
    }

    assert base_urls(environment) == {
        "openai": "http://localhost:1/v1",
        "openai-responses": "http://localhost:1/v1",
        "anthropic": "http://localhost:2",
        "google": "http://localhost:3",
        "ollama": "http://localhost:4/v1",
    }


@each_case(
    "endpoint",
    [
        "https://mine.openai.azure.com",
        "https://mine.openai.azure.com/",
        "https://mine.openai.azure.com/openai/v1",
        "https://mine.openai.azure.com/openai/v1/",
    ],
)
def test_the_endpoint_of_azure_is_completed(endpoint: str) -> None:
    assert base_urls({"AZURE_OPENAI_ENDPOINT": endpoint}) == {
        "azure": "https://mine.openai.azure.com/openai/v1"
    }


def test_everybody_has_a_variable_for_the_key() -> None:
    assert KEY_VARIABLES["openai"] == "OPENAI_API_KEY"
    assert KEY_VARIABLES["anthropic"] == "ANTHROPIC_API_KEY"
    assert KEY_VARIABLES["google"] == "GEMINI_API_KEY"
    assert set(KEY_VARIABLES) == {each.key for each in PROVIDERS.values()}


def test_an_alias_is_the_provider_itself() -> None:
    assert PROVIDERS["gemini"] is PROVIDERS["google"]


@each_case(
    ("name", "hint"),
    [
        ("opnai", " (did you mean openai?)"),
        ("Groq", " (did you mean groq?)"),
        ("claude", ""),
        ("sk-0123456789abcdef", ""),
    ],
)
def test_an_unknown_provider_is_answered_with_similar_names_and_all_others(
    name: str, hint: str
) -> None:
    assert provider_fault(name) == (
        f"The model's provider is unknown{hint}; the providers are alibaba, anthropic, azure, "
        "cerebras, deepseek, fireworks, gemini, google, groq, meta, moonshotai, nebius, offline, "
        "ollama, openai, openai-responses, openrouter, ovhcloud, sambanova, scripted, together, "
        "vercel, vllm, xai, zai."
    )


@each_case("name", [*BUILT_IN, *PROVIDERS])
def test_a_provider_that_exists_has_no_fault_and_its_package_here(name: str) -> None:
    assert (provider_fault(name), missing_extra(name)) == (None, None)
