"""Language models: identity, limits and prices. Calling a model belongs to `llm/`."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final
from uuid import NAMESPACE_DNS, UUID, uuid5

from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import ModelId
from holdfast.domain.text import is_encodable, require_text

# Never change it, because model ids must be the same on every installation.
_NAMESPACE: Final[UUID] = uuid5(NAMESPACE_DNS, "holdfast.models")

OFFLINE: Final = "offline:holdfast"


# Bounds that prevent integer overflow in a store, even for a million tokens at once.
_PRICE_MOST: Final = 10**12
_TOKENS_MOST: Final = 10**9


class ModelSource(StrEnum):
    """Where the data about a model comes from."""

    CATALOGUE = "catalogue"
    CONFIG = "config"
    MANUAL = "manual"


class TokenPrices(Struct, frozen=True, kw_only=True):
    """Micro-cents for a million tokens of each class (1 USD = 100,000,000 micro-cents)."""

    input: int
    output: int
    cache_read: int = 0
    cache_write: int = 0


class PriceTier(TokenPrices, frozen=True, kw_only=True):
    """The prices of a request with more than `above` input tokens, for all its tokens."""

    above: int


class Prices(TokenPrices, frozen=True, kw_only=True):
    """The prices of a model, and those of longer requests by ascending `above`."""

    tiers: tuple[PriceTier, ...] = ()

    def for_input(self, tokens: int) -> TokenPrices:
        """Return the prices of a request with so many input tokens, cached ones included."""
        reached = [tier for tier in self.tiers if tokens > tier.above]
        return reached[-1] if reached else self


class MediaLimits(Struct, frozen=True, kw_only=True):
    """The media a model accepts: the byte limit per type, and the count and total per request."""

    types: Mapping[str, int]
    most: int
    total: int


class Model(Struct, frozen=True, kw_only=True):
    """A model by provider and name; without prices it can be used, but its cost is unknown."""

    id: ModelId
    provider: str
    name: str
    context_window: int | None = None
    prices: Prices | None = None
    # None: only text input is known to be supported.
    intake: MediaLimits | None = None
    display_name: str | None = None
    max_output: int | None = None
    source: ModelSource = ModelSource.CATALOGUE

    @property
    def ref(self) -> str:
        """Return `provider:name`, the form users write."""
        return f"{self.provider}:{self.name}"


class ModelRequest(Struct, frozen=True, kw_only=True):
    """A model described by the user, overriding the catalogue."""

    provider: str
    name: str
    display_name: str | None = None
    context_window: int | None = None
    max_output: int | None = None
    prices: Prices | None = None

    def __post_init__(self) -> None:
        for field in ("provider", "name", "display_name"):
            text = getattr(self, field)
            if text is not None:
                require_text(text, field=field, shortest=1, longest=255)
        _require_number("context_window", self.context_window, least=1)
        _require_number("max_output", self.max_output, least=1)
        if self.prices is not None:
            _require_prices(self.prices)


def _require_prices(prices: Prices) -> None:
    for tier in (prices, *prices.tiers):
        for each in TokenPrices.__struct_fields__:
            _require_number(f"prices.{each}", getattr(tier, each), least=0, most=_PRICE_MOST)
    above = [0, *(tier.above for tier in prices.tiers)]
    if above != sorted(set(above)):
        raise Invalid(
            Code.INVALID_INPUT,
            "List the tiers of prices by ascending `above`, each once.",
            {"field": "prices.tiers"},
        )


def describe_model(request: ModelRequest) -> Model:
    """Return the model that a request describes."""
    return replace(
        model_of(f"{request.provider}:{request.name}"),
        display_name=request.display_name,
        context_window=request.context_window,
        max_output=request.max_output,
        prices=request.prices,
        source=ModelSource.MANUAL,
    )


def _require_number(field: str, value: int | None, *, least: int, most: int = _TOKENS_MOST) -> None:
    if value is not None and not least <= value <= most:
        raise Invalid(Code.INVALID_INPUT, f"{field} must be {least} to {most}.", {"field": field})


def model_of(ref: str) -> Model:
    """Return the model named by `provider:name`; its id is the same on every installation."""
    provider, _, name = ref.partition(":")
    if not (provider.strip() and name.strip() and is_encodable(ref)) or "\x00" in ref:
        raise Invalid(
            Code.MODEL_NOT_FOUND,
            f"Write a model as provider:name, for example {OFFLINE}.",
            {"field": "model"},
        )
    return Model(id=ModelId(str(uuid5(_NAMESPACE, ref))), provider=provider, name=name)
