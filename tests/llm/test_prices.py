"""What models cost: whole micro-cents for a million tokens, out of tables that come with us."""

import socket
from datetime import UTC, date, datetime, time
from decimal import Decimal

import pytest
from genai_prices.types import (
    ClauseEquals,
    ConditionalPrice,
    ModelInfo,
    ModelPrice,
    StartDateConstraint,
    Tier,
    TieredPrices,
    TimeOfDateConstraint,
)

from holdfast.domain.models import Prices, PriceTier, model_of
from holdfast.llm import router
from holdfast.llm.providers import max_output_of
from holdfast.llm.router import context_window_of, prices_of
from tests.marks import each_case


@each_case(
    ("model", "expected"),
    [
        (
            "openai:gpt-4o",
            Prices(
                input=250_000_000,
                output=1_000_000_000,
                cache_read=125_000_000,
                cache_write=250_000_000,
            ),
        ),
        (
            "anthropic:claude-haiku-4-5",
            Prices(
                input=100_000_000,
                output=500_000_000,
                cache_read=10_000_000,
                cache_write=125_000_000,
            ),
        ),
        # Twice as much for requests of more than 200,000 tokens.
        (
            "google:gemini-2.5-pro",
            Prices(
                input=125_000_000,
                output=1_000_000_000,
                cache_read=12_500_000,
                cache_write=125_000_000,
                tiers=(
                    PriceTier(
                        above=200_000,
                        input=250_000_000,
                        output=1_500_000_000,
                        cache_read=25_000_000,
                        cache_write=250_000_000,
                    ),
                ),
            ),
        ),
    ],
)
def test_well_known_models_have_their_price(model: str, expected: Prices) -> None:
    assert prices_of(model_of(model)) == expected


@each_case(
    ("model", "same"),
    [
        ("openai-responses:gpt-4o", "openai:gpt-4o"),
        ("gemini:gemini-2.5-flash", "google:gemini-2.5-flash"),
        ("openai:gpt-4o-2024-08-06", "openai:gpt-4o"),
    ],
)
def test_another_name_costs_the_same(model: str, same: str) -> None:
    assert prices_of(model_of(model)) == prices_of(model_of(same)) is not None


@each_case("model", ["openai:nobodys-model", "ollama:qwen3:8b", "scripted:x.yaml", "nobody:gpt-4o"])
def test_what_is_not_in_the_tables_has_no_price(model: str) -> None:
    assert (prices_of(model_of(model)), context_window_of(model_of(model))) == (None, None)


def test_the_offline_model_is_free() -> None:
    assert prices_of(model_of("offline:holdfast")) == Prices(input=0, output=0)


def test_the_context_window_is_known_where_the_tables_know_it() -> None:
    assert context_window_of(model_of("openai:gpt-4o")) == 128_000


def test_no_price_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a price was asked for over the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)

    assert prices_of(model_of("openai:gpt-4o-mini")) is not None


def a_model(*prices: ConditionalPrice) -> ModelInfo:
    return ModelInfo(id="m", match=ClauseEquals("m"), prices=list(prices))


def costing(
    usd: str, constraint: StartDateConstraint | TimeOfDateConstraint | None = None
) -> ConditionalPrice:
    return ConditionalPrice(
        constraint, prices=ModelPrice(input_mtok=Decimal(usd), output_mtok=Decimal(usd))
    )


NIGHT = TimeOfDateConstraint(time(22, tzinfo=UTC), time(6, tzinfo=UTC))
TODAY = datetime(2026, 6, 1, 12, tzinfo=UTC)


@each_case(
    ("model", "usd"),
    [
        (a_model(costing("1"), costing("2", StartDateConstraint(date(2026, 5, 1)))), "2"),
        (a_model(costing("1"), costing("2", StartDateConstraint(date(2026, 7, 1)))), "1"),
        (a_model(costing("2"), costing("1", NIGHT)), "2"),
        (a_model(costing("1"), costing("2", NIGHT)), "2"),
        (a_model(costing("9", NIGHT), costing("1", StartDateConstraint(date(2026, 5, 1)))), "1"),
    ],
    ids=["newer", "not yet", "cheap at night", "dear at night", "no longer"],
)
def test_the_dearest_price_of_the_day_counts(model: ModelInfo, usd: str) -> None:
    chosen = router._dearest(model, TODAY)

    assert chosen == ModelPrice(input_mtok=Decimal(usd), output_mtok=Decimal(usd))


@each_case(
    ("told", "microcents"),
    [
        (Decimal("0.0000000049"), 0),
        (Decimal("0.000000005"), 1),
        (Decimal("1.23456789"), 123_456_789),
        (
            TieredPrices(base=Decimal("3"), tiers=[Tier(start=200_000, price=Decimal("6"))]),
            3 * 10**8,
        ),
        (None, None),
    ],
)
def test_a_price_is_a_whole_number_of_micro_cents(
    told: Decimal | TieredPrices | None, microcents: int | None
) -> None:
    assert router._microcents(ModelPrice(input_mtok=told), "input_mtok", 0) == microcents


@each_case(
    ("model", "most"),
    [
        ("openai:gpt-4o-mini", 16_384),
        ("openai:gpt-4o-2024-05-13", 4_096),
        ("openai:gpt-4.1", 32_768),
        ("openai:gpt-4", 8_192),
        ("openai:gpt-4-turbo", 4_096),
        ("openai-responses:gpt-5-mini", 128_000),
        ("openai:gpt-5-chat-latest", 16_384),
        ("openai:o1-mini", 65_536),
        ("openai:o3", 100_000),
        ("anthropic:claude-3-haiku-20240307", 4_096),
        ("anthropic:claude-3-5-sonnet-latest", 8_192),
        ("anthropic:claude-3-7-sonnet-latest", 64_000),
        ("anthropic:claude-opus-4-1-20250805", 32_000),
        ("anthropic:claude-opus-4-5", 64_000),
        ("google:gemini-2.0-flash", 8_192),
        ("google:gemini-2.5-pro", 65_536),
        ("deepseek:deepseek-chat", None),
        ("openai:something-new", None),
        ("nobody:model", None),
    ],
)
def test_what_a_model_can_write_at_most(model: str, most: int | None) -> None:
    assert max_output_of(model_of(model)) == most
