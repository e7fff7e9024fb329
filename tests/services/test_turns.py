"""Turns: a conversation of many, each with one ending; what goes wrong in one is data."""

import asyncio
from pathlib import Path
from typing import NoReturn

import pytest

from holdfast.api import Holdfast
from holdfast.app import Environment
from holdfast.domain.costs import Usage
from holdfast.domain.drafts import CostDraft, Outcome, ToolsFound
from holdfast.domain.events import (
    MessageAppended,
    SessionOpened,
    StepDelta,
    StepEnded,
    StepStarted,
    TurnEnded,
    TurnPaused,
    TurnStarted,
)
from holdfast.domain.messages import Role
from holdfast.domain.queries import SessionQuery
from holdfast.domain.sessions import Status, StopReason
from holdfast.domain.waits import Wait, WaitReason
from holdfast.ports.runtime import Emit, TurnInput, TurnPausedError
from tests.builders import MODEL_ID, an_id
from tests.houses import (
    calls_of,
    current,
    key_of,
    news_until,
    open_house,
    payloads,
    played,
    texts,
)
from tests.marks import demands
from tests.stand_ins import (
    PATIENCE,
    Gate,
    GatedRuntime,
    SettableClock,
    a_start,
    an_answer,
    an_intent,
    asked,
)

pytestmark = pytest.mark.anyio


@demands("S0-001", "S0-039")
async def test_a_session_is_a_conversation_of_many_turns_with_one_agent(
    holdfast: Holdfast,
) -> None:
    session = await holdfast.open()

    for text in ("my name is Ada", "2+3", "what is my name?"):
        await holdfast.send(session.id, text)
        rows = await played(holdfast, session.id)

    assert [row.role for row in rows] == [Role.USER, Role.ASSISTANT] * 3
    assert [row.turn for row in rows] == [1, 1, 2, 2, 3, 3]
    assert [row.text for row in rows[3::2]] == ["2+3 = 5", "You said your name is Ada."]
    assert [row.model_id for row in rows] == [None, MODEL_ID] * 3


async def test_the_news_of_a_turn_come_in_their_order(holdfast: Holdfast) -> None:
    session = await holdfast.open()
    await holdfast.send(session.id, "2+2?")

    news = await news_until(holdfast, session.id, TurnEnded)

    assert [type(each) for each in payloads(news) if not isinstance(each, StepDelta)] == [
        SessionOpened,
        MessageAppended,
        TurnStarted,
        StepStarted,
        StepEnded,
        MessageAppended,
        TurnEnded,
    ]
    streamed = "".join(each.text for each in payloads(news) if isinstance(each, StepDelta))
    assert streamed == (await holdfast.read(session.id))[-1].text


@demands("S0-004b", "S0-004d", "S1-027", "S2-040g", "S2-040h")
async def test_status_and_times_follow_the_turns(
    home: Path, outside: Environment, clock: SettableClock
) -> None:
    first, second = Gate(), Gate()
    runtime = GatedRuntime([first, an_answer("one")], [second, an_answer("two")])
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()
        assert (session.status, session.started_at, session.finished_at) == (
            Status.PENDING,
            None,
            None,
        )

        clock.advance(minutes=1)
        await house.send(session.id, "hello")
        await first.reached()
        running = await current(house, session)
        assert (running.status, running.finished_at) == (Status.RUNNING, None)
        assert running.started_at is not None
        clock.advance(minutes=1)
        first.open()
        await played(house, session.id)
        idle = await current(house, session)
        assert (idle.status, idle.last_stop) == (Status.IDLE, StopReason.STOP)
        assert (idle.started_at, idle.finished_at) == (running.started_at, idle.updated_at)

        await house.send(session.id, "again")
        await second.reached()
        again = await current(house, session)
        assert (again.status, again.started_at) == (Status.RUNNING, running.started_at)
        assert again.finished_at is None


@demands("S0-080", "S0-080b")
async def test_the_runtime_learns_the_conversation_and_no_session(
    home: Path, outside: Environment
) -> None:
    runtime = GatedRuntime([(asked(),), an_answer("one")], [(asked(),), an_answer("two")])
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        await played(house, session.id)
        await house.send(session.id, "again")
        rows = await played(house, session.id)

    first, second = runtime.turns
    assert (first.turn, second.turn, second.step) == (1, 2, 1)
    assert (first.history, second.history) == (rows[:1], rows[:3])
    assert (second.agent, second.context) == (session.agent, session.context)
    assert not hasattr(second, "session_id")


async def test_costs_are_entered_once_and_added_up(home: Path, outside: Environment) -> None:
    usage = Usage(input=10, output=5, reasoning=2)
    cost = CostDraft(request_id=an_id(1), model_id=MODEL_ID, usage=usage, microcents=7, priced=True)
    silent = CostDraft(request_id=an_id(2), model_id=MODEL_ID)
    runtime = GatedRuntime([(cost,), (cost, silent), an_answer("done", usage=usage)])
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        news = await news_until(house, session.id, TurnEnded)

        spent = await current(house, session)
        assert (spent.usage, spent.microcents) == (Usage(input=10, output=5), 7)
        assert payloads(news)[-1] == TurnEnded(
            stop_reason=StopReason.STOP, usage=usage, microcents=7, priced=False
        )
        await house.send(session.id, "again")
        await played(house, session.id)
    assert runtime.turns[-1].ordinal == 3


async def test_tools_that_a_server_offers_are_added_once_to_those_of_the_session(
    home: Path, outside: Environment
) -> None:
    found = (ToolsFound(names=("mcp__notes__add",)),)
    runtime = GatedRuntime([found, an_answer("one")], [found, an_answer("two")])
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()
        for text in ("hello", "again"):
            await house.send(session.id, text)
            await played(house, session.id)
        now = await current(house, session)

    assert [tool.name for tool in now.tools[len(session.tools) :]] == ["mcp__notes__add"]


async def test_a_turn_is_priced_when_every_request_of_it_is(
    home: Path, outside: Environment
) -> None:
    usage = Usage(input=10, output=5)
    costs = [
        CostDraft(request_id=an_id(each), model_id=MODEL_ID, usage=usage, microcents=7, priced=True)
        for each in (1, 2)
    ]
    runtime = GatedRuntime([costs, an_answer("done", usage=usage)])
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        news = await news_until(house, session.id, TurnEnded)

    assert payloads(news)[-1] == TurnEnded(
        stop_reason=StopReason.STOP, usage=usage + usage, microcents=14, priced=True
    )


@pytest.mark.parametrize(
    ("reason", "closing"),
    [
        (StopReason.STOP, None),
        (StopReason.LENGTH, None),
        (StopReason.REFUSAL, None),
        (StopReason.ABORTED, "The turn was stopped by its user."),
        (StopReason.TURN_LIMIT, "The session has reached its limit of turns."),
        (StopReason.BUDGET, "The session's budget is used up."),
        (StopReason.ERROR, "The turn failed."),
    ],
)
async def test_a_turn_that_ends_badly_gets_one_closing_row(
    home: Path, outside: Environment, reason: StopReason, closing: str | None
) -> None:
    runtime = GatedRuntime([(Outcome(stop_reason=reason),)])
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        rows = await played(house, session.id)

    assert texts(rows)[1:] == ([("system", closing)] if closing else [])


@demands("S0-039", "S2-053", "S2-053b", "S2-053c")
async def test_calls_and_results_are_rows_and_calls_are_followed(
    home: Path, outside: Environment
) -> None:
    gate = Gate()
    runtime = GatedRuntime([(an_intent(),), (a_start(),), gate])
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        await gate.reached()

        rows = await house.read(session.id)
        assert [row.role for row in rows] == [Role.USER, Role.TOOL_CALL]
        assert (rows[1].parts, rows[1].model_id) == (an_intent().parts, MODEL_ID)
        assert await calls_of(house, session.id, turn=1) == {"call-1": "started"}


@demands("S2-002", "S2-002b", "S2-020b")
async def test_fifty_sessions_of_one_agent_play_at_once_without_cross_talk(
    holdfast: Holdfast,
) -> None:
    sessions = [await holdfast.open() for _ in range(50)]

    for number, session in enumerate(sessions):
        await holdfast.send(session.id, f"{number} + 1000")
    rows = await asyncio.gather(*(played(holdfast, session.id) for session in sessions))

    for number, (_, answer) in enumerate(rows):
        assert answer.text.startswith(f"{number} + 1000 = {number + 1000}")
    assert await holdfast.sessions.count(SessionQuery(owner=holdfast.owner)) == 50


class Pausing(GatedRuntime):
    """A runtime whose turns wait for another session."""

    async def run(self, turn: TurnInput, emit: Emit) -> NoReturn:
        raise TurnPausedError(Wait(reason=WaitReason.CHILD, text="It waits for another session."))


async def test_a_paused_session_takes_no_memory(home: Path, outside: Environment) -> None:
    async with open_house(home, Pausing(), outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        await news_until(house, session.id, TurnPaused)
        key = await key_of(house, session)

        async with asyncio.timeout(PATIENCE):
            while house.journal.rows_now(key):  # noqa: ASYNC110 — dropped after its event
                await asyncio.sleep(0)

        assert [row.text for row in await house.read(session.id)] == ["hello"]
