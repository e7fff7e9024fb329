"""`hf.runtime`: a function that answers the messages of an agent, from every surface."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Code,
    Conflict,
    Event,
    Holdfast,
    Invalid,
    Role,
    RunScope,
    StopReason,
    Turn,
    TurnEnded,
    connect,
    open_holdfast,
    runtime,
)
from holdfast.domain.agents import LoopRuntime
from holdfast.domain.waits import WaitReason
from tests.houses import current, played
from tests.new_homes import furnish
from tests.stand_ins import PATIENCE

pytestmark = pytest.mark.anyio


@pytest.fixture
async def hf(home: Path) -> AsyncIterator[Holdfast]:
    async with open_holdfast(furnish(home)) as opened:
        yield opened


async def answered(hf: Holdfast, session_id: str) -> list[str]:
    async with asyncio.timeout(PATIENCE):
        rows = await played(hf, session_id)
    return [row.text for row in rows if row.role is Role.ASSISTANT]


async def test_a_function_answers_the_messages_of_its_agent(hf: Holdfast) -> None:
    @hf.runtime("planner")
    async def plan(turn: Turn) -> str:
        days = await turn.call("days", {}, run=lambda: 7, effect="pure")
        return f"{days} days: {turn.messages[0].text}"

    session = await hf.open("planner")
    await hf.send(session.id, "Plan my week")

    assert await answered(hf, session.id) == ["7 days: Plan my week"]
    agent = await hf.agents.get(hf.owner, "planner")
    assert agent.runtime == LoopRuntime(name="planner")
    assert plan.__name__ == "plan"


async def test_functions_that_a_module_has_marked_are_registered_when_a_store_opens(
    home: Path,
) -> None:
    @runtime("planner", version="2")
    async def plan(turn: Turn) -> str:
        return f"A plan for {turn.prompt}"

    async def bare(turn: Turn) -> str:
        return turn.prompt

    async with open_holdfast(home, runtimes=[plan]) as hf:
        session = await hf.open("planner")
        await hf.send(session.id, "Monday")
        assert await answered(hf, session.id) == ["A plan for Monday"]
    with pytest.raises(Invalid, match="decorator"):
        async with open_holdfast(home, runtimes=[bare]):
            pass
    with pytest.raises(Conflict) as caught:
        async with open_holdfast(home, runtimes=[runtime("holdfast")(bare)]):
            pass
    assert caught.value.code is Code.SLUG_TAKEN


async def test_a_loop_sees_when_its_turn_began_and_what_is_queued(hf: Holdfast) -> None:
    is_running, may_end = asyncio.Event(), asyncio.Event()
    seen: list[tuple[datetime, list[str]]] = []

    @hf.runtime("planner")
    async def plan(turn: Turn) -> str:
        is_running.set()
        await may_end.wait()
        seen.append((turn.started_at, [row.text for row in turn.queued]))
        return "done"

    session = await hf.open("planner")
    first = await hf.send(session.id, "one")
    await is_running.wait()
    second = await hf.send(session.id, "two")
    may_end.set()
    await answered(hf, session.id)

    assert seen == [(first.created_at, ["two"]), (second.created_at, [])]


async def test_a_function_that_fails_fails_its_turn_only(hf: Holdfast) -> None:
    @hf.runtime("broken")
    async def broken(turn: Turn) -> str:
        await turn.delta("half")
        raise KeyError("secret")

    session = await hf.open("broken")
    await hf.send(session.id, "Go")
    async with asyncio.timeout(PATIENCE):
        ended = [
            each.payload
            async for each in hf.follow(session.id, until_settled=True)
            if isinstance(each, Event) and isinstance(each.payload, TurnEnded)
        ]

    assert [each.stop_reason for each in ended] == [StopReason.ERROR]
    assert ended[0].failure is not None
    assert ended[0].failure.message == "The loop failed with KeyError."


async def test_a_message_waits_for_a_process_that_has_the_loop(home: Path) -> None:
    async with open_holdfast(furnish(home)) as first:

        @first.runtime("planner")
        async def plan(_: Turn) -> str:
            return "planned"

        session = await first.open("planner")

    async with open_holdfast(furnish(home)) as second:
        await second.send(session.id, "Plan")
        async with asyncio.timeout(PATIENCE):
            while (waiting := (await current(second, session)).waiting) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        before = await second.read(session.id)
        async with open_holdfast(furnish(home), scope=RunScope.OWN) as third:

            @third.runtime("planner")
            async def again(_: Turn) -> str:
                return "planned later"

            said = await answered(third, session.id)
        after = await current(second, session)

    assert (waiting.reason, waiting.needs) == (WaitReason.RUNTIME, ("runtime:planner",))
    assert waiting.text == "The turn waits for a process that has the loop planner."
    assert [row.role for row in before] == [Role.USER]
    assert said == ["planned later"]
    assert after.waiting is None
    assert (plan, again) != (None, None)


async def test_names_of_loops_are_checked(hf: Holdfast) -> None:
    async def plan(_: Turn) -> str:
        return "one"

    async def other(_: Turn) -> str:
        return "two"

    hf.runtime("planner")(plan)
    hf.runtime("planner")(plan)
    with pytest.raises(Conflict) as taken:
        hf.runtime("planner")(other)
    with pytest.raises(Invalid):
        hf.runtime("not a slug")(plan)
    await hf.agents.create(hf.owner, {"name": "Clerk", "slug": "clerk"})
    hf.runtime("clerk")(plan)
    with pytest.raises(Conflict) as model:
        await hf.open("clerk")

    assert taken.value.code is Code.SLUG_TAKEN
    assert model.value.code is Code.SLUG_TAKEN


async def test_over_the_network_loops_are_refused_with_the_remedy() -> None:
    async with connect("http://127.0.0.1:1", "token") as remote:
        with pytest.raises(Invalid, match="open_holdfast"):
            remote.turn("00000000-0000-7000-8000-000000000000", "hi")
        with pytest.raises(Invalid, match="open_holdfast"):
            remote.runtime("planner")


async def test_many_may_open_right_after_a_loop_was_registered(hf: Holdfast) -> None:
    @hf.runtime("planner")
    async def plan(_: Turn) -> str:
        return "planned"

    opened = await asyncio.gather(*(hf.open("planner") for _ in range(3)))

    assert {session.agent.slug for session in opened} == {"planner"}
    assert plan is not None


async def test_a_loop_serves_the_sessions_of_its_owner_only(home: Path) -> None:
    async with (
        open_holdfast(furnish(home), owner="ada") as hf,
        open_holdfast(furnish(home), owner="bob") as other,
    ):

        @hf.runtime("planner")
        async def plan(_: Turn) -> str:
            return "planned"

        await hf.open("planner")
        fields = {"name": "planner", "runtime": LoopRuntime(name="planner")}
        await other.agents.create(other.owner, fields)
        session = await other.open("planner")
        await other.send(session.id, "Plan")
        await asyncio.sleep(1.5)
        waiting = (await current(other, session)).waiting

    assert waiting is not None
    assert waiting.reason is WaitReason.RUNTIME
    assert plan is not None


async def test_messages_that_wait_for_a_later_turn_are_not_shown(hf: Holdfast) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    @hf.runtime("echo")
    async def echo(turn: Turn) -> str:
        begun.set()
        await gate.wait()
        return f"{turn.prompt} | {turn.messages[-1].text}"

    session = await hf.open("echo")
    await hf.send(session.id, "one")
    await begun.wait()
    await hf.send(session.id, "two")
    gate.set()

    assert await answered(hf, session.id) == ["one | one", "two | two"]
    assert echo is not None


@pytest.mark.parametrize("loop", [lambda _: "text", 7])
async def test_what_cannot_run_is_no_loop(hf: Holdfast, loop: object) -> None:
    with pytest.raises(Invalid, match="async function"):
        hf.runtime("planner")(loop)  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("resume", "runs", "stop"),
    [
        ("stop", 1, StopReason.INTERRUPTED),
        ("history", 2, StopReason.STOP),
        ("replay", 1, StopReason.STOP),
    ],
)
async def test_a_loop_that_was_cut_off_goes_on_as_it_says(
    home: Path, resume: Any, runs: int, stop: StopReason
) -> None:
    ran: list[int] = []
    begun = asyncio.Event()

    async def pay(turn: Turn) -> str:
        await turn.call("pay", run=lambda: ran.append(1))
        if not begun.is_set():
            begun.set()
            await asyncio.sleep(PATIENCE)
        return "paid"

    async with open_holdfast(furnish(home)) as first:
        first.runtime("payer", resume=resume)(pay)
        session = await first.open("payer")
        await first.send(session.id, "Pay")
        await begun.wait()
    async with open_holdfast(furnish(home)) as second:
        second.runtime("payer", resume=resume)(pay)
        await second.open("payer")
        async with asyncio.timeout(PATIENCE):
            _ = [each async for each in second.follow(session.id, until_settled=True)]
        calls = (await second.calls.list(second.owner, session.id)).items
        after = await current(second, session)

    assert (len(ran), len({call.id for call in calls}), after.last_stop) == (runs, runs, stop)
