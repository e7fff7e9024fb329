"""JSON forms of token usage and costs."""

from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from holdfast.domain.costs import CostGroup, CostQuery, CostReport, CostSum, Usage
from holdfast.wire.scalars import Uuid

At = Annotated[datetime, Meta(tz=True)]


class UsageForm(Struct, frozen=True):
    """Tokens by class, disjoint except that reasoning is part of the output."""

    input_tokens: Annotated[
        int, Meta(description="Input tokens, without those read from the cache.")
    ]
    cached_input_tokens: Annotated[int, Meta(description="Input tokens read from the cache.")]
    output_tokens: Annotated[int, Meta(description="Output tokens, reasoning included.")]
    reasoning_tokens: Annotated[int, Meta(description="Output tokens of reasoning.")]


class CostGroupForm(Struct, frozen=True, kw_only=True):
    """What was spent on one model, agent or session, or on one day.

    `name` is the model as it is written, the agent's slug or the session's title.
    """

    key: str
    name: str | None = None
    requests: int
    usage: UsageForm
    cost_microcents: int
    unpriced_requests: int
    estimated_requests: int = 0


class CostTotalForm(Struct, frozen=True, kw_only=True):
    """What was spent in all."""

    requests: Annotated[int, Meta(description="Number of model requests.")]
    usage: Annotated[UsageForm, Meta(description="Tokens by class.")]
    cost_microcents: Annotated[int, Meta(description="The known cost in millionths of a cent.")]
    unpriced_requests: Annotated[int, Meta(description="Number of requests without a known cost.")]
    estimated_requests: Annotated[
        int, Meta(description="Those of the unpriced ones that are counted at their maximum cost.")
    ] = 0


class CostList(Struct, frozen=True, kw_only=True):
    """What was spent, group by group, and in all."""

    data: tuple[CostGroupForm, ...]
    total: CostTotalForm
    next_cursor: str | None = None


class CostsQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is added up by what; from `from` on, and before `to`."""

    group_by: CostGroup = CostGroup.MODEL
    session_id: Uuid | None = None
    agent_id: Uuid | None = None
    since: At | None = field(default=None, name="from")
    until: At | None = field(default=None, name="to")


def costs_form(report: CostReport) -> CostList:
    """Return what was spent as it is shown."""
    groups = tuple(
        CostGroupForm(key=each.key, name=each.name, **_sum(each)) for each in report.groups
    )
    return CostList(data=groups, total=cost_total_form(report.total))


def cost_total_form(spent: CostSum) -> CostTotalForm:
    """Return a sum of costs."""
    return CostTotalForm(**_sum(spent))


def _sum(spent: CostSum) -> dict[str, Any]:
    return {
        "requests": spent.requests,
        "usage": usage_form(spent.usage),
        "cost_microcents": spent.microcents,
        "unpriced_requests": spent.unpriced_requests,
        "estimated_requests": spent.estimated_requests,
    }


class CostForm(Struct, frozen=True):
    """Money; unpriced requests count as nothing and say so.

    An amount that is not `priced` is an upper bound: requests of unknown usage at their maximum.
    """

    microcents: Annotated[
        int | None,
        Meta(description="The cost in millionths of a cent; null if some of it is unknown."),
    ]
    priced: Annotated[bool, Meta(description="Whether every request has a known price.")]


def usage_form(usage: Usage) -> UsageForm:
    """Return the tokens in the words of `/v1`."""
    return UsageForm(
        # What went into the cache was read in full, what came from it was not.
        input_tokens=usage.input + usage.cache_write,
        cached_input_tokens=usage.cache_read,
        output_tokens=usage.output,
        reasoning_tokens=usage.reasoning,
    )


def cost_form(microcents: int, *, priced: bool, estimated: bool = False) -> CostForm:
    """Return the money in the words of `/v1`."""
    return CostForm(microcents if priced or estimated else None, priced)


def costs_query(query: CostQuery) -> CostsQuery:
    """Return a cost query as it is sent."""
    return CostsQuery(
        group_by=query.group_by,
        session_id=query.session_id,
        agent_id=query.agent_id,
        since=query.since,
        until=query.until,
    )


def report_of(form: CostList) -> CostReport:
    """Return the cost report of a form."""
    groups = tuple(replace(_sum_of(each.key, each), name=each.name) for each in form.data)
    return CostReport(groups=groups, total=_sum_of("", form.total))


def _sum_of(key: str, form: CostGroupForm | CostTotalForm) -> CostSum:
    return CostSum(
        key=key,
        requests=form.requests,
        usage=usage_of(form.usage),
        microcents=form.cost_microcents,
        unpriced_requests=form.unpriced_requests,
        estimated_requests=form.estimated_requests,
    )


def usage_of(form: UsageForm) -> Usage:
    """Return the tokens of a form; those written to the cache are part of the input there."""
    return Usage(
        input=form.input_tokens,
        output=form.output_tokens,
        cache_read=form.cached_input_tokens,
        reasoning=form.reasoning_tokens,
    )
