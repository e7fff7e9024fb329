"""Durable calls of frameworks: each cell of what a call with a known id does."""

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CallState,
    Code,
    Conflict,
    Effect,
    Event,
    Invalid,
    LocalHoldfast,
    ResultStatus,
    Role,
    RunScope,
    SessionId,
    SettlementAction,
    SettlementRequest,
    Status,
    ToolEnded,
    connect,
    open_holdfast,
    sync,
)
from holdfast.domain.drafts import Outcome
from holdfast.domain.sessions import StopReason
from holdfast.integrations.bridge import Bridge
from holdfast.integrations.calls import (
    UNKNOWN_OUTCOME,
    DurableAnswer,
    DurableCall,
    DurableCalls,
    DurableResult,
    idempotency_key,
    run_durable_call,
)
from tests.integrations.test_records import add, foreign_of, opened, user
from tests.new_homes import furnish

pytestmark = pytest.mark.anyio
PAY = DurableCall(id="c1", name="pay", arguments={"cents": 5})
LOOK = DurableCall(id="c1", name="look", arguments={}, effect=Effect.PURE)
Run = Callable[[str], Awaitable[DurableResult]]


@pytest.fixture
async def hf(home: Path) -> AsyncIterator[LocalHoldfast]:
    async with open_holdfast(furnish(home)) as opened_one:
        yield opened_one


async def test_a_tool_may_ask_for_the_key_of_its_call(hf: LocalHoldfast) -> None:
    session_id, keys = await asked(hf), []

    async def run(key: str) -> DurableResult:
        keys.extend([key, await asyncio.to_thread(idempotency_key)])
        return DurableResult(raw=b"1", value=1)

    await guarded(hf, session_id, PAY, run)

    assert keys == [(await hf.calls.get(hf.owner, session_id, "c1")).idempotency_key] * 2
    with pytest.raises(Invalid):
        idempotency_key()


class Effects:
    """A tool that counts how often it took effect, and with which keys."""

    def __init__(self, value: Any = "paid") -> None:
        self.keys: list[str] = []
        self._value = value

    async def __call__(self, key: str) -> DurableResult:
        self.keys.append(key)
        return DurableResult(raw=json.dumps(self._value).encode(), value=self._value)


async def guarded(
    hf: Any, session_id: SessionId, call: DurableCall, run: Run, **options: Any
) -> DurableAnswer:
    return await run_durable_call(Bridge(hf, "A test"), session_id, call, run, **options)


def calls_of(hf: LocalHoldfast) -> DurableCalls:
    calls: DurableCalls = hf.foreign.get_component().calls
    return calls


async def state_of(hf: LocalHoldfast, session_id: SessionId) -> CallState:
    return (await hf.calls.get(hf.owner, session_id, "c1")).state


async def asked(hf: LocalHoldfast) -> SessionId:
    session_id = await opened(hf)
    await add(hf, session_id, user("Pay."))
    return session_id


async def test_a_call_is_on_disk_before_it_runs_and_its_result_before_it_is_returned(
    hf: LocalHoldfast,
) -> None:
    session_id, seen = await asked(hf), []

    async def run(_: str) -> DurableResult:
        seen.append(await state_of(hf, session_id))
        return DurableResult(raw=b'"paid"', value="paid")

    answer = await guarded(hf, session_id, PAY, run)

    assert (seen, await state_of(hf, session_id)) == ([CallState.STARTED], CallState.FINISHED)
    assert (answer.status, answer.raw) == (ResultStatus.OK, b'"paid"')
    assert [row.role for row in await hf.read(session_id)] == [
        Role.USER,
        Role.TOOL_CALL,
        Role.TOOL_RESULT,
    ]
    assert (await hf.sessions.get(hf.owner, session_id)).status is Status.RUNNING


async def test_a_finished_call_returns_what_was_recorded(hf: LocalHoldfast) -> None:
    session_id, tool = await asked(hf), Effects({"id": 7})

    first = await guarded(hf, session_id, PAY, tool)
    again = await guarded(hf, session_id, PAY, tool)

    assert (first, len(tool.keys)) == (again, 1)
    assert json.loads(again.raw or b"") == {"id": 7}


async def test_a_failed_call_is_finished_as_well(hf: LocalHoldfast) -> None:
    session_id, runs = await asked(hf), []

    async def fail(key: str) -> DurableResult:
        runs.append(key)
        return DurableResult(raw=b'"no money"', error="no money")

    answers = [await guarded(hf, session_id, PAY, fail) for _ in range(2)]

    assert [(each.status, each.raw) for each in answers] == [
        (ResultStatus.ERROR, b'"no money"')
    ] * 2
    assert (len(runs), await state_of(hf, session_id)) == (1, CallState.FINISHED)


async def test_the_same_call_twice_at_once_runs_once(hf: LocalHoldfast) -> None:
    session_id, tool, may_go = await asked(hf), Effects(), asyncio.Event()

    async def slow(key: str) -> DurableResult:
        await may_go.wait()
        return await tool(key)

    both = [asyncio.ensure_future(guarded(hf, session_id, PAY, slow)) for _ in range(2)]
    await asyncio.sleep(0.1)
    may_go.set()

    answers = await asyncio.gather(*both)
    assert (answers[0], len(tool.keys)) == (answers[1], 1)


async def test_other_arguments_under_the_same_id_are_refused(hf: LocalHoldfast) -> None:
    session_id, tool = await asked(hf), Effects()
    await guarded(hf, session_id, PAY, tool)

    with pytest.raises(Conflict) as refused:
        await guarded(
            hf, session_id, DurableCall(id="c1", name="pay", arguments={"cents": 6}), tool
        )

    assert refused.value.code is Code.CALL_MISMATCH
    assert set(refused.value.details) == {"recorded", "asked"}
    assert len(tool.keys) == 1


@pytest.mark.parametrize("call", [PAY, LOOK])
async def test_a_cancelled_call_is_unknown_unless_it_may_run_again(
    hf: LocalHoldfast, call: DurableCall
) -> None:
    session_id = await asked(hf)

    async def hang(_: str) -> DurableResult:
        await asyncio.Event().wait()
        raise AssertionError

    task = asyncio.ensure_future(guarded(hf, session_id, call, hang))
    await asyncio.sleep(0.2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    wanted = CallState.UNKNOWN if call is PAY else CallState.FINISHED
    assert await state_of(hf, session_id) is wanted


async def test_an_interrupt_cancels_the_tool_and_its_outcome_is_unknown(
    hf: LocalHoldfast,
) -> None:
    session_id, begun = await asked(hf), asyncio.Event()

    async def hang(_: str) -> DurableResult:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    task = asyncio.ensure_future(guarded(hf, session_id, PAY, hang))
    await begun.wait()
    await hf.sessions.interrupt(hf.owner, session_id)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)
    assert await state_of(hf, session_id) is CallState.UNKNOWN
    assert (await hf.sessions.get(hf.owner, session_id)).last_stop is StopReason.ABORTED


KILLED = """
import asyncio, os, signal, sys
from holdfast import Effect, open_holdfast
from holdfast.integrations.calls import DurableCall, DurableResult, run_durable_call
from holdfast.integrations.bridge import Bridge
from tests.integrations.test_records import add, opened, user

async def main():
    async with open_holdfast(sys.argv[1]) as hf:
        session_id = await opened(hf)
        await add(hf, session_id, user("Pay."))
        async def run(key):
            print(key, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        call = DurableCall(id="c1", name=sys.argv[2], arguments={}, effect=Effect(sys.argv[3]))
        await run_durable_call(Bridge(hf, "A test"), session_id, call, run)

asyncio.run(main())
"""


def killed_in(home: Path, name: str, effect: str) -> str:
    """Run a program that is killed inside a tool; return the key that the tool was given."""
    command = [sys.executable, "-c", KILLED, str(home), name, effect]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -9, done.stderr
    return done.stdout.strip()


async def test_an_unsafe_call_whose_process_was_killed_is_unknown_and_does_not_run(
    home: Path,
) -> None:
    killed_in(home, "pay", "unsafe")
    tool, call = Effects(), DurableCall(id="c1", name="pay", arguments={})

    async with open_holdfast(furnish(home), scope=RunScope.NONE) as hf:
        session_id = await opened(hf)
        before = await state_of(hf, session_id)
        answer = await guarded(hf, session_id, call, tool)
        with pytest.raises(Conflict) as refused:
            await guarded(hf, session_id, call, tool, on_unknown="raise")
        found = await hf.calls.list(hf.owner, state=CallState.UNKNOWN)
        how = SettlementRequest(how=SettlementAction.MARK_DONE, by="ada", result="paid")
        await hf.calls.settle(hf.owner, session_id, "c1", how)
        settled = await guarded(hf, session_id, call, tool)

    assert before is CallState.STARTED
    assert (answer.status, answer.text, tool.keys) == (ResultStatus.UNKNOWN, UNKNOWN_OUTCOME, [])
    assert refused.value.code is Code.CALL_UNKNOWN
    assert [each.id for each in found.items] == ["c1"]
    assert settled.text == "This call was settled as executed."


async def test_a_pure_call_whose_process_was_killed_runs_again_with_the_same_key(
    home: Path,
) -> None:
    key = killed_in(home, "look", "pure")
    tool = Effects()

    async with open_holdfast(furnish(home), scope=RunScope.NONE) as hf:
        session_id = await opened(hf)
        answer = await guarded(hf, session_id, LOOK, tool)

    assert (tool.keys, answer.status) == ([key], ResultStatus.OK)


async def test_any_process_finds_the_unknown_calls_of_a_killed_one(home: Path) -> None:
    killed_in(home, "pay", "unsafe")

    async with open_holdfast(furnish(home)) as hf:
        session_id = await opened(hf)
        async with asyncio.timeout(10):
            async for event in hf.follow(session_id):
                if isinstance(event, Event) and isinstance(event.payload, ToolEnded):
                    break
        found = await hf.calls.list(hf.owner, state=CallState.UNKNOWN)
        session = await hf.sessions.get(hf.owner, session_id)

    assert [each.id for each in found.items] == ["c1"]

    assert (session.status, session.settled) == (Status.RUNNING, 0)


async def test_a_second_process_is_refused_while_a_run_makes_durable_calls(home: Path) -> None:
    tool = Effects()
    async with (
        open_holdfast(furnish(home)) as one,
        open_holdfast(furnish(home), scope=RunScope.NONE) as two,
    ):
        session_id = await asked(one)
        await calls_of(one).enter(session_id)
        await guarded(one, session_id, PAY, tool)
        other = DurableCall(id="c2", name="pay", arguments={})

        with pytest.raises(Conflict) as refused:
            await guarded(two, session_id, other, tool)
        await add(two, session_id, user("Meanwhile"))
        await calls_of(one).leave(session_id)
        answer = await guarded(two, session_id, other, tool)

    assert refused.value.code is Code.SESSION_BUSY
    assert (answer.status, len(tool.keys)) == (ResultStatus.OK, 2)


async def test_the_lease_is_kept_while_a_call_takes_long(hf: LocalHoldfast) -> None:
    session_id = await asked(hf)

    async def slow(_: str) -> DurableResult:
        await asyncio.sleep(5.5)
        return DurableResult(raw=b"1", value=1)

    assert (await guarded(hf, session_id, PAY, slow)).raw == b"1"


async def test_a_run_that_is_over_ends_its_turn(hf: LocalHoldfast) -> None:
    session_id, tool = await asked(hf), Effects()
    await guarded(hf, session_id, PAY, tool)

    await foreign_of(hf).end_turn(session_id, Outcome(stop_reason=StopReason.STOP))

    session = await hf.sessions.get(hf.owner, session_id)
    assert (session.settled, session.last_stop) == (1, StopReason.STOP)


async def test_one_object_is_used_from_four_loops_in_four_threads(home: Path) -> None:
    tool, done = Effects(), list[ResultStatus]()
    async with open_holdfast(furnish(home)) as hf:
        session_id = await asked(hf)

        def work(number: int) -> None:
            call = DurableCall(id=f"c{number}", name="pay", arguments={})
            done.append(asyncio.run(guarded(hf, session_id, call, tool)).status)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)

    assert (done, len(tool.keys)) == ([ResultStatus.OK] * 4, 4)


def test_a_blocking_holdfast_serves_a_loop_of_the_program(home: Path) -> None:
    tool = Effects()
    with sync.open_holdfast(home) as hf:
        bridge = Bridge(hf, "A test")
        session_id = bridge.run_sync(lambda: opened(hf._target))

        async def both() -> None:
            await guarded(hf, session_id, PAY, tool)
            # A blocking method inside a loop that runs does not wait for itself.
            assert bridge.run_sync(lambda: opened(hf._target)) == session_id

        asyncio.run(both())

    assert len(tool.keys) == 1


async def test_a_blocking_method_on_the_loop_of_holdfast_is_refused(hf: LocalHoldfast) -> None:
    with pytest.raises(Invalid) as refused:
        Bridge(hf, "A test").run_sync(lambda: opened(hf))

    assert refused.value.code is Code.WRONG_THREAD


async def test_a_server_elsewhere_is_refused_with_the_remedy() -> None:
    async with connect("http://127.0.0.1:9", "token") as hf:
        with pytest.raises(Invalid, match="HoldfastSession needs the store in the same process"):
            Bridge(hf, "HoldfastSession")
