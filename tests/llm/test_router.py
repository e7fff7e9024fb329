"""The door to all models: who is behind it and what is said of the others."""

import pytest

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.models import Prices, model_of
from holdfast.llm.router import ModelRouter
from holdfast.ports.llm import Failed, FailureKind
from tests.llm.builders import a_request, heard, said
from tests.llm.dialects import CHAT, Dialect, Saying
from tests.llm.fake_providers import FakeProvider
from tests.llm.provider_requests import asking
from tests.marks import each_case

pytestmark = pytest.mark.anyio

PASTED = "sk-canary-0123456789"


@pytest.mark.parametrize("dialect", [CHAT], ids=lambda each: each.provider)
async def test_a_provider_is_asked_through_the_door(fake: FakeProvider, dialect: Dialect) -> None:
    fake.replies.append(dialect.reply(Saying(text=("Hello",))))
    request = a_request(said("hi"), model=dialect.model)

    async with asking(fake, dialect) as vendors:
        through = await heard(ModelRouter(vendors), request)
        fake.replies.append(dialect.reply(Saying(text=("Hello",))))
        directly = await heard(vendors, request)

    assert through == directly


async def test_without_vendors_there_are_no_keys() -> None:
    assert await heard(ModelRouter(), a_request(said("hi"), model="openai:some-model")) == [
        Failed(
            kind=FailureKind.AUTH,
            message="There is no key for openai; "
            "run holdfast key set openai, or set OPENAI_API_KEY.",
            sent=False,
        )
    ]


async def test_a_provider_that_nobody_knows_is_a_failure_and_not_named() -> None:
    assert await heard(ModelRouter(), a_request(said("hi"), model=f"{PASTED}:some-model")) == [
        Failed(
            kind=FailureKind.BAD_REQUEST,
            message="The model's provider is unknown; "
            "choose another model, for example offline:holdfast.",
            sent=False,
        )
    ]


@each_case("model", ["openai:some-model", "gemini:x", "ollama:qwen3:8b"])
def test_a_provider_without_a_key_passes_the_check_because_it_may_get_one(model: str) -> None:
    ModelRouter().check(model_of(model))


@each_case(
    ("model", "nearest"),
    [("opnai:gpt", "openai"), ("Anthropic:claude", "anthropic"), ("scriptd:x", "scripted")],
)
def test_the_check_refuses_an_unknown_provider_and_names_the_nearest(
    model: str, nearest: str
) -> None:
    with pytest.raises(Invalid) as refused:
        ModelRouter().check(model_of(model))

    body = refused.value.body()
    assert (body["error"], body["details"]) == (Code.UNKNOWN_MODEL, {"field": "model"})
    assert f"The model's provider is unknown (did you mean {nearest}" in refused.value.message


def test_the_check_does_not_repeat_what_may_be_a_key() -> None:
    with pytest.raises(Invalid) as refused:
        ModelRouter().check(model_of(f"{PASTED}:some-model"))

    assert "canary" not in str(refused.value.body())
    assert "the providers are alibaba, anthropic," in refused.value.message


def test_a_model_is_described_with_its_prices_and_its_window() -> None:
    model = model_of("openai:gpt-4o")

    described = ModelRouter().describe(model)

    assert (described.id, described.ref) == (model.id, model.ref)
    assert described.context_window == 128_000
    assert described.prices == Prices(
        input=250_000_000,
        output=1_000_000_000,
        cache_read=125_000_000,
        cache_write=250_000_000,
    )


@each_case("model", ["scripted:x.yaml", "openai:nobodys-model"])
def test_a_model_that_nobody_has_a_price_for_stays_as_it_is(model: str) -> None:
    assert ModelRouter().describe(model_of(model)) == model_of(model)


async def test_the_door_closes_the_connections_behind_it() -> None:
    llms = ModelRouter()
    await heard(llms, a_request(said("hi"), model="openai:some-model"))

    await llms.aclose()
    await llms.aclose()
