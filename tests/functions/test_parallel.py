"""Adjacent parallel calls of one model step run at once, and are answered in their order."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    ApprovalRequested,
    ApprovalState,
    Decision,
    Event,
    Invalid,
    MessageAppended,
    StopReason,
    ToolEnded,
    ToolStarted,
    TurnPaused,
    open_holdfast,
    tool,
)
from holdfast.domain.messages import Role
from holdfast.domain.waits import WaitReason
from holdfast.engine.projection import project
from tests.functions.stage import results, scripted, sent
from tests.houses import current, news_until, payloads, played
from tests.stand_ins import PATIENCE
from tests.tooled import call, outcomes

pytestmark = pytest.mark.anyio


class Meeting:
    """A function whose calls end only when so many of them run at once, the last one first."""

    def __init__(self, size: int, *, parallel: bool = True) -> None:
        self.most = self.running = 0
        self.starts: list[str] = []
        self._size = size
        self._everyone = asyncio.Event()

        @tool(effect="idempotent", parallel=parallel)
        async def meet(name: str, *, delay: float = 0.0) -> str:
            """Meet the others."""
            self.starts.append(name)
            self.running += 1
            self.most = max(self.most, self.running)
            if self.running == self._size:
                self._everyone.set()
            if parallel:
                await self._everyone.wait()
            await asyncio.sleep(delay)
            self.running -= 1
            return f"{name} met"

        self.meet = meet


def three(**more: Any) -> list[dict[str, Any]]:
    delays = {"c1": 0.06, "c2": 0.03, "c3": 0.0}
    return [call("meet", each, name=each, delay=delay) for each, delay in delays.items()]


async def test_parallel_calls_run_at_once_and_the_model_reads_them_in_their_order(
    home: Path,
) -> None:
    meeting = Meeting(3)
    async with sent(scripted(home, *three()), meeting.meet) as (hf, session):
        found = await results(hf, session)
        rows = await hf.read(session.id)
        news = [each async for each in hf.follow(session.id, until_settled=True)]

    assert meeting.most == 3
    # On disk as they come.
    assert [each.call_id for each in found] == ["c3", "c2", "c1"]
    shown = [each.call_id for each in project(rows, turn=1) if each.role == "tool"]
    assert shown == ["c1", "c2", "c3"]
    order = [each.payload for each in news if isinstance(each, Event)]
    starts = [order.index(each) for each in order if isinstance(each, ToolStarted)]
    ends = [order.index(each) for each in order if isinstance(each, ToolEnded)]
    intents = [
        order.index(each)
        for each in order
        if isinstance(each, MessageAppended) and each.role is Role.TOOL_CALL
    ]
    assert max(intents) < min(starts)
    assert max(starts) < min(ends)


async def test_without_the_flag_calls_run_one_after_the_other(home: Path) -> None:
    meeting = Meeting(3, parallel=False)
    async with sent(scripted(home, *three()), meeting.meet) as (hf, session):
        found = await results(hf, session)

    assert meeting.most == 1
    assert [each.call_id for each in found] == ["c1", "c2", "c3"]


async def test_another_call_in_between_separates_them(home: Path) -> None:
    meeting, seen = Meeting(2), []

    @tool
    async def write(text: str) -> str:
        """Write."""
        seen.append((text, list(meeting.starts)))
        return text

    calls = [
        call("meet", "c1", name="a"),
        call("meet", "c2", name="b"),
        call("write", "c3", text="x"),
        call("meet", "c4", name="c"),
    ]
    async with sent(scripted(home, *calls), meeting.meet, write) as (hf, session):
        rows = await played(hf, session.id)

    assert seen == [("x", ["a", "b"])]
    assert outcomes(rows) == ["meet ok", "meet ok", "write ok", "meet ok"]


async def test_a_limit_of_the_tool_holds_for_parallel_calls(home: Path) -> None:
    running, most = 0, 0

    @tool(effect="pure", parallel=True, concurrency=2)
    async def look(number: int) -> int:
        """Look."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return number

    calls = [call("look", f"c{number}", number=number) for number in range(6)]
    async with sent(scripted(home, *calls), look) as (hf, session):
        found = await results(hf, session)

    assert most == 2
    assert sorted(each.result for each in found) == list(range(6))


async def test_an_interrupt_cancels_all_of_them(home: Path) -> None:
    waiting: list[str] = []
    cancelled: list[str] = []
    all_wait = asyncio.Event()

    @tool(effect="pure", parallel=True)
    async def wait(name: str) -> None:
        """Wait."""
        waiting.append(name)
        if len(waiting) == 3:
            all_wait.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(name)
            raise

    calls = [call("wait", each, name=each) for each in ("c1", "c2", "c3")]
    async with sent(scripted(home, *calls), wait) as (hf, session):
        await asyncio.wait_for(all_wait.wait(), PATIENCE)
        await hf.sessions.interrupt(hf.owner, session.id)
        rows = await played(hf, session.id)
        now = await current(hf, session)

    assert now.last_stop is StopReason.ABORTED
    assert outcomes(rows) == ["wait error/aborted"] * 3
    assert sorted(cancelled) == ["c1", "c2", "c3"]


async def test_one_that_fails_leaves_the_others_alone(home: Path) -> None:
    @tool(effect="pure", parallel=True)
    async def divide(by: int) -> float:
        """Divide."""
        await asyncio.sleep(0.001 * by)
        return 1 / by

    calls = [call("divide", f"c{by}", by=by) for by in (0, 1, 2)]
    async with sent(scripted(home, *calls), divide) as (hf, session):
        rows = await played(hf, session.id)

    assert outcomes(rows) == ["divide error/failed", "divide ok", "divide ok"]


async def test_what_has_run_is_not_run_again_when_another_one_waited_for_approval(
    home: Path,
) -> None:
    ran: list[str] = []

    @tool(effect="idempotent", parallel=True, approval=lambda given: given["rule"])
    async def act(name: str, rule: str) -> str:
        """Act."""
        ran.append(name)
        return name

    calls = [
        call("act", "c1", name="a", rule="ask"),
        call("act", "c2", name="b", rule="auto"),
        call("act", "c3", name="c", rule="ask"),
    ]
    config = scripted(home, *calls, approvals_pause_after=timedelta(seconds=0.05))
    async with sent(config, act) as (hf, session):
        news = payloads(await news_until(hf, session.id, TurnPaused))
        waiting = (await current(hf, session)).waiting
        assert ran == ["b"]
        questions = [each for each in news if isinstance(each, ApprovalRequested)]
        yes = Decision(state=ApprovalState.ALLOWED, by="me")
        for each in questions:
            await hf.approvals.answer(hf.owner, session.id, each.approval_id, yes)
        rows = await played(hf, session.id)

    assert waiting is not None
    assert (waiting.reason, waiting.call_ids) == (WaitReason.APPROVAL, ("c1", "c3"))
    assert len(questions) == 2
    assert sorted(ran) == ["a", "b", "c"]
    assert outcomes(rows) == ["act ok"] * 3


async def test_after_a_restart_only_those_without_a_result_run_again(home: Path) -> None:
    ran: list[str] = []
    gate = asyncio.Event()

    @tool(effect="pure", parallel=True)
    async def work(name: str) -> str:
        """Work."""
        ran.append(name)
        if name != "a":
            await gate.wait()
        return name

    calls = [call("work", f"c-{name}", name=name) for name in "abc"]
    config = scripted(home, *calls)
    async with sent(config, work) as (hf, session):
        await news_until(hf, session.id, ToolEnded)
    gate.set()
    async with open_holdfast(config=config, tools=[work]) as hf:
        rows = await played(hf, session.id)

    assert sorted(ran) == ["a", "b", "b", "c", "c"]
    assert outcomes(rows) == ["work ok"] * 3


def test_an_unsafe_function_cannot_be_parallel() -> None:
    with pytest.raises(Invalid, match="pure or idempotent"):

        @tool(parallel=True)
        def act() -> None:
            """Act."""
