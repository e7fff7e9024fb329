"""Which models a turn may ask, in which order."""

from pathlib import Path

import pytest

from holdfast import Config, open_holdfast
from holdfast.api import Holdfast
from holdfast.app import Environment
from holdfast.domain.models import Model, ModelRequest, model_of
from holdfast.domain.sessions import SessionRequest
from tests.houses import open_house, played
from tests.marks import demands
from tests.stand_ins import GatedRuntime

pytestmark = pytest.mark.anyio

AGENTS = {"models": ["one:a", "two:b"]}


@demands("S2-020", "S2-040e")
@pytest.mark.parametrize(
    ("fields", "own", "asked"),
    [
        ({}, None, ["offline:holdfast"]),
        ({}, "own:x", ["own:x"]),
        (AGENTS, None, ["one:a", "two:b"]),
        (AGENTS, "own:x", ["own:x", "one:a", "two:b"]),
        (AGENTS, "two:b", ["two:b", "one:a"]),
        (AGENTS, model_of("two:b").id, ["two:b", "one:a"]),
    ],
)
async def test_the_sessions_own_model_is_asked_before_those_of_its_agent(
    home: Path,
    outside: Environment,
    fields: dict[str, list[str]],
    own: str | None,
    asked: list[str],
) -> None:
    runtime = GatedRuntime()
    async with open_house(home, runtime, outside=outside) as house:
        await house.agents.create(house.owner, {"name": "Helper", **fields})
        session = await house.open("helper", SessionRequest(model=own))

        await house.send(session.id, "hello")
        await played(house, session.id)

    assert [model.ref for model in runtime.turns[0].models] == asked


async def test_a_change_between_two_turns_holds_for_the_next(
    home: Path, outside: Environment
) -> None:
    runtime = GatedRuntime()
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open(request=SessionRequest(model="one:a"))

        async def asked() -> tuple[Model, ...]:
            await house.send(session.id, "hello")
            await played(house, session.id)
            return runtime.turns[-1].models

        before = await asked()
        request = ModelRequest(provider="one", name="a", context_window=1_000)
        described = await house.models.add(request)
        after = await asked()
        await house.sessions.update(house.owner, session.id, {"model": "two:b"})
        other = await asked()

    assert before == (model_of("one:a"),)
    assert (after, described.context_window) == ((described,), 1_000)
    assert other == (model_of("two:b"),)


async def test_the_catalogue_is_ordered_and_holds_each_model_once(quiet: Holdfast) -> None:
    for models in (["openai:two", "groq:one"], ["openai:one", "groq:one"]):
        await quiet.agents.create(quiet.owner, {"name": "Helper", "models": models})

    assert await quiet.models.list() == [
        model_of(ref) for ref in ("groq:one", "openai:one", "openai:two")
    ]


@pytest.mark.parametrize("door", ["request", "agent", "update", "default"])
async def test_a_script_is_the_one_that_was_meant_where_it_was_named(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder, text in ((here, "the one"), (elsewhere, "another one")):
        folder.mkdir()
        (folder / "script.json").write_text(f'[{{"text": "{text}"}}]')
    ref = "scripted:script.json"
    config = Config(home=home, default_model=ref if door == "default" else "offline:holdfast")
    monkeypatch.chdir(here)
    async with open_holdfast(config=config) as house:
        models = [ref] if door == "agent" else []
        await house.agents.create(house.owner, {"name": "Helper", "models": models})
        own = ref if door == "request" else None
        session = await house.open("helper", SessionRequest(model=own))
        if door == "update":
            await house.sessions.update(house.owner, session.id, {"model": ref})
        monkeypatch.chdir(elsewhere)
        await house.send(session.id, "hello")
        rows = await played(house, session.id)
        known = [model.ref for model in await house.models.list()]

    assert rows[-1].text == "the one"
    if door != "default":
        assert known == [f"scripted:{here / 'script.json'}"]
