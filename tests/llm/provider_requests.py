"""Asking a provider of our own over a real socket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.domain.secrets import Secret
from holdfast.llm.provider_models import LlmTimeouts, ProviderModels
from holdfast.ports.llm import LlmDelta, LlmRequest
from tests.llm.builders import a_request, heard, said
from tests.llm.dialects import Dialect
from tests.llm.fake_providers import FakeProvider, Reply

KEY = "sk-canary-of-the-key-0123456789"


async def a_key(_: str) -> Secret | None:
    """Look up a key that every provider takes."""
    return Secret(KEY)


@asynccontextmanager
async def asking(
    fake: FakeProvider, dialect: Dialect, *, llm_timeouts: LlmTimeouts | None = None
) -> AsyncIterator[ProviderModels]:
    """Open the vendors with the provider at the address of ours."""
    vendors = ProviderModels(
        a_key, {dialect.provider: fake.url + dialect.prefix}, llm_timeouts=llm_timeouts
    )
    try:
        yield vendors
    finally:
        await vendors.aclose()


async def answer(
    fake: FakeProvider, dialect: Dialect, reply: Reply, request: LlmRequest | None = None
) -> list[LlmDelta]:
    """Ask once and hear what comes of the reply."""
    fake.replies.append(reply)
    async with asking(fake, dialect) as vendors:
        return await heard(vendors, request or a_request(said("Hi"), model=dialect.model))
