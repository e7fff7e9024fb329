"""How functions run: threads, limits, timeouts, interrupts, progress, context, recovery."""

import asyncio
import contextvars
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    CallSettled,
    Cancelled,
    Code,
    Effect,
    Invalid,
    RunScope,
    SessionQuery,
    SessionRequest,
    StopReason,
    ToolCallContext,
    ToolEnded,
    ToolProgressed,
    ToolStarted,
    TurnEnded,
    open_holdfast,
    tool,
)
from holdfast.domain.calls import CallState, Settlement
from holdfast.domain.ids import CallId
from holdfast.domain.messages import Notice, NoticeCode
from holdfast.domain.waits import WaitReason
from holdfast.functions.calls import Limit, Threads
from holdfast.wire.events import TABLE
from tests.builders import an_event
from tests.functions.stage import result_of, results, scripted, sent
from tests.houses import current, news_until, payloads, played
from tests.marks import each_case
from tests.stand_ins import PATIENCE
from tests.tooled import a_config, asks, call, calls_now, outcomes, says, until

pytestmark = pytest.mark.anyio


async def test_a_function_knows_its_call(home: Path) -> None:
    seen: list[ToolCallContext] = []

    @tool(timeout=60)
    async def look(city: str, *, context: ToolCallContext) -> str:
        """Look."""
        seen.append(context)
        context.check()
        return city

    async with sent(scripted(home, call("look", "c1", city="Oslo")), look) as (hf, session):
        assert [each.result for each in await results(hf, session)] == ["Oslo"]
        (stored,) = (await hf.calls.list(hf.owner, session.id)).items
    (found,) = seen
    assert (found.call_id, found.name, found.session_id) == ("c1", "look", session.id)
    assert (found.turn, found.owner, found.attempt) == (1, hf.owner, 1)
    assert found.idempotency_key == stored.idempotency_key
    assert not found.is_cancelled


async def test_a_function_that_is_not_async_runs_in_a_thread_with_its_context(home: Path) -> None:
    who = contextvars.ContextVar("who", default="nobody")
    threads = []

    @tool(effect="pure")
    def ask() -> str:
        """Ask."""
        threads.append(threading.current_thread())
        who.set("somebody")
        return who.get()

    assert (await result_of(home, ask)).result == "somebody"
    assert who.get() == "nobody"
    assert threads[0] is not threading.main_thread()
    assert threads[0].daemon


async def test_progress_becomes_events_at_most_four_a_second(home: Path) -> None:
    @tool(effect="pure")
    def count(call: ToolCallContext) -> str:
        """Count."""
        for number in range(30):
            call.progress(f"{number} of 30", number / 30)
            time.sleep(0.02)
        return "done"

    async with sent(scripted(home, call("count", "c1")), count) as (hf, session):
        news = payloads(await news_until(hf, session.id, TurnEnded))
    order = [each for each in news if isinstance(each, ToolStarted | ToolProgressed | ToolEnded)]
    reports = [each for each in order if isinstance(each, ToolProgressed)]
    assert reports[0] == ToolProgressed(call_id=reports[0].call_id, text="0 of 30", fraction=0.0)
    assert 2 <= len(reports) <= 4
    assert (type(order[0]), type(order[-1])) == (ToolStarted, ToolEnded)


async def test_progress_is_checked(home: Path) -> None:
    found: list[str] = []

    @tool(effect="pure")
    async def report(call: ToolCallContext) -> None:
        """Report."""
        call.progress("x" * 600)
        for text, fraction in (("a", 2.0), ("a", -1), (3, None)):
            try:
                call.progress(text, fraction)  # type: ignore[arg-type]
            except (ValueError, TypeError) as error:
                found.append(type(error).__name__)

    async with sent(scripted(home, call("report")), report) as (hf, session):
        news = payloads(await news_until(hf, session.id, TurnEnded))
    assert found == ["ValueError", "ValueError", "TypeError"]
    assert [len(each.text) for each in news if isinstance(each, ToolProgressed)] == [500]


EXPIRED = {
    "pure": "error/timeout",
    "idempotent": "error/timeout",
    "unsafe": "unknown/unknown",
}


@pytest.mark.parametrize("effect", EXPIRED)
@pytest.mark.parametrize("kind", ["thread", "task"])
async def test_a_timeout_ends_the_call_by_its_effect(home: Path, effect: Effect, kind: str) -> None:
    ended = threading.Event()

    @tool(name="wait", effect=effect, timeout=0.05)
    def in_thread(call: ToolCallContext) -> None:
        """Wait."""
        while not call.is_cancelled:
            time.sleep(0.005)
        ended.set()
        call.check()

    @tool(name="wait", effect=effect, timeout=0.05)
    async def in_task() -> None:
        """Wait."""
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    found = await result_of(home, in_thread if kind == "thread" else in_task)

    assert found.error is not None
    assert f"{found.status}/{found.error.code}" == EXPIRED[effect]
    assert "did not end within 0.05 seconds" in found.error.message
    await until(ended.is_set)


async def test_a_function_that_returns_late_settles_its_unknown_call(home: Path) -> None:
    let_go = threading.Event()

    @tool(timeout=0.05)
    def pay() -> str:
        """Pay."""
        let_go.wait(PATIENCE)
        return "paid after all"

    async with sent(scripted(home, call("pay", "c1")), pay) as (hf, session):
        assert outcomes(await played(hf, session.id)) == ["pay unknown/unknown"]
        assert await calls_now(hf, session) == {"c1": CallState.UNKNOWN}
        let_go.set()
        await news_until(hf, session.id, CallSettled)
        (stored,) = (await hf.calls.list(hf.owner, session.id)).items
        last = (await hf.read(session.id))[-1]
    assert stored.settlement is Settlement.MARKED_DONE
    assert "paid after all" in str(last.parts)


@pytest.mark.parametrize(
    ("effect", "outcome"),
    [("pure", "error/aborted"), ("idempotent", "error/aborted"), ("unsafe", "unknown/unknown")],
)
@pytest.mark.parametrize("kind", ["thread", "task"])
async def test_an_interrupt_stops_the_function(
    home: Path, effect: Effect, outcome: str, kind: str
) -> None:
    stopped: list[str] = []

    @tool(name="wait", effect=effect)
    def in_thread(call: ToolCallContext) -> None:
        """Wait."""
        while True:
            try:
                call.check()
            except Cancelled:
                stopped.append("thread")
                raise
            time.sleep(0.005)

    @tool(name="wait", effect=effect)
    async def in_task() -> None:
        """Wait."""
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.append("task")
            raise

    function = in_thread if kind == "thread" else in_task
    async with sent(scripted(home, call("wait")), function) as (hf, session):
        await news_until(hf, session.id, ToolStarted)
        await hf.sessions.interrupt(hf.owner, session.id)
        rows = await played(hf, session.id)
        assert outcomes(rows) == [f"wait {outcome}"]
        await until(lambda: stopped == [kind])
        now = await hf.sessions.get(hf.owner, session.id)
    assert now.last_stop is StopReason.ABORTED


async def test_a_function_that_ignores_its_cancellation_is_left_behind(home: Path) -> None:
    let_go = asyncio.Event()

    @tool(effect="pure", timeout=0.05)
    async def stubborn() -> None:
        """Stay."""
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    found = await asyncio.wait_for(result_of(home, stubborn), PATIENCE)
    let_go.set()

    assert found.error is not None
    assert found.error.code == "timeout"


async def test_a_call_that_finds_no_place_was_not_started(home: Path) -> None:
    let_go = threading.Event()

    @tool(timeout=0.1, concurrency=1)
    def only() -> str:
        """Be alone."""
        let_go.wait(PATIENCE)
        return "late"

    config = scripted(home, call("only", "c1"), call("only", "c2"))
    async with sent(config, only) as (hf, session):
        # The first is left behind and keeps its place; the second waits for it in vain.
        rows = await played(hf, session.id)
        found = {each.id: each for each in (await hf.calls.list(hf.owner, session.id)).items}
        let_go.set()
    assert outcomes(rows) == ["only unknown/unknown", "only error/unavailable"]
    assert found["c2"].started_at is None


async def test_the_threads_are_limited_by_the_configuration(home: Path) -> None:
    running, most = 0, 0
    lock = threading.Lock()

    @tool(effect="pure")
    def work() -> None:
        """Work."""
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.05)
        with lock:
            running -= 1

    config = scripted(home, call("work"), tool_threads=2)
    async with open_holdfast(config=config, tools=[work]) as hf:
        sessions = [await hf.open(tools=[work]) for _ in range(6)]
        for session in sessions:
            await hf.send(session.id, "go")
        ends = [outcomes(await played(hf, each.id)) for each in sessions]
    assert ends == [["work ok"]] * 6
    assert most == 2


async def test_a_limit_gives_its_places_in_order_and_none_is_lost() -> None:
    limit = Limit(1)
    order: list[int] = []

    async def take(number: int) -> None:
        await limit.take()
        order.append(number)

    assert limit.try_take()
    waiting = [asyncio.create_task(take(number)) for number in range(3)]
    await asyncio.sleep(0)
    assert not limit.try_take()
    waiting[0].cancel()
    await asyncio.gather(waiting[0], return_exceptions=True)
    limit.release()
    await waiting[1]
    # Cancelled in the moment in which it gets the place.
    limit.release()
    waiting[2].cancel()
    await asyncio.gather(waiting[2], return_exceptions=True)
    assert (order, limit.try_take()) == ([1], True)


async def test_threads_are_reused_and_end_when_they_are_closed() -> None:
    threads, names = Threads(), []
    done = threading.Event()

    def work() -> None:
        names.append(threading.current_thread())
        done.set()

    for _ in range(3):
        done.clear()
        threads.run(work)
        await asyncio.to_thread(done.wait, PATIENCE)
        await asyncio.sleep(0.02)
    threads.close()

    await asyncio.to_thread(names[0].join, PATIENCE)
    assert len({each.ident for each in names}) == 1
    assert not names[0].is_alive()


class TestScopes:
    """Where a function is found: in its session, then in the process, and for one owner only."""

    async def test_closures_of_one_name_in_two_sessions_do_not_meet(self, home: Path) -> None:
        def closure(text: str) -> Any:
            @tool(effect="pure")
            async def say() -> str:
                """Say it."""
                return text

            return say

        config = scripted(home, call("say"))
        async with open_holdfast(config=config, tools=[closure("process")]) as hf:
            opened = [await hf.open(tools=[closure(text)]) for text in ("one", "two")]
            agent = await hf.agents.create(hf.owner, {"name": "Sayer", "tools": ["say"]})
            opened.append(await hf.open(agent.slug))
            for session in opened:
                await hf.send(session.id, "go")
            said = [(await results(hf, session))[0].result for session in opened]
        assert said == ["one", "two", "process"]

    async def test_an_agent_that_names_no_function_is_not_offered_one(self, home: Path) -> None:
        @tool(effect="pure")
        async def hidden() -> str:
            """Hide."""
            return "seen"

        async with open_holdfast(config=scripted(home, call("hidden")), tools=[hidden]) as hf:
            session = await hf.open()
            await hf.send(session.id, "go")
            rows = await played(hf, session.id)
        assert outcomes(rows) == ["hidden denied/not_granted"]

    async def test_names_narrow_and_functions_join(self, home: Path) -> None:
        @tool
        def own() -> None:
            """Do it."""

        async with open_holdfast(config=scripted(home, call("own"))) as hf:
            session = await hf.open(tools=[own, "read_file"])
            assert [each.name for each in session.tools] == ["read_file", "own"]
            with pytest.raises(Invalid, match="not both"):
                await hf.open(request=SessionRequest(tools=("read_file",)), tools=["read_file"])

    async def test_a_second_function_of_a_name_is_refused_and_nothing_is_opened(
        self, home: Path
    ) -> None:
        def first() -> None:
            """Do it."""

        def second() -> None:
            """Do it."""

        one, two = tool(first, name="same"), tool(second, name="same")
        async with open_holdfast(config=scripted(home, call("same")), tools=[one]) as hf:
            hf.tools.add(one)
            with pytest.raises(Invalid) as caught:
                hf.tools.add(two)
            with pytest.raises(Invalid):
                await hf.open(tools=[one, two])
            assert (await hf.sessions.list(SessionQuery(owner=hf.owner))).items == ()
        assert caught.value.code == "tool_name_taken"
        assert "test_calls.py" in caught.value.message

    async def test_a_method_can_be_given_twice(self, home: Path) -> None:
        class Counter:
            def add(self, number: int) -> int:
                """Add."""
                return number

        counter = Counter()
        async with open_holdfast(config=scripted(home, call("add"))) as hf:
            hf.tools.add(counter.add)
            hf.tools.add(counter.add)
            with pytest.raises(Invalid):
                hf.tools.add(Counter().add)

    async def test_a_function_joins_an_open_session_with_a_notice(self, home: Path) -> None:
        @tool(effect="pure")
        async def later() -> str:
            """Come later."""
            return "here"

        async with open_holdfast(config=scripted(home, call("later"))) as hf:
            session = await hf.open()
            await hf.tools.attach(session.id, [later])
            await hf.tools.attach(session.id, [later])
            await hf.send(session.id, "go")
            rows = await played(hf, session.id)
        assert outcomes(rows) == ["later ok"]
        notices = [part for row in rows for part in row.parts if isinstance(part, Notice)]
        assert [each.code for each in notices] == [NoticeCode.TOOLS_CHANGED]

    async def test_another_owner_has_no_function_of_the_process(self, home: Path) -> None:
        @tool(effect="pure")
        async def mine() -> str:
            """Be mine."""
            return "mine"

        async with open_holdfast(config=scripted(home, call("mine")), tools=[mine]) as hf:
            fields = {"name": "Theirs", "tools": ["mine"]}
            await hf.agents.create("them", fields)
            with pytest.raises(Invalid) as caught:
                await hf.sessions.open("them", "theirs")
        assert caught.value.code == "unknown_tool"

    async def test_a_mistyped_name_is_refused_with_the_nearest(self, home: Path) -> None:
        @tool
        def weather() -> None:
            """Tell the weather."""

        async with open_holdfast(config=scripted(home, call("weather")), tools=[weather]) as hf:
            await hf.agents.create(hf.owner, {"name": "Typo", "tools": ["wether"]})
            with pytest.raises(Invalid, match=r"did you mean weather\?") as caught:
                await hf.open("typo")
        assert caught.value.code == "unknown_tool"

    async def test_an_agent_that_is_a_program_takes_no_function(self, home: Path) -> None:
        @tool
        def own() -> None:
            """Do it."""

        config = scripted(home, call("own"), workspace_root=home.parent)
        async with open_holdfast(config=config) as hf:
            runtime = {"type": "acp", "command": "true"}
            await hf.agents.create(hf.owner, {"name": "Program", "runtime": runtime})
            (home.parent / "repo" / ".git").mkdir(parents=True)
            repo = await hf.repos.add(hf.owner, str(home.parent / "repo"))
            with pytest.raises(Invalid, match="functions need a model agent"):
                await hf.open("program", SessionRequest(repo_id=repo.id), tools=[own])

    async def test_a_session_without_its_function_waits_for_it(self, home: Path) -> None:
        @tool(effect="pure")
        async def gone() -> str:
            """Go."""
            return "here"

        steps = (asks(call("gone")), says("done"))
        config = a_config(home, *steps, *steps)
        async with sent(config, gone) as (hf, session):
            assert outcomes(await played(hf, session.id)) == ["gone ok"]
        async with open_holdfast(config=config) as hf:
            await hf.send(session.id, "again")
            async with asyncio.timeout(PATIENCE):
                while (waiting := (await current(hf, session)).waiting) is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            before = await hf.read(session.id)
            await hf.attach(session.id, [gone])
            rows = await played(hf, session.id)
        assert (waiting.reason, waiting.needs) == (WaitReason.TOOL, ("tool:gone",))
        assert waiting.text == "The turn waits for a process that has the tool gone."
        assert before[-1].text == "again"
        assert outcomes(rows) == ["gone ok", "gone ok"]

    async def test_a_process_that_registers_the_function_continues_the_turn(
        self, home: Path
    ) -> None:
        @tool(effect="pure")
        async def gone() -> str:
            """Go."""
            return "here"

        config = a_config(home, asks(call("gone")), says("done"))
        async with open_holdfast(config=config, scope=RunScope.NONE, tools=[gone]) as hf:
            await hf.agents.create(hf.owner, {"name": "Goer", "tools": ["gone"]})
            session = await hf.open("goer")
            await hf.send(session.id, "go")
        async with open_holdfast(config=config) as server:
            async with asyncio.timeout(PATIENCE):
                while (await current(server, session)).waiting is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            async with open_holdfast(config=config, scope=RunScope.OWN, tools=[gone]):
                rows = await played(server, session.id)
        assert outcomes(rows) == ["gone ok"]


async def test_a_restart_without_the_function_still_opens_and_a_typo_does_not(home: Path) -> None:
    @tool(effect="pure")
    async def gone() -> str:
        """Go."""
        return "here"

    config = a_config(home, asks(call("gone")), says("done"))
    async with open_holdfast(config=config) as hf:
        await hf.agents.create(hf.owner, {"name": "Goer", "tools": ["gone"]})
        with pytest.raises(Invalid) as early:
            await hf.open("goer")
        hf.tools.add(gone)
        await hf.open("goer")
    async with open_holdfast(config=config) as server:
        session = await server.open("goer")
        await server.send(session.id, "go")
        async with asyncio.timeout(PATIENCE):
            while (waiting := (await current(server, session)).waiting) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await server.agents.update(server.owner, "goer", {"tools": ["gone", "gnoe"]})
        with pytest.raises(Invalid) as typo:
            await server.open("goer")
        server.tools.add(gone)
        rows = await played(server, session.id)

    assert (early.value.code, typo.value.code) == (Code.UNKNOWN_TOOL, Code.UNKNOWN_TOOL)
    assert typo.value.details == {"tool": "gnoe"}
    assert waiting.needs == ("tool:gone",)
    assert outcomes(rows) == ["gone ok"]


async def test_a_function_of_another_process_opens_a_session_also_once_that_is_gone(
    home: Path,
) -> None:
    @tool(effect="pure")
    async def gone() -> str:
        """Go."""
        return "here"

    config = a_config(home, asks(call("gone")), says("done"))
    async with asyncio.timeout(PATIENCE), open_holdfast(config=config) as server:
        for name in ("goer", "later", "typo"):
            tools = ["gnoe" if name == "typo" else "gone"]
            await server.agents.create(server.owner, {"name": name, "slug": name, "tools": tools})
        async with open_holdfast(config=config, scope=RunScope.OWN, tools=[gone]):
            while not await server.workers.list(server.owner):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            session = await server.open("goer")
            await server.send(session.id, "go")
            rows = await played(server, session.id)
        later = await server.open("later")
        with pytest.raises(Invalid) as typo:
            await server.open("typo")

    assert outcomes(rows) == ["gone ok"]
    assert [each.name for each in later.tools] == ["gone"]
    assert typo.value.code is Code.UNKNOWN_TOOL


async def test_a_call_cut_off_as_repeatable_is_unknown_once_its_tool_is_unsafe(home: Path) -> None:
    begun, runs = asyncio.Event(), list[str]()

    async def go() -> None:
        """Go."""
        runs.append("first")
        begun.set()
        await asyncio.Event().wait()

    async def again() -> None:
        """Go."""
        runs.append("again")

    config = a_config(home, asks(call("go")), says("done"))
    async with asyncio.timeout(PATIENCE):
        async with open_holdfast(config=config, tools=[tool(go, effect="pure")]) as hf:
            agent = await hf.agents.create(hf.owner, {"name": "Goer", "tools": ["go"]})
            session = await hf.open(agent.slug)
            await hf.send(session.id, "go")
            await begun.wait()
        async with open_holdfast(config=config, tools=[tool(again, name="go")]) as hf:
            rows = await played(hf, session.id)

    assert (outcomes(rows), runs) == (["go unknown/unknown"], ["first"])


async def test_arguments_that_do_not_fit_reach_no_function(home: Path) -> None:
    ran: list[int] = []

    @tool
    def count(number: int) -> None:
        """Count."""
        ran.append(number)

    found = await result_of(home, count, number="hunter2")

    assert found.error is not None
    assert found.error.code == "invalid_arguments"
    assert found.error.message == (
        "The arguments are not valid: Expected `int`, got `str` - at `$.number`."
    )
    assert ran == []


async def test_the_record_keeps_what_the_model_sent(home: Path) -> None:
    got: list[Any] = []

    @tool
    def count(number: int, more: dict[str, Any]) -> None:
        """Count."""
        got.append(number)
        more["changed"] = True

    sent_arguments = {"number": 3.0, "more": {"a": [1]}}
    config = scripted(home, call("count", "c1", **sent_arguments))
    async with sent(config, count) as (hf, session):
        await results(hf, session)
        (stored,) = (await hf.calls.list(hf.owner, session.id)).items
    assert (got, type(got[0])) == ([3], int)
    assert stored.arguments == {"number": 3.0, "more": {"a": [1]}}


async def test_the_effect_may_depend_on_the_arguments(home: Path) -> None:
    def effect(arguments: dict[str, Any]) -> Any:
        return {"get": "pure", "post": "unsafe"}[arguments["method"]]

    @tool(effect=effect)
    async def fetch(method: str) -> str:
        """Fetch."""
        return method

    calls = [call("fetch", name, method=name) for name in ("get", "post", "odd")]
    async with sent(scripted(home, *calls), fetch) as (hf, session):
        await results(hf, session)
        stored = (await hf.calls.list(hf.owner, session.id)).items
    assert {each.id: each.effect for each in stored} == {
        "get": Effect.PURE,
        "post": Effect.UNSAFE,
        "odd": Effect.UNSAFE,
    }


async def test_several_steps_offer_the_function_again(home: Path) -> None:
    @tool(effect="pure")
    async def next_number(number: int) -> int:
        """Return the next number."""
        return number + 1

    steps = [asks(call("next_number", number=number)) for number in range(3)]
    async with sent(a_config(home, *steps, says("three")), next_number) as (hf, session):
        assert [each.result for each in await results(hf, session)] == [1, 2, 3]


@each_case("fraction", [None, 0.4])
def test_progress_has_a_word_over_http(fraction: float | None) -> None:
    payload = ToolProgressed(call_id=CallId("c1"), text="2 of 5", fraction=fraction)
    event = an_event(payload, turn=3)

    more = {} if fraction is None else {"fraction": fraction}
    data = {"turn": 3, "tool_call_id": "c1", "text": "2 of 5", **more}
    assert TABLE[ToolProgressed](payload, event) == (("tool.progressed", data),)
