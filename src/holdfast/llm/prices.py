"""What models cost, out of the tables that come with genai-prices; they are never fetched anew.

A price may depend on how long a request is or on the hour. We take the tier that every request
begins in, so a very long one costs more than is counted, and the dearest hour.
"""

from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal
from typing import TYPE_CHECKING, Final

from holdfast.domain.models import OFFLINE, Model, Prices
from holdfast.llm.providers import PROVIDERS

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, ModelPrice

_MICROCENTS: Final = 100_000_000
# It is a few rules of our own, and nobody sends a bill for them.
_FREE: Final = Prices(input=0, output=0)


def prices_of(model: Model) -> Prices | None:
    """Return the prices of a model as of today, or nothing when the tables do not know it.

    The first call reads large tables: not on the event loop.
    """
    if model.ref == OFFLINE:
        return _FREE
    known = _find_model(model)
    price = _dearest(known, datetime.now(UTC)) if known else None
    asked, answered = _microcents(price, "input_mtok"), _microcents(price, "output_mtok")
    if asked is None or answered is None:
        return None
    # What has no price of its own is paid as any other input.
    read, write = _microcents(price, "cache_read_mtok"), _microcents(price, "cache_write_mtok")
    return Prices(
        input=asked,
        output=answered,
        cache_read=asked if read is None else read,
        cache_write=asked if write is None else write,
    )


def context_window_of(model: Model) -> int | None:
    """Return how many tokens a model can read, where the tables know it."""
    known = _find_model(model)
    return known.context_window if known else None


def _find_model(model: Model) -> "ModelInfo | None":
    provider = PROVIDERS.get(model.provider)
    if provider is None:
        return None
    try:
        from genai_prices.data_snapshot import get_snapshot

        return get_snapshot().find_provider_model(model.name, None, provider.priced_as, None)[1]
    # Not installed, or not in the tables: the model can be used, and its cost is unknown.
    except (ImportError, LookupError):
        return None


def _dearest(known: "ModelInfo", at: datetime) -> "ModelPrice":
    """Return the price of the dearest hour, out of those that hold on the day."""
    from genai_prices.types import ModelPrice, TimeOfDateConstraint

    if isinstance(known.prices, ModelPrice):
        return known.prices
    found = []
    # The last one that holds counts, and what does not depend on the hour holds to the end.
    for each in reversed(known.prices):
        if isinstance(each.constraint, TimeOfDateConstraint):
            found.append(each.prices)
        elif each.constraint is None or each.constraint.active(at):
            found.append(each.prices)
            break
    return max(found, key=lambda price: _microcents(price, "input_mtok") or 0)


def _microcents(price: "ModelPrice | None", name: str) -> int | None:
    value = getattr(price, name, None)
    # Where there are tiers by length, the first of them.
    usd = getattr(value, "base", value)
    if usd is None:
        return None
    return int((Decimal(usd) * _MICROCENTS).to_integral_value(ROUND_HALF_UP))
