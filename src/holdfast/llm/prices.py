"""Model prices from the tables bundled with genai-prices; they are never downloaded.

A price may depend on the request length or the hour. This uses the first length tier, so that very
long requests cost more than is counted, and the most expensive hour.
"""

from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal
from typing import TYPE_CHECKING, Final

from holdfast.domain.models import OFFLINE, Model, Prices
from holdfast.llm.providers import PROVIDERS

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice

_MICROCENTS: Final = 100_000_000
# The offline model runs locally and has no cost.
_FREE: Final = Prices(input=0, output=0)


def prices_of(model: Model) -> Prices | None:
    """Return the current prices of a model, or None if the tables do not list it.

    The first call loads large tables, so do not call it on the event loop.
    """
    if model.ref == OFFLINE:
        return _FREE
    known = _find_model(model)
    price = _dearest(known, datetime.now(UTC)) if known else None
    asked, answered = _microcents(price, "input_mtok"), _microcents(price, "output_mtok")
    if asked is None or answered is None:
        return None
    # Cache tokens without their own price cost as much as other input.
    read, write = _microcents(price, "cache_read_mtok"), _microcents(price, "cache_write_mtok")
    return Prices(
        input=asked,
        output=answered,
        cache_read=asked if read is None else read,
        cache_write=asked if write is None else write,
    )


def context_window_of(model: Model) -> int | None:
    """Return the context window in tokens, or None if the tables do not list it."""
    known = _find_model(model)
    return known.context_window if known else None


def _find_model(model: Model) -> "ModelInfo | None":
    provider = PROVIDERS.get(model.provider)
    if provider is None:
        return None
    try:
        from genai_prices.data_snapshot import get_snapshot

        return get_snapshot().find_provider_model(model.name, None, provider.priced_as, None)[1]
    # Not installed or not listed: the model is usable, but its cost is unknown.
    except (ImportError, LookupError):
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
    return max(found, key=lambda price: _microcents(price, "input_mtok") or 0)


def _microcents(price: "ModelPrice | None", name: str) -> int | None:
    value = getattr(price, name, None)
    # With length tiers, the first tier.
    usd = getattr(value, "base", value)
    if usd is None:
        return None
    return int((Decimal(usd) * _MICROCENTS).to_integral_value(ROUND_HALF_UP))
