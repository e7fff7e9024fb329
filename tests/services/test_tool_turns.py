"""A turn with tools, as a whole: every row when it becomes true, and one abort that reaches all."""

import asyncio
import os
import shlex
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast import OnBusy, RunScope, Session, open_holdfast
from holdfast.config import Config
from holdfast.config.settings import Chat
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.calls import CallState
from holdfast.domain.costs import Usage
from holdfast.domain.events import StepDelta, StepStarted, ToolEnded, ToolStarted, TurnEnded
from holdfast.domain.messages import ResultStatus, Role, ToolCall, ToolResult
from holdfast.domain.sessions import Status, StopReason
from holdfast.domain.tools import Effect, ToolClass
from holdfast.ports.tools import RequestedCall
from holdfast.services.calls import SettlementAction, SettlementRequest
from tests.houses import current, news_until, payloads, played, texts
from tests.llm.dialects import CHAT, Saying
from tests.llm.fake_providers import Reply, a_provider
from tests.marks import demands, each_case
from tests.stand_ins import Gate
from tests.tooled import (
    Recorder,
    a_config,
    answer,
    asks,
    call,
    calls_now,
    ledger,
    open_equipped,
    open_tooled,
    outcomes,
    own_tool,
    question,
    says,
    started,
    until,
)
from tests.tools.process_fixture import marked

pytestmark = pytest.mark.anyio

AUTO = ApprovalMode.AUTO


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    folder = tmp_path / "desk"
    folder.mkdir()
    (folder / "a.txt").write_text("hello\n")
    return folder


def two_rounds(home: Path) -> Config:
    return a_config(
        home,
        asks(call("read_file", "r1", path="a.txt"), text="Let me look."),
        asks(
            call("write_file", "w1", path="log.txt", content="one\n", mode="append"),
            call("read_file", "r2", path="log.txt"),
        ),
        says("All done.", reasoning="It went well."),
        approval=AUTO,
    )


async def test_a_session_without_tools_marks_checkpoints_and_nothing_else(
    home: Path, desk: Path
) -> None:
    config = a_config(
        home,
        asks(call("checkpoint", "c1", name="half"), call("read_file", "r1", path="a.txt")),
        says("Marked."),
    )
    async with open_holdfast(config=config) as house:
        session = await started(house, desk, tools=())
        rows = await played(house, session.id)

    assert outcomes(rows) == ["checkpoint ok", "read_file denied/not_granted"]


@demands("S0-081", "S0-060", "S0-003d", "S2-070h")
async def test_everything_of_a_turn_is_a_row_in_its_order(home: Path, desk: Path) -> None:
    config = two_rounds(home)
    async with open_holdfast(config=config) as house:
        session = await started(house, desk, approval=AUTO)
        rows = await played(house, session.id)
    async with open_holdfast(config=config, scope=RunScope.NONE) as house:
        assert await house.read(session.id) == rows
        assert (await house.sessions.verify(house.owner, session.id)).faults == ()

    assert [(row.role, row.turn, row.sequence) for row in rows] == [
        (role, 1, sequence)
        for sequence, role in enumerate(
            [
                Role.USER,
                Role.ASSISTANT,
                Role.TOOL_CALL,
                Role.TOOL_RESULT,
                Role.TOOL_CALL,
                Role.TOOL_CALL,
                Role.TOOL_RESULT,
                Role.TOOL_RESULT,
                Role.ASSISTANT,
            ],
            start=1,
        )
    ]
    assert outcomes(rows) == ["read_file ok", "write_file ok", "read_file ok"]
    assert [type(part).__name__ for part in rows[-1].parts] == ["Reasoning", "Text"]
    produced = [row.role for row in rows if row.model_id is not None]
    assert produced == [Role.ASSISTANT, *[Role.TOOL_CALL] * 3, Role.ASSISTANT]
    assert (desk / "log.txt").read_text() == "one\n"


@demands("S0-003d", "S0-081b", "S2-001c")
async def test_the_news_tell_the_same_story(home: Path, desk: Path) -> None:
    async with open_holdfast(config=two_rounds(home)) as house:
        session = await started(house, desk, approval=AUTO)
        news = payloads(await news_until(house, session.id, TurnEnded))
    told = [
        type(each).__name__ + (f" {each.role}" if hasattr(each, "role") else "")
        for each in news
        if not isinstance(each, StepDelta)
    ]

    assert told == [
        "SessionOpened",
        "MessageAppended user",
        "TurnStarted",
        "StepStarted",
        "StepEnded",
        "MessageAppended assistant",
        "MessageAppended tool_call",
        "ToolStarted",
        "ToolEnded",
        "MessageAppended tool_result",
        "StepStarted",
        "StepEnded",
        "MessageAppended tool_call",
        "MessageAppended tool_call",
        "ToolStarted",
        "ToolEnded",
        "MessageAppended tool_result",
        "ToolStarted",
        "ToolEnded",
        "MessageAppended tool_result",
        "StepStarted",
        "StepEnded",
        "MessageAppended assistant",
        "TurnEnded",
    ]


async def test_the_totals_are_the_sum_of_the_ledger(home: Path, desk: Path) -> None:
    async with open_holdfast(config=two_rounds(home)) as house:
        session = await started(house, desk, approval=AUTO)
        await played(house, session.id)
        entries = await ledger(house, session)
        after = await current(house, session)
        ended = payloads(await news_until(house, session.id, TurnEnded))[-1]

    total = sum((entry.usage for entry in entries), Usage())
    assert len(entries) == 3
    assert len({entry.request_id for entry in entries}) == 3
    assert (after.usage.input, after.usage.output) == (total.input, total.output)
    assert ended.usage == total


@demands("S0-045")
async def test_a_call_and_its_start_are_on_disk_before_it_acts(home: Path, desk: Path) -> None:
    seen: list[object] = []
    sessions: list[Session] = []

    async def look(asked: RequestedCall) -> str:
        # Through another connection: what it sees is committed.
        async with open_holdfast(config=config, scope=RunScope.NONE) as other:
            rows = await other.read(sessions[0].id)
            page = await other.events.list(other.owner, sessions[0].id)
            news = payloads(list(page.items))
            seen.append(rows[-1].parts)
            seen.append([each.call_id for each in news if isinstance(each, ToolStarted)])
            seen.append(await calls_now(other, sessions[0]))
        return "seen"

    config = a_config(home, asks(call("look", "c1")), says("done"))
    async with open_tooled(config, own_tool("look", look)) as house:
        # Asked first, so that the tool knows whose it is by the time it acts.
        sessions.append(await started(house, desk, "look"))
        await answer(house, await question(house, sessions[0]))
        await played(house, sessions[0].id)

    assert seen == [
        (ToolCall(id="c1", name="look", arguments={}),),
        ["c1"],
        {"c1": CallState.STARTED},
    ]


class TestTrouble:
    """What goes wrong with a call is told to the model; the turn goes on."""

    @demands("S0-014")
    @each_case(
        ("asked", "told"),
        [
            (call("no_such_tool"), "no_such_tool error/unknown_tool"),
            (call("READ_FILE", path="a.txt"), "READ_FILE error/unknown_tool"),
            (call("read_file", path="gone.txt"), "read_file error/not_found"),
            (call("read_file", file="a.txt"), "read_file error/invalid_arguments"),
            (call("read_file", path="../x"), "read_file denied/outside_scope"),
            (call("read_file", path="{{secrets.x}}"), "read_file error/invalid_arguments"),
            (call("read_file", path=".env"), "read_file denied/protected_path"),
            ({"name": "read_file", "arguments": "not json"}, "read_file error/invalid_arguments"),
            ({"name": "read_file", "arguments": "[1]"}, "read_file error/invalid_arguments"),
            ({"name": "list_directory", "arguments": ""}, "list_directory ok"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    async def test_a_refused_call_has_a_result_and_never_started(
        self, home: Path, desk: Path, asked: dict[str, object], told: str
    ) -> None:
        config = a_config(home, asks(asked), says("I see."), approval=AUTO)
        async with open_holdfast(config=config) as house:
            session = await started(house, desk, approval=AUTO)
            rows = await played(house, session.id)
            news = payloads(await news_until(house, session.id, TurnEnded))

        assert (outcomes(rows), rows[-1].text) == ([told], "I see.")
        has_started = any(isinstance(each, ToolStarted) for each in news)
        assert has_started == told.endswith((" ok", "not_found"))
        assert sum(isinstance(each, ToolEnded) for each in news) == 1

    async def test_a_tool_that_raises_fails_alone_and_keeps_its_words_to_the_log(
        self, home: Path, desk: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        act = Recorder(error=RuntimeError("/private/path and more"))
        config = a_config(home, asks(call("break", "c1")), says("I see."), approval=AUTO)
        async with open_tooled(config, own_tool("break", act)) as house:
            session = await started(house, desk, "break", approval=AUTO)
            rows = await played(house, session.id)
            stored = str([row.parts for row in rows])

        assert outcomes(rows) == ["break error/failed"]
        assert "/private/path" not in stored
        assert "/private/path" in caplog.text

    async def test_five_rounds_without_a_success_end_the_turn(self, home: Path, desk: Path) -> None:
        step = asks(call("read_file", path="gone.txt"))
        good = asks(call("read_file", path="a.txt"))
        config = a_config(home, *[step] * 4, good, *[step] * 5)
        async with open_holdfast(config=config) as house:
            session = await started(house, desk)
            rows = await played(house, session.id)
            ended = payloads(await news_until(house, session.id, TurnEnded))[-1]

        assert outcomes(rows) == [
            *["read_file error/not_found"] * 4,
            "read_file ok",
            *["read_file error/not_found"] * 5,
        ]
        assert (ended.stop_reason, ended.failure.code) == (StopReason.ERROR, "tool_failed")


class TestInterrupt:
    """One signal reaches the provider, the tool and whoever is asked; the session stays open."""

    @demands("S0-064")
    @pytest.mark.parametrize(
        ("effect", "told", "state"),
        [
            (Effect.UNSAFE, "wait unknown/unknown", CallState.UNKNOWN),
            (Effect.IDEMPOTENT, "wait error/aborted", CallState.FINISHED),
            (Effect.PURE, "wait error/aborted", CallState.FINISHED),
        ],
    )
    async def test_it_stops_a_running_tool(
        self, home: Path, desk: Path, effect: Effect, told: str, state: CallState
    ) -> None:
        gate = Gate()
        act = Recorder(gate=gate)
        tool = own_tool("wait", act, effect=effect)
        config = a_config(
            home, asks(call("wait", "c1"), call("wait", "c2")), says("instead"), approval=AUTO
        )
        async with open_tooled(config, tool) as house:
            session = await started(house, desk, "wait", approval=AUTO)
            await gate.reached()
            after = (await house.sessions.interrupt(house.owner, session.id)).session
            rows = await house.read(session.id)
            states = await calls_now(house, session)
            await house.send(session.id, "go on")
            later = await played(house, session.id)

        assert act.cancelled == 1
        assert (after.status, after.last_stop) == (Status.IDLE, StopReason.ABORTED)
        assert outcomes(rows) == [told, "wait skipped/aborted"]
        assert states == {"c1": state, "c2": CallState.FINISHED}
        assert later[-1].text == "instead"

    async def test_it_reaches_a_tool_from_another_house(self, home: Path, desk: Path) -> None:
        gate = Gate()
        act = Recorder(gate=gate)
        config = a_config(home, asks(call("wait", "c1")), approval=AUTO)
        async with open_tooled(config, own_tool("wait", act)) as house:
            session = await started(house, desk, "wait", approval=AUTO)
            await gate.reached()
            async with open_tooled(config, scope=RunScope.NONE) as other:
                await other.sessions.interrupt(other.owner, session.id)
            # The house that runs it learns of it when it next renews its lease.
            async with asyncio.timeout(20):
                while not act.cancelled:  # noqa: ASYNC110 — seen from outside
                    await asyncio.sleep(0.01)
            assert outcomes(await house.read(session.id)) == ["wait unknown/unknown"]

    @demands("S0-064")
    async def test_a_real_command_is_gone_with_it(self, home: Path, desk: Path) -> None:
        mark = f"mark-{os.urandom(8).hex()}"
        words = (sys.executable, "-c", "import time; time.sleep(600)", mark)
        config = a_config(
            home,
            asks(call("run_command", command=words[0], args=list(words[1:]))),
            approval=AUTO,
            chat=Chat(allowed_commands=(shlex.join(words),)),
        )
        async with open_equipped(config) as house:
            session = await started(house, desk, approval=AUTO)
            await until(lambda: bool(marked(mark)))
            await house.sessions.interrupt(house.owner, session.id)
            await until(lambda: not marked(mark))
            rows = await house.read(session.id)

        assert outcomes(rows) == ["run_command unknown/unknown"]

    @demands("S0-064")
    async def test_it_stops_a_provider_in_the_middle_of_its_answer(
        self, home: Path, desk: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        never = asyncio.Event()
        pieces = CHAT.stream(Saying(text=("Half of it, ", "and the rest.")))
        async with a_provider() as fake:
            monkeypatch.setenv("VLLM_BASE_URL", fake.url)
            # Everything up to the second half; then it waits for ever.
            fake.replies.append(Reply([pieces[0], pieces[1], b": wait\n\n"], gate=never))
            config = Config(home=home, default_model="vllm:some-model")
            async with open_holdfast(config=config) as house:
                session = await started(house, desk)
                await news_until(house, session.id, StepDelta)
                await house.sessions.interrupt(house.owner, session.id)
                async with asyncio.timeout(20):
                    await fake.left.wait()
                rows = await house.read(session.id)

        assert texts(rows) == [
            ("user", "go"),
            ("assistant", "Half of it, "),
            ("system", "The turn was stopped by its user."),
        ]
        assert len(fake.received) == 1

    async def test_it_stops_a_provider_that_says_nothing(self, home: Path, desk: Path) -> None:
        config = a_config(home, says("late", delay_ms=60_000), says("instead"))
        async with open_holdfast(config=config) as house:
            session = await started(house, desk)
            await news_until(house, session.id, StepStarted)
            async with asyncio.timeout(20):
                await house.sessions.interrupt(house.owner, session.id)
                await house.send(session.id, "go on")
                rows = await played(house, session.id)
            entries = await ledger(house, session)

        assert texts(rows) == [
            ("user", "go"),
            ("system", "The turn was stopped by its user."),
            ("user", "go on"),
            ("assistant", "instead"),
        ]
        # A request that was sent is in the ledger, though nobody knows what it cost.
        assert [entry.priced for entry in entries] == [False, False]

    async def test_a_result_that_was_complete_is_kept(self, home: Path, desk: Path) -> None:
        config = a_config(
            home,
            asks(call("read_file", path="a.txt")),
            says("late", delay_ms=60_000),
        )
        async with open_holdfast(config=config) as house:
            session = await started(house, desk)
            await news_until(house, session.id, ToolEnded)
            await house.sessions.interrupt(house.owner, session.id)
            rows = await house.read(session.id)

        assert outcomes(rows) == ["read_file ok"]

    async def test_an_unsafe_call_that_was_stopped_is_not_run_again(
        self, home: Path, desk: Path
    ) -> None:
        gate = Gate()
        act = Recorder(gate=gate)
        config = a_config(home, asks(call("wait", "c1")), says("fine"), approval=AUTO)
        async with open_tooled(config, own_tool("wait", act)) as house:
            session = await started(house, desk, "wait", approval=AUTO)
            await gate.reached()
            await house.sessions.interrupt(house.owner, session.id)
        async with open_tooled(config, own_tool("wait", act)) as house:
            await house.send(session.id, "go on")
            await played(house, session.id)
            wish = SettlementRequest(how=SettlementAction.SKIP, by="ada")
            await house.calls.settle(house.owner, session.id, "c1", wish)

        assert len(act.asked) == 1


class TestBusy:
    """What arrives while a tool runs waits for the next turn, unless its sender says otherwise."""

    @demands("S0-060")
    async def test_a_message_waits_for_the_turn_with_tools(self, home: Path, desk: Path) -> None:
        gate = Gate()
        act = Recorder(gate=gate)
        config = a_config(home, asks(call("wait", "c1")), says("one"), says("two"), approval=AUTO)
        async with open_tooled(config, own_tool("wait", act)) as house:
            session = await started(house, desk, "wait", approval=AUTO)
            await gate.reached()
            sent = await house.send(session.id, "and then?")
            gate.open()
            rows = await played(house, session.id)

        assert sent.turn == 2
        spoken = [(row.turn, row.text) for row in rows if row.text]
        assert spoken == [(1, "go"), (2, "and then?"), (1, "one"), (2, "two")]

    async def test_a_message_that_interrupts_stops_the_tool_and_is_played(
        self, home: Path, desk: Path
    ) -> None:
        gate = Gate()
        act = Recorder(gate=gate)
        config = a_config(home, asks(call("wait", "c1")), says("instead"), approval=AUTO)
        async with open_tooled(config, own_tool("wait", act)) as house:
            session = await started(house, desk, "wait", approval=AUTO)
            await gate.reached()
            await house.send(session.id, "stop that", on_busy=OnBusy.INTERRUPT)
            rows = await played(house, session.id)

        assert act.cancelled == 1
        assert (outcomes(rows), rows[-1].text) == (["wait unknown/unknown"], "instead")


class TestLeaving:
    """A house that is left in good order leaves its turn for the next one to go on with."""

    async def test_a_call_that_was_not_allowed_yet_runs_once_when_it_is(
        self, home: Path, desk: Path
    ) -> None:
        act = Recorder()
        config = a_config(home, asks(call("act", "c1")), says("done"))
        tool = own_tool("act", act)
        async with open_tooled(config, tool) as house:
            session = await started(house, desk, "act")
            asked = await question(house, session)
        async with open_tooled(config, tool) as house:
            again = (await house.approvals.list(house.owner, session.id)).items
            await answer(house, asked)
            rows = await played(house, session.id)

        assert [each.id for each in again] == [asked.id]
        assert (outcomes(rows), act.lines) == (["act ok"], [""])

    @pytest.mark.parametrize("effect", [Effect.PURE, Effect.IDEMPOTENT])
    async def test_a_call_that_may_run_twice_runs_again_under_its_key(
        self, home: Path, desk: Path, effect: Effect
    ) -> None:
        gate = Gate()
        first, second = Recorder(gate=gate), Recorder()
        config = a_config(home, asks(call("act", "c1")), says("done"), approval=AUTO)
        async with open_tooled(config, own_tool("act", first, effect=effect)) as house:
            session = await started(house, desk, "act", approval=AUTO)
            await gate.reached()
        async with open_tooled(config, own_tool("act", second, effect=effect)) as house:
            rows = await played(house, session.id)

        assert outcomes(rows) == ["act ok"]
        assert len(first.asked) == len(second.asked) == 1
        (one,), (other,) = first.asked, second.asked
        assert (one.attempt, other.attempt) == (1, 2)
        assert replace(other, attempt=1, is_resumed=False, report=one.report) == one

    async def test_an_agent_may_go_on_by_itself_with_what_it_does_not_know(
        self, home: Path, desk: Path
    ) -> None:
        gate = Gate()
        first, second = Recorder(gate=gate), Recorder()
        config = a_config(
            home, asks(call("act", "c1"), call("act", "c2")), says("I go on."), approval=AUTO
        )
        async with open_tooled(config, own_tool("act", first)) as house:
            tools = [{"name": "act", "description": "Acts."}]
            fields = {"name": "Steady", "tools": tools, "grant": None, "recovery": "continue"}
            await house.agents.create(house.owner, fields)
            session = await started(house, desk, agent="steady", approval=AUTO)
            await gate.reached()
        async with open_tooled(config, own_tool("act", second)) as house:
            rows = await played(house, session.id)
            unknown = (await house.calls.list(house.owner, state=CallState.UNKNOWN)).items

        assert outcomes(rows) == ["act unknown/unknown", "act ok"]
        assert (rows[-1].text, [each.id for each in unknown]) == ("I go on.", ["c1"])


async def test_a_turn_of_one_owner_touches_nothing_of_anothers(home: Path, desk: Path) -> None:
    config = a_config(home, asks(call("read_file", "same", path="a.txt")), says("done"))
    async with open_holdfast(config=config) as ada:
        mine = await started(ada, desk)
        await played(ada, mine.id)
        async with open_holdfast(config=config, owner="bob") as bob:
            theirs = await started(bob, desk)
            await played(bob, theirs.id)
            keys = [
                (await house.calls.get(house.owner, session.id, "same")).idempotency_key
                for house, session in ((ada, mine), (bob, theirs))
            ]
    assert len(set(keys)) == 2


async def test_a_result_says_what_the_row_says(home: Path, desk: Path) -> None:
    config = a_config(home, asks(call("read_file", "c1", path="a.txt")), says("done"))
    async with open_holdfast(config=config) as house:
        session = await started(house, desk)
        rows = await played(house, session.id)
        ended = payloads(await news_until(house, session.id, ToolEnded))[-1]

    (part,) = [each for row in rows for each in row.parts if isinstance(each, ToolResult)]
    assert part.status is ResultStatus.OK
    assert ended == ToolEnded(
        call_id=part.call_id, name=part.name, status=part.status, result=part.result
    )


async def test_a_read_only_look_asks_nobody_in_the_strictest_mode(home: Path, desk: Path) -> None:
    act = Recorder()
    look = own_tool("look", act, tool_class=ToolClass.READ, effect=Effect.PURE)
    config = a_config(home, asks(call("look")), says("done"), approval=ApprovalMode.DENY)
    async with open_tooled(replace(config), look) as house:
        session = await started(house, desk, "look", approval=ApprovalMode.DENY)
        assert outcomes(await played(house, session.id)) == ["look ok"]
