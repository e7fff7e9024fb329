"""What a crash leaves open decides what happens, call by call; recovery only appends."""

import hashlib
from pathlib import Path

import pytest

from holdfast.app import Environment
from holdfast.domain.calls import CallState
from holdfast.domain.events import (
    Event,
    Failure,
    FailureCode,
    StepFailed,
    TurnEnded,
    TurnStarted,
)
from holdfast.domain.messages import Notice, NoticeCode, ResultStatus, Role, Text, ToolResult
from holdfast.domain.sessions import Session, Status, StopReason
from holdfast.domain.tools import Effect
from tests.builders import MODEL_ID
from tests.houses import (
    House,
    calls_of,
    crashed,
    current,
    news_until,
    open_house,
    payloads,
    played,
    texts,
)
from tests.stand_ins import (
    Gate,
    GatedRuntime,
    Play,
    SeededRandomness,
    SettableClock,
    StandInMachine,
    a_start,
    an_answer,
    an_intent,
    asked,
    streamed,
)

pytestmark = pytest.mark.anyio

CUT = StepFailed(
    step=1,
    failure=Failure(code=FailureCode.INTERRUPTED, message="The model's answer was cut off."),
)


@pytest.fixture
def survivor(machine: StandInMachine, clock: SettableClock) -> Environment:
    """Be another process, which can prove that the first one is dead."""
    other = StandInMachine("second")
    other.dead.add(machine.holder())
    return Environment(clock=clock, randomness=SeededRandomness(1), machine=other)


async def _crash(
    home: Path, outside: Environment, *play: object, recovery: str = "stop"
) -> tuple[Path, Session]:
    """Play until the end of the play, and return what a power cut leaves then."""
    gate = Gate()
    runtime = GatedRuntime([*play, gate])  # type: ignore[list-item]
    async with open_house(home, runtime, outside=outside) as house:
        await house.agents.create(house.owner, {"name": "Helper", "recovery": recovery})
        session = await house.open("helper")
        await house.send(session.id, "work")
        await gate.reached()
        return crashed(home), session


async def _news(house: House, session: Session) -> list[object]:
    page = await house.events.list(house.owner, session.id)
    return payloads(list(page.items))


async def test_a_step_that_was_cut_off_is_asked_again(
    home: Path, outside: Environment, survivor: Environment
) -> None:
    left, session = await _crash(home, outside, (asked(),), (streamed("half"),))
    runtime = GatedRuntime([(asked(2),), an_answer("whole", step=2)])

    async with open_house(left, runtime, outside=survivor) as house:
        rows = await played(house, session.id)
        news = await _news(house, session)

    assert texts(rows) == [("user", "work"), ("assistant", "whole")]
    assert (runtime.turns[0].turn, runtime.turns[0].step) == (1, 2)
    start = news.index(asked())
    assert news[start : start + 4] == [asked(), streamed("half"), CUT, asked(2)]
    assert [each for each in news if isinstance(each, TurnStarted | TurnEnded)] == [
        TurnStarted(),
        TurnEnded(stop_reason=StopReason.STOP),
    ]


async def test_a_call_that_was_started_and_is_unsafe_is_unknown_and_ends_the_turn(
    home: Path, outside: Environment, survivor: Environment
) -> None:
    left, session = await _crash(
        home, outside, (asked(),), (streamed("I will"),), (an_intent(),), (a_start(),)
    )
    runtime = GatedRuntime()

    async with open_house(left, runtime, outside=survivor) as house:
        ended = payloads(await news_until(house, session.id, TurnEnded))[-1]
        rows = await house.read(session.id)
        states = await calls_of(house, session.id, turn=1)
        after = await current(house, session)

    assert runtime.turns == []
    assert (ended.stop_reason, ended.failure.code) == (
        StopReason.INTERRUPTED,
        FailureCode.INTERRUPTED,
    )
    assert [row.role for row in rows] == [
        Role.USER,
        Role.TOOL_CALL,
        Role.ASSISTANT,
        Role.TOOL_RESULT,
        Role.SYSTEM,
    ]
    kept, result, notice = (row.parts[0] for row in rows[2:])
    assert kept == Text(text="I will")
    assert isinstance(result, ToolResult)
    assert (result.status, states) == (ResultStatus.UNKNOWN, {"call-1": CallState.UNKNOWN})
    assert isinstance(notice, Notice)
    assert (notice.code, after.status) == (NoticeCode.INTERRUPTED, Status.IDLE)


async def test_an_agent_may_be_told_to_go_on_with_an_unknown_outcome(
    home: Path, outside: Environment, survivor: Environment
) -> None:
    left, session = await _crash(home, outside, (an_intent(),), (a_start(),), recovery="continue")
    runtime = GatedRuntime([an_answer("I do not know whether it worked.")])

    async with open_house(left, runtime, outside=survivor) as house:
        rows = await played(house, session.id)

    assert [row.role for row in rows] == [
        Role.USER,
        Role.TOOL_CALL,
        Role.TOOL_RESULT,
        Role.ASSISTANT,
    ]
    (turn,) = runtime.turns
    assert [call.state for call in turn.calls] == [CallState.UNKNOWN]
    assert turn.history == rows[:3]


@pytest.mark.parametrize("effect", [Effect.PURE, Effect.IDEMPOTENT])
async def test_a_started_call_that_may_run_twice_is_left_to_the_runtime(
    home: Path, outside: Environment, survivor: Environment, effect: Effect
) -> None:
    left, session = await _crash(home, outside, (an_intent(effect=effect),), (a_start(),))
    runtime = GatedRuntime([(a_start(),), an_answer("done")])

    async with open_house(left, runtime, outside=survivor) as house:
        await played(house, session.id)

    (call,) = runtime.turns[0].calls
    assert (call.state, call.effect) == (CallState.STARTED, effect)
    name = f"{session.owner}|{session.id}|call-1"
    assert call.idempotency_key == hashlib.sha256(name.encode()).hexdigest()


async def test_a_call_that_did_not_start_is_left_to_the_runtime(
    home: Path, outside: Environment, survivor: Environment
) -> None:
    left, session = await _crash(home, outside, (an_intent(),))
    runtime = GatedRuntime([an_answer("done")])

    async with open_house(left, runtime, outside=survivor) as house:
        await played(house, session.id)

    assert [call.state for call in runtime.turns[0].calls] == [CallState.INTENDED]


async def test_a_message_that_waited_when_the_process_died_is_played(
    home: Path, outside: Environment, survivor: Environment
) -> None:
    gate = Gate()
    async with open_house(home, GatedRuntime([gate]), outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "one")
        await gate.reached()
        await house.send(session.id, "two")
        left = crashed(home)

    runtime = GatedRuntime([an_answer("first")], [an_answer("second")])
    async with open_house(left, runtime, outside=survivor) as house:
        rows = await played(house, session.id)

    assert [(row.turn, row.text) for row in rows] == [
        (1, "one"),
        (2, "two"),
        (1, "first"),
        (2, "second"),
    ]


async def test_recovering_twice_changes_nothing_more(
    home: Path, outside: Environment, survivor: Environment
) -> None:
    left, session = await _crash(home, outside, (an_intent(),), (a_start(),))

    async with open_house(left, GatedRuntime(), outside=survivor) as house:
        await news_until(house, session.id, TurnEnded)
        once = await current(house, session), await house.read(session.id)
        assert (await house.maintenance.recover()).sessions == ()
        assert (await current(house, session), await house.read(session.id)) == once
    async with open_house(left, GatedRuntime(), outside=survivor) as house:
        assert (await current(house, session), await house.read(session.id)) == once


async def test_a_second_crash_in_the_second_step_is_mended_like_the_first(
    home: Path, outside: Environment, survivor: Environment, clock: SettableClock
) -> None:
    left, session = await _crash(home, outside, (asked(),), (streamed("half"),))
    gate = Gate()
    async with open_house(left, GatedRuntime([(asked(2),), gate]), outside=survivor) as house:
        await gate.reached()
        again = crashed(left, "crashed-again")

    third = StandInMachine("third")
    third.dead.add(survivor.machine.holder())
    runtime = GatedRuntime([(asked(3),), an_answer("whole", step=3)])
    outside = Environment(clock=clock, randomness=SeededRandomness(2), machine=third)
    async with open_house(again, runtime, outside=outside) as house:
        rows = await played(house, session.id)
        news = await _news(house, session)

    assert texts(rows) == [("user", "work"), ("assistant", "whole")]
    assert [each.step for each in news if isinstance(each, StepFailed)] == [1, 2]
    assert runtime.turns[0].step == 3


async def test_a_turn_that_had_ended_is_left_alone(
    home: Path, outside: Environment, survivor: Environment
) -> None:
    async with open_house(home, GatedRuntime(), outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        rows = await played(house, session.id)
        left = crashed(home)

    runtime = GatedRuntime()
    async with open_house(left, runtime, outside=survivor) as house:
        assert (await house.maintenance.recover()).sessions == ()
        assert await house.read(session.id) == rows
    assert runtime.turns == []


async def test_nothing_is_recovered_from_a_process_that_may_be_alive(
    home: Path, outside: Environment, clock: SettableClock
) -> None:
    left, session = await _crash(home, outside, (asked(),))
    careful = Environment(
        clock=clock, randomness=SeededRandomness(1), machine=StandInMachine("other")
    )

    async with open_house(left, GatedRuntime(), outside=careful) as house:
        assert (await house.maintenance.recover()).sessions == ()
        assert (await current(house, session)).status is Status.RUNNING

        clock.advance(seconds=5)
        assert (await house.maintenance.recover()).sessions == (session.id,)
        assert texts(await played(house, session.id))[-1] == ("assistant", "done")


async def test_the_interrupted_row_is_the_one_that_was_announced(
    home: Path, outside: Environment, survivor: Environment
) -> None:
    play: Play = [(asked(),), (streamed("half"),), (an_intent(),), (a_start(),)]
    left, session = await _crash(home, outside, *play)

    async with open_house(left, GatedRuntime(), outside=survivor) as house:
        await news_until(house, session.id, TurnEnded)
        kept = [row for row in await house.read(session.id) if row.role is Role.ASSISTANT]
        events = (await house.events.list(house.owner, session.id)).items

    assert [(row.id, row.model_id) for row in kept] == [(asked().message_id, MODEL_ID)]
    numbers = [event.sequence for event in events if isinstance(event, Event)]
    assert numbers == list(range(1, len(events) + 1))
