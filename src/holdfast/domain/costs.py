"""Money: one entry for every request a provider was sent, in whole micro-cents."""

from datetime import datetime

from msgspec import Struct

from holdfast.domain.ids import ModelId, SessionId
from holdfast.domain.models import Prices


class Usage(Struct, frozen=True, kw_only=True):
    """Tokens by class; `input` is net of the cache, `reasoning` is part of `output`."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cache_read=self.cache_read + other.cache_read,
            cache_write=self.cache_write + other.cache_write,
            reasoning=self.reasoning + other.reasoning,
        )


class CostEntry(Struct, frozen=True, kw_only=True):
    """What one provider request cost; the request id is unique, so no request counts twice."""

    request_id: str
    session_id: SessionId
    turn: int
    model_id: ModelId
    usage: Usage
    microcents: int
    priced: bool
    at: datetime


def price(usage: Usage, prices: Prices) -> int:
    """Return the micro-cents of a usage; classes are rounded separately, halves go up."""
    return (
        _round(usage.input * prices.input)
        + _round(usage.output * prices.output)
        + _round(usage.cache_read * prices.cache_read)
        + _round(usage.cache_write * prices.cache_write)
    )


def _round(millionths: int) -> int:
    # Whole numbers only: a float may round money differently on another machine.
    return (millionths + 500_000) // 1_000_000
