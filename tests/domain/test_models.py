"""Models by provider and name."""

from typing import Any
from uuid import NAMESPACE_DNS, uuid5

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import ModelId
from holdfast.domain.models import (
    OFFLINE,
    Model,
    ModelRequest,
    ModelSource,
    Prices,
    PriceTier,
    describe_model,
    model_of,
)
from tests.marks import each_case

NAMES = st.text(alphabet="abcXYZ019.-/:", min_size=1, max_size=12)
PROVIDERS = st.text(alphabet="abc019-", min_size=1, max_size=8)


def test_the_offline_model_has_the_same_id_on_every_installation() -> None:
    assert model_of(OFFLINE) == Model(
        id=ModelId("a006915b-6930-590c-b036-ee9a12b3b96d"), provider="offline", name="holdfast"
    )


def test_a_model_id_can_be_computed_by_anybody() -> None:
    namespace = uuid5(NAMESPACE_DNS, "holdfast.models")

    assert model_of("openai:gpt-5").id == str(uuid5(namespace, "openai:gpt-5"))


@given(PROVIDERS, NAMES)
def test_a_model_is_read_as_it_is_written(provider: str, name: str) -> None:
    model = model_of(f"{provider}:{name}")

    assert (model.provider, model.name, model.ref) == (provider, name, f"{provider}:{name}")


@given(PROVIDERS, NAMES, PROVIDERS, NAMES)
def test_two_models_have_two_ids(provider: str, name: str, other: str, other_name: str) -> None:
    one, two = model_of(f"{provider}:{name}"), model_of(f"{other}:{other_name}")

    assert (one.id == two.id) == (one.ref == two.ref)


def test_a_model_has_no_price_until_somebody_knows_it() -> None:
    assert model_of(OFFLINE).prices is None


@each_case(
    "ref", ["", "gpt-5", ":gpt-5", "openai:", " : ", "openai: ", "open\x00ai:gpt", "openai:\ud800"]
)
def test_what_is_not_provider_and_name_is_refused(ref: str) -> None:
    with pytest.raises(Invalid) as refused:
        model_of(ref)

    assert refused.value.body() == {
        "error": Code.MODEL_NOT_FOUND,
        "message": "Write a model as provider:name, for example offline:holdfast.",
        "details": {"field": "model"},
    }


def test_a_model_that_somebody_describes_is_the_one_of_its_name() -> None:
    wish = ModelRequest(provider="maker", name="a:b", prices=Prices(input=1, output=2))

    assert describe_model(wish) == Model(
        id=model_of("maker:a:b").id,
        provider="maker",
        name="a:b",
        prices=Prices(input=1, output=2),
        source=ModelSource.MANUAL,
    )


def test_a_model_may_be_described_by_its_name_alone() -> None:
    assert describe_model(ModelRequest(provider="maker", name="a")).prices is None


def a_tier(above: int, output: int = 0) -> PriceTier:
    return PriceTier(above=above, input=0, output=output)


@each_case(
    ("changes", "field"),
    [
        ({"name": ""}, "name"),
        ({"context_window": 0}, "context_window"),
        ({"max_output": 10**9 + 1}, "max_output"),
        ({"prices": Prices(input=0, output=-1)}, "prices.output"),
        ({"prices": Prices(input=0, output=0, tiers=(a_tier(9, -1),))}, "prices.output"),
        ({"prices": Prices(input=0, output=0, tiers=(a_tier(9), a_tier(9)))}, "prices.tiers"),
        ({"prices": Prices(input=0, output=0, tiers=(a_tier(9), a_tier(8)))}, "prices.tiers"),
        ({"prices": Prices(input=0, output=0, tiers=(a_tier(0),))}, "prices.tiers"),
    ],
)
def test_a_description_that_cannot_be_is_refused_by_its_field(
    changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(Invalid) as caught:
        ModelRequest(**({"provider": "maker", "name": "a"} | changes))

    assert caught.value.details["field"] == field
