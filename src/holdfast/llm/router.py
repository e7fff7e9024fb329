"""Routes requests to models by provider."""

from collections.abc import AsyncGenerator, Mapping
from typing import Final

from msgspec.structs import replace

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.models import OFFLINE, Model
from holdfast.domain.secrets import Secret
from holdfast.llm.offline import OfflineModel
from holdfast.llm.prices import context_window_of, prices_of
from holdfast.llm.provider_models import ProviderModels
from holdfast.llm.providers import PROVIDERS, max_output_of, media_limits_of, nearest_name
from holdfast.llm.scripted import ScriptedModel
from holdfast.ports.llm import Failed, FailureKind, LlmDelta, LlmRequest

# The provider is not named, because a mistyped model may be a key pasted by accident.
_UNKNOWN: Final = "Holdfast does not know the model's provider"


class ModelRouter:
    """All models as one `Llm`; without `vendors`, providers have no keys."""

    def __init__(self, vendors: ProviderModels | None = None) -> None:
        self._built_in: Mapping[str, OfflineModel | ScriptedModel] = {
            "offline": OfflineModel(),
            "scripted": ScriptedModel(),
        }
        self._vendors = vendors or ProviderModels(_no_key)

    def stream(self, request: LlmRequest) -> AsyncGenerator[LlmDelta, None]:
        """Stream the response of the request's provider; an unknown provider yields a failure."""
        name = request.model.provider
        if built_in := self._built_in.get(name):
            return built_in.stream(request)
        return self._vendors.stream(request) if name in PROVIDERS else _unknown_provider()

    def check(self, model: Model) -> None:
        """Raise `Invalid` for an invalid script or unknown provider; a missing key is accepted."""
        if built_in := self._built_in.get(model.provider):
            built_in.check(model)
            return
        if model.provider in PROVIDERS:
            return
        known = tuple(sorted({*self._built_in, *PROVIDERS}))
        close = nearest_name(model.provider, known)
        hint = f"did you mean {close}?" if close else f"known are {', '.join(known)}."
        raise Invalid(Code.UNKNOWN_MODEL, f"{_UNKNOWN}; {hint}", {"field": "model"})

    def describe(self, model: Model) -> Model:
        """Return the model with its prices, token limits and accepted media.

        The first call loads large tables, so do not call it on the event loop.
        """
        return replace(
            model,
            prices=prices_of(model),
            context_window=context_window_of(model),
            max_output=model.max_output or max_output_of(model),
            intake=media_limits_of(model),
        )

    async def aclose(self) -> None:
        """Close the connections to all providers."""
        await self._vendors.aclose()


async def _unknown_provider() -> AsyncGenerator[LlmDelta, None]:
    yield Failed(
        kind=FailureKind.BAD_REQUEST,
        message=f"{_UNKNOWN}; choose another model, for example {OFFLINE}.",
        sent=False,
    )


async def _no_key(_: str) -> Secret | None:
    return None
