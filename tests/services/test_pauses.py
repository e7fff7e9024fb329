"""A turn that waits for an answer frees its place, is paused, and goes on when it is answered."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as changed

from holdfast import Holdfast, OnBusy, RunScope, Session, open_holdfast
from holdfast.app import Environment
from holdfast.config import Config
from holdfast.config.settings import Chat
from holdfast.domain.approvals import Approval, ApprovalMode, ApprovalState
from holdfast.domain.errors import Code, Conflict
from holdfast.domain.events import (
    ApprovalRequested,
    Event,
    StepStarted,
    TurnContinued,
    TurnEnded,
    TurnPaused,
    TurnStarted,
)
from holdfast.domain.leases import DURATION_MS
from holdfast.domain.messages import Notice
from holdfast.domain.models import Model, Prices
from holdfast.domain.queries import SessionQuery
from holdfast.domain.sessions import (
    OnExceed,
    SessionContext,
    SessionRequest,
    Status,
    StopReason,
    is_paused,
)
from holdfast.domain.waits import WaitReason
from holdfast.ports.store import Store, Tx
from holdfast.wire.sessions import status_word
from tests.houses import current, head_of, news_until, payloads, played
from tests.stand_ins import PATIENCE, SeededRandomness, SettableClock, StandInMachine
from tests.tooled import (
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

AT_ONCE = timedelta()
NEVER = timedelta(days=1)
WAITING, DENIED, EXPIRED = ApprovalState.WAITING, ApprovalState.DENIED, ApprovalState.EXPIRED


def writing(path: str = "a.txt") -> dict[str, Any]:
    return call("write_file", path=path, content="one\n")


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    return tmp_path / "desk"


@pytest.fixture
def config(home: Path) -> Config:
    """Have a model that writes one file and is done; its turns are paused at once."""
    return a_config(home, asks(writing()), says("done"), approvals_pause_after=AT_ONCE)


async def paused(house: Holdfast, session: Session) -> Approval:
    """Wait until the turn of a session is paused, and return its question."""
    async with asyncio.timeout(PATIENCE):
        while not is_paused(await head_of(house, session)):  # noqa: ASYNC110 — seen from outside
            await asyncio.sleep(0.005)
    (found,) = (await house.approvals.list(house.owner, session.id, state=WAITING)).items
    return found


async def history(house: Holdfast, session: Session) -> list[Any]:
    """Return what readers have seen, having checked that nothing is missing in it."""
    last = (await current(house, session)).last_event
    news = [each async for each in _until(house, session, last)]
    assert [each.sequence for each in news] == list(range(1, last + 1))
    return payloads([*news])


async def _until(house: Holdfast, session: Session, last: int) -> Any:
    async for each in house.follow(session.id, after=0):
        assert isinstance(each, Event)
        yield each
        if each.sequence == last:
            return


async def require_one_turn(house: Holdfast, session: Session, *, requests: int = 2) -> None:
    """Check that the turn has run as if it had never been paused."""
    news = await history(house, session)
    rows = await house.read(session.id)
    assert sum(isinstance(each, TurnStarted) for each in news) == 1
    assert sum(isinstance(each, StepStarted) for each in news) == requests
    assert sum(isinstance(each, ApprovalRequested) for each in news) == 1
    assert not [part for row in rows for part in row.parts if isinstance(part, Notice) and row.turn]
    assert len(await ledger(house, session)) == requests
    assert isinstance(news[-1], TurnEnded)
    assert news[-1].stop_reason is StopReason.STOP


async def test_waiting_turns_leave_their_places_to_others(home: Path, desk: Path) -> None:
    steps = asks(writing()), says("done")
    config = a_config(
        home,
        *steps,
        approval=ApprovalMode.AUTO,
        turns_at_a_time=2,
        approvals_pause_after=NEVER,
    )
    ask = ApprovalMode.ASK
    async with open_holdfast(config=config) as house:
        waiting = [await started(house, desk / name, approval=ask) for name in "abcde"]
        questions = [await question(house, each) for each in waiting]
        free = await started(house, desk / "free", approval=ApprovalMode.AUTO)
        assert outcomes(await played(house, free.id)) == ["write_file ok"]
        for each in questions:
            await answer(house, each)
        for session in waiting:
            assert outcomes(await played(house, session.id)) == ["write_file ok"]
            await require_one_turn(house, session)


async def test_at_most_so_many_turns_go_on_at_a_time(home: Path, desk: Path) -> None:
    running, most = 0, 0

    async def act(_: Any) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        return "done"

    steps = asks(call("seal")), says("done")
    config = a_config(home, *steps, turns_at_a_time=2, approvals_pause_after=NEVER)
    async with open_tooled(config, own_tool("seal", act)) as house:
        sessions = [await started(house, desk, "seal")]
        agent = (await current(house, sessions[0])).agent.slug
        sessions += [await started(house, desk, agent=agent) for _ in range(5)]
        questions = [await question(house, each) for each in sessions]
        await asyncio.gather(*(answer(house, each) for each in questions))
        for session in sessions:
            assert outcomes(await played(house, session.id)) == ["seal ok"]
    assert most == 2


async def test_a_paused_turn_goes_on_as_if_it_had_waited(desk: Path, config: Config) -> None:
    async with open_holdfast(config=config) as house:
        session = await started(house, desk)
        asked = await paused(house, session)
        shown = await current(house, session)
        listed = (await house.session_views.list(_all(house))).items[0].session
        await answer(house, asked)
        assert outcomes(await played(house, session.id)) == ["write_file ok"]
        await require_one_turn(house, session)

    assert (shown.status, status_word(shown)) == (Status.RUNNING, "running")
    assert listed.status is Status.RUNNING
    assert (desk / "a.txt").read_text() == "one\n"


def _all(house: Holdfast) -> Any:
    from holdfast.domain.queries import SessionQuery

    return SessionQuery(owner=house.owner)


async def test_a_paused_turn_has_no_task_and_its_lease_is_not_renewed(
    desk: Path, config: Config
) -> None:
    # Longer than between two renewals.
    a_while = 1.2
    async with open_holdfast(config=config) as house:
        session = await started(house, desk / "first")
        await paused(house, session)
        first = await head_of(house, session)
        await asyncio.sleep(a_while)
        tasks = len(asyncio.all_tasks())
        for name in "abcde":
            await paused(house, await started(house, desk / name))
        await asyncio.sleep(a_while)
        later, more = await head_of(house, session), len(asyncio.all_tasks())

    # A task for each of them would be five more; a store on Postgres may have one of its own.
    assert more < tasks + 5
    assert (later.until, later.epoch) == (first.until, first.epoch)


async def test_a_no_is_heard_as_well(desk: Path, config: Config) -> None:
    async with open_holdfast(config=config) as house:
        session = await started(house, desk)
        asked = await paused(house, session)
        # Since the question the target has become another one; the denial holds for the call.
        (desk / "a.txt").write_text("somebody else's\n")
        await answer(house, asked, DENIED)
        assert outcomes(await played(house, session.id)) == ["write_file denied/rejected"]
        await require_one_turn(house, session)

    assert (desk / "a.txt").read_text() == "somebody else's\n"


async def test_several_pauses_in_one_turn_run_each_call_once(home: Path, desk: Path) -> None:
    act = Recorder()
    both = asks(call("seal", line="one"), call("seal", line="two"))
    config = a_config(home, both, says("done"), approvals_pause_after=AT_ONCE)
    async with open_tooled(config, own_tool("seal", act)) as house:
        session = await started(house, desk, "seal")
        for _ in range(2):
            await answer(house, await paused(house, session))
        assert outcomes(await played(house, session.id)) == ["seal ok"] * 2
        assert len(await ledger(house, session)) == 2

    assert act.lines == ["one", "two"]


async def test_another_process_that_runs_nothing_may_answer(desk: Path, config: Config) -> None:
    async with open_holdfast(config=config) as house:
        session = await started(house, desk)
        asked = await paused(house, session)
        async with open_holdfast(config=config, scope=RunScope.NONE) as other:
            await answer(other, asked)
            assert (await current(other, session)).status is Status.RUNNING
        assert outcomes(await played(house, session.id)) == ["write_file ok"]
        await require_one_turn(house, session)


async def test_the_process_that_paused_a_turn_goes_on_with_it(
    home: Path, desk: Path, config: Config
) -> None:
    one, two = Recorder(), Recorder()
    config = changed(
        a_config(home, asks(call("seal")), says("done")), approvals_pause_after=AT_ONCE
    )
    async with (
        open_tooled(config, own_tool("seal", one), scope=RunScope.OWN) as house,
        open_tooled(config, own_tool("seal", two)) as server,
    ):
        session = await started(house, desk, "seal")
        # The server may run every turn, and is asked to by its own answer.
        await answer(server, await paused(house, session))
        assert outcomes(await played(house, session.id)) == ["seal ok"]

    assert (len(one.asked), len(two.asked)) == (1, 0)


async def test_a_turn_that_was_paused_by_a_process_that_left_goes_on_elsewhere_at_once(
    desk: Path, config: Config
) -> None:
    async with open_holdfast(config=config) as house:
        session = await started(house, desk)
        asked = await paused(house, session)
    async with open_holdfast(config=config, scope=RunScope.NONE) as other:
        left = await head_of(other, session)
        shown = await current(other, session)
    async with open_holdfast(config=config) as house:
        await paused(house, session)
        await answer(house, asked)
        async with asyncio.timeout(DURATION_MS / 1000 - 1):
            assert outcomes(await played(house, session.id)) == ["write_file ok"]
        await require_one_turn(house, session)

    assert (left.holder, is_paused(left), shown.status) == (None, True, Status.RUNNING)


async def test_a_process_that_leaves_amid_a_pause_leaves_the_turn_to_others(
    home: Path, desk: Path
) -> None:
    config = a_config(home, asks(writing()), says("done"), approvals_pause_after=AT_ONCE)
    stores: list[WatchedStore] = []
    committed = asyncio.Event()

    def wrap(store: Store) -> Store:
        stores.append(WatchedStore(store))
        return stores[-1]  # type: ignore[return-value]

    async def stand() -> None:
        """Stop after the commit, until the task is cancelled."""
        if is_paused(await head_of(house, session)):
            committed.set()
            await asyncio.Event().wait()
        stores[0].after = stand

    async with open_holdfast(config=config, outside=Environment(wrap=wrap)) as house:
        session = await house.open(request=SessionRequest(context=_at(desk)))
        stores[0].after = stand
        await house.send(session.id, "go")
        async with asyncio.timeout(PATIENCE):
            await committed.wait()
    async with open_holdfast(config=config, scope=RunScope.NONE) as other:
        left = await head_of(other, session)

    assert (left.holder, is_paused(left)) == (None, True)


def _at(desk: Path) -> SessionContext:
    desk.mkdir(exist_ok=True)
    return SessionContext(working_dir=str(desk))


PAUSING = """
import asyncio, json, sys
from datetime import timedelta
from pathlib import Path
from holdfast import Config, SessionContext, SessionRequest, open_holdfast
from holdfast.domain.sessions import is_paused

async def main(home, model, url, desk):
    config = Config(
        home=Path(home), default_model=model, database_url=url, approvals_pause_after=timedelta()
    )
    async with open_holdfast(config=config) as house:
        request = SessionRequest(context=SessionContext(working_dir=desk))
        session = await house.open("holdfast", request)
        await house.send(session.id, "go")
        async def head(tx):
            return await tx.sessions.state(session.owner, session.id)
        while not is_paused(await house.store.read(head)):
            await asyncio.sleep(0.01)
        print(session.id, flush=True)
        await asyncio.sleep(600)

asyncio.run(main(*json.loads(sys.argv[1])))
"""


async def _killed_while_paused(config: Config, desk: Path, then: Awaitable[None] | None) -> str:
    """Have another process pause a turn, kill it, and return the session's id."""
    given = json.dumps([str(config.home), config.default_model, config.database_url, str(desk)])
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PAUSING, given, stdout=subprocess.PIPE, start_new_session=True
    )
    assert child.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            line = await child.stdout.readline()
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        await child.wait()
    if then is not None:
        await then
    return line.decode().strip()


@pytest.mark.slow
@pytest.mark.parametrize("is_open", [True, False], ids=["server before", "server after"])
async def test_a_kill_while_it_waits_changes_nothing(
    desk: Path, config: Config, is_open: bool
) -> None:
    await asyncio.to_thread(desk.mkdir)
    async with open_holdfast(config=config, scope=RunScope.ALL if is_open else RunScope.NONE) as h:
        session_id = await _killed_while_paused(config, desk, None)
        session = await h.sessions.get(h.owner, session_id)
        assert session.status is Status.RUNNING
        (asked,) = (await h.approvals.list(h.owner, state=WAITING)).items
        await answer(h, asked)
        if is_open:
            assert outcomes(await played(h, session.id)) == ["write_file ok"]
            await require_one_turn(h, session)
    if not is_open:
        async with open_holdfast(config=config) as h:
            assert outcomes(await played(h, session.id)) == ["write_file ok"]
            await require_one_turn(h, session)

    assert (desk / "a.txt").read_text() == "one\n"


class WatchedStore:
    """A store that lets the test act right before or right after the next write."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.before: Callable[[], Awaitable[object]] | None = None
        self.after: Callable[[], Awaitable[object]] | None = None

    async def write(self, work: Callable[[Tx], Coroutine[Any, Any, Any]], **how: Any) -> Any:
        before, after, self.before, self.after = self.before, self.after, None, None
        if before is not None:
            await before()
        done = await self._store.write(work, **how)
        if after is not None:
            await after()
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("is_own", [True, False], ids=["own answer", "answer of another process"])
async def test_an_answer_at_the_instant_of_the_pause_is_not_missed(
    home: Path, desk: Path, order: str, is_own: bool
) -> None:
    config = a_config(
        home, asks(writing()), says("done"), approvals_pause_after=timedelta(seconds=0.3)
    )
    stores: list[WatchedStore] = []

    def wrap(store: Store) -> Store:
        stores.append(WatchedStore(store))
        return stores[-1]  # type: ignore[return-value]

    heads = []
    async with (
        open_holdfast(config=config, outside=Environment(wrap=wrap), scope=RunScope.OWN) as house,
        open_holdfast(config=config, scope=RunScope.NONE) as other,
    ):
        # Without renewals of the lease, so that the next write is the pause.
        session = await started(house, desk)
        asked = await question(house, session)

        async def act() -> None:
            if order == "after":
                heads.append(await head_of(other, session))
            await answer(house if is_own else other, asked)

        setattr(stores[0], order, act)
        assert outcomes(await played(house, session.id)) == ["write_file ok"]
        await require_one_turn(house, session)

    assert [is_paused(head) for head in heads] == ([True] if order == "after" else [])


@pytest.mark.parametrize("verb", ["interrupt", "close"])
async def test_what_ends_the_turn_ends_a_paused_one(desk: Path, config: Config, verb: str) -> None:
    async with open_holdfast(config=config) as house:
        session = await started(house, desk)
        asked = await paused(house, session)
        await getattr(house.sessions, verb)(house.owner, session.id)
        ended = payloads(await news_until(house, session.id, TurnEnded))[-1]
        (found,) = (await house.approvals.list(house.owner, session.id)).items
        with pytest.raises(Conflict) as caught:
            await answer(house, asked)
        head = await head_of(house, session)

    assert (ended.stop_reason, found.state) == (StopReason.ABORTED, EXPIRED)
    assert (caught.value.code, head.holder, head.until) == (Code.APPROVAL_CLOSED, None, 0)
    assert not (desk / "a.txt").exists()


async def test_a_paused_session_can_be_deleted(desk: Path, config: Config) -> None:
    async with open_holdfast(config=config) as house:
        session = await started(house, desk)
        await paused(house, session)
        await house.sessions.delete(house.owner, session.id)
        assert (await house.approvals.list(house.owner)).items == ()


async def test_a_message_waits_for_a_paused_turn_or_interrupts_it(home: Path, desk: Path) -> None:
    steps = asks(writing("a.txt")), says("one"), asks(writing("b.txt")), says("two")
    config = a_config(home, *steps, approvals_pause_after=AT_ONCE)
    async with open_holdfast(config=config) as house:
        session = await started(house, desk)
        await paused(house, session)
        with pytest.raises(Conflict) as caught:
            await house.send(session.id, "now", on_busy=OnBusy.REJECT)
        await house.send(session.id, "and then")
        await answer(house, await paused(house, session))
        await news_until(house, session.id, TurnEnded)
        await paused(house, session)
        await house.send(session.id, "instead", on_busy=OnBusy.INTERRUPT)
        rows = await played(house, session.id)

    assert caught.value.code is Code.TURN_RUNNING
    assert outcomes(rows) == ["write_file ok", "write_file skipped/aborted"]
    assert rows[-1].text == "two"


async def test_a_session_cannot_move_while_its_turn_is_paused(
    desk: Path, tmp_path: Path, config: Config
) -> None:
    async with open_holdfast(config=config) as house:
        session = await started(house, desk)
        await paused(house, session)
        elsewhere = changed(session.context, working_dir=str(tmp_path))
        with pytest.raises(Conflict) as caught:
            await house.sessions.resume(house.owner, session.id, context=elsewhere)

    assert caught.value.code is Code.TURN_RUNNING


async def test_a_paused_question_expires(
    home: Path, desk: Path, outside: Environment, clock: SettableClock
) -> None:
    config = a_config(home, asks(writing()), says("done"), approvals_pause_after=AT_ONCE)
    async with open_holdfast(config=config, outside=outside) as house:
        session = await started(house, desk)
        asked = await paused(house, session)
        clock.advance(hours=23)
        await asyncio.sleep(1.2)
        early = await head_of(house, session)
        clock.advance(hours=1, seconds=1)
        rows = await played(house, session.id)
        found = await house.approvals.get(house.owner, session.id, asked.id)

    assert is_paused(early)
    assert outcomes(rows) == ["write_file denied/expired"]
    assert (found.state, found.answered_by) == (EXPIRED, "time")


async def test_after_a_restart_of_the_machine_a_question_expires_in_time(
    home: Path, desk: Path, outside: Environment, clock: SettableClock
) -> None:
    config = a_config(home, asks(writing()), says("done"), approvals_pause_after=AT_ONCE)
    clock.boot = 10**12
    async with open_holdfast(config=config, outside=outside) as house:
        session = await started(house, desk)
        await paused(house, session)
    booted = SettableClock(clock.wall + timedelta(hours=25))
    machine = StandInMachine("second", boot="boot-two")
    later = Environment(clock=booted, randomness=SeededRandomness(1), machine=machine)
    async with open_holdfast(config=config, outside=later) as house:
        rows = await played(house, session.id)

    assert outcomes(rows) == ["write_file denied/expired"]


@pytest.mark.parametrize("state", [ApprovalState.ALLOWED, DENIED])
async def test_a_turn_that_waits_for_money_is_paused_too(
    home: Path, desk: Path, monkeypatch: pytest.MonkeyPatch, state: ApprovalState
) -> None:
    prices = Prices(input=10_000_000_000, output=10_000_000_000)

    def prices_of(model: Model) -> Prices | None:
        return prices if model.provider == "scripted" else None

    monkeypatch.setattr("holdfast.llm.router.prices_of", prices_of)
    # Enough for the first request, and not for the second.
    cap = 2 * 70_000_000
    usage = {"input": 100, "output": 7_000}
    steps = asks(call("list_directory", path="."), usage=usage), says("done")
    money = Chat(max_cost_microcents=cap, on_exceed=OnExceed.PAUSE)
    config = a_config(home, *steps, chat=money, approvals_pause_after=AT_ONCE)
    async with open_holdfast(config=config) as house:
        session = await started(house, desk)
        asked = await paused(house, session)
        assert len(await ledger(house, session)) == 1
        await answer(house, asked, state)
        rows = await played(house, session.id)
        after = await current(house, session)
        requests = len(await ledger(house, session))

    is_paid = state is ApprovalState.ALLOWED
    assert asked.question.amount == cap
    assert outcomes(rows) == ["list_directory ok"]
    assert after.budget is not None
    assert (after.budget.microcents, requests) == ((2 * cap, 2) if is_paid else (cap, 1))
    assert after.last_stop is (StopReason.STOP if is_paid else StopReason.BUDGET)


async def test_two_servers_go_on_with_a_turn_once(
    home: Path, desk: Path, outside: Environment
) -> None:
    act = Recorder()
    config = a_config(home, asks(call("seal")), says("done"), approvals_pause_after=AT_ONCE)
    other = replace(outside, machine=StandInMachine("second"), randomness=SeededRandomness(1))
    async with (
        open_tooled(config, own_tool("seal", act), outside=outside) as first,
        open_tooled(config, own_tool("seal", act), outside=other) as second,
    ):
        agent = "seal"
        sessions = [await started(first, desk, agent)]
        slug = (await current(first, sessions[0])).agent.slug
        sessions += [await started(first, desk, agent=slug) for _ in range(4)]
        for number, session in enumerate(sessions):
            await answer((first, second)[number % 2], await paused(first, session))
        for session in sessions:
            assert outcomes(await played(second, session.id)) == ["seal ok"]
            await require_one_turn(second, session)

    assert len(act.asked) == len(sessions)


async def test_a_paused_session_says_what_it_waits_for(config: Config, desk: Path) -> None:
    async with open_holdfast(config=config) as house:
        session = await started(house, desk)
        asked = await paused(house, session)

        waiting = (await current(house, session)).waiting
        listed = (await house.sessions.list(SessionQuery(owner=house.owner))).items[0].waiting
        await answer(house, asked)
        await played(house, session.id)
        news = await history(house, session)
        after = await current(house, session)

    assert waiting is not None
    assert waiting == listed
    assert waiting.reason is WaitReason.APPROVAL
    assert (waiting.approval_id, waiting.until) == (asked.id, asked.expires_at)
    assert waiting.text == "The turn waits for the approval of write_file."
    bracket = [each for each in news if isinstance(each, TurnPaused | TurnContinued)]
    assert [type(each) for each in bracket] == [TurnPaused, TurnContinued]
    assert bracket[0].approval_id == asked.id
    assert after.waiting is None
