"""Loops of the user's own start agents, and are started by them."""

import asyncio
from pathlib import Path

import pytest

from holdfast import ChildAnswer, ToolFailed, Turn
from holdfast.domain.sessions import StopReason
from tests.children.test_invoke import (
    a_house,
    an_agent,
    asked,
    begun,
    children_of,
    waits_for_child,
)
from tests.houses import played
from tests.tooled import a_config, outcomes, says

pytestmark = pytest.mark.anyio


async def test_a_registered_loop_spawns_and_is_replayed(home: Path) -> None:
    runs = []

    async def plan(turn: Turn) -> str:
        runs.append(turn.number)
        first = await turn.spawn("helper", "one", title="First")
        second = await turn.spawn("helper", "two")
        assert isinstance(first, ChildAnswer)
        return f"{first.text} and {second.text}"

    async with a_house(a_config(home, turns_at_a_time=1)) as house:
        await an_agent(house, "helper", says("ok", delay_ms=50))
        house.runtime("plan")(plan)
        session = await begun(house, "plan")
        await waits_for_child(house, session)
        rows = await played(house, session.id)
        opened = await children_of(house, session)

    assert rows[-1].text == "ok and ok"
    assert len(runs) == 3
    assert sorted(each.title or "" for each in opened) == ["First", "two"]
    assert outcomes(rows) == ["invoke_agent ok"] * 2


async def test_several_children_of_a_loop_work_at_once(home: Path) -> None:
    async def plan(turn: Turn) -> str:
        spawned = [turn.spawn("helper", task) for task in ("one", "two", "three")]
        return " ".join(each.text for each in await asyncio.gather(*spawned))

    async with a_house(a_config(home)) as house:
        await an_agent(house, "helper", says("ok", delay_ms=300))
        house.runtime("plan")(plan)
        session = await begun(house, "plan")
        await waits_for_child(house, session)
        working = len(await children_of(house, session))
        rows = await played(house, session.id)

    assert working == 3
    assert rows[-1].text == "ok ok ok"


async def test_a_held_turn_waits_for_its_child_where_it_is(home: Path) -> None:
    async with a_house(a_config(home)) as house:
        await an_agent(house, "lead", says("done"))
        await an_agent(house, "helper", says("ok", delay_ms=100))
        session = await house.open("lead")
        async with house.turn(session.id, "Plan") as turn:
            answer = await turn.spawn("helper", "one")
            with pytest.raises(ToolFailed, match="There is no such agent"):
                await turn.spawn("missing", "two")
            await turn.say(answer.text)
        rows = await house.read(session.id)
        (child,) = await children_of(house, session)

    assert (answer.text, answer.stop_reason) == ("ok", StopReason.STOP)
    assert answer.session_id == child.id
    assert rows[-1].text == "ok"


async def test_an_agent_starts_a_loop(home: Path) -> None:
    async def plan(turn: Turn) -> str:
        return f"planned: {turn.prompt}"

    async with a_house(a_config(home)) as house:
        house.runtime("plan")(plan)
        await an_agent(house, "lead", asked("plan"), says("done"), starts=["plan"])
        session = await begun(house)
        rows = await played(house, session.id)
        (child,) = await children_of(house, session)
        said = await house.read(child.id)

    assert outcomes(rows) == ["invoke_agent ok"]
    assert said[-1].text == "planned: Look it up"
