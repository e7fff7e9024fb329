"""`hf.turn`: a loop of the user's own with everything recorded, replayed and fenced."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from holdfast import (
    CallDenied,
    CallState,
    Code,
    Conflict,
    Event,
    Holdfast,
    Invalid,
    LimitReached,
    Role,
    StepDelta,
    StopReason,
    ToolFailed,
    TurnAborted,
    TurnEnded,
    TurnStarted,
    Usage,
    open_holdfast,
)
from holdfast.domain.messages import Message, Notice, NoticeCode, Step
from holdfast.domain.waits import WaitReason
from tests.houses import current, payloads
from tests.new_homes import furnish
from tests.stand_ins import PATIENCE

pytestmark = pytest.mark.anyio


@pytest.fixture
async def hf(home: Path) -> AsyncIterator[Holdfast]:
    async with open_holdfast(furnish(home)) as opened:
        yield opened


def texts(rows: tuple[Message, ...]) -> list[tuple[str, str]]:
    return [(row.role.value, row.text) for row in rows]


async def test_a_loop_of_the_users_own_is_a_turn_like_any_other(hf: Holdfast) -> None:
    session = await hf.open()

    async with hf.turn(session.id, "Plan my week") as turn:
        assert texts(turn.messages) == [("user", "Plan my week")]
        for piece in ("Mon", "day"):
            await turn.delta(piece)
        await turn.say("Monday", usage=Usage(input=3, output=2), model="openai:gpt-4o")

    rows = await hf.read(session.id)
    now = await current(hf, session)
    news = [each async for each in hf.follow(session.id, until_settled=True)]
    assert texts(rows) == [("user", "Plan my week"), ("assistant", "Monday")]
    assert (now.settled, now.last_stop, now.usage.input) == (1, StopReason.STOP, 3)
    assert now.microcents > 0
    said = payloads(news)
    assert [each.text for each in said if isinstance(each, StepDelta)] == ["Mon", "day"]
    started = [each for each in said if isinstance(each, TurnStarted)]
    assert [each.runner for each in started] == ["turn"]


async def test_calls_are_on_disk_before_and_after_they_run(hf: Holdfast) -> None:
    session = await hf.open()
    seen: list[CallState] = []

    async def look(days: int) -> dict[str, int]:
        (call,) = (await hf.calls.list(hf.owner, session.id)).items
        seen.append(call.state)
        return {"days": days}

    async with hf.turn(session.id, "How long?") as turn:
        found = await turn.call("calendar.read", {"days": 7}, run=look, effect="pure")
        await turn.say(str(found["days"]))

    (call,) = (await hf.calls.list(hf.owner, session.id)).items
    assert (found, seen, call.state) == ({"days": 7}, [CallState.STARTED], CallState.FINISHED)
    assert [row.role for row in await hf.read(session.id)] == [
        Role.USER,
        Role.TOOL_CALL,
        Role.TOOL_RESULT,
        Role.ASSISTANT,
    ]


async def test_failures_of_a_call_are_raised_and_recorded(hf: Holdfast) -> None:
    session = await hf.open()

    def refuse() -> None:
        raise ToolFailed("no room")

    async with hf.turn(session.id, "Book") as turn:
        with pytest.raises(ToolFailed, match="no room"):
            await turn.call("book", run=refuse)
        with pytest.raises(CallDenied):
            await turn.call("book", run=refuse, approval="deny")
        await turn.say("There is no room.")

    assert (await current(hf, session)).last_stop is StopReason.STOP


async def test_an_exception_fails_the_turn_and_is_passed_on(hf: Holdfast) -> None:
    session = await hf.open()

    with pytest.raises(ZeroDivisionError):
        async with hf.turn(session.id, "Divide"):
            _ = 1 / 0

    (ended,) = [
        each.payload
        async for each in hf.follow(session.id, until_settled=True)
        if isinstance(each, Event) and isinstance(each.payload, TurnEnded)
    ]
    assert ended.stop_reason is StopReason.ERROR
    assert ended.failure is not None
    assert ended.failure.code == "loop_failed"
    assert "ZeroDivisionError" in ended.failure.message


async def test_a_running_turn_is_refused_or_waited_for(hf: Holdfast) -> None:
    session = await hf.open()
    async with hf.turn(session.id, "One"):
        with pytest.raises(Conflict) as refused:
            async with hf.turn(session.id, "Two"):
                pass

    assert refused.value.code is Code.TURN_RUNNING
    assert texts(await hf.read(session.id)) == [("user", "One")]
    with pytest.raises(Conflict) as nothing:
        async with hf.turn(session.id):
            pass
    assert nothing.value.code is Code.NOTHING_WAITS


async def test_a_second_claim_waits_for_the_first(hf: Holdfast) -> None:
    session = await hf.open()
    order: list[str] = []

    async def second() -> None:
        async with hf.turn(session.id, "Two", wait=True) as turn:
            order.append("second")
            await turn.say("2")

    async with hf.turn(session.id, "One") as turn:
        waiting = asyncio.create_task(second())
        await asyncio.sleep(0.05)
        order.append("first")
        await turn.say("1")
    async with asyncio.timeout(PATIENCE):
        await waiting

    assert order == ["first", "second"]


async def test_an_interrupt_ends_the_block(hf: Holdfast) -> None:
    session = await hf.open()

    async def hold() -> None:
        async with hf.turn(session.id, "Wait"):
            begun.set()
            await asyncio.sleep(PATIENCE)

    begun = asyncio.Event()
    task = asyncio.create_task(hold())
    await begun.wait()
    await hf.sessions.interrupt(hf.owner, session.id)
    with pytest.raises(TurnAborted):
        await task

    assert (await current(hf, session)).last_stop is StopReason.ABORTED


async def test_a_cancelled_program_leaves_no_turn_open(hf: Holdfast) -> None:
    session = await hf.open()

    async def hold() -> None:
        async with hf.turn(session.id, "Wait"):
            begun.set()
            await asyncio.sleep(PATIENCE)

    begun = asyncio.Event()
    task = asyncio.create_task(hold())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    now = await current(hf, session)
    assert (now.settled, now.last_stop) == (1, StopReason.ABORTED)


async def test_what_is_queued_behind_a_held_turn_is_answered_afterwards(hf: Holdfast) -> None:
    session = await hf.open()

    async with hf.turn(session.id, "Mine") as turn:
        await hf.send(session.id, "Yours")
        await turn.say("mine")
    async with asyncio.timeout(PATIENCE):
        _ = [each async for each in hf.follow(session.id, until_settled=True)]

    rows = await hf.read(session.id)
    assert texts(rows)[:3] == [("user", "Mine"), ("user", "Yours"), ("assistant", "mine")]
    assert (rows[-1].role, rows[-1].turn) == (Role.ASSISTANT, 2)


async def test_another_process_does_not_answer_a_held_message(home: Path, hf: Holdfast) -> None:
    session = await hf.open()
    async with open_holdfast(furnish(home)) as other, hf.turn(session.id, "Mine") as turn:
        await asyncio.sleep(1.5)
        await turn.say("mine")
        seen = await other.read(session.id)

    assert texts(seen) == [("user", "Mine"), ("assistant", "mine")]


async def test_calls_of_one_task_are_numbered_as_they_are_made(hf: Holdfast) -> None:
    session = await hf.open()

    async def slow(n: int) -> int:
        await asyncio.sleep(0.01 * (3 - n))
        return n

    async with hf.turn(session.id, "Both") as turn:
        both = await asyncio.gather(
            turn.call("slow", {"n": 1}, run=slow, effect="pure"),
            turn.call("slow", {"n": 2}, run=slow, effect="pure"),
        )
        with pytest.raises(Invalid) as foreign:
            await asyncio.create_task(_call_in_another_task(turn))

    assert both == [1, 2]
    assert foreign.value.code is Code.TURN_WRONG_TASK
    assert len((await hf.calls.list(hf.owner, session.id)).items) == 2


async def _call_in_another_task(turn: object) -> None:
    await turn.call("late", run=lambda: 1)  # type: ignore[attr-defined]


async def test_branches_have_positions_of_their_own(hf: Holdfast) -> None:
    session = await hf.open()

    async def work(branch: object) -> int:
        first = await branch.call("one", run=lambda: 1, effect="pure")  # type: ignore[attr-defined]
        return int(first) + 1

    async with hf.turn(session.id, "Both") as turn:
        found = await asyncio.gather(
            *(_in_branch(turn.branch, name, work) for name in ("left", "right"))
        )
        with pytest.raises(Invalid):
            turn.branch("left")

    assert found == [2, 2]


async def _in_branch(open_branch, name, work) -> int:  # type: ignore[no-untyped-def]
    return await asyncio.create_task(_opened(open_branch, name, work))


async def _opened(open_branch, name, work) -> int:  # type: ignore[no-untyped-def]
    return await work(open_branch(name))


async def test_a_call_inside_a_call_is_refused(hf: Holdfast) -> None:
    session = await hf.open()

    async with hf.turn(session.id, "Nested") as turn:

        async def outer() -> int:
            return int(await turn.call("inner", run=lambda: 1))

        with pytest.raises(ToolFailed):
            await turn.call("outer", run=outer)

    assert len((await hf.calls.list(hf.owner, session.id)).items) == 1


async def test_steps_are_recorded_and_shown_to_no_model(hf: Holdfast) -> None:
    session = await hf.open()

    async with hf.turn(session.id, "Think") as turn:
        found = await turn.step("think", lambda number: number * 2, 21)
        await turn.say(str(found))
        with pytest.raises(Invalid, match=r"turn\.call"):
            turn.step("act", lambda: 1, effect="unsafe")
        with pytest.raises(Invalid, match=r"name of a step: write at most 64 letters, digits and"):
            turn.step("fetch the report", lambda: 1)

    steps = [part for row in await hf.read(session.id) for part in row.parts]
    (step,) = [part for part in steps if isinstance(part, Step)]
    assert (step.name, step.result, step.position) == ("think", 42, "1")


async def test_a_turn_has_a_limit_of_entries(hf: Holdfast) -> None:
    session = await hf.open()

    async def loop() -> None:
        async with hf.turn(session.id, "Loop", max_calls=3) as turn:
            while True:
                await turn.step("again", lambda: None)

    with pytest.raises(LimitReached):
        await loop()

    assert (await current(hf, session)).last_stop is StopReason.TURN_LIMIT


PROGRAM = """
import asyncio, json, os, sys
from pathlib import Path
from holdfast import HoldfastError, OutcomeUnknown, open_holdfast

home, session_id, message_id, mode, effects = sys.argv[1:6]

def act(line, die):
    with open(effects, "a") as file:
        file.write(line + "\\n")
        file.flush()
        os.fsync(file.fileno())
    if die and mode == "die-" + line:
        os._exit(9)
    return line.upper()

async def main():
    async with open_holdfast(home) as hf:
        within = 0 if mode == "die-for-good" else 600
        async with hf.turn(session_id, "Go", id=message_id, resume_within=within) as turn:
            name = "other" if mode == "changed" else "first"
            found = [await turn.call(name, {"line": "a", "die": True}, run=act, effect="pure")]
            if mode in {"die-between", "die-for-good"}:
                os._exit(9)
            found.append(await turn.step("second", act, "b", True))
            found.append(await turn.call("third", {"line": "c", "die": True}, run=act))
            if mode == "die-late":
                os._exit(9)
            await turn.say(" ".join(found))
            print(json.dumps({"attempt": turn.attempt, "found": found}))

try:
    asyncio.run(main())
except HoldfastError as error:
    print(json.dumps({"error": error.code}))
"""


def run(home: Path, session: str, message: str, mode: str) -> tuple[int, dict[str, object]]:
    effects = home.parent / "effects.txt"
    command = [sys.executable, "-c", PROGRAM, str(home), session, message, mode, str(effects)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode in {0, 9}, ended.stderr
    return ended.returncode, json.loads(ended.stdout) if ended.stdout else {}


def lines(home: Path) -> list[str]:
    return (home.parent / "effects.txt").read_text().split()


@pytest.mark.parametrize(
    ("mode", "effects"),
    [
        ("die-a", ["a", "a", "b", "c"]),
        ("die-between", ["a", "b", "c"]),
        ("die-b", ["a", "b", "b", "c"]),
        ("die-late", ["a", "b", "c"]),
    ],
)
async def test_a_killed_loop_runs_again_with_what_was_recorded(
    home: Path, mode: str, effects: list[str]
) -> None:
    async with open_holdfast(furnish(home)) as hf:
        session = await hf.open()
    message = str(uuid4())

    killed, _ = await asyncio.to_thread(run, home, session.id, message, mode)
    ended, said = await asyncio.to_thread(run, home, session.id, message, "live")

    assert (killed, ended) == (9, 0)
    assert said == {"attempt": 2, "found": ["A", "B", "C"]}
    assert lines(home) == effects
    async with open_holdfast(furnish(home)) as hf:
        rows = await hf.read(session.id)
        assert rows[-1].text == "A B C"
        assert (await hf.sessions.verify(hf.owner, session.id)).faults == ()


async def test_a_loop_killed_in_an_unsafe_call_is_unknown_and_not_repeated(home: Path) -> None:
    async with open_holdfast(furnish(home)) as hf:
        session = await hf.open()
    message = str(uuid4())

    await asyncio.to_thread(run, home, session.id, message, "die-c")
    _, said = await asyncio.to_thread(run, home, session.id, message, "live")

    assert said == {"error": "turn_ended"}
    assert lines(home) == ["a", "b", "c"]
    async with open_holdfast(furnish(home)) as hf:
        unknown = await hf.calls.list(hf.owner, session.id, state=CallState.UNKNOWN)
        assert [call.name for call in unknown.items] == ["third"]


async def test_a_loop_that_asks_for_something_else_is_stopped(home: Path) -> None:
    async with open_holdfast(furnish(home)) as hf:
        session = await hf.open()
    message = str(uuid4())

    await asyncio.to_thread(run, home, session.id, message, "die-between")
    _, said = await asyncio.to_thread(run, home, session.id, message, "changed")

    assert said == {"error": "replay_mismatch"}
    assert lines(home) == ["a"]


async def test_a_held_turn_waits_for_its_program(home: Path) -> None:
    async with open_holdfast(furnish(home)) as hf:
        session = await hf.open()
    await asyncio.to_thread(run, home, session.id, str(uuid4()), "die-between")

    async with open_holdfast(furnish(home)) as hf:
        async with asyncio.timeout(PATIENCE):
            while (waiting := (await current(hf, session)).waiting) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await asyncio.sleep(1.5)
        rows = await hf.read(session.id)
        await hf.sessions.interrupt(hf.owner, session.id)
        after = await current(hf, session)

    assert waiting.reason is WaitReason.HOLDER
    assert Role.ASSISTANT not in [row.role for row in rows]
    assert (after.settled, after.waiting) == (1, None)


async def test_a_turn_that_waits_for_no_program_ends_with_its_own(home: Path) -> None:
    async with open_holdfast(furnish(home)) as hf:
        session = await hf.open()
    killed, _ = await asyncio.to_thread(run, home, session.id, str(uuid4()), "die-for-good")
    assert killed == 9

    async with open_holdfast(furnish(home)) as hf, asyncio.timeout(PATIENCE):
        while not (now := await current(hf, session)).settled:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    assert (now.waiting, now.last_stop) == (None, StopReason.INTERRUPTED)


async def test_a_call_that_is_left_without_its_result_is_closed_with_the_turn(hf: Holdfast) -> None:
    session = await hf.open()

    async def slow() -> None:
        await asyncio.sleep(PATIENCE)

    async with hf.turn(session.id, "Wait") as turn:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(turn.call("slow", run=slow), 0.2)
        await turn.say("It takes too long.")

    (call,) = (await hf.calls.list(hf.owner, session.id)).items
    assert call.state is CallState.UNKNOWN
    assert (await current(hf, session)).last_stop is StopReason.STOP


async def test_a_step_where_a_call_was_recorded_is_a_mismatch(hf: Holdfast) -> None:
    session, message = await hf.open(), str(uuid4())

    async def first() -> None:
        async with hf.turn(session.id, "Go", id=message) as turn:
            await turn.step("look", lambda: 1)
            raise SystemExit

    async def second() -> None:
        async with hf.turn(session.id, "Go", id=message, wait=True) as turn:
            await turn.call("look", run=lambda: 1)

    with pytest.raises(SystemExit):
        await first()
    with pytest.raises(Conflict) as refused:
        await second()

    assert refused.value.code is Code.REPLAY_MISMATCH
    assert (await hf.calls.list(hf.owner, session.id)).items == ()


async def test_a_turn_that_has_ended_is_not_entered_again(hf: Holdfast) -> None:
    session, message = await hf.open(), str(uuid4())

    async def go() -> None:
        async with hf.turn(session.id, "Go", id=message) as turn:
            await turn.say("done")

    await go()
    with pytest.raises(Conflict, match=r"hf\.read") as refused:
        await go()

    assert refused.value.code is Code.TURN_ENDED
    assert texts(await hf.read(session.id)) == [("user", "Go"), ("assistant", "done")]


async def test_what_decides_is_found_again_and_what_is_left_over_is_named(hf: Holdfast) -> None:
    session, message, seen = await hf.open(), str(uuid4()), list[object]()

    async def play(said: str, *, is_cut: bool) -> None:
        async with hf.turn(session.id, "Go", id=message) as turn:
            was_replaying, shown = turn.is_replaying, len(turn.messages)
            found = [turn.random.random(), turn.uuid4(), await turn.now()]
            # The order in which tasks draw does not matter.
            parts = [turn.branch("a"), turn.branch("b")]
            found += [part.uuid4() for part in (parts if is_cut else parts[::-1])][
                :: 1 if is_cut else -1
            ]
            await turn.call("look", {"n": 1}, run=look, effect="pure")
            await turn.say(said)
            seen.append((found, len(turn.messages), shown))
            if is_cut:
                await turn.call("look", {"n": 2}, run=look, effect="pure")
                raise SystemExit
            assert (was_replaying, turn.is_replaying) == (True, True)

    async def look(n: int) -> int:
        return n

    with pytest.raises(SystemExit):
        await play("first", is_cut=True)
    await play("second", is_cut=False)
    rows = await hf.read(session.id)

    assert seen[0] == seen[1]
    assert [row.text for row in rows if row.role is Role.ASSISTANT] == ["first"]
    notices = [part for row in rows for part in row.parts if isinstance(part, Notice)]
    (left,) = [each for each in notices if each.code is NoticeCode.REPLAY_LEFTOVER]
    assert "look" in left.text
    assert (await current(hf, session)).last_stop is StopReason.STOP
