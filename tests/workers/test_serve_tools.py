"""`serve_tools`: functions of this process as the tools of agents, here and for a server."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Holdfast,
    LocalHoldfast,
    OutcomeUnknown,
    Session,
    ToolCallContext,
    ToolFailed,
    connect,
    tool,
)
from holdfast.ask import tool_server
from holdfast.config import Config
from holdfast.domain.calls import CallState
from holdfast.domain.errors import Code, Conflict, Invalid
from holdfast.domain.events import ToolProgressed, ToolStarted
from holdfast.domain.messages import Notice, NoticeCode
from tests.client.servers import QUICK
from tests.client.servers import serving as http_serving
from tests.houses import played
from tests.marks import each_case
from tests.services.test_client_calls import a_house, payloads_of, requested, results
from tests.tooled import a_config, asks, call, calls_now, outcomes, says

pytestmark = pytest.mark.anyio


@tool(effect="idempotent")
async def refund(order: str, *, call: ToolCallContext) -> dict[str, Any]:
    """Refund an order."""
    call.progress(f"refunding {order}", 0.5)
    return {"order": order, "attempt": call.attempt, "key": call.idempotency_key}


@pytest.fixture(params=["here", "remote"])
def place(request: pytest.FixtureRequest) -> str:
    """Where the tools are served: in the process of the store, or for a server."""
    return str(request.param)


@asynccontextmanager
async def serving(
    house: LocalHoldfast, *tools: Any, place: str = "here", **more: Any
) -> AsyncIterator[None]:
    """Serve tools while the block runs."""
    async with AsyncExitStack() as stack:
        hf: Holdfast = house
        if place == "remote":
            at = await stack.enter_async_context(http_serving(house))
            hf = await stack.enter_async_context(connect(at.url, at.secret, timeouts=QUICK))
        task = asyncio.create_task(hf.serve_tools(list(tools), **more))
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def clerk(house: Holdfast, *tools: Any) -> Session:
    """Send a message to an agent with the tools, as a client defines them."""
    fields = {"name": "Clerk", "tools": [each.definition for each in tools]}
    agent = await house.agents.create(house.owner, fields)
    session = await house.open(agent.slug)
    await house.send(session.id, "go")
    return session


def refunding(home: Path, name: str = "refund", **arguments: Any) -> Config:
    return a_config(home, asks(call(name, "c1", **(arguments or {"order": "17"}))), says("done"))


async def test_a_function_runs_as_the_tool_of_an_agent(home: Path, place: str) -> None:
    async with a_house(refunding(home)) as house, serving(house, refund, place=place):
        session = await clerk(house, refund)
        rows = await played(house, session.id)
        events = await payloads_of(house, session)
        call_ = await house.calls.get(house.owner, session.id, "c1")
        workers = await house.workers.list(house.owner)
    async with a_house(refunding(home)) as house:
        left = await house.workers.list(house.owner)

    assert [each.result for each in results(rows)] == [
        {"order": "17", "attempt": 1, "key": call_.idempotency_key}
    ]
    assert rows[-1].text == "done"
    (started,) = [each for each in events if isinstance(each, ToolStarted)]
    assert started.by == workers[0].name
    assert [each.text for each in events if isinstance(each, ToolProgressed)] in (
        [],
        ["refunding 17"],
    )
    assert left == []


def failing(kind: str) -> Any:
    @tool(timeout=0.2)
    async def act() -> str:
        """Act."""
        if kind == "failed":
            raise ToolFailed("no such order")
        if kind == "unknown":
            raise OutcomeUnknown("cut off")
        if kind == "slow":
            await asyncio.sleep(5)
        raise ValueError("secret")

    return act


@each_case(
    ("kind", "outcome", "text"),
    [
        ("failed", "act error/failed", "no such order"),
        ("unknown", "act unknown/unknown", "cut off"),
        ("slow", "act unknown/unknown", "act did not end within 0.2 seconds"),
        ("raised", "act error/failed", "act failed with ValueError"),
    ],
)
async def test_the_rules_of_functions_hold(home: Path, kind: str, outcome: str, text: str) -> None:
    act = failing(kind)
    config = a_config(home, asks(call("act", "c1")), says("done"))
    async with a_house(config) as house, serving(house, act):
        session = await clerk(house, act)
        rows = await played(house, session.id)

    assert outcomes(rows) == [outcome]
    (error,) = [each.error for each in results(rows)]
    assert error is not None
    assert error.message.startswith(text)


async def test_a_function_with_another_schema_is_refused_or_stored(home: Path) -> None:
    @tool(name="refund")
    async def other(order: int) -> str:
        """Refund an order."""
        return str(order)

    async with a_house(refunding(home, order=17)) as house:
        await house.agents.create(house.owner, {"name": "Clerk", "tools": [refund.definition]})
        with pytest.raises(Conflict) as refused:
            await house.serve_tools([other], agent="clerk")
        async with serving(house, other, agent="clerk", update=True):
            while not await house.workers.list(house.owner):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            session = await house.open("clerk")
            await house.send(session.id, "go")
            rows = await played(house, session.id)

    assert refused.value.code is Code.TOOL_CHANGED
    assert [each.result for each in results(rows)] == ["17"]


async def test_a_function_that_the_agent_does_not_define_is_refused(home: Path, place: str) -> None:
    @tool
    async def refunds(order: str) -> str:
        """List refunds."""
        return order

    async with a_house(refunding(home)) as house, AsyncExitStack() as stack:
        tools = [refund.definition, "read_file"]
        await house.agents.create(house.owner, {"name": "Clerk", "tools": tools})
        hf: Holdfast = house
        if place == "remote":
            at = await stack.enter_async_context(http_serving(house))
            hf = await stack.enter_async_context(connect(at.url, at.secret, timeouts=QUICK))
        with pytest.raises(Invalid) as refused:
            await hf.serve_tools([refund, refunds], agent="clerk")
        workers = await house.workers.list(house.owner)

    assert (refused.value.code, workers) == (Code.UNKNOWN_TOOL, [])
    assert refused.value.message == (
        "Agent clerk does not define refunds (did you mean refund?); it defines refund. "
        "Add `refunds.definition` to its tools."
    )


async def test_a_function_that_decides_its_approval_itself_is_refused(home: Path) -> None:
    @tool(approval=lambda _: "auto")
    async def act() -> str:
        """Act."""
        return "done"

    async with a_house(refunding(home)) as house:
        with pytest.raises(Invalid) as refused:
            await house.serve_tools([act])
        with pytest.raises(Invalid) as nothing:
            await house.serve_tools([])

    assert refused.value.code is Code.OPTION_NOT_OFFERED
    assert nothing.value.code is Code.INVALID_INPUT


async def test_an_interrupt_cancels_the_function(home: Path, monkeypatch: Any, place: str) -> None:
    monkeypatch.setattr(tool_server, "EXTEND_SECONDS", 0.1)
    began, ended = asyncio.Event(), asyncio.Event()

    @tool
    async def act() -> None:
        """Act."""
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    config = a_config(home, asks(call("act", "c1")), says("done"))
    async with a_house(config) as house, serving(house, act, place=place):
        session = await clerk(house, act)
        await began.wait()
        await house.sessions.interrupt(house.owner, session.id)
        await ended.wait()
        rows = await played(house, session.id)

    assert outcomes(rows) == ["act unknown/unknown"]


async def test_a_function_that_returns_after_an_interrupt_settles_its_call(
    home: Path, monkeypatch: Any, place: str
) -> None:
    monkeypatch.setattr(tool_server, "EXTEND_SECONDS", 0.1)
    began, released = threading.Event(), threading.Event()

    @tool
    def act() -> str:
        """Act."""
        began.set()
        released.wait(20)
        return "paid"

    config = a_config(home, asks(call("act", "c1")), says("done"))
    async with a_house(config) as house, serving(house, act, place=place):
        session = await clerk(house, act)
        await asyncio.to_thread(began.wait)
        await house.sessions.interrupt(house.owner, session.id)
        # Until the worker has learned it, and left the function behind.
        await asyncio.sleep(1)
        released.set()
        while (await calls_now(house, session))["c1"] is not CallState.SETTLED:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        rows = await house.read(session.id)

    texts = [part.text for row in rows for part in row.parts if isinstance(part, Notice)]
    assert any('"paid"' in text for text in texts)


@pytest.mark.parametrize("effect", ["idempotent", "unsafe"])
async def test_leaving_gives_back_what_may_run_twice(home: Path, effect: Any, place: str) -> None:
    began = asyncio.Event()

    @tool(effect=effect)
    async def act() -> str:
        """Act."""
        began.set()
        await asyncio.sleep(60)
        return "done"

    config = a_config(home, asks(call("act", "c1")), says("done"))
    async with a_house(config) as house:
        async with serving(house, act, grace=0, place=place):
            session = await clerk(house, act)
            await began.wait()
        if effect == "unsafe":
            assert outcomes(await played(house, session.id)) == ["act unknown/unknown"]
        else:
            assert (await requested(house, session)).attempt == 1
            await house.sessions.interrupt(house.owner, session.id)


async def test_leaving_waits_for_what_runs_and_releases_what_waits(home: Path) -> None:
    began, released = asyncio.Event(), asyncio.Event()

    @tool(concurrency=1)
    async def act() -> str:
        """Act."""
        began.set()
        await released.wait()
        return "done"

    config = a_config(home, asks(call("act", "c1")), says("done"))
    async with a_house(config) as house:
        agent = await house.agents.create(house.owner, {"name": "Clerk", "tools": [act.definition]})
        sessions = [await house.open(agent.slug) for _ in range(2)]
        task = asyncio.create_task(house.serve_tools([act]))
        for each in sessions:
            await house.send(each.id, "go")
        await began.wait()
        for each in sessions:
            while (await calls_now(house, each)).get("c1") is not CallState.STARTED:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.sleep(0.2)
        states = [(await calls_now(house, each))["c1"] for each in sessions]
        released.set()
        with suppress(asyncio.CancelledError):
            await task
        finished = sessions[states.index(CallState.STARTED)]
        rows = await played(house, finished.id)
        for each in sessions:
            await house.sessions.interrupt(house.owner, each.id)

    assert sorted(states) == sorted([CallState.STARTED, CallState.REQUESTED])
    assert outcomes(rows) == ["act ok"]


async def test_functions_given_to_a_server_are_served_by_this_process(home: Path) -> None:
    config = a_config(
        home,
        *(
            each
            for _ in range(3)
            for each in (asks(call("refund", "c1", order="17")), says("done"))
        ),
    )
    async with a_house(config) as house, http_serving(house) as at:
        async with connect(at.url, at.secret, timeouts=QUICK) as hf:
            answer = await hf.ask("Refund 17", tools=[refund])
            again = await hf.ask("Refund 17", session=answer.session_id, tools=[refund])
            session = await house.sessions.get(house.owner, answer.session_id)
            plain = await hf.open()
            await hf.attach(plain.id, [refund])
            attached = await hf.ask("Refund 17", session=plain.id)
            rows = await hf.read(plain.id)
        left = await house.workers.list(house.owner)

    assert [each.text for each in (answer, again, attached)] == ["done"] * 3
    assert [[part.state for part in each.calls] for each in (answer, again, attached)] == [
        [CallState.FINISHED]
    ] * 3
    assert refund.definition in [tool_.as_given() for tool_ in session.tools]
    notices = [part for row in rows for part in row.parts if isinstance(part, Notice)]
    assert [each.code for each in notices] == [NoticeCode.TOOLS_CHANGED]
    assert left == []


async def test_functions_of_a_connection_serve_every_agent_that_defines_them(home: Path) -> None:
    async with (
        a_house(refunding(home)) as house,
        http_serving(house) as at,
        connect(at.url, at.secret, timeouts=QUICK, tools=[refund]),
    ):
        session = await clerk(house, refund)
        rows = await played(house, session.id)

    assert outcomes(rows) == ["refund ok"]


async def test_a_worker_outlives_a_restart_of_its_server(home: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(tool_server, "PAUSE_SECONDS", 0.05)
    config = refunding(home)
    port = 0
    async with AsyncExitStack() as stack:
        async with a_house(config) as house, http_serving(house) as at:
            port = int(at.url.rpartition(":")[2])
            hf = await stack.enter_async_context(connect(at.url, at.secret, timeouts=QUICK))
            task = asyncio.create_task(hf.serve_tools([refund]))
            while not await house.workers.list(house.owner):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        async with a_house(config) as house, http_serving(house, port=port):
            session = await clerk(house, refund)
            rows = await played(house, session.id)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    assert outcomes(rows) == ["refund ok"]
