"""Limits of turns, rounds and money stop a turn before anything is sent, and are kept on disk."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import Holdfast, RunScope, Session, open_holdfast
from holdfast.app import Environment
from holdfast.config import Config
from holdfast.config.settings import Chat
from holdfast.domain.approvals import ApprovalState
from holdfast.domain.drafts import Draft, Summary
from holdfast.domain.errors import Code, Conflict
from holdfast.domain.events import Event, FailureCode, StepStarted, TurnEnded
from holdfast.domain.messages import Compaction, Notice, Role
from holdfast.domain.models import Model, Prices
from holdfast.domain.sessions import TURN_CAP, Budget, OnExceed, Status, StopReason
from holdfast.domain.tools import Effect, ToolClass
from holdfast.ports.runtime import TurnInput
from tests.houses import current, news_until, open_house, payloads, played
from tests.marks import demands
from tests.stand_ins import Gate, GatedRuntime, Play, an_answer
from tests.tooled import (
    FOR_ALL,
    Recorder,
    a_config,
    answer,
    asks,
    call,
    ledger,
    open_tooled,
    outcomes,
    own_tool,
    question,
    says,
    started,
)

pytestmark = pytest.mark.anyio

DENIED = ApprovalState.DENIED
# One token in or out costs a hundredth of a cent. A first request is bounded by some 6,900 tokens,
# most of them for the tools, and needs 1,024 more for its answer: this is not quite enough.
PRICES = Prices(input=10_000_000_000, output=10_000_000_000)
ESTIMATE = 7_000 * 10_000


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    folder = tmp_path / "desk"
    folder.mkdir()
    (folder / "a.txt").write_text("hello\n")
    return folder


@pytest.fixture
def priced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give scripted models a price, as the tables give one to those of providers."""

    def prices_of(model: Model) -> Prices | None:
        return PRICES if model.provider == "scripted" else None

    monkeypatch.setattr("holdfast.llm.router.prices_of", prices_of)


async def ended(house: Holdfast, session: Session, *, turn: int = 1) -> TurnEnded:
    """Wait for the end of a turn and return it."""
    after = 0
    while True:
        last = (await news_until(house, session.id, TurnEnded, after=after))[-1]
        assert isinstance(last, Event)
        if last.turn == turn:
            assert isinstance(last.payload, TurnEnded)
            return last.payload
        after = last.sequence


async def steps(house: Holdfast, session: Session) -> int:
    """Return how many requests were begun."""
    page = await house.events.list(house.owner, session.id, limit=10_000)
    return sum(isinstance(each, StepStarted) for each in payloads(list(page.items)))


def notices(rows: Any) -> list[str]:
    return [str(part.code) for row in rows for part in row.parts if isinstance(part, Notice)]


class TestTurns:
    """A message past the cap is recorded, and its turn ends at once and loudly."""

    @demands("S0-115", "S0-117", "S0-117b", "S0-115c")
    async def test_the_third_message_of_two_is_not_sent(self, home: Path, desk: Path) -> None:
        # The script has no third step: a third request would fail in another way.
        config = a_config(home, says("one"), says("two"))
        async with open_holdfast(config=config) as house:
            session = await started(house, desk, turn_cap=2)
            await played(house, session.id)
            for text in ("second", "third"):
                await house.send(session.id, text)
                rows = await played(house, session.id)
            last = await ended(house, session, turn=3)
            after = await current(house, session)
            assert (await steps(house, session), len(await ledger(house, session))) == (2, 2)

        assert last.stop_reason is StopReason.TURN_LIMIT
        assert last.failure is not None
        assert last.failure.code is FailureCode.TURN_LIMIT
        assert (after.status, after.last_stop) == (Status.IDLE, StopReason.TURN_LIMIT)
        assert (rows[-2].role, rows[-2].text) == (Role.USER, "third")
        assert notices(rows) == ["turn_limit"]

    @demands("S0-115")
    async def test_the_count_is_of_the_rows_and_survives_a_restart(
        self, home: Path, desk: Path
    ) -> None:
        config = a_config(home, says("one"), says("two"))
        async with open_holdfast(config=config) as house:
            session = await started(house, desk, turn_cap=1)
            await played(house, session.id)
        async with open_holdfast(config=config) as house:
            await house.sessions.close(house.owner, session.id)
            await house.sessions.resume(house.owner, session.id)
            await house.send(session.id, "more")
            await played(house, session.id)
            assert (await ended(house, session, turn=2)).stop_reason is StopReason.TURN_LIMIT

    @demands("S0-116")
    async def test_a_turn_in_which_nothing_was_sent_does_not_count(
        self, home: Path, desk: Path, priced: None
    ) -> None:
        config = a_config(home, says("one"), says("two"))
        poor = Budget(microcents=1, on_exceed=OnExceed.FAIL)
        async with open_holdfast(config=config) as house:
            session = await started(house, desk, turn_cap=2, budget=poor)
            await played(house, session.id)
            await house.send(session.id, "again")
            await played(house, session.id)
            await house.send(session.id, "and again")
            await played(house, session.id)
            assert (await ended(house, session, turn=3)).stop_reason is StopReason.BUDGET
            assert await ledger(house, session) == []

    async def test_a_session_is_held_to_a_budget_that_was_made_stricter_since(
        self, home: Path, desk: Path, priced: None
    ) -> None:
        rich = a_config(home, says("one"), says("two"))
        plenty = Budget(microcents=10**12, on_exceed=OnExceed.FAIL)
        async with open_holdfast(config=rich) as house:
            session = await started(house, desk, budget=plenty)
            await played(house, session.id)
        poor = replace(rich, chat=replace(rich.chat, max_cost_microcents=1))
        async with open_holdfast(config=poor) as house:
            await house.send(session.id, "again")
            await played(house, session.id)
            assert (await ended(house, session, turn=2)).stop_reason is StopReason.BUDGET

    async def test_whoever_resumes_is_told_how_many_turns_are_left(
        self, home: Path, desk: Path
    ) -> None:
        config = a_config(home, says("one"), says("two"))
        left = []
        async with open_holdfast(config=config) as house:
            session = await started(house, desk, turn_cap=2)
            for text in ("second", "third", "fourth"):
                await played(house, session.id)
                await house.sessions.close(house.owner, session.id)
                left.append((await house.sessions.resume(house.owner, session.id)).turns_left)
                await house.send(session.id, text)

        assert left == [1, 0, 0]

    @pytest.mark.parametrize(
        ("on_exceed", "left"),
        [(OnExceed.FAIL, 0), (OnExceed.PAUSE, 0), (OnExceed.WARN, TURN_CAP - 1)],
    )
    async def test_a_budget_that_is_spent_leaves_no_turn_unless_it_only_warns(
        self, home: Path, desk: Path, priced: None, on_exceed: OnExceed, left: int
    ) -> None:
        rich = a_config(home, says("one"))
        plenty = Budget(microcents=10**12, on_exceed=on_exceed)
        async with open_holdfast(config=rich) as house:
            session = await started(house, desk, budget=plenty)
            await played(house, session.id)
            before = await house.sessions.resume(house.owner, session.id)
        poor = replace(rich, chat=chat(1, on_exceed))
        async with open_holdfast(config=poor, scope=RunScope.NONE) as house:
            after = await house.sessions.resume(house.owner, session.id)

        assert (before.turns_left, after.turns_left) == (TURN_CAP - 1, left)

    @demands("S0-116")
    async def test_a_turn_that_failed_at_the_provider_does_count(
        self, home: Path, desk: Path
    ) -> None:
        config = a_config(home, {"error": "bad_request"}, says("two"))
        async with open_holdfast(config=config) as house:
            session = await started(house, desk, turn_cap=1)
            await played(house, session.id)
            await house.send(session.id, "again")
            await played(house, session.id)
            assert (await ended(house, session, turn=2)).stop_reason is StopReason.TURN_LIMIT

    @pytest.mark.parametrize(
        ("process", "session_cap", "cap"),
        [(TURN_CAP, None, 50), (TURN_CAP, 0, 50), (TURN_CAP, -3, 50), (7, None, 7), (7, 3, 3)],
    )
    async def test_the_cap_is_the_sessions_else_the_processes_else_fifty(
        self, home: Path, process: int, session_cap: int | None, cap: int
    ) -> None:
        config = Config(home=home, turn_cap=process)
        async with open_holdfast(config=config, scope=RunScope.NONE) as house:
            session = await started(house, home.parent / "desk", turn_cap=session_cap)

        assert session.turn_cap == cap

    @demands("S0-117b")
    async def test_messages_that_wait_past_the_cap_are_one_turn_that_ends_at_once(
        self, home: Path, desk: Path
    ) -> None:
        gate = Gate()
        look = own_tool("look", Recorder(gate=gate), tool_class=ToolClass.READ, effect=Effect.PURE)
        config = a_config(home, asks(call("look")), says("one"))
        async with open_tooled(config, look) as house:
            session = await started(house, desk, "look", turn_cap=1)
            await gate.reached()
            await house.send(session.id, "second")
            await house.send(session.id, "third")
            gate.open()
            rows = await played(house, session.id)

        spoken = [
            (row.turn, row.role) for row in rows if row.role not in {"tool_call", "tool_result"}
        ]
        assert spoken[1:] == [
            (1, Role.USER),
            (2, Role.USER),
            (2, Role.USER),
            (1, Role.ASSISTANT),
            (2, Role.SYSTEM),
        ]


class TestRounds:
    """Rounds of tools in one turn are bounded; calls of the last step are answered as skipped."""

    @demands("S0-118", "S0-118b")
    async def test_a_round_too_many_ends_the_turn(self, home: Path, desk: Path) -> None:
        look = asks(call("read_file", path="a.txt"))
        config = a_config(home, look, look, asks(*[call("read_file", path="a.txt")] * 2))
        config = replace(config, max_tool_rounds=2)
        async with open_holdfast(config=config) as house:
            session = await started(house, desk)
            rows = await played(house, session.id)
            last = await ended(house, session)
            assert len(await ledger(house, session)) == 3

        assert outcomes(rows) == [*["read_file ok"] * 2, *["read_file skipped/limit"] * 2]
        assert last.stop_reason is StopReason.TURN_LIMIT
        assert last.failure is not None
        assert last.failure.code is FailureCode.TURN_LIMIT

    async def test_sixteen_rounds_are_seventeen_requests_at_most(
        self, home: Path, desk: Path
    ) -> None:
        config = a_config(home, asks(call("read_file", path="a.txt"), repeat=1_000))
        async with open_holdfast(config=config) as house:
            session = await started(house, desk)
            rows = await played(house, session.id)
            assert len(await ledger(house, session)) == 17

        assert outcomes(rows) == [*["read_file ok"] * 16, "read_file skipped/limit"]

    async def test_the_next_message_has_its_own_rounds(self, home: Path, desk: Path) -> None:
        look = asks(call("read_file", path="a.txt"))
        config = replace(a_config(home, look, look, look, says("done")), max_tool_rounds=1)
        async with open_holdfast(config=config) as house:
            session = await started(house, desk)
            await played(house, session.id)
            await house.send(session.id, "go on")
            rows = await played(house, session.id)

        assert outcomes(rows) == ["read_file ok", "read_file skipped/limit", "read_file ok"]
        assert rows[-1].text == "done"


def chat(cap: int, on_exceed: OnExceed = OnExceed.PAUSE, **more: Any) -> Chat:
    return Chat(max_cost_microcents=cap, on_exceed=on_exceed, **more)


@pytest.mark.usefixtures("priced")
class TestMoney:
    """A budget is judged before every request; what was agreed to is on disk."""

    @demands("S0-120")
    async def test_fail_ends_the_turn_before_egress(self, home: Path, desk: Path) -> None:
        config = a_config(home, says("one"), chat=chat(ESTIMATE, OnExceed.FAIL))
        async with open_holdfast(config=config) as house:
            session = await started(house, desk)
            rows = await played(house, session.id)
            last = await ended(house, session)
            assert (await steps(house, session), await ledger(house, session)) == (0, [])

        assert session.budget == Budget(microcents=ESTIMATE, on_exceed=OnExceed.FAIL)
        assert last.stop_reason is StopReason.BUDGET
        assert last.failure is not None
        assert last.failure.code is FailureCode.BUDGET_EXCEEDED
        assert notices(rows) == ["budget"]

    async def test_what_fits_is_sent_and_counted(self, home: Path, desk: Path) -> None:
        usage = {"input": 100, "output": 50}
        config = a_config(home, says("one", usage=usage), chat=chat(10 * ESTIMATE, OnExceed.FAIL))
        async with open_holdfast(config=config) as house:
            session = await started(house, desk)
            rows = await played(house, session.id)
            (entry,) = await ledger(house, session)
            after = await current(house, session)

        assert (rows[-1].text, entry.microcents, entry.priced) == ("one", 1_500_000, True)
        assert after.microcents == 1_500_000

    @demands("S0-120")
    async def test_it_is_judged_in_the_middle_of_a_turn_too(self, home: Path, desk: Path) -> None:
        usage = {"input": 100, "output": 7_000}
        config = a_config(
            home,
            asks(call("read_file", path="a.txt"), usage=usage),
            says("too dear"),
            chat=chat(2 * ESTIMATE, OnExceed.FAIL),
        )
        async with open_holdfast(config=config) as house:
            session = await started(house, desk)
            rows = await played(house, session.id)
            assert len(await ledger(house, session)) == 1

        assert (outcomes(rows), notices(rows)) == (["read_file ok"], ["budget"])

    @demands("S0-120")
    async def test_pause_asks_and_a_yes_raises_the_budget_on_disk(
        self, home: Path, desk: Path
    ) -> None:
        cap = ESTIMATE * 3 // 4
        config = a_config(home, says("one"), chat=chat(cap))
        async with open_holdfast(config=config) as house:
            session = await started(house, desk)
            asked = await question(house, session)
            assert await ledger(house, session) == []
            await answer(house, asked)
            rows = await played(house, session.id)
        async with open_holdfast(config=config, scope=RunScope.NONE) as house:
            after = await current(house, session)

        assert (asked.question.tool_class, asked.question.call_id) == (ToolClass.MONEY, None)
        assert asked.question.amount == cap
        assert "its budget is $0.5250. Add $0.5250 and continue?" in asked.question.question
        assert rows[-1].text == "one"
        assert after.budget == Budget(microcents=2 * cap, on_exceed=OnExceed.PAUSE)

    async def test_a_no_ends_the_turn_without_egress(self, home: Path, desk: Path) -> None:
        config = a_config(home, says("one"), chat=chat(ESTIMATE))
        async with open_holdfast(config=config) as house:
            session = await started(house, desk)
            await answer(house, await question(house, session), DENIED)
            await played(house, session.id)
            last = await ended(house, session)
            after = await current(house, session)
            assert await ledger(house, session) == []

        assert last.stop_reason is StopReason.BUDGET
        assert after.budget == session.budget

    async def test_a_yes_that_comes_while_nobody_runs_counts_once(
        self, home: Path, desk: Path
    ) -> None:
        cap = ESTIMATE * 3 // 4
        config = a_config(home, says("one"), chat=chat(cap))
        async with open_holdfast(config=config) as house:
            session = await started(house, desk)
            asked = await question(house, session)
        async with open_holdfast(config=config, scope=RunScope.NONE) as other:
            for _ in range(3):
                await answer(other, asked)
        async with open_holdfast(config=config) as house:
            rows = await played(house, session.id)
            after = await current(house, session)
            assert len((await house.approvals.list(house.owner, session.id)).items) == 1

        assert rows[-1].text == "one"
        assert after.budget == Budget(microcents=2 * cap, on_exceed=OnExceed.PAUSE)

    async def test_it_is_not_allowed_for_the_whole_session(self, home: Path, desk: Path) -> None:
        config = a_config(home, says("one"), chat=chat(ESTIMATE))
        async with open_holdfast(config=config) as house:
            session = await started(house, desk)
            with pytest.raises(Conflict) as caught:
                await answer(house, await question(house, session), scope=FOR_ALL)

        assert caught.value.code is Code.OPTION_NOT_OFFERED

    async def test_a_flag_pays_for_nothing(self, home: Path, desk: Path) -> None:
        config = a_config(home, says("one"), chat=chat(ESTIMATE))
        flagged = Environment(is_attended=False, yes_to=frozenset({"budget"}))
        async with open_holdfast(config=config, outside=flagged) as house:
            session = await started(house, desk)
            await played(house, session.id)
            assert (await ended(house, session)).stop_reason is StopReason.BUDGET

    async def test_an_interrupt_ends_the_waiting_for_money(self, home: Path, desk: Path) -> None:
        config = a_config(home, says("one"), chat=chat(ESTIMATE))
        async with open_holdfast(config=config) as house:
            session = await started(house, desk)
            asked = await question(house, session)
            await house.sessions.interrupt(house.owner, session.id)
            with pytest.raises(Conflict):
                await answer(house, asked)
            after = await current(house, session)

        assert (after.last_stop, after.budget) == (StopReason.ABORTED, session.budget)

    async def test_it_asks_again_when_the_next_amount_is_used_up(
        self, home: Path, desk: Path
    ) -> None:
        cap = ESTIMATE * 3 // 4
        usage = {"input": 100, "output": 16_000}
        config = a_config(home, says("one", usage=usage), says("two", usage=usage), chat=chat(cap))
        async with open_holdfast(config=config) as house:
            session = await started(house, desk)
            await answer(house, await question(house, session))
            await played(house, session.id)
            await house.send(session.id, "more")
            second = await question(house, session, number=2)
            await answer(house, second)
            rows = await played(house, session.id)
            after = await current(house, session)

        # With once more what it has it could not pay for the request it asks about.
        assert second.question.amount == 4 * cap
        assert (rows[-1].text, after.budget) == (
            "two",
            Budget(microcents=6 * cap, on_exceed=OnExceed.PAUSE),
        )

    @demands("S0-120")
    async def test_warn_says_so_once_and_goes_on(self, home: Path, desk: Path) -> None:
        config = a_config(
            home,
            asks(call("read_file", path="a.txt")),
            says("one"),
            says("two"),
            chat=chat(ESTIMATE, OnExceed.WARN),
        )
        async with open_holdfast(config=config) as house:
            session = await started(house, desk)
            await played(house, session.id)
            await house.send(session.id, "more")
            rows = await played(house, session.id)

        assert notices(rows) == ["budget_warning"]
        assert rows[-1].text == "two"

    async def test_zero_is_no_cap(self, home: Path, desk: Path) -> None:
        config = a_config(home, says("one"), chat=chat(0))
        async with open_holdfast(config=config) as house:
            session = await started(house, desk)
            rows = await played(house, session.id)

        assert (session.budget, rows[-1].text) == (None, "one")


class TestUnpriced:
    """A model without a price passes, and the session says so once, unless that is forbidden."""

    async def test_it_is_told_once(self, home: Path, desk: Path) -> None:
        config = a_config(home, says("one"), says("two"), chat=chat(1))
        async with open_holdfast(config=config) as house:
            session = await started(house, desk)
            await played(house, session.id)
            await house.send(session.id, "more")
            rows = await played(house, session.id)
            assert [entry.priced for entry in await ledger(house, session)] == [False, False]

        assert notices(rows) == ["unpriced_model"]

    async def test_it_can_be_forbidden(self, home: Path, desk: Path) -> None:
        config = a_config(home, says("one"), chat=chat(1, allow_unpriced=False))
        async with open_holdfast(config=config) as house:
            session = await started(house, desk)
            await played(house, session.id)
            assert (await ended(house, session)).stop_reason is StopReason.BUDGET
            assert await ledger(house, session) == []


class FoldingRuntime(GatedRuntime):
    """Folds a session when the test lets it."""

    def __init__(self, *plays: Play, drafts: tuple[Draft, ...] = ()) -> None:
        super().__init__(*plays)
        self.gate = Gate()
        self.folded = 0
        self._drafts = drafts

    async def compact(self, _: TurnInput) -> tuple[Draft, ...]:
        self.folded += 1
        await self.gate.passed()
        return self._drafts


async def test_a_session_is_compacted_once_at_a_time(home: Path, outside: Environment) -> None:
    runtime = FoldingRuntime()
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()
        compact = house.compactions.compact
        first = asyncio.create_task(compact(house.owner, session.id))
        await runtime.gate.reached()
        with pytest.raises(Conflict) as caught:
            await compact(house.owner, session.id)
        runtime.gate.open()
        await first
        await compact(house.owner, session.id)

    assert caught.value.code is Code.TURN_RUNNING
    assert runtime.folded == 2


async def test_a_compaction_that_a_message_overtook_writes_nothing(
    home: Path, outside: Environment
) -> None:
    summary = Summary(text="They began.", dropped_through=2, kept=2, reason="manual")
    held = Gate()
    runtime = FoldingRuntime([an_answer("1")], [held, an_answer("2")], drafts=(summary,))
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()
        compact = partial(house.compactions.compact, house.owner, session.id)
        await house.send(session.id, "one")
        await played(house, session.id)
        overtaken = asyncio.create_task(compact())
        await runtime.gate.reached()
        await house.send(session.id, "two")
        await held.reached()

        runtime.gate.open()
        with pytest.raises(Conflict) as late:
            await overtaken
        with pytest.raises(Conflict) as early:
            await compact()
        held.open()
        rows = await played(house, session.id)
        is_done = await compact()
        folded = (await house.read(session.id))[len(rows) :]

    assert (late.value.code, early.value.code) == (Code.TURN_RUNNING, Code.TURN_RUNNING)
    assert (runtime.folded, is_done) == (2, True)
    assert [row.role for row in rows] == [Role.USER, Role.ASSISTANT] * 2
    part = Compaction(summary=summary.text, dropped_through=summary.dropped_through)
    assert [(row.turn, row.role, row.parts) for row in folded] == [(0, Role.SYSTEM, (part,))]


async def test_a_turn_that_ended_during_a_compaction_does_not_refuse_it(
    home: Path, outside: Environment
) -> None:
    summary = Summary(text="They began.", dropped_through=2, kept=4, reason="manual")
    runtime = FoldingRuntime([an_answer("1")], [an_answer("2")], drafts=(summary,))
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "one")
        await played(house, session.id)
        overtaken = asyncio.create_task(house.compactions.compact(house.owner, session.id))
        await runtime.gate.reached()
        await house.send(session.id, "two")
        await played(house, session.id)
        runtime.gate.open()

        assert await overtaken
        assert (await house.read(session.id))[-1].role is Role.SYSTEM
