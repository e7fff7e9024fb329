"""Costs: one ledger entry per provider request, in whole micro-cents."""

from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from holdfast.domain.ids import AgentId, ModelId, Owner, SessionId
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
    """The cost of one provider request; the request id is unique, so none is counted twice."""

    request_id: str
    session_id: SessionId
    turn: int
    model_id: ModelId
    usage: Usage
    microcents: int
    priced: bool
    at: datetime


class CostGroup(StrEnum):
    """How ledger entries are grouped; days are in UTC."""

    MODEL = "model"
    AGENT = "agent"
    SESSION = "session"
    DAY = "day"


class CostQuery(Struct, frozen=True, kw_only=True):
    """Which entries of an owner are summed: from `since` (inclusive) to `until` (exclusive)."""

    owner: Owner
    group_by: CostGroup = CostGroup.MODEL
    session_id: SessionId | None = None
    agent_id: AgentId | None = None
    since: datetime | None = None
    until: datetime | None = None


class CostSum(Struct, frozen=True, kw_only=True):
    """A sum of entries; those without a known price count as requests with no cost.

    `estimated_requests` are those of the unpriced ones that are counted at their maximum cost.
    `name` is the display name of the group: a model, an agent's slug, a session's title.
    """

    key: str
    name: str | None = None
    requests: int = 0
    usage: Usage = Usage()
    microcents: int = 0
    unpriced_requests: int = 0
    estimated_requests: int = 0

    @property
    def is_upper_bound(self) -> bool:
        """Return whether every request without a reported cost is counted at its maximum."""
        return 0 < self.unpriced_requests == self.estimated_requests

    def __add__(self, entry: CostEntry) -> "CostSum":
        return CostSum(
            key=self.key,
            name=self.name,
            requests=self.requests + 1,
            usage=self.usage + entry.usage,
            microcents=self.microcents + entry.microcents,
            unpriced_requests=self.unpriced_requests + (not entry.priced),
            estimated_requests=self.estimated_requests
            + (not entry.priced and entry.microcents > 0),
        )


class CostReport(Struct, frozen=True, kw_only=True):
    """The costs per group, in the order of their keys, and the total."""

    groups: tuple[CostSum, ...]
    total: CostSum


def price(usage: Usage, prices: Prices) -> int:
    """Return the micro-cents of a request; each class is rounded separately, halves up."""
    tier = prices.for_input(usage.input + usage.cache_read + usage.cache_write)
    return (
        _round(usage.input * tier.input)
        + _round(usage.output * tier.output)
        + _round(usage.cache_read * tier.cache_read)
        + _round(usage.cache_write * tier.cache_write)
    )


def _round(millionths: int) -> int:
    # Integers only, because a float may round differently on another machine.
    return (millionths + 500_000) // 1_000_000
