"""What nobody knows the outcome of is listed, and put right by somebody, never by a guess."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import Holdfast, RunScope, Session, SessionRequest
from holdfast.app import Environment
from holdfast.config import Config
from holdfast.domain.approvals import ApprovalMode, ApprovalState
from holdfast.domain.calls import CallState, Settlement
from holdfast.domain.errors import Code, Conflict, HoldfastError, Invalid, NotFound
from holdfast.domain.events import CallSettled, Event, ToolEnded, ToolStarted, TurnEnded
from holdfast.domain.ids import Owner
from holdfast.domain.messages import Notice, NoticeCode, Role, ToolCall, ToolResult
from holdfast.domain.sessions import Status, StopReason
from holdfast.domain.tools import Effect
from holdfast.services.calls import SettlementAction, SettlementRequest
from tests.builders import an_id
from tests.houses import crashed, current, news_until, payloads, played
from tests.marks import each_case
from tests.stand_ins import Gate, SeededRandomness, SettableClock, StandInMachine
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

STRANGER = Owner("stranger")
NEVER = an_id(77)


@dataclass(frozen=True)
class Doubt:
    """A house in which one call's outcome is unknown, and the tool that would run it."""

    house: Holdfast
    session: Session
    act: Recorder
    config: Config
    outside: Environment

    async def settle(self, how: SettlementAction, **more: Any) -> Any:
        wish = SettlementRequest(how=how, by="ada", **more)
        return await self.house.calls.settle(self.house.owner, self.session.id, "c1", wish)


@pytest.fixture
def survivor(machine: StandInMachine, clock: SettableClock) -> Environment:
    """Be another process, which can prove that the first one is dead."""
    other = StandInMachine("second")
    other.dead.add(machine.holder())
    return Environment(clock=clock, randomness=SeededRandomness(1), machine=other)


async def left_in_doubt(
    home: Path, outside: Environment, *steps: Mapping[str, Any], **request: Any
) -> tuple[Config, Session, list[str]]:
    """Let a house die while its tool acts; return what is left of it, and the keys it used."""
    gate = Gate()
    act = Recorder(gate=gate)
    first = asks(call("post", "c1", line="x"), call("post", "c2", line="y"))
    config = a_config(home, first, *steps, approval=ApprovalMode.AUTO)
    async with open_tooled(config, own_tool("post", act), outside=outside) as house:
        mode = {"approval": ApprovalMode.AUTO, **request}
        session = await started(house, home.parent / "desk", "post", **mode)
        await gate.reached()
        left = crashed(home)
    return replace(config, home=left), session, [each.idempotency_key for each in act.asked]


@pytest.fixture
async def doubt(home: Path, outside: Environment, survivor: Environment) -> AsyncIterator[Doubt]:
    """Come after a crash in which a call was cut off."""
    steps = [says("never asked again"), says("I saw it")]
    config, session, _ = await left_in_doubt(home, outside, *steps)
    act = Recorder()
    async with open_tooled(config, own_tool("post", act), outside=survivor) as house:
        await news_until(house, session.id, TurnEnded)
        yield Doubt(house, session, act, config, survivor)


async def test_an_outcome_that_nobody_knows_is_listed(doubt: Doubt) -> None:
    house, session = doubt.house, doubt.session
    mine = (await house.calls.list(house.owner, session.id)).items
    unknown = (await house.calls.list(house.owner, state=CallState.UNKNOWN)).items

    assert [(each.id, each.state, each.settlement) for each in mine] == [
        ("c1", CallState.UNKNOWN, None),
        ("c2", CallState.FINISHED, None),
    ]
    assert unknown == mine[:1]
    assert (await house.calls.list(house.owner, session.id, state=CallState.UNKNOWN)).items == mine[
        :1
    ]
    assert await house.calls.get(house.owner, session.id, "c1") == mine[0]
    found = mine[0]
    assert (found.name, found.arguments, found.effect) == ("post", {"line": "x"}, Effect.UNSAFE)
    rows = {row.sequence: row for row in await house.read(session.id)}
    assert isinstance(rows[found.sequence].parts[0], ToolCall)
    assert isinstance(rows[found.result_sequence or 0].parts[0], ToolResult)
    assert outcomes(rows.values()) == ["post unknown/unknown", "post skipped/aborted"]
    assert doubt.act.asked == []


async def test_calls_of_all_sessions_are_listed_in_pages_by_their_state(doubt: Doubt) -> None:
    house, session = doubt.house, doubt.session
    other = await house.open("worker", SessionRequest(approval=ApprovalMode.AUTO))
    await house.send(other.id, "go")
    await played(house, other.id)
    every = (await house.calls.list(house.owner)).items
    first = await house.calls.list(house.owner, limit=1)
    walked, page = [*first.items], first
    while page.next_cursor is not None:
        page = await house.calls.list(house.owner, cursor=page.next_cursor, limit=1)
        walked += page.items
    finished = (await house.calls.list(house.owner, state=CallState.FINISHED)).items
    with pytest.raises(Invalid) as caught:
        await house.calls.list(house.owner, session.id, cursor=first.next_cursor)
    with pytest.raises(Invalid):
        await house.calls.list(house.owner, limit=0)

    assert [(each.session_id, each.id) for each in walked] == [
        (session.id, "c1"),
        (session.id, "c2"),
        (other.id, "c1"),
        (other.id, "c2"),
    ]
    assert tuple(walked) == every
    assert finished == every[1:]
    assert caught.value.code is Code.INVALID_CURSOR


async def test_calls_are_found_by_their_id_in_every_session(doubt: Doubt) -> None:
    house, session = doubt.house, doubt.session
    other = await house.open("worker", SessionRequest(approval=ApprovalMode.AUTO))
    await house.send(other.id, "go")
    await played(house, other.id)

    found = await house.calls.named(house.owner, "c1")

    assert {each.session_id for each in found} == {session.id, other.id}
    assert {each.id for each in found} == {"c1"}
    assert await house.calls.named(house.owner, "c9") == ()
    assert await house.calls.named(STRANGER, "c1") == ()


async def test_only_ones_own_are_listed(doubt: Doubt) -> None:
    assert (await doubt.house.calls.list(STRANGER)).items == ()
    with pytest.raises(NotFound):
        await doubt.house.calls.list(STRANGER, doubt.session.id)


@pytest.mark.parametrize(
    ("how", "more", "told", "settlement"),
    [
        (SettlementAction.SKIP, {}, "it is treated as not executed", Settlement.SKIPPED),
        (
            SettlementAction.SKIP,
            {"note": "I looked"},
            "it is treated as not executed. Note: I looked",
            Settlement.SKIPPED,
        ),
        (
            SettlementAction.MARK_DONE,
            {"result": {"id": 7}, "note": "by hand"},
            'it is treated as executed, with the result {"id":7}. Note: by hand',
            Settlement.MARKED_DONE,
        ),
    ],
)
async def test_a_settlement_is_a_row_that_belongs_to_no_turn(
    doubt: Doubt, how: SettlementAction, more: dict[str, Any], told: str, settlement: Settlement
) -> None:
    house, session = doubt.house, doubt.session
    before = await house.read(session.id)
    settled = await doubt.settle(how, **more)
    after = await house.read(session.id)
    page = await house.events.list(house.owner, session.id)

    assert (settled.state, settled.settlement) == (CallState.SETTLED, settlement)
    assert after[:-1] == before
    assert (after[-1].role, after[-1].turn) == (Role.SYSTEM, 0)
    assert after[-1].parts == (
        Notice(
            code=NoticeCode.CALL_SETTLED,
            text=f"The unknown outcome of post (c1) was settled: {told}",
        ),
    )
    assert payloads(list(page.items))[-1] == CallSettled(call_id="c1", how=settlement, by="ada")
    assert (await house.calls.list(house.owner, state=CallState.UNKNOWN)).items == ()
    assert doubt.act.asked == []


@pytest.mark.parametrize(
    "how", [SettlementAction.SKIP, SettlementAction.MARK_DONE, SettlementAction.RETRY]
)
async def test_the_model_hears_of_it_with_the_next_message(
    home: Path, outside: Environment, survivor: Environment, how: SettlementAction
) -> None:
    config, session, _ = await left_in_doubt(home, outside, says("nothing was settled"))
    script = home.parent / "script.json"
    steps = script.read_text()
    # Chosen by what the last user message of the request holds, and that is where it stands.
    script.write_text(
        f'{{"steps": {steps}, "match": [{{"contains": "outcome of post (c1) was settled", '
        '"step": {"text": "I saw it"}}]}'
    )
    async with open_tooled(config, own_tool("post", Recorder()), outside=survivor) as house:
        await news_until(house, session.id, TurnEnded)
        wish = SettlementRequest(
            how=how, by="ada", result={"id": 7} if how is SettlementAction.MARK_DONE else None
        )
        await house.calls.settle(house.owner, session.id, "c1", wish)
        await played(house, session.id)
        await house.send(session.id, "go on")
        rows = await played(house, session.id)

    assert rows[-1].text == "I saw it"


async def test_an_unsettled_call_blocks_nothing(doubt: Doubt) -> None:
    await doubt.house.send(doubt.session.id, "never mind")
    rows = await played(doubt.house, doubt.session.id)

    assert rows[-1].text == "never asked again"
    assert [
        each.id
        for each in (await doubt.house.calls.list(doubt.house.owner, state=CallState.UNKNOWN)).items
    ] == ["c1"]


class TestRetry:
    """A retry is a turn of its own: this call and its result, and no model is asked."""

    async def test_it_runs_the_same_call_under_the_same_key(
        self, home: Path, outside: Environment, survivor: Environment
    ) -> None:
        config, session, keys = await left_in_doubt(home, outside)
        act = Recorder()
        async with open_tooled(config, own_tool("post", act), outside=survivor) as house:
            await news_until(house, session.id, TurnEnded)
            before = await house.read(session.id)
            costs = await ledger(house, session)
            wish = SettlementRequest(how=SettlementAction.RETRY, by="ada")
            settled = await house.calls.settle(house.owner, session.id, "c1", wish)
            rows = await played(house, session.id)
            again = (await house.calls.list(house.owner, session.id)).items[-1]
            assert await ledger(house, session) == costs

        assert (settled.state, settled.settlement) == (CallState.SETTLED, Settlement.RETRIED)
        assert [each.idempotency_key for each in act.asked] == keys
        assert act.lines == ["x"]
        assert rows[: len(before)] == before
        asked, notice, result = rows[len(before) :]
        assert [(row.role, row.turn) for row in (asked, notice, result)] == [
            (Role.TOOL_CALL, 2),
            (Role.SYSTEM, 0),
            (Role.TOOL_RESULT, 2),
        ]
        assert asked.parts == (ToolCall(id=again.id, name="post", arguments={"line": "x"}),)
        assert (again.state, again.idempotency_key, again.turn) == (CallState.FINISHED, keys[0], 2)
        assert outcomes([result]) == ["post ok"]
        assert f"it will be run again as {again.id}" in str(notice.parts)

    async def test_its_turn_is_told_like_any_other(self, doubt: Doubt) -> None:
        house, session = doubt.house, doubt.session
        first = (await news_until(house, session.id, TurnEnded))[-1]
        assert isinstance(first, Event)
        await doubt.settle(SettlementAction.RETRY)
        news = payloads(await news_until(house, session.id, TurnEnded, after=first.sequence))
        names = [type(each).__name__ for each in news]

        assert names == [
            "MessageAppended",
            "MessageAppended",
            "CallSettled",
            "TurnStarted",
            "ToolStarted",
            "ToolEnded",
            "MessageAppended",
            "TurnEnded",
        ]
        assert news[-1] == TurnEnded(stop_reason=StopReason.STOP)
        after = await current(house, session)
        assert (after.status, after.turn, after.settled) == (Status.IDLE, 2, 2)

    async def test_a_message_goes_on_after_it(self, doubt: Doubt) -> None:
        await doubt.settle(SettlementAction.RETRY)
        await played(doubt.house, doubt.session.id)
        await doubt.house.send(doubt.session.id, "and now?")
        rows = await played(doubt.house, doubt.session.id)

        assert (rows[-1].turn, rows[-1].text) == (3, "never asked again")

    async def test_somebody_is_asked_again_where_the_mode_wants_it(self, doubt: Doubt) -> None:
        house, session = doubt.house, doubt.session
        await house.sessions.update(house.owner, session.id, {"approval": ApprovalMode.ASK})
        await doubt.settle(SettlementAction.RETRY)
        asked = await question(house, session)
        assert doubt.act.asked == []
        await answer(house, asked)
        rows = await played(house, session.id)

        assert outcomes(rows)[-1] == "post ok"
        assert doubt.act.lines == ["x"]

    @pytest.mark.parametrize("ending", ["mode", "no", "interrupt"])
    async def test_a_retry_that_was_not_run_has_settled_nothing(
        self, doubt: Doubt, ending: str
    ) -> None:
        house, session = doubt.house, doubt.session
        mode = ApprovalMode.DENY if ending == "mode" else ApprovalMode.ASK
        await house.sessions.update(house.owner, session.id, {"approval": mode})
        settled = await doubt.settle(SettlementAction.RETRY)
        if ending != "mode":
            asked = await question(house, session)
            # Heard again while it waits: that is no second retry.
            assert (await doubt.settle(SettlementAction.RETRY)).settlement is Settlement.RETRIED
        if ending == "no":
            await answer(house, asked, ApprovalState.DENIED)
        elif ending == "interrupt":
            await house.sessions.interrupt(house.owner, session.id)
        rows = await played(house, session.id)
        first, _, retry = (await house.calls.list(house.owner, session.id)).items

        assert settled.settlement is Settlement.RETRIED
        told = "skipped/aborted" if ending == "interrupt" else "denied/rejected"
        assert outcomes(rows)[-1] == f"post {told}"
        assert (first.state, first.settlement) == (CallState.UNKNOWN, None)
        assert (retry.state, retry.started_at) == (CallState.FINISHED, None)
        unrun = f"The outcome of post (c1) is still unknown: {retry.id} was not run."
        assert Notice(code=NoticeCode.INFORMATION, text=unrun) in [row.parts[0] for row in rows]
        assert doubt.act.asked == []

        await house.sessions.update(house.owner, session.id, {"approval": ApprovalMode.AUTO})
        again = await doubt.settle(SettlementAction.RETRY)
        rows = await played(house, session.id)
        assert (outcomes(rows)[-1], again.settlement) == ("post ok", Settlement.RETRIED)
        assert doubt.act.lines == ["x"]
        assert (await house.calls.get(house.owner, session.id, "c1")) == again

    async def test_what_is_cut_off_again_is_unknown_again(
        self, doubt: Doubt, clock: SettableClock
    ) -> None:
        gate = Gate()
        act = Recorder(gate=gate)
        session = doubt.session
        dead = StandInMachine("third")
        dead.dead.add(doubt.outside.machine.holder())
        third = Environment(clock=clock, randomness=SeededRandomness(3), machine=dead)
        async with open_tooled(
            doubt.config, own_tool("post", act), outside=third, scope=RunScope.OWN
        ) as house:
            wish = SettlementRequest(how=SettlementAction.RETRY, by="ada")
            await house.calls.settle(house.owner, session.id, "c1", wish)
            await gate.reached()
            left = crashed(doubt.config.home, "crashed again")
        last = StandInMachine("last")
        last.dead.add(dead.holder())
        outside = Environment(clock=clock, randomness=SeededRandomness(4), machine=last)
        config = replace(doubt.config, home=left)
        async with open_tooled(config, own_tool("post", Recorder()), outside=outside) as house:
            await played(house, session.id)
            (unknown,) = (await house.calls.list(house.owner, state=CallState.UNKNOWN)).items
            assert unknown.id.startswith("retry_")
            settled = await house.calls.settle(
                house.owner,
                session.id,
                unknown.id,
                SettlementRequest(how=SettlementAction.SKIP, by="ada"),
            )
            assert settled.settlement is Settlement.SKIPPED

    async def test_the_cap_of_turns_does_not_hold_it_back(
        self, home: Path, outside: Environment, survivor: Environment
    ) -> None:
        config, session, _ = await left_in_doubt(home, outside, turn_cap=1)
        act = Recorder()
        async with open_tooled(config, own_tool("post", act), outside=survivor) as house:
            await news_until(house, session.id, TurnEnded)
            wish = SettlementRequest(how=SettlementAction.RETRY, by="ada")
            await house.calls.settle(house.owner, session.id, "c1", wish)
            rows = await played(house, session.id)
            await house.send(session.id, "and now?")
            last = await played(house, session.id)

        assert outcomes(rows)[-1] == "post ok"
        assert act.lines == ["x"]
        assert "turn_limit" in str(last[-1].parts)


class TestRefusals:
    """Only an unknown outcome is settled, once, and by a wish that can be written down."""

    @each_case(
        "wish",
        [
            {"how": SettlementAction.MARK_DONE},
            {"how": SettlementAction.SKIP, "note": "x" * 501},
            {"how": SettlementAction.MARK_DONE, "result": "x" * (16 << 10)},
            {"how": SettlementAction.MARK_DONE, "result": object()},
            {"how": SettlementAction.MARK_DONE, "result": "\ud800"},
            {"how": SettlementAction.SKIP, "note": "\x00"},
        ],
        ids=["no result", "long note", "large", "no JSON", "surrogate", "NUL"],
    )
    async def test_a_wish_that_cannot_be_is_refused(
        self, doubt: Doubt, wish: dict[str, Any]
    ) -> None:
        before = await doubt.house.read(doubt.session.id)
        with pytest.raises(Invalid):
            await doubt.settle(**wish)
        assert await doubt.house.read(doubt.session.id) == before

    async def test_a_result_that_is_nested_too_deeply_is_refused(self) -> None:
        deep: Any = []
        for _ in range(100_000):
            deep = [deep]
        with pytest.raises(Invalid):
            SettlementRequest(how=SettlementAction.MARK_DONE, by="ada", result=deep)

    async def test_a_finished_call_cannot_be_settled(self, doubt: Doubt) -> None:
        house, session = doubt.house, doubt.session
        with pytest.raises(Conflict) as caught:
            await house.calls.settle(
                house.owner,
                session.id,
                "c2",
                SettlementRequest(how=SettlementAction.SKIP, by="ada"),
            )
        assert (caught.value.code, caught.value.details) == (
            Code.CALL_NOT_OPEN,
            {"state": CallState.FINISHED},
        )

    @pytest.mark.parametrize("how", SettlementAction)
    async def test_the_same_settlement_again_is_heard_and_another_one_refused(
        self, doubt: Doubt, how: SettlementAction
    ) -> None:
        house, session = doubt.house, doubt.session
        result = {"id": 7} if how is SettlementAction.MARK_DONE else None
        first = await doubt.settle(how, result=result)
        await played(house, session.id)
        rows = await house.read(session.id)
        again = await doubt.settle(how, result=result, note="once more")
        with pytest.raises(Conflict) as caught:
            await doubt.settle(
                SettlementAction.SKIP
                if how is not SettlementAction.SKIP
                else SettlementAction.RETRY
            )

        assert again == first
        assert await house.read(session.id) == rows
        assert caught.value.code is Code.CALL_NOT_OPEN
        assert len(doubt.act.asked) == (how is SettlementAction.RETRY)

    async def test_a_retry_waits_until_no_turn_runs_or_waits(
        self, home: Path, outside: Environment, survivor: Environment
    ) -> None:
        config, session, _ = await left_in_doubt(home, outside, says("slowly", delay_ms=60_000))
        act = Recorder()
        async with open_tooled(config, own_tool("post", act), outside=survivor) as house:
            await news_until(house, session.id, TurnEnded)
            await house.send(session.id, "something else")
            with pytest.raises(Conflict) as caught:
                await house.calls.settle(
                    house.owner,
                    session.id,
                    "c1",
                    SettlementRequest(how=SettlementAction.RETRY, by="ada"),
                )
            settled = await house.calls.settle(
                house.owner,
                session.id,
                "c1",
                SettlementRequest(how=SettlementAction.SKIP, by="ada"),
            )

        assert caught.value.code is Code.TURN_RUNNING
        assert settled.settlement is Settlement.SKIPPED
        assert act.asked == []

    async def test_a_closed_session_is_resumed_before_anything_runs_in_it(
        self, doubt: Doubt
    ) -> None:
        house, session = doubt.house, doubt.session
        await house.sessions.close(house.owner, session.id)
        with pytest.raises(Conflict) as caught:
            await doubt.settle(SettlementAction.RETRY)
        assert caught.value.code is Code.SESSION_CLOSED
        assert (await doubt.settle(SettlementAction.SKIP)).settlement is Settlement.SKIPPED


VERBS: Mapping[str, Callable[[Holdfast, Owner, str, str], Awaitable[object]]] = {
    "get": lambda house, owner, session, id: house.calls.get(owner, session, id),
    "settle": lambda house, owner, session, id: house.calls.settle(
        owner, session, id, SettlementRequest(how=SettlementAction.SKIP, by="mallory")
    ),
}
Verb = Callable[[Holdfast, Owner, str, str], Awaitable[object]]


@pytest.mark.parametrize("verb", VERBS.values(), ids=list(VERBS))
async def test_a_foreign_call_looks_like_none(doubt: Doubt, verb: Verb) -> None:
    house, session = doubt.house, doubt.session
    other = await house.open()
    before = (await house.calls.list(house.owner, session.id)).items

    assert await _told(verb, house, STRANGER, session.id, "c1") == await _told(
        verb, house, STRANGER, NEVER, NEVER
    )
    assert await _told(verb, house, house.owner, other.id, "c1") == await _told(
        verb, house, house.owner, other.id, NEVER
    )
    assert (await house.calls.list(house.owner, session.id)).items == before


async def _told(verb: Verb, house: Holdfast, owner: Owner, session: str, id: str) -> object:
    with pytest.raises(HoldfastError) as caught:
        await verb(house, owner, session, id)
    return type(caught.value), caught.value.body()


async def test_an_interrupted_call_can_be_settled_like_one_that_a_crash_left(
    home: Path,
) -> None:
    gate = Gate()
    act = Recorder(gate=gate)
    config = a_config(home, asks(call("post", "c1", line="x")), approval=ApprovalMode.AUTO)
    async with open_tooled(config, own_tool("post", act)) as house:
        session = await started(house, home.parent / "desk", "post", approval=ApprovalMode.AUTO)
        await gate.reached()
        await house.sessions.interrupt(house.owner, session.id)
        (unknown,) = (await house.calls.list(house.owner, state=CallState.UNKNOWN)).items
        wish = SettlementRequest(how=SettlementAction.MARK_DONE, by="ada", result="seen")
        settled = await house.calls.settle(house.owner, session.id, unknown.id, wish)
        news = payloads(await news_until(house, session.id, CallSettled))

    assert (unknown.id, settled.settlement) == ("c1", Settlement.MARKED_DONE)
    assert [type(each) for each in news if isinstance(each, ToolStarted | ToolEnded)] == [
        ToolStarted,
        ToolEnded,
    ]
