"""Token usage and cost of an external agent's turn, read from four possible sources.

The sources are those of the protocol and of known agents. Does not calculate prices.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final

from holdfast.acp.client.lenient_json import read_amount, read_count, read_object
from holdfast.domain.costs import Usage

_USD: Final = "USD"
# 1 USD = 100,000,000 micro-cents.
_MICROCENTS: Final = 100_000_000
# Plausibility limit in USD per session; a higher value is an error of the agent.
_COST_MOST: Final = 1_000_000.0

_INPUT: Final = ("inputTokens", "input_tokens", "promptTokens")
_OUTPUT: Final = ("outputTokens", "output_tokens", "completionTokens", "candidatesTokens")
_READ: Final = ("cachedReadTokens", "cached_read_tokens", "cachedTokens")
_WRITTEN: Final = ("cachedWriteTokens", "cached_write_tokens")
_THOUGHT: Final = ("thoughtTokens", "thought_tokens", "thoughtsTokens")
_TOTAL: Final = ("totalTokens", "total_tokens")


class UsageSource(IntEnum):
    """Where a usage was reported; the lowest value takes precedence."""

    REPLY = 0
    UPDATE = 1
    QUOTA = 2
    CHUNK = 3


def read_usage(value: object) -> Usage | None:
    """Return the token counts of an object; `None` if it has neither input nor output tokens."""
    counts = read_object(value)
    into, out = _first_count(counts, _INPUT), _first_count(counts, _OUTPUT)
    if into is None and out is None:
        return None
    read, written = _first_count(counts, _READ) or 0, _first_count(counts, _WRITTEN) or 0
    thought, into, out = _first_count(counts, _THOUGHT) or 0, into or 0, out or 0
    # Agents count reasoning inside the output or separately; only their total shows which.
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
    """Return the token counts in the `_meta.quota` of a reply."""
    quota = read_object(read_object(reply.get("_meta")).get("quota"))
    return read_usage(quota.get("token_count")) or read_usage(quota)


def read_chunk_usage(update: Mapping[str, Any]) -> Usage | None:
    """Return the token counts in the `_meta.usage` of a chunk."""
    return read_usage(read_object(update.get("_meta")).get("usage"))


def microcents_between(before: float | None, after: float | None, currency: str | None) -> int:
    """Return the cost between two totals; zero if it is not known in USD."""
    if after is None or currency != _USD:
        return 0
    # A lower total means that the agent's session was restarted.
    spent = after - before if before is not None and before <= after else after
    return round(min(spent, _COST_MOST) * _MICROCENTS)


def read_cost(update: Mapping[str, Any]) -> tuple[float, str] | None:
    """Return the cost of an update and its currency."""
    cost = read_object(update.get("cost"))
    sum_, currency = read_amount(cost.get("amount")), cost.get("currency")
    if sum_ is None or not isinstance(currency, str) or is_odd_cost(update):
        return None
    return sum_, currency


def is_odd_cost(update: Mapping[str, Any]) -> bool:
    """Return whether an update reports a cost above the plausibility limit."""
    counts = read_object(update.get("cost")).get("amount")
    return isinstance(counts, int | float) and not isinstance(counts, bool) and counts > _COST_MOST


def _first_count(counts: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    return next(
        (found for name in names if (found := read_count(counts.get(name))) is not None), None
    )
