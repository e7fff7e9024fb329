"""JSON forms of token usage and costs."""

from datetime import datetime
from typing import Annotated, Any

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from holdfast.domain.costs import CostGroup, CostQuery, CostReport, CostSum, Usage
from holdfast.wire.scalars import Uuid

At = Annotated[datetime, Meta(tz=True)]


class UsageForm(Struct, frozen=True):
    """Token counts by class; disjoint, except that reasoning tokens are part of the output."""

    input_tokens: Annotated[
        int, Meta(description="Input tokens, without those read from the cache.")
    ]
    cached_input_tokens: Annotated[int, Meta(description="Input tokens read from the cache.")]
    output_tokens: Annotated[int, Meta(description="Output tokens, reasoning included.")]
    reasoning_tokens: Annotated[int, Meta(description="Output tokens of reasoning.")]


class CostGroupForm(Struct, frozen=True, kw_only=True):
    """The costs of one model, agent, session or day.

    `name` is the model's name, the agent's slug or the session's title.
    """

    key: str
    name: str | None = None
    requests: int
    usage: UsageForm
    cost_microcents: int
    unpriced_requests: int
    estimated_requests: int = 0


class CostTotalForm(Struct, frozen=True, kw_only=True):
    """Total costs."""

    requests: Annotated[int, Meta(description="Number of model requests.")]
    usage: Annotated[UsageForm, Meta(description="Tokens by class.")]
    cost_microcents: Annotated[int, Meta(description="The known cost in millionths of a cent.")]
    unpriced_requests: Annotated[int, Meta(description="Number of requests whose cost is unknown.")]
    estimated_requests: Annotated[
        int, Meta(description="Number of unpriced requests that are counted at their maximum cost.")
    ] = 0


class CostList(Struct, frozen=True, kw_only=True):
    """Costs by group, and their total."""

    data: tuple[CostGroupForm, ...]
    total: CostTotalForm
    next_cursor: str | None = None


class CostsQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Grouping and filters of a cost report; `from` is inclusive, `to` is exclusive."""

    group_by: CostGroup = CostGroup.MODEL
    session_id: Uuid | None = None
    agent_id: Uuid | None = None
    since: At | None = field(default=None, name="from")
    until: At | None = field(default=None, name="to")


def costs_form(report: CostReport) -> CostList:
    """Return the form of a cost report."""
    groups = tuple(
        CostGroupForm(key=each.key, name=each.name, **_sum(each)) for each in report.groups
    )
    return CostList(data=groups, total=cost_total_form(report.total))


def cost_total_form(spent: CostSum) -> CostTotalForm:
    """Return the form of a total."""
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
    """A cost; unpriced requests count as zero.

    An amount with `priced` false is an upper bound: requests of unknown usage count at their
    maximum.
    """

    microcents: Annotated[
        int | None,
        Meta(description="The cost in millionths of a cent; null if part of it is unknown."),
    ]
    priced: Annotated[bool, Meta(description="Whether every request has a known price.")]


def usage_form(usage: Usage) -> UsageForm:
    """Return the form of token counts."""
    return UsageForm(
        # Tokens written to the cache count as input; tokens read from it are a class of their own.
        input_tokens=usage.input + usage.cache_write,
        cached_input_tokens=usage.cache_read,
        output_tokens=usage.output,
        reasoning_tokens=usage.reasoning,
    )


def cost_form(microcents: int, *, priced: bool, estimated: bool = False) -> CostForm:
    """Return the form of a cost."""
    return CostForm(microcents if priced or estimated else None, priced)


def costs_query(query: CostQuery) -> CostsQuery:
    """Return the query parameters of a cost query."""
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
    """Return the token counts of a form; its input includes tokens written to the cache."""
    return Usage(
        input=form.input_tokens,
        output=form.output_tokens,
        cache_read=form.cached_input_tokens,
        reasoning=form.reasoning_tokens,
    )
