"""What one agent sends must not keep everybody else waiting."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.acp.client.tool_calls import TrackedCall
from holdfast.domain.events import FailureCode
from holdfast.domain.ids import CallId
from holdfast.domain.messages import ToolCall
from holdfast.domain.sessions import Status, StopReason
from tests.acp.harness import END, aboard, hasty, notices
from tests.acp.raw_peer import connected
from tests.acp.steps import prompt

pytestmark = pytest.mark.anyio

# Far less than it took, and more than a busy machine needs.
SOON = 2.0


@asynccontextmanager
async def watched() -> AsyncIterator[list[float]]:
    """Yield a list that gets how long the loop stood still at most."""
    worst = [0.0]

    async def watch() -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(0.01)
            worst[0] = max(worst[0], time.monotonic() - began - 0.01)

    watching = asyncio.create_task(watch())
    try:
        yield worst
    finally:
        watching.cancel()


def line(update: str) -> str:
    """Return an update as a line, in the words of somebody who writes it as they like."""
    return (
        '{"jsonrpc":"2.0","method":"session/update","params":'
        f'{{"sessionId":"peer-session-1","update":{update}}}}}\n'
    )


async def test_small_news_of_a_call_with_large_arguments_cost_little(tmp_path: Path) -> None:
    many = ",".join(["{}"] * 900_000)
    call = '{"sessionUpdate":"tool_call","toolCallId":"t","status":"in_progress","rawInput":'
    call += f'{{"a":[{many}]}}}}'
    news = [
        {"update": {"sessionUpdate": "tool_call_update", "toolCallId": "t", "status": status}}
        for status in ("one", "two") * 50
    ]
    async with aboard(tmp_path, on=prompt({"raw": line(call)}, *news, {"text": "done"})) as ship:
        session = await ship.open()
        async with watched() as worst:
            rows = await ship.tell(session)

    [call_] = [part for row in rows for part in row.parts if isinstance(part, ToolCall)]
    assert list(call_.arguments) == ["rawInput"]
    assert len(call_.arguments["rawInput"]) < 1 << 20
    assert "done" in [row.text for row in rows]
    assert worst[0] < SOON


def test_arguments_are_bounded_once() -> None:
    call = TrackedCall(CallId("t"))
    given = {"text": "x"}
    call.fold({"rawInput": given})
    call.fold({"status": "in_progress"})

    assert call.arguments() is call.arguments()
    assert call.arguments() == given

    call.fold({"rawInput": {"text": "x" * (1 << 20)}, "title": "Title"})
    assert call.arguments()["rawInput"] is call.arguments()["rawInput"]
    assert list(call.arguments()) == ["title", "rawInput"]


@pytest.mark.torture
@pytest.mark.parametrize("value", [b'"\\ud800"', b"NaN", b"{}"])
async def test_no_line_that_can_come_keeps_the_others_waiting(value: bytes) -> None:
    content = b'{"method":"m","params":[' + b",".join([value] * ((31 << 20) // (len(value) + 1)))
    async with connected() as (connection, far), watched() as worst:
        saying = asyncio.create_task(far.say_bytes(content + b']}\n{"method":"after"}\n'))
        found = [item async for item in until(connection, "after")]
        await saying

    assert found[-1].method == "after"
    assert worst[0] < SOON


async def until(connection: Any, method: str) -> AsyncIterator[Any]:
    async for item in connection.incoming():
        yield item
        if getattr(item, "method", None) == method:
            return


async def test_long_and_short_lines_keep_their_order() -> None:
    async with connected() as (connection, far):
        messages = [
            {"method": str(number), "params": "x" * (number % 2 * (2 << 20))}
            for number in range(10)
        ]
        saying = asyncio.create_task(far.say(*messages))
        found = [item.method async for item in until(connection, "9")]
        await saying

    assert found == [str(number) for number in range(10)]


async def test_early_updates_are_kept_as_far_as_their_bytes_fit(tmp_path: Path) -> None:
    def said(update: dict[str, Any]) -> dict[str, Any]:
        params = {"sessionId": "peer-session-1", "update": update}
        return {"notify": {"method": "session/update", "params": params}}

    def opening(size: int) -> list[Any]:
        title = said({"sessionUpdate": "session_info_update", "title": "Early"})
        more = said({"sessionUpdate": "odd", "text": "x" * size})
        return [title, more, more, more, {"reply": {"sessionId": "peer-session-1"}}]

    found = []
    for size in (2 << 20, 3 << 20):
        async with aboard(tmp_path / str(size), on={"session/new": opening(size)}) as ship:
            session = await ship.open()
            await ship.tell(session)
            found.append((await ship.now(session)).title)

    assert found == ["Early", "hello"]


@pytest.mark.torture
async def test_more_than_a_turn_may_hold_ends_it(tmp_path: Path) -> None:
    # Little of a plan is kept, so this is soon written.
    plans = [
        {"update": {"sessionUpdate": "plan", "entries": [{"content": f"{number}" * (8 << 20)}]}}
        for number in range(9)
    ]
    prompts = [[*plans, "until_cancel"], [{"text": "new"}, END]]
    async with aboard(tmp_path, on={"session/prompt": prompts}) as ship:
        session = await ship.open()
        await ship.tell(session)
        ended = await ship.ended(session)
        rows = await ship.tell(session, "again")

    assert ended.stop_reason is StopReason.ERROR
    assert ended.failure is not None
    assert ended.failure.code is FailureCode.AGENT_FLOOD
    assert rows[-1].text == "new"


async def test_a_cost_that_nobody_can_have_spent_fails_no_turn(tmp_path: Path) -> None:
    def costs(amount: float) -> list[Any]:
        cost = {"amount": amount, "currency": "USD"}
        usage = {"sessionUpdate": "usage_update", "used": 1, "size": 2, "cost": cost}
        return [{"update": usage}, {"text": "hi"}, END]

    prompts = [costs(9e15), costs(0.5)]
    async with aboard(tmp_path, on={"session/prompt": prompts}) as ship:
        session = await ship.open()
        rows = await ship.tell(session)
        ended = await ship.ended(session)
        between = await ship.now(session)
        await ship.tell(session, "again")
        now = await ship.now(session)

    assert (ended.stop_reason, ended.failure) == (StopReason.STOP, None)
    told = "The agent reported an invalid cost; it was not counted."
    assert notices(rows) == [("information", told)]
    assert (between.microcents, now.microcents) == (0, 50_000_000)


async def test_a_program_that_takes_nothing_in_any_more_ends_its_session(tmp_path: Path) -> None:
    big = tmp_path / "tree" / "big"
    big.parent.mkdir()
    big.write_text("x" * (1 << 20))
    read = '{"jsonrpc":"2.0","id":%d,"method":"fs/read_text_file","params":%s}\n'
    params = f'{{"sessionId":"peer-session-1","path":"{big}"}}'
    asks = "".join(read % (number, params) for number in range(5))
    on = {"session/prompt": [{"mark": "asked"}, {"raw": asks}, {"signal": "STOP"}]}
    async with aboard(tmp_path, config_acp=hasty(write=1.0), on=on) as ship:
        session = await ship.open()
        await ship.tell(session)
        ended = await ship.ended(session)
        now = await ship.now(session)

    assert ended.failure is not None
    assert (ended.stop_reason, ended.failure.code, ended.failure.message) == (
        StopReason.ERROR,
        FailureCode.AGENT_STUCK,
        "The agent's program exited during its turn (it stopped reading); fork the "
        "session to continue.",
    )
    assert now.status is Status.FAILED
