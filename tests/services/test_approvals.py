"""Questions are on disk before anybody is asked, and are answered once, from anywhere."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast import Holdfast, OnBusy, RunScope, Session, open_holdfast
from holdfast.app import Environment
from holdfast.config import Config
from holdfast.domain.approvals import (
    Approval,
    ApprovalMode,
    ApprovalScope,
    ApprovalState,
    Decision,
)
from holdfast.domain.calls import CallState
from holdfast.domain.errors import Code, Conflict, HoldfastError, Invalid, NotFound
from holdfast.domain.events import ApprovalAnswered, ApprovalRequested, TurnEnded
from holdfast.domain.ids import Owner
from holdfast.domain.messages import ToolResult
from holdfast.domain.sessions import Status, StopReason
from holdfast.domain.tools import ToolClass
from tests.builders import an_id
from tests.houses import crashed, current, news_until, payloads, played
from tests.marks import demands
from tests.stand_ins import SettableClock
from tests.tooled import (
    FOR_ALL,
    Recorder,
    a_config,
    answer,
    asks,
    call,
    calls_now,
    open_tooled,
    outcomes,
    own_tool,
    question,
    says,
    started,
)

pytestmark = pytest.mark.anyio

ALLOWED, DENIED, EXPIRED = ApprovalState.ALLOWED, ApprovalState.DENIED, ApprovalState.EXPIRED
STRANGER = Owner("stranger")
NEVER = an_id(77)


def writing(path: str = "a.txt", content: str = "one\n") -> dict[str, object]:
    return call("write_file", path=path, content=content)


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    return tmp_path / "desk"


@pytest.fixture
def config(home: Path) -> Config:
    """Have a model that writes one file and is done."""
    return a_config(home, asks(writing()), says("done"))


async def test_a_question_is_on_disk_before_anybody_is_asked(
    home: Path, desk: Path, config: Config
) -> None:
    async with open_holdfast(config=config) as house:
        session = await started(house, desk)
        asked = payloads(await news_until(house, session.id, ApprovalRequested))[-1]
        left = crashed(home)

    async with open_holdfast(config=replace(config, home=left), scope=RunScope.NONE) as copy:
        (found,) = (await copy.approvals.list(copy.owner, session.id)).items
        assert await calls_now(copy, session) == {"call_1_1": CallState.INTENDED}
    assert found.state is ApprovalState.WAITING
    assert asked == ApprovalRequested(
        approval_id=found.id,
        call_id=found.question.call_id,
        tool="write_file",
        tool_class=ToolClass.WRITE,
        question=f"{desk}/a.txt (new file)\n+one",
        preview={"path": "a.txt"},
        is_for_session=True,
    )
    assert found.question.question == asked.question
    assert not (desk / "a.txt").exists()


async def test_a_yes_lets_the_call_run_once(desk: Path, config: Config) -> None:
    async with open_holdfast(config=config) as house:
        session = await started(house, desk)
        told = await answer(house, await question(house, session))
        rows = await played(house, session.id)

        assert outcomes(rows) == ["write_file ok"]
        assert (desk / "a.txt").read_text() == "one\n"
        assert (await house.approvals.list(house.owner, session.id)).items == (told,)
    assert (told.state, told.scope, told.answered_by) == (ALLOWED, ApprovalScope.ONCE, "ada")
    assert told.answered_at is not None


async def test_a_no_is_told_to_the_model_with_its_reason_as_data(
    desk: Path, config: Config
) -> None:
    async with open_holdfast(config=config) as house:
        session = await started(house, desk)
        await answer(house, await question(house, session), DENIED, note="say 'please'")
        rows = await played(house, session.id)

    (result,) = [part for row in rows for part in row.parts if isinstance(part, ToolResult)]
    assert result.error is not None
    assert (result.status, result.error.code) == ("denied", "rejected")
    assert result.error.message == ("""The user did not allow this. Their note: "say 'please'\"""")
    assert not (desk / "a.txt").exists()


async def test_the_news_say_who_answered_what(desk: Path, config: Config) -> None:
    async with open_holdfast(config=config) as house:
        session = await started(house, desk)
        asked = await question(house, session)
        await answer(house, asked, scope=FOR_ALL)
        news = payloads(await news_until(house, session.id, ApprovalAnswered))

    assert news[-1] == ApprovalAnswered(
        approval_id=asked.id,
        call_id=asked.question.call_id,
        decision=ALLOWED,
        scope=FOR_ALL,
        by="ada",
    )


async def test_another_house_on_the_same_home_may_answer(desk: Path, config: Config) -> None:
    async with open_holdfast(config=config) as house:
        session = await started(house, desk)
        await question(house, session)
        async with open_holdfast(config=config, scope=RunScope.NONE) as other:
            (waiting,) = (
                await other.approvals.list(other.owner, state=ApprovalState.WAITING)
            ).items
            await answer(other, waiting)
        assert outcomes(await played(house, session.id)) == ["write_file ok"]


async def test_questions_of_all_sessions_are_listed_in_pages_by_their_state(
    home: Path, desk: Path, outside: Environment, clock: SettableClock
) -> None:
    config = a_config(home, asks(writing()), says("done"))
    async with open_holdfast(config=config, outside=outside) as house:
        sessions = [await started(house, desk / name) for name in "abcd"]
        asked = [await question(house, session) for session in sessions]
        first, second, third, fourth = sorted(asked, key=lambda each: each.id)
        await answer(house, second, DENIED)
        await answer(house, third)
        for each in (second, third):
            await played(house, each.session_id)
        page = await house.approvals.list(house.owner, limit=3)
        rest = await house.approvals.list(house.owner, cursor=page.next_cursor, limit=3)
        found = {
            state: [
                each.id for each in (await house.approvals.list(house.owner, state=state)).items
            ]
            for state in ApprovalState
        }
        with pytest.raises(Invalid) as caught:
            await house.approvals.list(house.owner, state=DENIED, cursor=page.next_cursor)
    clock.advance(hours=25)
    async with open_holdfast(config=config, outside=outside, scope=RunScope.NONE) as house:
        late = await house.approvals.list(house.owner, state=EXPIRED, limit=1)
        later = await house.approvals.list(
            house.owner, state=EXPIRED, cursor=late.next_cursor, limit=1
        )
        waiting = (await house.approvals.list(house.owner, state=ApprovalState.WAITING)).items

    assert [each.id for each in page.items] == [first.id, second.id, third.id]
    assert ([each.id for each in rest.items], rest.next_cursor) == ([fourth.id], None)
    assert found == {
        ApprovalState.WAITING: [first.id, fourth.id],
        ApprovalState.ALLOWED: [third.id],
        ApprovalState.DENIED: [second.id],
        ApprovalState.EXPIRED: [],
    }
    assert caught.value.code is Code.INVALID_CURSOR
    # Nobody has written down yet that their time is over.
    assert [each.id for each in (*late.items, *later.items)] == [first.id, fourth.id]
    assert (later.next_cursor, waiting) == (None, ())


ANSWERING = """
import asyncio, json, sys
from holdfast import Config, RunScope, open_holdfast
from holdfast.domain.approvals import Decision, ApprovalState

async def main(home, model, url):
    home = __import__("pathlib").Path(home)
    config = Config(home=home, default_model=model, database_url=url)
    async with open_holdfast(config=config, scope=RunScope.NONE) as house:
        (asked,) = (await house.approvals.list(house.owner, state=ApprovalState.WAITING)).items
        told = Decision(state=ApprovalState.ALLOWED, by="elsewhere")
        await house.approvals.answer(house.owner, asked.session_id, asked.id, told)

asyncio.run(main(*json.loads(sys.argv[1])))
"""


async def test_another_process_may_answer(desk: Path, config: Config) -> None:
    given = json.dumps([str(config.home), config.default_model, config.database_url])
    async with open_holdfast(config=config) as house:
        session = await started(house, desk)
        await question(house, session)
        await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", ANSWERING, given], check=True, timeout=60
        )
        assert outcomes(await played(house, session.id)) == ["write_file ok"]
        (told,) = (await house.approvals.list(house.owner, session.id)).items
    assert told.answered_by == "elsewhere"


async def test_the_first_answer_wins_and_the_same_again_is_heard(
    desk: Path, config: Config
) -> None:
    async with open_holdfast(config=config) as house:
        session = await started(house, desk)
        asked = await question(house, session)
        first = await answer(house, asked)
        again = await answer(house, asked, by="somebody else", scope=FOR_ALL)
        with pytest.raises(Conflict) as caught:
            await answer(house, asked, DENIED)
        await played(house, session.id)

    assert again == first
    assert (caught.value.code, caught.value.details) == (Code.APPROVAL_CLOSED, {"state": ALLOWED})


async def test_answers_that_race_agree_on_the_first(desk: Path, config: Config) -> None:
    async with open_holdfast(config=config) as house:
        session = await started(house, desk)
        asked = await question(house, session)
        told = await asyncio.gather(
            *(answer(house, asked, (ALLOWED, DENIED)[n % 2], by=f"client {n}") for n in range(20)),
            return_exceptions=True,
        )
        rows = await played(house, session.id)

    heard = [each for each in told if isinstance(each, Approval)]
    refused = [each for each in told if isinstance(each, Conflict)]
    assert len({each.answered_by for each in heard}) == 1
    assert (len(heard), len(refused)) == (10, 10)
    ran = heard[0].state is ALLOWED
    assert outcomes(rows) == ["write_file ok" if ran else "write_file denied/rejected"]


async def test_an_answer_to_another_digest_is_refused(desk: Path, config: Config) -> None:
    yes = Decision(state=ALLOWED, by="ada")
    async with open_holdfast(config=config) as house:
        session = await started(house, desk)
        asked = await question(house, session)
        with pytest.raises(Conflict) as caught:
            await house.approvals.answer(house.owner, session.id, asked.id, yes, digest="0" * 64)
        still = await house.approvals.get(house.owner, session.id, asked.id)
        digest = asked.question.digest
        await house.approvals.answer(house.owner, session.id, asked.id, yes, digest=digest)
        assert outcomes(await played(house, session.id)) == ["write_file ok"]

    assert caught.value.code is Code.APPROVAL_CLOSED
    assert still.state is ApprovalState.WAITING


async def test_a_question_that_a_restart_asks_anew_takes_the_place_of_the_old_one(
    desk: Path, config: Config
) -> None:
    async with open_holdfast(config=config) as house:
        session = await started(house, desk)
        old = await question(house, session)
    (desk / "a.txt").write_text("somebody else's\n")
    async with open_holdfast(config=config) as house:
        new = await question(house, session, number=2)
        closed = payloads(await news_until(house, session.id, ApprovalAnswered))[-1]
        with pytest.raises(Conflict):
            await answer(house, old)
        await answer(house, new)
        rows = await played(house, session.id)
        told = (await house.approvals.list(house.owner, session.id)).items

    assert new.question.question == f"{desk}/a.txt (change)\n@@ -1 +1 @@\n-somebody else's\n+one"
    assert closed.approval_id == old.id
    assert [(each.state, each.answered_by) for each in told] == [
        (EXPIRED, "a different request"),
        (ALLOWED, "ada"),
    ]
    assert outcomes(rows) == ["write_file ok"]


@pytest.mark.parametrize("state", [ApprovalState.WAITING, ApprovalState.EXPIRED])
async def test_a_question_is_allowed_or_denied_and_nothing_else(
    desk: Path, config: Config, state: ApprovalState
) -> None:
    async with open_holdfast(config=config) as house:
        session = await started(house, desk)
        asked = await question(house, session)
        with pytest.raises(Invalid):
            await answer(house, asked, state)
        with pytest.raises(Invalid):
            await answer(house, asked, DENIED, note="x" * 501)
        found = await house.approvals.get(house.owner, session.id, asked.id)

    assert found == asked


class TestForTheSession:
    """An answer for the whole session is remembered for its like, and can be taken back."""

    async def test_it_holds_for_the_same_directory_and_no_other(
        self, home: Path, desk: Path
    ) -> None:
        config = a_config(
            home,
            asks(writing("a.txt"), writing("b.txt"), writing("sub/c.txt")),
            says("done"),
        )
        (desk / "sub").mkdir(parents=True)
        async with open_holdfast(config=config) as house:
            session = await started(house, desk)
            await answer(house, await question(house, session), scope=FOR_ALL)
            second = await question(house, session, number=2)
            await answer(house, second, DENIED)
            rows = await played(house, session.id)

        assert second.question.arguments["path"] == "sub/c.txt"
        assert outcomes(rows) == ["write_file ok"] * 2 + ["write_file denied/rejected"]

    async def test_it_can_be_taken_back(self, home: Path, desk: Path) -> None:
        config = a_config(home, asks(writing("a.txt")), says("one"), asks(writing("b.txt")))
        async with open_holdfast(config=config) as house:
            session = await started(house, desk)
            first = await answer(house, await question(house, session), scope=FOR_ALL)
            await played(house, session.id)
            taken = await house.approvals.revoke(house.owner, session.id, first.id)
            await house.send(session.id, "more")
            await question(house, session, number=2)

        assert taken == replace(first, scope=ApprovalScope.ONCE)

    async def test_it_is_on_disk_and_holds_after_a_restart(self, home: Path, desk: Path) -> None:
        config = a_config(
            home, asks(writing("a.txt")), says("one"), asks(writing("b.txt")), says("two")
        )
        async with open_holdfast(config=config) as house:
            session = await started(house, desk)
            await answer(house, await question(house, session), scope=FOR_ALL)
            await played(house, session.id)
        async with open_holdfast(config=config) as house:
            await house.send(session.id, "more")
            assert outcomes(await played(house, session.id)) == ["write_file ok"] * 2
            assert len((await house.approvals.list(house.owner, session.id)).items) == 1

    async def test_it_does_not_reach_another_session(self, home: Path, desk: Path) -> None:
        config = a_config(home, asks(writing("a.txt")), says("done"))
        async with open_holdfast(config=config) as house:
            first = await started(house, desk)
            await answer(house, await question(house, first), scope=FOR_ALL)
            await played(house, first.id)
            other = await started(house, desk)
            assert (await question(house, other)).state is ApprovalState.WAITING

    async def test_it_is_not_offered_for_what_runs_later_unseen(
        self, home: Path, desk: Path
    ) -> None:
        config = a_config(home, asks(writing("Makefile")), says("done"))
        async with open_holdfast(config=config) as house:
            session = await started(house, desk)
            asked = await question(house, session)
            with pytest.raises(Conflict) as caught:
                await answer(house, asked, scope=FOR_ALL)

        assert asked.question.tool_class is ToolClass.SENSITIVE_WRITE
        assert caught.value.code is Code.OPTION_NOT_OFFERED

    @pytest.mark.parametrize("tool_class", [ToolClass.COMMIT, ToolClass.SENSITIVE_WRITE])
    async def test_a_tool_that_offers_it_nonetheless_is_not_believed(
        self, home: Path, desk: Path, tool_class: ToolClass
    ) -> None:
        act = Recorder()
        tool = own_tool("seal", act, tool_class=tool_class, memory="always")
        config = a_config(home, asks(call("seal"), call("seal")), approval=ApprovalMode.AUTO)
        async with open_tooled(config, tool) as house:
            session = await started(house, desk, "seal", approval=ApprovalMode.AUTO)
            await answer(house, await question(house, session), scope=FOR_ALL)
            await question(house, session, number=2)

        assert len(act.asked) == 1


class TestExpiry:
    """A question that nobody needs an answer to any more is closed, and no answer revives it."""

    async def test_it_comes_with_time(
        self, home: Path, desk: Path, outside: Environment, clock: SettableClock
    ) -> None:
        config = a_config(home, asks(writing()), says("done"))
        async with open_holdfast(config=config, outside=outside) as house:
            session = await started(house, desk)
            asked = await question(house, session)
            clock.advance(hours=24, seconds=1)
            # Any news of the session has the clock looked at again.
            await house.sessions.update(house.owner, session.id, {"title": "later"})
            rows = await played(house, session.id)
            (found,) = (await house.approvals.list(house.owner, session.id)).items

        assert asked.expires_at == asked.asked_at + timedelta(hours=24)
        assert outcomes(rows) == ["write_file denied/expired"]
        assert (found.state, found.answered_by) == (EXPIRED, "time")
        assert not (desk / "a.txt").exists()

    async def test_it_comes_by_itself(self, home: Path, desk: Path) -> None:
        soon = timedelta(milliseconds=50)
        config = a_config(home, asks(writing()), says("done"), approvals_expire_after=soon)
        async with open_holdfast(config=config) as house:
            session = await started(house, desk)
            assert outcomes(await played(house, session.id)) == ["write_file denied/expired"]

    async def test_a_late_yes_is_refused_also_when_nobody_waits_for_it(
        self, home: Path, desk: Path, outside: Environment, clock: SettableClock
    ) -> None:
        config = a_config(home, asks(writing()), says("done"))
        async with open_holdfast(config=config, outside=outside) as house:
            session = await started(house, desk)
            asked = await question(house, session)
        clock.advance(hours=25)
        async with open_holdfast(config=config, outside=outside, scope=RunScope.NONE) as other:
            with pytest.raises(Conflict) as caught:
                await answer(other, asked)
            waiting = (await other.approvals.list(other.owner, state=ApprovalState.WAITING)).items
            shown = await other.approvals.get(other.owner, session.id, asked.id)
        async with open_holdfast(config=config, outside=outside) as house:
            assert outcomes(await played(house, session.id)) == ["write_file denied/expired"]

        assert caught.value.code is Code.APPROVAL_CLOSED
        assert (waiting, shown.state) == ((), EXPIRED)
        assert not (desk / "a.txt").exists()

    @demands("S0-064")
    @pytest.mark.parametrize("verb", ["interrupt", "close"])
    async def test_it_comes_with_the_end_of_the_turn(
        self, desk: Path, config: Config, verb: str
    ) -> None:
        async with open_holdfast(config=config) as house:
            session = await started(house, desk)
            asked = await question(house, session)
            await getattr(house.sessions, verb)(house.owner, session.id)
            ended = payloads(await news_until(house, session.id, TurnEnded))[-1]
            (found,) = (await house.approvals.list(house.owner, session.id)).items
            with pytest.raises(Conflict):
                await answer(house, asked)
            rows = await house.read(session.id)

        assert ended.stop_reason is StopReason.ABORTED
        assert (found.state, found.answered_by) == (EXPIRED, "aborted")
        assert outcomes(rows) == ["write_file skipped/aborted"]
        assert not (desk / "a.txt").exists()

    async def test_a_no_and_a_late_no_are_different_things(
        self, desk: Path, config: Config
    ) -> None:
        async with open_holdfast(config=config) as house:
            session = await started(house, desk)
            asked = await question(house, session)
            await house.sessions.interrupt(house.owner, session.id)
            with pytest.raises(Conflict) as caught:
                await answer(house, asked, DENIED)

        assert caught.value.details == {"state": EXPIRED}

    async def test_a_message_that_interrupts_closes_the_question_too(
        self, home: Path, desk: Path
    ) -> None:
        config = a_config(home, asks(writing()), says("instead"))
        async with open_holdfast(config=config) as house:
            session = await started(house, desk)
            await question(house, session)
            await house.send(session.id, "no, stop", on_busy=OnBusy.INTERRUPT)
            rows = await played(house, session.id)
            (found,) = (await house.approvals.list(house.owner, session.id)).items

        assert (rows[-1].text, found.state) == ("instead", EXPIRED)


class TestNobodyThere:
    """Where nobody can answer, the answer is no, unless a flag has said yes before."""

    async def test_a_call_that_asks_is_refused_at_once(self, desk: Path, config: Config) -> None:
        async with open_holdfast(config=config, outside=Environment(is_attended=False)) as house:
            session = await started(house, desk)
            rows = await played(house, session.id)
            assert (await house.approvals.list(house.owner, session.id)).items == ()

        assert outcomes(rows) == ["write_file denied/rejected"]
        assert "(unattended)" in str(rows[-2].parts)
        assert not (desk / "a.txt").exists()

    async def test_a_question_that_waited_for_somebody_means_no_where_nobody_is(
        self, desk: Path, config: Config
    ) -> None:
        async with open_holdfast(config=config) as house:
            session = await started(house, desk)
            asked = await question(house, session)
        async with open_holdfast(config=config, outside=Environment(is_attended=False)) as house:
            rows = await played(house, session.id)
            (found,) = (await house.approvals.list(house.owner, session.id)).items
            with pytest.raises(Conflict) as caught:
                await answer(house, asked)

        assert outcomes(rows) == ["write_file denied/rejected"]
        assert "(unattended)" in str(rows[-2].parts)
        assert (found.id, found.state, found.answered_by) == (asked.id, EXPIRED, "unattended")
        assert caught.value.code is Code.APPROVAL_CLOSED
        assert not (desk / "a.txt").exists()

    async def test_a_question_that_waited_is_answered_by_a_flag_too(
        self, desk: Path, config: Config
    ) -> None:
        async with open_holdfast(config=config) as house:
            session = await started(house, desk)
            await question(house, session)
        flagged = Environment(is_attended=False, yes_to=frozenset({"write_file"}))
        async with open_holdfast(config=config, outside=flagged) as house:
            rows = await played(house, session.id)
            (found,) = (await house.approvals.list(house.owner, session.id)).items

        assert outcomes(rows) == ["write_file ok"]
        assert (found.state, found.answered_by) == (ALLOWED, "flag")

    async def test_a_flag_answers_each_question_of_its_tool_once(
        self, home: Path, desk: Path
    ) -> None:
        config = a_config(home, asks(writing("a.txt"), writing("b.txt")), says("done"))
        flagged = Environment(is_attended=False, yes_to=frozenset({"write_file"}))
        async with open_holdfast(config=config, outside=flagged) as house:
            session = await started(house, desk)
            rows = await played(house, session.id)
            told = (await house.approvals.list(house.owner, session.id)).items

        assert outcomes(rows) == ["write_file ok"] * 2
        assert [(each.state, each.scope, each.answered_by) for each in told] == [
            (ALLOWED, ApprovalScope.ONCE, "flag")
        ] * 2

    async def test_a_flag_is_for_the_exact_name(self, desk: Path, config: Config) -> None:
        flagged = Environment(
            is_attended=False, yes_to=frozenset({"write_fil", "WRITE_FILE", "write"})
        )
        async with open_holdfast(config=config, outside=flagged) as house:
            session = await started(house, desk)
            assert outcomes(await played(house, session.id)) == ["write_file denied/rejected"]

    @pytest.mark.parametrize("tool_class", [ToolClass.COMMIT, ToolClass.SENSITIVE_WRITE])
    async def test_a_flag_does_not_answer_what_has_to_be_seen(
        self, home: Path, desk: Path, tool_class: ToolClass
    ) -> None:
        act = Recorder()
        tool = own_tool("seal", act, tool_class=tool_class)
        config = a_config(home, asks(call("seal")), says("done"), approval=ApprovalMode.AUTO)
        flagged = Environment(is_attended=False, yes_to=frozenset({"seal"}))
        async with open_tooled(config, tool, outside=flagged) as house:
            session = await started(house, desk, "seal", approval=ApprovalMode.AUTO)
            assert outcomes(await played(house, session.id)) == ["seal denied/rejected"]
        assert act.asked == []

    async def test_where_somebody_is_there_a_flag_leaves_such_a_question_to_them(
        self, home: Path, desk: Path
    ) -> None:
        config = a_config(home, asks(writing("Makefile")), says("done"))
        flagged = Environment(yes_to=frozenset({"write_file"}))
        async with open_holdfast(config=config, outside=flagged) as house:
            session = await started(house, desk)
            assert (await question(house, session)).state is ApprovalState.WAITING


Y, ASK, NO = "ok", "waiting", "denied/rejected"
MODES: Mapping[ApprovalMode, Mapping[ToolClass, str]] = {
    mode: dict(zip((each for each in ToolClass if each is not ToolClass.MONEY), row, strict=True))
    # read, write, sensitive write, process, egress, commit, function
    for mode, row in {
        ApprovalMode.DENY: (Y, NO, NO, NO, NO, NO, NO),
        ApprovalMode.ASK: (Y, ASK, ASK, ASK, ASK, ASK, Y),
        ApprovalMode.EDITS: (Y, Y, ASK, ASK, ASK, ASK, Y),
        ApprovalMode.AUTO: (Y, Y, ASK, Y, Y, ASK, Y),
    }.items()
}


class TestModes:
    """The mode of a session decides who is asked; the configuration can only make it stricter."""

    @pytest.mark.parametrize("mode", ApprovalMode)
    async def test_the_table_holds_in_a_whole_house(
        self, home: Path, desk: Path, mode: ApprovalMode
    ) -> None:
        act = Recorder()
        names = {f"touch_{each}": each for each in MODES[mode]}
        tools = [own_tool(name, act, tool_class=each) for name, each in names.items()]
        steps = [asks(call(name)) for name in names]
        found = {}
        for (name, each), step in zip(names.items(), steps, strict=True):
            config = a_config(home / each, step, says("done"), approval=ApprovalMode.AUTO)
            async with open_tooled(config, *tools) as house:
                session = await started(house, desk, name, approval=mode)
                found[each] = await _fate(house, session)

        assert found == MODES[mode]

    async def test_the_configuration_is_the_loosest_a_session_gets(
        self, home: Path, desk: Path
    ) -> None:
        config = a_config(home, asks(writing()), says("done"), approval=ApprovalMode.ASK)
        async with open_holdfast(config=config) as house:
            session = await started(house, desk, approval=ApprovalMode.AUTO)
            assert await _fate(house, session) == ASK

    async def test_a_configuration_that_became_stricter_binds_open_sessions(
        self, home: Path, desk: Path
    ) -> None:
        steps = (asks(writing("a.txt")), says("one"), asks(writing("b.txt")), says("two"))
        config = a_config(home, *steps, approval=ApprovalMode.AUTO)
        async with open_holdfast(config=config) as house:
            session = await started(house, desk, approval=ApprovalMode.AUTO)
            await played(house, session.id)
        async with open_holdfast(config=replace(config, approval=ApprovalMode.DENY)) as house:
            await house.send(session.id, "more")
            rows = await played(house, session.id)

        assert outcomes(rows) == ["write_file ok", "write_file denied/rejected"]

    @pytest.mark.parametrize(
        ("mode", "then"),
        [(ApprovalMode.AUTO, "write_file ok"), (ApprovalMode.DENY, "write_file denied/rejected")],
    )
    async def test_it_may_be_changed_between_two_calls(
        self, home: Path, desk: Path, mode: ApprovalMode, then: str
    ) -> None:
        config = a_config(
            home,
            asks(writing("a.txt"), writing("b.txt")),
            says("done"),
            approval=ApprovalMode.AUTO,
        )
        async with open_holdfast(config=config) as house:
            session = await started(house, desk)
            asked = await question(house, session)
            await house.sessions.update(house.owner, session.id, {"approval": mode})
            await answer(house, asked)
            rows = await played(house, session.id)
            assert len((await house.approvals.list(house.owner, session.id)).items) == 1

        assert outcomes(rows) == ["write_file ok", then]

    async def test_a_no_holds_although_the_mode_was_loosened_since(
        self, desk: Path, config: Config
    ) -> None:
        config = replace(config, approval=ApprovalMode.AUTO)
        async with open_holdfast(config=config) as house:
            session = await started(house, desk)
            asked = await question(house, session)
        async with open_holdfast(config=config, scope=RunScope.NONE) as other:
            await answer(other, asked, DENIED)
            await other.sessions.update(other.owner, session.id, {"approval": ApprovalMode.AUTO})
        async with open_holdfast(config=config) as house:
            assert outcomes(await played(house, session.id)) == ["write_file denied/rejected"]

    @pytest.mark.parametrize(("wish", "fate"), [("ask", ASK), ("deny", NO)])
    async def test_an_agent_may_be_stricter_about_a_tool_of_its_own(
        self, home: Path, desk: Path, wish: str, fate: str
    ) -> None:
        config = a_config(home, asks(writing()), says("done"), approval=ApprovalMode.AUTO)
        async with open_holdfast(config=config) as house:
            tools = [{"name": "write_file", "approval": wish}]
            fields = {"name": "Careful", "tools": tools, "grant": None}
            await house.agents.create(house.owner, fields)
            session = await started(house, desk, agent="careful", approval=ApprovalMode.AUTO)
            assert await _fate(house, session) == fate


async def _fate(house: Holdfast, session: Session) -> str:
    """Return what became of the only call: its result, or that somebody is asked."""
    asked = asyncio.create_task(news_until(house, session.id, ApprovalRequested))
    ended = asyncio.create_task(news_until(house, session.id, TurnEnded))
    done, _ = await asyncio.wait({asked, ended}, return_when=asyncio.FIRST_COMPLETED)
    is_asked = asked in done
    for task in (asked, ended):
        task.cancel()
    await asyncio.gather(asked, ended, return_exceptions=True)
    if is_asked:
        return str((await question(house, session)).state)
    (outcome,) = outcomes(await house.read(session.id))
    return outcome.split(" ", 1)[1]


VERBS: Mapping[str, Callable[[Holdfast, Owner, str, str], Awaitable[object]]] = {
    "get": lambda house, owner, session, id: house.approvals.get(owner, session, id),
    "answer": lambda house, owner, session, id: house.approvals.answer(
        owner, session, id, Decision(state=ALLOWED, by="mallory")
    ),
    "revoke": lambda house, owner, session, id: house.approvals.revoke(owner, session, id),
}
Verb = Callable[[Holdfast, Owner, str, str], Awaitable[object]]


@pytest.mark.parametrize("verb", VERBS.values(), ids=list(VERBS))
async def test_a_foreign_question_looks_like_none(desk: Path, config: Config, verb: Verb) -> None:
    async with open_holdfast(config=config) as house:
        session = await started(house, desk)
        other = await house.open()
        asked = await question(house, session)

        assert await _told(verb, house, STRANGER, session.id, asked.id) == await _told(
            verb, house, STRANGER, NEVER, NEVER
        )
        assert await _told(verb, house, house.owner, other.id, asked.id) == await _told(
            verb, house, house.owner, other.id, NEVER
        )
        assert (await house.approvals.list(STRANGER)).items == ()
        with pytest.raises(NotFound):
            await house.approvals.list(STRANGER, session.id)
        assert await house.approvals.get(house.owner, session.id, asked.id) == asked


async def _told(verb: Verb, house: Holdfast, owner: Owner, session: str, id: str) -> object:
    with pytest.raises(HoldfastError) as caught:
        await verb(house, owner, session, id)
    return type(caught.value), caught.value.body()


async def test_a_session_that_waits_for_an_answer_is_running(desk: Path, config: Config) -> None:
    async with open_holdfast(config=config) as house:
        session = await started(house, desk)
        await question(house, session)
        assert (await current(house, session)).status is Status.RUNNING
