"""The catalogue: what is known of models, by tables and by people, and who is believed."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import RunScope, open_holdfast
from holdfast.api import Holdfast
from holdfast.domain.errors import Code, Invalid, NotFound
from holdfast.domain.models import OFFLINE, ModelRequest, ModelSource, Prices, model_of
from holdfast.domain.sessions import Created, SessionRequest
from holdfast.services.turn_inputs import MODELS_SECONDS
from tests.houses import current, played
from tests.marks import each_case

pytestmark = pytest.mark.anyio


async def test_the_catalogue_shows_what_can_be_named_with_what_is_known_of_it(
    quiet: Holdfast,
) -> None:
    await quiet.agents.create(quiet.owner, {"name": "Helper", "models": ["openai:gpt-4o"]})

    offline, known = await quiet.models.catalogue()

    assert (offline.ref, offline.source, offline.prices) == (
        OFFLINE,
        ModelSource.CONFIG,
        Prices(input=0, output=0),
    )
    assert (known.ref, known.source) == ("openai:gpt-4o", ModelSource.CATALOGUE)
    assert known.prices is not None
    assert known.context_window is not None
    assert [await quiet.models.get(ref) for ref in (known.id, known.ref)] == [known, known]
    assert [await quiet.models.get(ref) for ref in (offline.id, OFFLINE)] == [offline] * 2


@each_case("ref", [model_of("openai:x").id, "openai:x", "", "x"])
async def test_a_model_that_nobody_named_is_not_found(quiet: Holdfast, ref: str) -> None:
    with pytest.raises(NotFound) as caught:
        await quiet.models.get(ref)

    assert caught.value.code is Code.MODEL_NOT_FOUND


OURS = ModelRequest(
    provider="openai",
    name="gpt-4o",
    display_name="Ours",
    context_window=1_000,
    max_output=100,
    prices=Prices(input=1, output=2),
)


async def test_what_somebody_says_of_a_model_counts_more_than_the_catalogue(
    quiet: Holdfast,
) -> None:
    await quiet.agents.create(quiet.owner, {"name": "Helper", "models": ["openai:gpt-4o"]})
    before = await quiet.models.get("openai:gpt-4o")

    made = await quiet.models.make(OURS)

    assert before.prices != made.value.prices
    assert made == Created(
        value=replace(
            before,
            display_name="Ours",
            context_window=1_000,
            max_output=100,
            prices=Prices(input=1, output=2),
            source=ModelSource.MANUAL,
        ),
        is_new=True,
    )
    assert await quiet.models.get(before.id) == made.value
    session = await quiet.open("helper")
    (asked,) = await quiet.store.read(lambda tx: quiet.models.chain(tx, session))
    assert (asked.prices, asked.context_window) == (Prices(input=1, output=2), 1_000)


async def test_a_model_may_be_described_again(quiet: Holdfast) -> None:
    first = await quiet.models.make(OURS)

    same = await quiet.models.make(OURS)
    cheaper = await quiet.models.make(replace(OURS, prices=Prices(input=0, output=1)))

    assert same == Created(value=first.value, is_new=False)
    assert (cheaper.is_new, cheaper.value.prices) == (False, Prices(input=0, output=1))
    assert await quiet.models.get(first.value.id) == cheaper.value


async def test_what_nobody_says_is_left_to_the_catalogue(quiet: Holdfast) -> None:
    made = await quiet.models.make(ModelRequest(provider="openai", name="gpt-4o"))

    assert made.value.source is ModelSource.MANUAL
    assert made.value.prices is not None


@each_case(
    "changes",
    [
        {"provider": ""},
        {"name": ""},
        {"name": "a\x00"},
        {"display_name": ""},
        {"display_name": "x" * 256},
        {"context_window": 0},
        {"max_output": -1},
        {"prices": Prices(input=-1, output=0)},
        {"prices": Prices(input=0, output=0, cache_read=10**13)},
        {"provider": "nobody"},
        {"provider": "offline", "name": "other"},
    ],
)
async def test_a_model_that_cannot_be_is_not_added(
    quiet: Holdfast, changes: dict[str, Any]
) -> None:
    with pytest.raises(Invalid):
        await quiet.models.add(ModelRequest(**({"provider": "openai", "name": "gpt-4o"} | changes)))

    assert [model.ref for model in await quiet.models.catalogue()] == [OFFLINE]


async def test_the_models_that_are_always_there_can_be_named_by_id(quiet: Holdfast) -> None:
    offline = model_of(OFFLINE).id

    session = await quiet.open(request=SessionRequest(model=offline))

    assert session.model_id == offline


async def test_a_new_price_counts_from_the_next_turn_on(home: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('[{"text": "a", "repeat": 9, "usage": {"input": 1000000}}]')
    ours = ModelRequest(provider="scripted", name=str(script))
    spent = []

    async with open_holdfast(home) as house:
        session = await house.open(request=SessionRequest(model=f"scripted:{script}"))

        async def play() -> None:
            await house.send(session.id, "hello")
            await played(house, session.id)
            spent.append((await current(house, session)).microcents)

        await play()
        await house.models.make(replace(ours, prices=Prices(input=1, output=0)))
        await play()
        async with open_holdfast(home, scope=RunScope.NONE) as other:
            await other.models.make(replace(ours, prices=Prices(input=3, output=0)))
        await asyncio.sleep(MODELS_SECONDS)
        await play()

    assert spent == [0, 1, 4]
