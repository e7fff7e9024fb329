"""Calls of one model step that clients run: requested at once, each with its own client and end."""

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from holdfast import Holdfast, Session, Status, open_holdfast, tool
from holdfast.config import Config
from holdfast.domain.calls import Call, CallState
from holdfast.domain.errors import Code, Conflict, Invalid
from holdfast.domain.events import ToolRequested, TurnPaused
from holdfast.domain.messages import ResultStatus
from holdfast.domain.tools import ToolSpec
from holdfast.domain.waits import WaitReason
from holdfast.engine.projection import project
from holdfast.services.calls import CallAnswer
from holdfast.services.turns import Turns
from holdfast.workers.model import ClaimRequest, WorkerRequest
from tests.houses import current, played, script
from tests.marks import each_case
from tests.services.test_client_calls import OK, a_house, payloads_of, requested, results
from tests.tooled import a_config, answer, asks, call, calls_now, outcomes, question, says

pytestmark = pytest.mark.anyio


def a_tool(name: str = "look", **more: Any) -> dict[str, Any]:
    fixed = {"name": name, "description": "Look.", "parameters": {"type": "object"}}
    return {**fixed, "effect": "idempotent", **more}


def looking(home: Path, *names: str) -> Config:
    calls = [call(name, f"c{number}") for number, name in enumerate(names, start=1)]
    return a_config(
        home,
        asks(*calls),
        says("done"),
        approvals_pause_after=timedelta(seconds=0.05),
    )


async def sent(house: Holdfast, tools: Iterable[Any]) -> Session:
    agent = await house.agents.create(house.owner, {"name": "Clerk", "tools": list(tools)})
    session = await house.open(agent.slug)
    await house.send(session.id, "go")
    return session


async def give(house: Holdfast, session: Session, call_id: str, **more: Any) -> Call:
    answered = CallAnswer(status=ResultStatus.OK, result=call_id, **more)
    return await house.calls.answer(house.owner, session.id, call_id, answered)


async def claim(house: Holdfast, session: Session, call_id: str, worker: str) -> str:
    wanted = ClaimRequest(claim=str(uuid4()), worker=worker)
    await house.workers.claim(house.owner, session.id, call_id, wanted)
    return wanted.claim


async def test_calls_of_one_step_are_requested_at_once_and_claimed_by_several_clients(
    home: Path,
) -> None:
    async with a_house(looking(home, "look", "look", "look")) as house:
        session = await sent(house, [a_tool()])
        for each in ("c1", "c2", "c3"):
            await requested(house, session, each)
        waiting = (await current(house, session)).waiting
        second = await claim(house, session, "c2", "one")
        third = await claim(house, session, "c3", "two")
        with pytest.raises(Conflict) as refused:
            await give(house, session, "c2", claim=third)
        await give(house, session, "c3", claim=third)
        await give(house, session, "c2", claim=second)
        assert (await current(house, session)).waiting is not None
        await give(house, session, "c1")
        rows = await played(house, session.id)
        events = await payloads_of(house, session)

    assert waiting is not None
    assert (waiting.reason, waiting.call_ids) == (WaitReason.CLIENT, ("c1", "c2", "c3"))
    assert refused.value.code is Code.CALL_CLAIMED
    assert [each.result for each in results(rows)] == ["c3", "c2", "c1"]
    shown = [each.call_id for each in project(rows, turn=1) if each.role == "tool"]
    assert shown == ["c1", "c2", "c3"]
    assert sum(isinstance(each, TurnPaused) for each in events) == 1
    assert [each.call_id for each in events if isinstance(each, ToolRequested)] == [
        "c1",
        "c2",
        "c3",
    ]


@each_case("more", [{"parallel": False}, {"effect": "unsafe"}])
async def test_other_calls_are_requested_one_after_the_other(
    home: Path, more: dict[str, Any]
) -> None:
    async with a_house(looking(home, "look", "look")) as house:
        session = await sent(house, [a_tool(**more)])
        await requested(house, session, "c1")
        before = await calls_now(house, session)
        await give(house, session, "c1")
        await requested(house, session, "c2")
        await give(house, session, "c2")
        await played(house, session.id)

    assert before == {"c1": CallState.REQUESTED, "c2": CallState.INTENDED}


@each_case("more", [{"parallel": "yes"}, {"parallel": True, "effect": "unsafe"}])
async def test_a_definition_that_cannot_be_parallel_is_refused(
    home: Path, more: dict[str, Any]
) -> None:
    async with a_house(looking(home, "look")) as house:
        with pytest.raises(Invalid) as refused:
            await house.agents.create(house.owner, {"name": "Clerk", "tools": [a_tool(**more)]})

    assert refused.value.code is Code.TOOL_INVALID
    assert "parallel" in refused.value.message


@pytest.mark.parametrize("is_claimed", [False, True])
async def test_at_the_deadline_of_one_the_other_is_still_waited_for(
    home: Path, is_claimed: bool
) -> None:
    tools = [a_tool("quick", timeout_s=0.3), a_tool("slow")]
    async with a_house(looking(home, "quick", "slow")) as house:
        session = await sent(house, tools)
        before = await requested(house, session, "c2")
        mine = await claim(house, session, "c2", "one") if is_claimed else None
        while (await calls_now(house, session))["c1"] is not CallState.FINISHED:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        while (found := (await current(house, session)).waiting) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        after = await house.calls.get(house.owner, session.id, "c2")
        await give(house, session, "c2", claim=mine)
        rows = await played(house, session.id)
        events = await payloads_of(house, session)

    assert found.until == before.deadline_at == after.deadline_at
    assert (after.attempt, after.claim is not None) == (1, is_claimed)
    assert outcomes(rows) == ["quick error/timeout", "slow ok"]
    assert sum(isinstance(each, ToolRequested) for each in events) == 2


async def test_an_answer_that_comes_while_the_turn_runs_is_taken(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tools = [a_tool("quick", timeout_s=0.3), a_tool("slow")]
    pause, pauses = Turns._pause, 0
    async with a_house(looking(home, "quick", "slow")) as house:

        async def answered_before(*given: Any) -> Any:
            nonlocal pauses
            pauses += 1
            if pauses == 2:
                await give(house, session, "c2")
            return await pause(*given)

        monkeypatch.setattr(Turns, "_pause", answered_before)
        session = await sent(house, tools)
        rows = await played(house, session.id)

    assert pauses == 2
    # Otherwise the lease has to run out first.
    assert "skipped" not in caplog.text
    assert outcomes(rows) == ["quick error/timeout", "slow ok"]
    assert rows[-1].text == "done"


async def test_an_interrupt_ends_what_is_claimed_and_what_is_not(home: Path) -> None:
    async with a_house(looking(home, "look", "look")) as house:
        session = await sent(house, [a_tool()])
        await requested(house, session, "c2")
        mine = await claim(house, session, "c2", "one")
        await house.sessions.interrupt(house.owner, session.id)
        rows = await played(house, session.id)
        extension = await house.workers.extend_claim(house.owner, session.id, "c2", mine)

    assert outcomes(rows) == ["look skipped/aborted", "look error/aborted"]
    assert extension.is_cancelled


async def test_one_that_needs_an_approval_is_requested_after_it(home: Path) -> None:
    tools = [a_tool("ask", approval="ask"), a_tool("look")]
    async with a_house(looking(home, "ask", "look")) as house:
        session = await sent(house, tools)
        asked = await question(house, session)
        await requested(house, session, "c2")
        waiting = (await current(house, session)).waiting
        await give(house, session, "c2")
        before = await calls_now(house, session)
        await answer(house, asked)
        await requested(house, session, "c1")
        await give(house, session, "c1")
        rows = await played(house, session.id)

    assert waiting is not None
    assert (waiting.reason, waiting.call_ids) == (WaitReason.APPROVAL, ("c1", "c2"))
    assert before == {"c1": CallState.INTENDED, "c2": CallState.FINISHED}
    assert sorted(outcomes(rows)) == ["ask ok", "look ok"]


async def test_the_calls_outlive_their_process(home: Path) -> None:
    config = looking(home, "look", "look")
    async with a_house(config) as house:
        session = await sent(house, [a_tool()])
        await requested(house, session, "c2")
        await give(house, session, "c2")
    async with asyncio.timeout(30), open_holdfast(config=config) as house:
        await requested(house, session, "c1")
        await house.calls.answer(house.owner, session.id, "c1", OK)
        rows = await played(house, session.id)

    assert outcomes(rows) == ["look ok", "look ok"]


@pytest.mark.parametrize("is_client_first", [False, True])
async def test_a_child_works_while_a_client_does(home: Path, is_client_first: bool) -> None:
    calls = call("invoke_agent", "c1", agent="helper", task="Look"), call("look", "c2")
    async with a_house(a_config(home, asks(*calls), says("done"))) as house:
        own = home.parent / "helper"
        own.mkdir()
        helper = script(own, says("found", delay_ms=300))
        fields = {"name": "Helper", "slug": "helper", "models": [helper]}
        await house.agents.create(house.owner, fields)
        starter = {"name": "invoke_agent", "agents": ["helper"]}
        session = await sent(house, [starter, a_tool()])
        await requested(house, session, "c2")
        waiting = (await current(house, session)).waiting
        if not is_client_first:
            await asyncio.sleep(0.6)
        await give(house, session, "c2")
        rows = await played(house, session.id)

    assert waiting is not None
    assert waiting.call_ids == ("c1", "c2")
    assert sorted(outcomes(rows)) == ["invoke_agent ok", "look ok"]
    assert rows[-1].text == "done"


async def test_a_client_is_asked_while_a_function_of_the_same_step_runs(home: Path) -> None:
    """Each waits for another kind, so that only all at once can end."""
    answered = asyncio.Event()
    seen: list[str] = []

    @tool(effect="idempotent", parallel=True)
    async def here(name: str) -> str:
        """Wait for the client."""
        seen.append(name)
        await answered.wait()
        return name

    calls = (
        call("here", "c1", name="x"),
        call("look", "c2"),
        call("invoke_agent", "c3", agent="helper", task="Look"),
        call("here", "c4", name="y"),
    )
    async with a_house(a_config(home, asks(*calls), says("done")), tools=[here]) as house:
        own = home.parent / "helper"
        own.mkdir()
        helper = script(own, says("found"))
        await house.agents.create(
            house.owner, {"name": "Helper", "slug": "helper", "models": [helper]}
        )
        starter = {"name": "invoke_agent", "agents": ["helper"]}
        session = await sent(house, [starter, a_tool(), "here"])
        request = WorkerRequest(name="w", tools=(ToolSpec(name="look"),))
        worker = await house.workers.register(house.owner, request)
        work = await house.workers.next(house.owner, worker.id, claim=True)
        (offered,) = work.calls
        running = await current(house, session)
        await give(house, session, "c2", claim=offered.claim)
        answered.set()
        rows = await played(house, session.id)

    assert (running.status, running.waiting, sorted(seen)) == (Status.RUNNING, None, ["x", "y"])
    assert sorted(outcomes(rows)) == ["here ok", "here ok", "invoke_agent ok", "look ok"]
    shown = [each.call_id for each in project(rows, turn=1) if each.role == "tool"]
    assert shown == ["c1", "c2", "c3", "c4"]
    assert rows[-1].text == "done"


async def test_a_mixed_step_is_continued_after_its_process_has_left(home: Path) -> None:
    """The client's call stays requested, the function runs again, and the child is found."""
    runs: list[int] = []
    is_over = asyncio.Event()

    @tool(effect="idempotent", parallel=True)
    async def here() -> str:
        """Wait."""
        runs.append(1)
        await is_over.wait()
        return "here"

    child = call("invoke_agent", "c3", agent="helper", task="Look")
    config = a_config(home, asks(call("here", "c1"), call("look", "c2"), child), says("done"))
    async with a_house(config, tools=[here]) as house:
        own = home.parent / "helper"
        own.mkdir()
        helper = script(own, says("found"))
        await house.agents.create(
            house.owner, {"name": "Helper", "slug": "helper", "models": [helper]}
        )
        starter = {"name": "invoke_agent", "agents": ["helper"]}
        session = await sent(house, [starter, a_tool(), "here"])
        while CallState.REQUESTED not in (await calls_now(house, session)).values():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    is_over.set()
    async with a_house(config, tools=[here]) as house:
        await give(house, session, "c2")
        rows = await played(house, session.id)
        events = [
            each for each in await payloads_of(house, session) if isinstance(each, ToolRequested)
        ]
        family = (await house.sessions.get(house.owner, session.id)).children

    assert sorted(outcomes(rows)) == ["here ok", "invoke_agent ok", "look ok"]
    assert (len(runs), len(events), family) == (2, 1, 1)
