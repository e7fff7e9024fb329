"""Builds what speaks to a provider: pydantic-ai's model classes over one pool of connections.

A model is built for one request and forgotten with it, and so is the key it holds; only the
connections live on.
"""

import logging
import threading
import warnings
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from holdfast.domain.secrets import Secret
from holdfast.llm.exchanges import note
from holdfast.llm.providers import COMPATIBLE, Provider

if TYPE_CHECKING:
    from pydantic_ai.models import Model as VendorModel

# For providers that ask for no key: their packages insist on one.
_NO_KEY: Final = "none"
# As modules, and as the files that Python names while it compiles them.
_VENDORS: Final = r"(.*[/\\])?(pydantic_ai|openai|anthropic|google|httpx2)([./\\]|$)"
# At a finer level these write down what was said and asked, which is nobody's business.
_TALKATIVE: Final = ("openai", "anthropic", "google_genai", "httpx2", "httpcore2", "pydantic_ai")


class Patience(Struct, frozen=True, kw_only=True):
    """How many seconds to wait: for a connection, and for the next byte of an answer."""

    connect: float = 10.0
    silence: float = 120.0


class Target(Struct, frozen=True, kw_only=True):
    """Whom a request goes to."""

    provider: Provider
    name: str
    base_url: str
    key: Secret | None


class Clients:
    """The connections to all providers; opened when the first is needed."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._http: Any = None
        self._lock = threading.Lock()

    def build(self, target: Target) -> "VendorModel":
        """Return the model to ask; raises `ImportError` when its package is not installed.

        The first time this takes seconds, because the packages are large: call it in a thread.
        """
        if self._http is None:
            _hush()
        from pydantic_ai.models import infer_model

        kind = "openai-chat" if target.provider.kind == COMPATIBLE else target.provider.kind
        return infer_model(f"{kind}:{target.name}", lambda _: self._provider(target))

    async def aclose(self) -> None:
        """Close every connection; nothing is asked any more."""
        with self._lock:
            http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    def _provider(self, target: Target) -> Any:
        from pydantic_ai.providers import infer_provider_class

        kind = target.provider.kind
        reach = {
            "base_url": target.base_url,
            "api_key": target.key.reveal() if target.key else _NO_KEY,
            "http_client": self._shared(),
        }
        if target.provider.extra != "openai":
            return infer_provider_class(kind)(**reach)
        openai: Any = infer_provider_class("openai")(**reach)
        if kind == COMPATIBLE:
            from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

            return OpenAICompatibleProvider(target.provider.name, openai_client=openai.client)
        owner: Any = infer_provider_class(kind)
        return openai if owner is type(openai) else owner(openai_client=openai.client)

    def _shared(self) -> Any:
        from genai_prices.data_snapshot import get_snapshot
        from pydantic_ai.models import create_async_httpx2_client

        # The first answer would load these tables where everybody has to wait for it.
        get_snapshot()
        with self._lock:
            if self._http is None:
                wait = self._patience
                timeouts = (wait.connect, wait.silence, wait.silence, wait.connect)
                # A tuple is as good as their own class, which would be one more package to name.
                self._http = create_async_httpx2_client(timeout=timeouts)  # type: ignore[arg-type]
                self._http.event_hooks = {**self._http.event_hooks, "response": [note]}
            return self._http


def _hush() -> None:
    """Keep what vendors have to say to programmers out of the logs and off the terminal."""
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    # They warn of settings that a model ignores and of old models: nothing goes wrong by it.
    warnings.filterwarnings("ignore", module=_VENDORS)
