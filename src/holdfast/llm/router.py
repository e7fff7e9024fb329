"""Dispatches model requests by provider name, and knows the list prices; no retries or fallback."""

from collections.abc import AsyncGenerator, Mapping
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.models import OFFLINE, Model, Prices, PriceTier
from holdfast.domain.secrets import Secret
from holdfast.llm.offline import OfflineModel
from holdfast.llm.provider_models import ProviderModels
from holdfast.llm.providers import PROVIDERS, max_output_of, media_limits_of, provider_fault
from holdfast.llm.scripted import ScriptedModel
from holdfast.ports.llm import Failed, FailureKind, LlmDelta, LlmRequest

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice


_MICROCENTS: Final = 100_000_000
_CLASSES: Final = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok")
# The offline model runs locally and has no cost.
_FREE: Final = Prices(input=0, output=0)


def prices_of(model: Model) -> Prices | None:
    """Return the current prices of a model, or None if the tables do not list it.

    The first call loads large tables, so do not call it on the event loop.
    """
    if model.ref == OFFLINE:
        return _FREE
    known = _find_model(model)
    if known is None:
        return None
    price = _dearest(known, datetime.now(UTC))
    starts = {
        tier.start for name in _CLASSES for tier in getattr(getattr(price, name, None), "tiers", ())
    }
    prices = _prices_above(price, 0)
    tiers = tuple(
        PriceTier(above=start, **longer)
        for start in sorted(starts)
        if (longer := _prices_above(price, start))
    )
    return Prices(**prices, tiers=tiers) if prices else None


def _prices_above(price: "ModelPrice", tokens: int) -> dict[str, int] | None:
    """Return the prices of requests with more input tokens; `None` if they are not known."""
    asked, answered, read, write = (_microcents(price, name, tokens) for name in _CLASSES)
    if asked is None or answered is None:
        return None
    # Cache tokens without their own price cost as much as other input.
    return {
        "input": asked,
        "output": answered,
        "cache_read": asked if read is None else read,
        "cache_write": asked if write is None else write,
    }


def context_window_of(model: Model) -> int | None:
    """Return the context window in tokens, or None if the tables do not list it."""
    known = _find_model(model)
    return known.context_window if known else None


def _find_model(model: Model) -> "ModelInfo | None":
    provider = PROVIDERS.get(model.provider)
    if provider is None:
        return None
    from genai_prices.data_snapshot import get_snapshot

    try:
        return get_snapshot().find_provider_model(model.name, None, provider.priced_as, None)[1]
    # Not listed: the model is usable, but its cost is unknown.
    except LookupError:
        return None


def _dearest(known: "ModelInfo", at: datetime) -> "ModelPrice":
    """Return the highest hourly price that is valid on the day."""
    from genai_prices.types import ModelPrice, TimeOfDateConstraint

    if isinstance(known.prices, ModelPrice):
        return known.prices
    found = []
    # The last active entry wins, and one that does not depend on the hour ends the search.
    for each in reversed(known.prices):
        if isinstance(each.constraint, TimeOfDateConstraint):
            found.append(each.prices)
        elif each.constraint is None or each.constraint.active(at):
            found.append(each.prices)
            break
    return max(found, key=lambda price: _microcents(price, "input_mtok", 0) or 0)


def _microcents(price: "ModelPrice", name: str, tokens: int) -> int | None:
    """Return a price of requests with more than `tokens` input tokens."""
    value = getattr(price, name, None)
    usd = getattr(value, "base", value)
    for tier in getattr(value, "tiers", ()):
        if tier.start <= tokens:
            usd = tier.price
    if usd is None:
        return None
    return int((Decimal(usd) * _MICROCENTS).to_integral_value(ROUND_HALF_UP))


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
        if (fault := provider_fault(model.provider)) is not None:
            raise Invalid(Code.UNKNOWN_MODEL, fault, {"field": "model"})

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
        message=f"The model's provider is unknown; choose another model, for example {OFFLINE}.",
        sent=False,
    )


async def _no_key(_: str) -> Secret | None:
    return None
