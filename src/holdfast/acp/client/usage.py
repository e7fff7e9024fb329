"""What a turn of somebody else's agent took, from whichever of four places tells it first.

The places are the protocol's and those of known programs; a price is nobody's business here.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final

from holdfast.acp.client.lenient_json import read_amount, read_count, read_object
from holdfast.domain.costs import Usage

_USD: Final = "USD"
# 1 USD = 100,000,000 micro-cents.
_MICROCENTS: Final = 100_000_000
# Nobody spends more in a conversation; a program that says so is wrong.
_COST_MOST: Final = 1_000_000.0

_INPUT: Final = ("inputTokens", "input_tokens", "promptTokens")
_OUTPUT: Final = ("outputTokens", "output_tokens", "completionTokens", "candidatesTokens")
_READ: Final = ("cachedReadTokens", "cached_read_tokens", "cachedTokens")
_WRITTEN: Final = ("cachedWriteTokens", "cached_write_tokens")
_THOUGHT: Final = ("thoughtTokens", "thought_tokens", "thoughtsTokens")
_TOTAL: Final = ("totalTokens", "total_tokens")


class UsageSource(IntEnum):
    """Where a usage was told; the lowest counts."""

    REPLY = 0
    UPDATE = 1
    QUOTA = 2
    CHUNK = 3


def read_usage(value: object) -> Usage | None:
    """Return the tokens that an object tells by class, or nothing if it tells none."""
    counts = read_object(value)
    into, out = _first_count(counts, _INPUT), _first_count(counts, _OUTPUT)
    if into is None and out is None:
        return None
    read, written = _first_count(counts, _READ) or 0, _first_count(counts, _WRITTEN) or 0
    thought, into, out = _first_count(counts, _THOUGHT) or 0, into or 0, out or 0
    # Part of the output or beside it: programs differ, and only their own sum can tell.
    if thought and _first_count(counts, _TOTAL) in {
        into + out + thought,
        into + out + thought + read + written,
    }:
        out += thought
    return Usage(
        input=into,
        output=out,
        cache_read=read,
        cache_write=written,
        reasoning=min(thought, out),
    )


def read_quota(reply: Mapping[str, Any]) -> Usage | None:
    """Return the tokens that stand beside a reply, under another name."""
    quota = read_object(read_object(reply.get("_meta")).get("quota"))
    return read_usage(quota.get("token_count")) or read_usage(quota)


def read_chunk_usage(update: Mapping[str, Any]) -> Usage | None:
    """Return the tokens that stand beside a piece of text."""
    return read_usage(read_object(update.get("_meta")).get("usage"))


def microcents_between(before: float | None, after: float | None, currency: str | None) -> int:
    """Return what was spent between two sums; zero if that is not known in our money."""
    if after is None or currency != _USD:
        return 0
    # A sum that has become less is that of a conversation that began anew.
    spent = after - before if before is not None and before <= after else after
    return round(min(spent, _COST_MOST) * _MICROCENTS)


def read_cost(update: Mapping[str, Any]) -> tuple[float, str] | None:
    """Return the sum of money that an update tells, and its currency."""
    cost = read_object(update.get("cost"))
    sum_, currency = read_amount(cost.get("amount")), cost.get("currency")
    if sum_ is None or not isinstance(currency, str) or is_odd_cost(update):
        return None
    return sum_, currency


def is_odd_cost(update: Mapping[str, Any]) -> bool:
    """Tell whether an update tells a sum of money that nobody can have spent."""
    counts = read_object(update.get("cost")).get("amount")
    return isinstance(counts, int | float) and not isinstance(counts, bool) and counts > _COST_MOST


def _first_count(counts: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    return next(
        (found for name in names if (found := read_count(counts.get(name))) is not None), None
    )
