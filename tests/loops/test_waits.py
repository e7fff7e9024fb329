"""Turns that wait: what pauses them, what continues them, and what does not."""

import asyncio
import os
from datetime import timedelta
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    ApprovalRequested,
    ApprovalState,
    CallAnswer,
    Decision,
    Event,
    Holdfast,
    Invalid,
    ResultStatus,
    Role,
    RunScope,
    Session,
    Status,
    Turn,
    TurnContinued,
    TurnPaused,
    open_holdfast,
    tool,
)
from holdfast.children.model import ChildRequest
from holdfast.domain.waits import Wait, WaitReason
from holdfast.execution.coordinator import TURNS_AT_A_TIME
from tests.functions.stage import scripted
from tests.houses import current, news_until, payloads, played
from tests.new_homes import furnish
from tests.stand_ins import PATIENCE
from tests.tooled import a_config, asks, call, outcomes, says

pytestmark = pytest.mark.anyio

# Longer than the interval at which processes look for turns that they could continue.
SOME_LOOKS = 2.5
PAUSE = timedelta(seconds=0.05)


async def waits(hf: Holdfast, session: Session, reason: WaitReason) -> Wait:
    """Return what the turn of a session waits for, once it does."""
    async with asyncio.timeout(PATIENCE):
        while True:
            waiting = (await current(hf, session)).waiting
            if waiting is not None and waiting.reason is reason:
                return waiting
            await asyncio.sleep(0.02)


async def count_pauses(hf: Holdfast, session: Session) -> tuple[int, int]:
    """Return how often the turns of a session were paused and continued."""
    events = (await hf.events.list(hf.owner, session.id)).items
    kinds = [type(each.payload) for each in events if isinstance(each, Event)]
    return kinds.count(TurnPaused), kinds.count(TurnContinued)


async def test_calls_of_a_task_group_pause_the_turn_and_run_once_when_they_are_answered(
    home: Path,
) -> None:
    ran: list[str] = []
    runs = []

    def note(name: str) -> None:
        ran.append(name)

    async def plan(turn: Turn) -> str:
        runs.append(turn.number)

        async def act(name: str) -> None:
            await turn.branch(name).call("act", {"name": name}, run=note, approval="ask")

        async with asyncio.TaskGroup() as group:
            for name in ("left", "right"):
                group.create_task(act(name))
        return "both"

    config = a_config(home, approvals_pause_after=PAUSE)
    async with open_holdfast(config=config) as hf:
        hf.runtime("planner")(plan)
        session = await hf.open("planner")
        await hf.send(session.id, "Go")
        await waits(hf, session, WaitReason.APPROVAL)
    async with open_holdfast(config=config) as hf:
        hf.runtime("planner")(plan)
        news = payloads(await news_until(hf, session.id, TurnPaused))
        yes = Decision(state=ApprovalState.ALLOWED, by="me")
        asked = [each for each in news if isinstance(each, ApprovalRequested)]
        for each in asked:
            await hf.approvals.answer(hf.owner, session.id, each.approval_id, yes)
        async with asyncio.timeout(PATIENCE):
            rows = await played(hf, session.id)

    assert len(asked) == 2
    assert sorted(ran) == ["left", "right"]
    assert len(runs) >= 2
    assert rows[-1].text == "both"
    assert outcomes(rows) == ["act ok", "act ok"]


async def test_a_parked_loop_runs_its_call_once_when_no_process_lived_at_the_answer(
    home: Path,
) -> None:
    ran: list[str] = []

    async def plan(turn: Turn) -> str:
        before = await turn.call("look", {}, run=lambda: ran.append("look"))
        assert before is None
        await turn.call("act", {}, run=lambda: ran.append("act"), approval="ask")
        return "done"

    async with open_holdfast(furnish(home)) as hf:
        # A short while, where other turns would wait in their process for five seconds.
        hf.runtime("planner", park_after=0.01)(plan)
        session = await hf.open("planner")
        await hf.send(session.id, "Go")
        async with asyncio.timeout(SOME_LOOKS):
            waiting = await waits(hf, session, WaitReason.APPROVAL)
    async with open_holdfast(furnish(home), scope=RunScope.NONE) as desk:
        assert waiting.approval_id is not None
        yes = Decision(state=ApprovalState.ALLOWED, by="me")
        await desk.approvals.answer(desk.owner, session.id, waiting.approval_id, yes)
    before = list(ran)
    async with open_holdfast(furnish(home)) as hf:
        hf.runtime("planner", park_after=0.01)(plan)
        async with asyncio.timeout(PATIENCE):
            rows = await played(hf, session.id)

    assert before == ["look"]
    assert ran == ["look", "act"]
    assert outcomes(rows) == ["look ok", "act ok"]


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.torture)])
async def test_parked_loops_hold_no_task_no_lease_and_no_connection(home: Path, count: int) -> None:
    async def plan(turn: Turn) -> None:
        await turn.call("act", {}, run=lambda: None, approval="ask")

    async def begin() -> None:
        session = await hf.open("planner")
        await hf.send(session.id, "Go")

    async def parked(number: int) -> tuple[int, int, int]:
        """Wait until so many loops are parked; return the numbers of tasks, files and leases."""
        async with asyncio.timeout(PATIENCE + number / 50):
            while len(await hf.store.read(lambda tx: tx.waits.paused(reasons))) < number:  # noqa: ASYNC110
                await asyncio.sleep(number / 5_000)
        leases = await hf.store.read(lambda tx: tx.sessions.running(hf.owner))
        return len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd")), len(leases)

    reasons = (WaitReason.APPROVAL,)
    # As many as run at a time, so that what a store opens once is open.
    at_a_time = TURNS_AT_A_TIME
    rounds = ceil(count / at_a_time)
    async with open_holdfast(home) as hf:
        hf.runtime("planner", park_after=0)(plan)
        await asyncio.gather(*(begin() for _ in range(at_a_time)))
        tasks, files, _ = await parked(at_a_time)
        for _ in range(rounds):
            await asyncio.gather(*(begin() for _ in range(at_a_time)))
        found = await parked(at_a_time * (1 + rounds))

    # One of each for every parked loop would be hundreds.
    assert found[0] < tasks + at_a_time / 4
    assert found[1] < files + at_a_time / 4
    assert found[2] == 0


@pytest.mark.parametrize("resume", ["history", "stop"])
async def test_a_loop_that_is_not_replayed_waits_where_it_is(home: Path, resume: Any) -> None:
    runs: list[int] = []

    async def plan(turn: Turn) -> str:
        runs.append(turn.number)
        await turn.call("act", {}, run=lambda: None, approval="ask")
        answer = await turn.spawn("holdfast", "What is 2+2?")
        return answer.text

    config = a_config(home, says("4"), approvals_pause_after=PAUSE)
    async with open_holdfast(config=config) as hf:
        hf.runtime("planner", resume=resume)(plan)
        session = await hf.open("planner")
        await hf.send(session.id, "Go")
        news = payloads(await news_until(hf, session.id, ApprovalRequested))
        (asked,) = [each for each in news if isinstance(each, ApprovalRequested)]
        await asyncio.sleep(PAUSE.total_seconds() * 4)
        yes = Decision(state=ApprovalState.ALLOWED, by="me")
        await hf.approvals.answer(hf.owner, session.id, asked.approval_id, yes)
        async with asyncio.timeout(PATIENCE):
            rows = await played(hf, session.id)
        pauses = await count_pauses(hf, session)

    assert (len(runs), pauses) == (1, (0, 0))
    assert rows[-1].text == "4"


@pytest.mark.parametrize(
    "options", [{"park_after": -1}, {"park_after": "1"}, {"park_after": 1, "resume": "history"}]
)
async def test_how_long_a_loop_waits_is_checked(home: Path, options: dict[str, Any]) -> None:
    async with open_holdfast(furnish(home)) as hf:
        with pytest.raises(Invalid, match="park_after"):
            hf.runtime("planner", **options)(_say)


@pytest.mark.parametrize("breaths", range(6))
async def test_a_claim_that_is_cancelled_leaves_no_turn_open(home: Path, breaths: int) -> None:
    async with open_holdfast(furnish(home)) as hf:
        session = await hf.open()

        async def hold() -> None:
            async with hf.turn(session.id, "One", wait=True) as turn:
                await turn.say("1")

        claim = asyncio.create_task(hold())
        for _ in range(breaths):
            await asyncio.sleep(0)
        claim.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claim
        left = await current(hf, session)
        async with hf.turn(session.id, "Two") as turn:
            await turn.say("2")
        rows = await hf.read(session.id)

    assert left.turn == left.settled
    assert left.status is not Status.RUNNING
    assert [row.text for row in rows if row.role is Role.ASSISTANT][-1] == "2"


async def test_a_claim_that_waits_and_is_cancelled_sends_nothing(home: Path) -> None:
    async with open_holdfast(furnish(home)) as hf:
        session = await hf.open()

        async def hold() -> None:
            async with hf.turn(session.id, "Two", wait=True):
                pass

        async with hf.turn(session.id, "One") as turn:
            claim = asyncio.create_task(hold())
            await asyncio.sleep(0.05)
            claim.cancel()
            with pytest.raises(asyncio.CancelledError):
                await claim
            await turn.say("1")
        rows = await hf.read(session.id)

    assert [row.text for row in rows] == ["One", "1"]


async def test_a_wait_ends_only_when_what_it_waits_for_has_come(home: Path) -> None:
    @tool(effect="pure")
    def other() -> str:
        """Do something else."""
        return "other"

    schema = {"type": "object", "properties": {"days": {"type": "integer"}}}
    look = {"name": "look", "description": "Look", "parameters": schema, "effect": "pure"}
    config = a_config(home, asks(call("look", "c1", days=7)), says("done"), says("next"))
    async with open_holdfast(config=config) as hf:
        await hf.agents.create(hf.owner, {"name": "Ada", "tools": [look]})
        session = await hf.open("ada")
        await hf.send(session.id, "Go")
        before = await waits(hf, session, WaitReason.CLIENT)
    async with open_holdfast(config=config, tools=[other]) as hf:
        # What other turns may wait for: a tool, a loop, a child, an approval, the next message.
        hf.runtime("planner")(_say)
        await hf.open("planner")
        await hf.send(session.id, "And then?")
        await hf.children.spawn(hf.owner, session.id, _task())
        await hf.maintenance.recover()
        await asyncio.sleep(SOME_LOOKS)
        after = await waits(hf, session, WaitReason.CLIENT)
        pauses = await count_pauses(hf, session)
        await hf.calls.answer(
            hf.owner, session.id, "c1", CallAnswer(status=ResultStatus.OK, result="free")
        )
        async with asyncio.timeout(PATIENCE):
            rows = await played(hf, session.id)

    assert after == before
    assert pauses == (1, 0)
    assert outcomes(rows) == ["look ok"]


async def _say(turn: Turn) -> str:
    return turn.prompt


def _task() -> ChildRequest:
    return ChildRequest(agent="holdfast", task="What is 2+2?")


async def test_processes_that_lack_something_do_not_pass_a_turn_to_and_fro(home: Path) -> None:
    """Each of two servers has the one of two functions that the other one lacks."""

    @tool(effect="pure")
    def left() -> str:
        """Go left."""
        return "left"

    @tool(effect="pure")
    def right() -> str:
        """Go right."""
        return "right"

    config = scripted(home, call("left"), call("right"))
    async with open_holdfast(config=config, scope=RunScope.NONE, tools=[left, right]) as hf:
        await hf.agents.create(hf.owner, {"name": "Goer", "tools": ["left", "right"]})
        session = await hf.open("goer")
        await hf.send(session.id, "go")
    async with (
        open_holdfast(config=config, tools=[left]) as one,
        open_holdfast(config=config, tools=[right]),
    ):
        before = await waits(one, session, WaitReason.TOOL)
        await asyncio.sleep(SOME_LOOKS)
        after = await waits(one, session, WaitReason.TOOL)
        pauses = await count_pauses(one, session)
        one.tools.add(right)
        async with asyncio.timeout(PATIENCE):
            rows = await played(one, session.id)

    assert after == before
    assert pauses == (1, 0)
    assert outcomes(rows) == ["left ok", "right ok"]
