"""Money: one entry for every request a provider was sent, in whole micro-cents."""

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
    """What one provider request cost; the request id is unique, so no request counts twice."""

    request_id: str
    session_id: SessionId
    turn: int
    model_id: ModelId
    usage: Usage
    microcents: int
    priced: bool
    at: datetime


class CostGroup(StrEnum):
    """What entries of the ledger are added up by; days are those of UTC."""

    MODEL = "model"
    AGENT = "agent"
    SESSION = "session"
    DAY = "day"


class CostQuery(Struct, frozen=True, kw_only=True):
    """Which entries of an owner are added up; from `since` on, and before `until`."""

    owner: Owner
    group_by: CostGroup = CostGroup.MODEL
    session_id: SessionId | None = None
    agent_id: AgentId | None = None
    since: datetime | None = None
    until: datetime | None = None


class CostSum(Struct, frozen=True, kw_only=True):
    """Entries added up; those without a known price count as requests and cost nothing here.

    `name` is how people know the group: a model, an agent's slug, a session's title.
    """

    key: str
    name: str | None = None
    requests: int = 0
    usage: Usage = Usage()
    microcents: int = 0
    unpriced_requests: int = 0

    def __add__(self, entry: CostEntry) -> "CostSum":
        return CostSum(
            key=self.key,
            name=self.name,
            requests=self.requests + 1,
            usage=self.usage + entry.usage,
            microcents=self.microcents + entry.microcents,
            unpriced_requests=self.unpriced_requests + (not entry.priced),
        )


class CostReport(Struct, frozen=True, kw_only=True):
    """What was spent, group by group in the order of their keys, and in all."""

    groups: tuple[CostSum, ...]
    total: CostSum


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
