"""What a turn took, in whichever words it is told."""

from typing import Any

from holdfast.acp.client.usage import (
    is_odd_cost,
    microcents_between,
    read_cost,
    read_quota,
    read_usage,
)
from holdfast.domain.costs import Usage
from tests.marks import each_case


@each_case(
    ("agent_state", "usage"),
    [
        (None, None),
        ({}, None),
        ({"totalTokens": 5}, None),
        ({"inputTokens": True, "outputTokens": "5"}, None),
        ({"inputTokens": 5}, Usage(input=5)),
        ({"outputTokens": 2.0}, Usage(output=2)),
        ({"inputTokens": -5, "outputTokens": 2**80}, None),
        (
            {
                "inputTokens": 10,
                "outputTokens": 20,
                "thoughtTokens": 5,
                "cachedReadTokens": 3,
                "cachedWriteTokens": 4,
                "totalTokens": 42,
            },
            Usage(input=10, output=25, cache_read=3, cache_write=4, reasoning=5),
        ),
        (
            {"inputTokens": 10, "outputTokens": 20, "thoughtTokens": 5, "totalTokens": 30},
            Usage(input=10, output=20, reasoning=5),
        ),
        (
            {"input_tokens": 10, "output_tokens": 2, "thought_tokens": 5},
            Usage(input=10, output=2, reasoning=2),
        ),
    ],
)
def test_tokens_are_read_by_class(agent_state: Any, usage: Usage | None) -> None:
    assert read_usage(agent_state) == usage


def test_a_quota_may_tell_them_at_either_level() -> None:
    tokens = {"input_tokens": 1, "output_tokens": 2}
    usage = Usage(input=1, output=2)

    assert read_quota({"_meta": {"quota": {"token_count": tokens}}}) == usage
    assert read_quota({"_meta": {"quota": tokens}}) == usage
    assert read_quota({"_meta": ["quota"]}) is None


@each_case(
    ("before", "after", "currency", "microcents"),
    [
        (None, 0.5, "USD", 50_000_000),
        (0.25, 0.5, "USD", 25_000_000),
        (0.75, 0.5, "USD", 50_000_000),
        (0.5, 0.5, "USD", 0),
        (None, None, "USD", 0),
        (None, 0.5, "EUR", 0),
        (None, 0.5, None, 0),
        (0.1, 0.3, "USD", 20_000_000),
        (None, 9e15, "USD", 100_000_000_000_000),
    ],
)
def test_what_was_spent_is_the_difference_of_two_sums(
    before: float | None, after: float | None, currency: str | None, microcents: int
) -> None:
    assert microcents_between(before, after, currency) == microcents


@each_case(
    ("amount", "cost", "is_odd"),
    [
        (0, (0, "USD"), False),
        (1_000_000, (1_000_000, "USD"), False),
        (1_000_000.1, None, True),
        (9e15, None, True),
        (10**400, None, True),
        (float("inf"), None, True),
        (float("nan"), None, False),
        (-1, None, False),
        (True, None, False),
        ("9e15", None, False),
    ],
)
def test_a_cost_that_nobody_can_have_spent_is_none(
    amount: Any, cost: tuple[float, str] | None, is_odd: bool
) -> None:
    update = {"cost": {"amount": amount, "currency": "USD"}}

    assert (read_cost(update), is_odd_cost(update)) == (cost, is_odd)
