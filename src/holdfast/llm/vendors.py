"""The language models of all providers as one `Llm`; pydantic-ai and the vendors stay behind it."""

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from holdfast.domain.secrets import Secret
from holdfast.llm import refusals
from holdfast.llm.answers import Hearing
from holdfast.llm.aside import Aside
from holdfast.llm.clients import Clients, Patience, Target
from holdfast.llm.exchanges import held
from holdfast.llm.providers import PROVIDERS, Provider
from holdfast.llm.requests import messages_of, parameters_of, settings_of
from holdfast.ports import Failed, LlmDelta, LlmRequest

if TYPE_CHECKING:
    from pydantic_ai.models import Model as VendorModel

KeyOf = Callable[[str], Awaitable[Secret | None]]

# What keys and addresses are made of: nothing that a header or a line of a request cannot hold.
_VISIBLE: Final = re.compile(r"[!-~]+")


class Vendors:
    """Every model of every provider; a request is sent once and never again."""

    def __init__(
        self,
        key_of: KeyOf,
        base_urls: Mapping[str, str] | None = None,
        *,
        patience: Patience | None = None,
    ) -> None:
        """`key_of` looks up the key of a provider for each request; it is not kept."""
        self._key_of = key_of
        self._base_urls = dict(base_urls or {})
        self._clients = Clients(patience or Patience())
        self._aside = Aside()

    async def stream(self, request: LlmRequest) -> AsyncGenerator[LlmDelta, None]:
        """Stream the answer; closing the generator ends the request at once."""
        provider = PROVIDERS[request.model.provider]
        target = await self._target(request, provider)
        if isinstance(target, Failed):
            yield target
            return
        async with aclosing(self._aside.stream(lambda: self._asked(request, target))) as deltas:
            async for delta in deltas:
                yield delta

    async def aclose(self) -> None:
        """Close the connections to all providers."""
        await self._aside.aclose(self._clients.aclose)

    async def _target(self, request: LlmRequest, provider: Provider) -> Target | Failed:
        base_url = self._base_urls.get(provider.name, provider.base_url)
        if base_url is None:
            return refusals.no_address(provider)
        if not _is_address(base_url):
            return refusals.wrong_address(provider)
        try:
            key = await self._key_of(provider.key)
        # Not chained and not logged: what a keychain raises may hold what it keeps.
        except Exception:  # noqa: BLE001
            return refusals.no_look_up(provider)
        if key is None and provider.needs_key:
            return refusals.no_key(provider)
        # A header takes nothing else, and the error of one that is no key would quote it.
        if key is not None and not _VISIBLE.fullmatch(key.reveal()):
            return refusals.no_such_key(provider)
        return Target(provider=provider, name=request.model.name, base_url=base_url, key=key)

    async def _asked(self, request: LlmRequest, target: Target) -> AsyncGenerator[LlmDelta, None]:
        is_closing = False
        try:
            # In a thread, because what it imports the first time takes seconds.
            model = await asyncio.to_thread(self._clients.build, target)
            async with aclosing(_answered(request, target.provider, model)) as deltas:
                async for delta in deltas:
                    is_closing = True
                    yield delta
                    is_closing = False
        # An exception of a vendor quotes what it was sent and told, so none gets out.
        except Exception as error:  # noqa: BLE001
            # Who closes us hears nothing more, not even that closing went wrong.
            if not is_closing:
                yield refusals.refusal(error, target.provider)


def _is_address(base_url: str) -> bool:
    try:
        told = urlsplit(base_url)
        is_whole = told.scheme in {"http", "https"} and bool(told.hostname) and told.port != 0
    except ValueError:
        return False
    return is_whole and _VISIBLE.fullmatch(base_url) is not None


async def _answered(
    request: LlmRequest, provider: Provider, model: "VendorModel"
) -> AsyncGenerator[LlmDelta, None]:
    if request.tools and not model.profile.get("supports_tools", True):
        yield refusals.no_tools(provider)
        return
    hearing = Hearing(request)
    asked = model.request_stream(
        messages_of(request, provider, model),
        settings_of(request, provider, model),
        parameters_of(request),
    )
    async with held(asked) as response:
        # A generator, whatever its annotation says; closed by us and not when somebody finds it.
        events = cast("AsyncGenerator[Any, None]", aiter(response))
        async with aclosing(events):
            async for event in events:
                for delta in hearing.hear(event):
                    yield delta
    for delta in hearing.end(response.get()):
        yield delta
