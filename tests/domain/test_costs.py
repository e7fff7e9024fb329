"""Money in whole micro-cents."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.costs import CostSum, Usage, price
from holdfast.domain.models import Prices
from tests.builders import a_cost, some_prices
from tests.domain.strategies import values_of
from tests.marks import each_case

FREE = Prices(input=0, output=0)


@each_case(
    ("usage", "prices", "microcents"),
    [
        (Usage(), some_prices(), 0),
        # 1,000 tokens at 3 dollars a million are 0.3 cents.
        (Usage(input=1_000), some_prices(), 300_000),
        (Usage(output=1_000), some_prices(), 1_500_000),
        (Usage(cache_read=1_000), some_prices(), 30_000),
        (Usage(cache_write=1_000), some_prices(), 375_000),
        (
            Usage(input=1, output=1, cache_read=1, cache_write=1),
            some_prices(),
            300 + 1500 + 30 + 375,
        ),
        # One dollar a million: a million tokens are one dollar, 100,000,000 micro-cents.
        (Usage(input=1_000_000), Prices(input=100_000_000, output=0), 100_000_000),
        (Usage(input=1), Prices(input=499_999, output=0), 0),
        (Usage(input=1), Prices(input=500_000, output=0), 1),
        (Usage(input=3), Prices(input=500_000, output=0), 2),
        (Usage(input=1), Prices(input=1_499_999, output=0), 1),
        (Usage(input=1), Prices(input=1_500_000, output=0), 2),
        # Each class rounds for itself: four halves are four, not two.
        (
            Usage(input=1, output=1, cache_read=1, cache_write=1),
            Prices(input=500_000, output=500_000, cache_read=500_000, cache_write=500_000),
            4,
        ),
        (
            Usage(input=1, output=1, cache_read=1, cache_write=1),
            Prices(input=499_999, output=499_999, cache_read=499_999, cache_write=499_999),
            0,
        ),
        # Reasoning is part of the output and costs nothing of its own.
        (Usage(output=10, reasoning=10), Prices(input=0, output=1_000_000), 10),
        (Usage(input=9, output=9, cache_read=9, cache_write=9, reasoning=9), FREE, 0),
    ],
)
def test_a_price_is_what_one_computes_by_hand(
    usage: Usage, prices: Prices, microcents: int
) -> None:
    assert price(usage, prices) == microcents


def test_what_nobody_counted_is_zero() -> None:
    assert Usage() == Usage(input=0, output=0, cache_read=0, cache_write=0, reasoning=0)
    assert Prices(input=1, output=2) == Prices(input=1, output=2, cache_read=0, cache_write=0)


TOKENS = st.integers(0, 10**9)


@given(TOKENS, st.integers(0, 10**11))
def test_a_price_is_never_further_than_half_a_microcent_from_the_true_one(
    tokens: int, rate: int
) -> None:
    charged = price(Usage(output=tokens), Prices(input=0, output=rate))

    assert abs(charged * 1_000_000 - tokens * rate) <= 500_000


@given(TOKENS, TOKENS)
def test_more_tokens_never_cost_less(some: int, more: int) -> None:
    fewer = price(Usage(input=some), some_prices())

    assert fewer <= price(Usage(input=some + more), some_prices())


@given(values_of(Usage), values_of(Usage))
def test_usage_adds_up_class_by_class(one: Usage, other: Usage) -> None:
    assert one + other == Usage(
        input=one.input + other.input,
        output=one.output + other.output,
        cache_read=one.cache_read + other.cache_read,
        cache_write=one.cache_write + other.cache_write,
        reasoning=one.reasoning + other.reasoning,
    )


def test_entries_add_up_to_what_was_asked_used_and_paid() -> None:
    paid = a_cost(usage=Usage(input=1, output=2), microcents=3)
    unpriced = a_cost(usage=Usage(input=4, reasoning=5), microcents=0, priced=False)

    assert CostSum(key="x") + paid + unpriced == CostSum(
        key="x",
        requests=2,
        usage=Usage(input=5, output=2, reasoning=5),
        microcents=3,
        unpriced_requests=1,
    )


def test_a_sum_is_an_upper_bound_if_every_unpriced_entry_has_its_maximum() -> None:
    paid = a_cost(microcents=3)
    bounded = a_cost(microcents=5, priced=False)
    unknown = a_cost(microcents=0, priced=False)
    empty = CostSum(key="x")

    assert (empty + paid + bounded).is_upper_bound
    assert not (empty + paid).is_upper_bound
    assert not (empty + paid + bounded + unknown).is_upper_bound
    assert (empty + bounded + unknown).estimated_requests == 1
