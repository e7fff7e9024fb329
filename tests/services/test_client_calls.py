"""Calls that a client runs: requested, answered once, and given up at their deadline."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, RunScope, Session, ToolFailed, Turn, open_holdfast, tool
from holdfast.config import Config
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.calls import Call, CallState
from holdfast.domain.errors import Code, Conflict, Invalid, NotFound
from holdfast.domain.events import Event, ToolEnded, ToolRequested, ToolStarted, TurnPaused
from holdfast.domain.messages import Notice, NoticeCode, ResultStatus, Role, ToolResult
from holdfast.domain.sessions import SessionRequest, StopReason, is_paused
from holdfast.domain.tools import Effect
from holdfast.domain.waits import WaitReason
from holdfast.search.query import SearchQuery
from holdfast.services.calls import CallAnswer, SettlementAction, SettlementRequest
from holdfast.workflows.session_export import ExportFormat
from tests.houses import current, head_of, played
from tests.marks import demands, each_case
from tests.stand_ins import PATIENCE
from tests.tooled import a_config, answer, asks, call, calls_now, outcomes, question, says

pytestmark = pytest.mark.anyio

REFUND: dict[str, Any] = {
    "name": "refund",
    "description": "Refund an order.",
    "parameters": {
        "type": "object",
        "properties": {"order": {"type": "string"}},
        "required": ["order"],
        "additionalProperties": False,
    },
}
OK = CallAnswer(status=ResultStatus.OK, result={"refunded": True})
FAILED = CallAnswer(status=ResultStatus.ERROR, error="The order is paid back already.")


def refunding(home: Path, *calls: dict[str, Any]) -> Config:
    return a_config(home, asks(*(calls or (call("refund", "c1", order="17"),))), says("done"))


@asynccontextmanager
async def a_house(config: Config, **more: Any) -> AsyncIterator[Holdfast]:
    async with asyncio.timeout(PATIENCE), open_holdfast(config=config, **more) as house:
        yield house


async def sent(house: Holdfast, *, mode: ApprovalMode | None = None, **changes: Any) -> Session:
    """Send a message to an agent with a tool that its client runs."""
    fields = {"name": "Clerk", "tools": [REFUND | changes]}
    agent = await house.agents.create(house.owner, fields)
    session = await house.open(agent.slug, SessionRequest(approval=mode))
    await house.send(session.id, "Refund order 17")
    return session


async def requested(house: Holdfast, session: Session, call_id: str = "c1") -> Call:
    """Wait until a call is requested and its turn is paused."""
    while True:
        found = (await house.calls.list(house.owner, session.id)).items
        for each in found:
            if each.id == call_id and each.state is CallState.REQUESTED:
                assert is_paused(await head_of(house, session))
                return each
        await asyncio.sleep(0.005)


async def give(house: Holdfast, session: Session, given: CallAnswer, call_id: str = "c1") -> Call:
    return await house.calls.answer(house.owner, session.id, call_id, given)


async def payloads_of(house: Holdfast, session: Session) -> list[Any]:
    last = (await current(house, session)).last_event
    found = []
    async for each in house.follow(session.id, after=0):
        assert isinstance(each, Event)
        found.append(each.payload)
        if each.sequence == last:
            return found
    raise AssertionError("the events ended early")


def results(rows: Any) -> list[ToolResult]:
    return [part for row in rows for part in row.parts if isinstance(part, ToolResult)]


@demands("S2-020j")
async def test_a_definition_is_offered_requested_and_answered(home: Path) -> None:
    async with a_house(refunding(home)) as house:
        session = await sent(house)
        waiting = await requested(house, session)
        shown = (await current(house, session)).waiting
        answered = await give(house, session, OK)
        rows = await played(house, session.id)
        events = await payloads_of(house, session)

    assert shown is not None
    assert (shown.reason, shown.call_ids) == (WaitReason.CLIENT, ("c1",))
    assert shown.until == waiting.deadline_at
    assert (answered.state, answered.deadline_at) == (CallState.FINISHED, None)
    assert [row.text for row in rows if row.role is Role.ASSISTANT] == ["done"]
    assert [each.result for each in results(rows)] == [{"refunded": True}]
    (asked,) = [each for each in events if isinstance(each, ToolRequested)]
    assert (asked.name, asked.arguments, asked.effect) == ("refund", {"order": "17"}, Effect.UNSAFE)
    names = [type(each).__name__ for each in events]
    first = names.index("ToolRequested")
    assert names[first : first + 2] == ["ToolRequested", "TurnPaused"]
    assert not any(isinstance(each, ToolStarted) for each in events)
    (ended,) = [each for each in events if isinstance(each, ToolEnded)]
    assert ended.has_run is not False


async def test_the_request_and_the_pause_are_one_commit(home: Path) -> None:
    async with a_house(refunding(home)) as house:
        session = await sent(house)
        await requested(house, session)
        events = await payloads_of(house, session)
        await house.sessions.interrupt(house.owner, session.id)

    # Nothing is written between the request and the pause, and nothing after them.
    assert [type(each) for each in events[-2:]] == [ToolRequested, TurnPaused]


@pytest.mark.parametrize(
    ("given", "outcome"),
    [
        (FAILED, "refund error/failed"),
        (CallAnswer(status=ResultStatus.UNKNOWN), "refund unknown/unknown"),
    ],
)
async def test_a_client_may_fail_or_not_know(home: Path, given: CallAnswer, outcome: str) -> None:
    async with a_house(refunding(home)) as house:
        session = await sent(house)
        await requested(house, session)
        await give(house, session, given)
        assert outcomes(await played(house, session.id)) == [outcome]


async def test_the_first_answer_counts(home: Path) -> None:
    async with a_house(refunding(home)) as house:
        session = await sent(house)
        await requested(house, session)
        first = await house.calls.give_answer(house.owner, session.id, "c1", OK)
        again = await house.calls.give_answer(house.owner, session.id, "c1", OK)
        with pytest.raises(Conflict) as refused:
            await give(house, session, FAILED)
        rows = await played(house, session.id)
        later = await house.calls.give_answer(house.owner, session.id, "c1", OK)

    assert (first.is_new, again.is_new, later.is_new) == (True, False, False)
    assert refused.value.code is Code.CALL_NOT_OPEN
    assert outcomes(rows) == ["refund ok"]
    assert not [part for row in rows for part in row.parts if isinstance(part, Notice)]


async def test_of_many_answers_at_once_one_is_taken(home: Path) -> None:
    async with a_house(refunding(home)) as house:
        session = await sent(house)
        await requested(house, session)
        given = [CallAnswer(status=ResultStatus.OK, result=number) for number in range(10)]
        done = await asyncio.gather(
            *(give(house, session, each) for each in given), return_exceptions=True
        )
        rows = await played(house, session.id)

    taken = [number for number, each in enumerate(done) if isinstance(each, Call)]
    assert len(taken) == 1
    assert [each.result for each in results(rows)] == taken


async def test_arguments_are_checked_before_anybody_is_asked(home: Path) -> None:
    bad = call("refund", "c1", order=17), call("refund", "c2", order="17", cents=1)
    async with a_house(refunding(home, *bad)) as house:
        session = await sent(house, approval="ask")
        rows = await played(house, session.id)
        asked = await house.approvals.list(house.owner, session.id)

    assert outcomes(rows) == ["refund error/invalid_arguments"] * 2
    assert not asked.items
    first, second = [each.error.message for each in results(rows) if each.error]
    assert first == 'The arguments are not valid: at $.order: type "string".'
    assert second == "The arguments are not valid: at $: additionalProperties false."


async def test_a_call_is_requested_only_after_its_approval(home: Path) -> None:
    async with a_house(refunding(home)) as house:
        session = await sent(house, approval="ask")
        asked = await question(house, session)
        with pytest.raises(Conflict) as refused:
            await give(house, session, OK)
        before = await calls_now(house, session)
        await answer(house, asked)
        await requested(house, session)
        await give(house, session, OK)
        rows = await played(house, session.id)

    assert (refused.value.code, refused.value.details) == (
        Code.CALL_NOT_OPEN,
        {"state": CallState.INTENDED},
    )
    assert before == {"c1": CallState.INTENDED}
    assert '"order": "17"' in asked.question.question
    assert outcomes(rows) == ["refund ok"]


@pytest.mark.parametrize(
    ("changes", "mode", "outcome"),
    [
        ({"approval": "deny"}, ApprovalMode.AUTO, "refund denied/rejected"),
        ({}, ApprovalMode.DENY, "refund denied/rejected"),
    ],
)
async def test_a_denied_call_is_not_requested(
    home: Path, changes: dict[str, Any], mode: ApprovalMode, outcome: str
) -> None:
    async with a_house(refunding(home)) as house:
        session = await sent(house, mode=mode, **changes)
        assert outcomes(await played(house, session.id)) == [outcome]


async def test_a_pure_tool_is_requested_in_the_mode_deny(home: Path) -> None:
    async with a_house(refunding(home)) as house:
        session = await sent(house, mode=ApprovalMode.DENY, effect="pure")
        found = await requested(house, session)
        await give(house, session, OK)
        await played(house, session.id)
    assert found.effect is Effect.PURE


async def test_a_function_of_the_same_name_runs_here(home: Path) -> None:
    @tool
    def refund(order: str) -> str:
        """Refund an order."""
        return f"{order} here"

    async with a_house(refunding(home), tools=[refund]) as house:
        session = await sent(house)
        rows = await played(house, session.id)
    assert [each.result for each in results(rows)] == ["17 here"]


async def test_calls_of_one_step_are_requested_one_after_the_other(home: Path) -> None:
    both = call("refund", "c1", order="1"), call("refund", "c2", order="2")
    async with a_house(refunding(home, *both)) as house:
        session = await sent(house)
        await requested(house, session, "c1")
        before = await calls_now(house, session)
        await give(house, session, OK, "c1")
        await requested(house, session, "c2")
        await give(house, session, FAILED, "c2")
        rows = await played(house, session.id)

    assert before == {"c1": CallState.REQUESTED, "c2": CallState.INTENDED}
    assert outcomes(rows) == ["refund ok", "refund error/failed"]


async def test_at_the_deadline_the_turn_goes_on_and_a_late_answer_is_kept(home: Path) -> None:
    late = CallAnswer(status=ResultStatus.OK, result="late")
    async with a_house(refunding(home)) as house:
        session = await sent(house, timeout_s=0.2)
        rows = await played(house, session.id)
        for given in (late, late, OK):
            with pytest.raises(Conflict) as refused:
                await give(house, session, given)
            assert refused.value.code is Code.CALL_NOT_OPEN
        after = await house.read(session.id)

    assert outcomes(rows) == ["refund error/timeout"]
    assert rows[-1].text == "done"
    notices = [part for row in after for part in row.parts if isinstance(part, Notice)]
    assert [(each.code, each.text) for each in notices] == [
        (NoticeCode.LATE_RESULT, 'refund (c1) had ended when its client answered ok: "late"')
    ]


async def test_interrupting_and_closing_skip_the_call(home: Path) -> None:
    async with a_house(refunding(home)) as house:
        session = await sent(house)
        await requested(house, session)
        await house.sessions.interrupt(house.owner, session.id)
        rows = await played(house, session.id)
        other = await house.open((await current(house, session)).agent.slug)
        await house.send(other.id, "again")
        await requested(house, other)
        await house.sessions.close(house.owner, other.id)
        closed = await house.read(other.id)
        stopped = await current(house, session)
        states = [await calls_now(house, each) for each in (session, other)]

    assert outcomes(rows) == outcomes(closed) == ["refund skipped/aborted"]
    assert stopped.last_stop is StopReason.ABORTED
    assert states == [{"c1": CallState.FINISHED}] * 2


async def test_a_requested_call_outlives_its_process(home: Path) -> None:
    config = refunding(home)
    async with a_house(config) as house:
        session = await sent(house)
        before = await requested(house, session)
    async with a_house(config) as house:
        # Longer than the coordinator needs to look for turns of dead processes.
        await asyncio.sleep(1.2)
        after = await requested(house, session)
        events = await payloads_of(house, session)
        await give(house, session, OK)
        rows = await played(house, session.id)

    assert before == after
    assert sum(isinstance(each, ToolRequested) for each in events) == 1
    assert sum(isinstance(each, TurnPaused) for each in events) == 1
    assert outcomes(rows) == ["refund ok"]


async def test_a_process_that_plays_nothing_may_take_the_answer(home: Path) -> None:
    config = refunding(home)
    async with a_house(config) as house:
        session = await sent(house)
        await requested(house, session)
        async with a_house(config, scope=RunScope.NONE) as other:
            await give(other, session, OK)
        assert outcomes(await played(house, session.id)) == ["refund ok"]


async def test_a_message_sent_meanwhile_waits_for_the_turn(home: Path) -> None:
    async with a_house(refunding(home)) as house:
        session = await sent(house)
        await requested(house, session)
        await house.send(session.id, "And then?")
        await asyncio.sleep(0.1)
        before = await calls_now(house, session)
        await give(house, session, OK)
        rows = await played(house, session.id)

    assert before == {"c1": CallState.REQUESTED}
    assert [row.turn for row in rows if row.role is Role.TOOL_RESULT] == [1]


async def test_an_unknown_answer_is_settled_by_requesting_the_call_again(home: Path) -> None:
    retry = SettlementRequest(how=SettlementAction.RETRY, by="ada")
    async with a_house(refunding(home)) as house:
        session = await sent(house)
        await requested(house, session)
        await give(house, session, CallAnswer(status=ResultStatus.UNKNOWN, error="It timed out."))
        await played(house, session.id)
        await house.calls.settle(house.owner, session.id, "c1", retry)
        found = await house.calls.list(house.owner, session.id)
        again = next(each.id for each in found.items if each.id != "c1")
        await requested(house, session, again)
        await give(house, session, OK, again)
        rows = await played(house, session.id)
        states = await calls_now(house, session)

    assert outcomes(rows) == ["refund unknown/unknown", "refund ok"]
    assert states == {"c1": CallState.SETTLED, again: CallState.FINISHED}


async def test_a_long_result_is_kept_and_shortened_for_the_model(home: Path) -> None:
    long = "\n".join(f"line {number}" for number in range(20_000))
    async with a_house(refunding(home)) as house:
        session = await sent(house)
        await requested(house, session)
        await give(house, session, CallAnswer(status=ResultStatus.OK, result=long))
        again = await house.calls.give_answer(
            house.owner, session.id, "c1", CallAnswer(status=ResultStatus.OK, result=long)
        )
        rows = await played(house, session.id)

    assert not again.is_new
    shown = str(results(rows)[0].result)
    assert len(shown) < len(long)
    assert "media://" in shown


async def test_answers_to_nothing_change_nothing(home: Path) -> None:
    async with a_house(refunding(home)) as house:
        session = await sent(house)
        await requested(house, session)
        before = await current(house, session)
        with pytest.raises(NotFound) as missing:
            await give(house, session, OK, "c9")
        with pytest.raises(NotFound) as foreign:
            await house.calls.answer(house.owner, before.agent.id, "c1", OK)  # type: ignore[arg-type]
        assert (await current(house, session)) == before
        await house.sessions.interrupt(house.owner, session.id)

    assert missing.value.code is Code.CALL_NOT_FOUND
    assert foreign.value.code is Code.SESSION_NOT_FOUND


@each_case(
    ("fields", "code"),
    [
        ({"status": ResultStatus.SKIPPED}, Code.INVALID_INPUT),
        ({"status": ResultStatus.OK, "result": 1, "error": "no"}, Code.INVALID_INPUT),
        ({"status": ResultStatus.OK, "error": "no"}, Code.INVALID_INPUT),
        ({"status": ResultStatus.ERROR}, Code.INVALID_INPUT),
        ({"status": ResultStatus.ERROR, "result": 1}, Code.INVALID_INPUT),
        ({"status": ResultStatus.OK, "result": object()}, Code.INVALID_INPUT),
        ({"status": ResultStatus.OK, "result": "x" * (16 << 20)}, Code.TOO_LARGE),
        ({"status": ResultStatus.ERROR, "error": "x" * 5_000}, Code.INVALID_TEXT),
    ],
)
def test_an_answer_that_says_nothing_clear_is_refused(fields: dict[str, Any], code: Code) -> None:
    with pytest.raises(Invalid) as refused:
        CallAnswer(**fields)
    assert refused.value.code is code


@each_case(
    ("changes", "code", "fault"),
    [
        ({"parameters": {"type": "array"}}, Code.TOOL_INVALID, "the type object"),
        ({"parameters": {}}, Code.TOOL_INVALID, "the type object"),
        ({"parameters": {"type": "object", "properties": []}}, Code.TOOL_INVALID, "parameters: $"),
        (
            {"parameters": {"type": "object", "$ref": "https://example.com/a"}},
            Code.TOOL_INVALID,
            "every $ref",
        ),
        (
            {"parameters": {"type": "object", "title": "x" * (64 << 10)}},
            Code.TOOL_INVALID,
            "64 KiB",
        ),
        ({"name": "re fund"}, Code.TOOL_INVALID, "its name"),
        ({"name": "read_file"}, Code.TOOL_NAME_TAKEN, "read_file"),
        ({"name": "mcp_x_y"}, Code.TOOL_NAME_TAKEN, "mcp_x_y"),
        ({"name": "invoke_agent"}, Code.TOOL_NAME_TAKEN, "invoke_agent"),
        ({"description": " "}, Code.TOOL_INVALID, "description"),
        ({"effect": "none"}, Code.TOOL_INVALID, "effect"),
        ({"effect": []}, Code.TOOL_INVALID, "effect"),
        ({"approval": "maybe"}, Code.TOOL_INVALID, "approval"),
        ({"timeout_s": 0}, Code.TOOL_INVALID, "timeout_s"),
        ({"timeout_s": 2_592_001}, Code.TOOL_INVALID, "timeout_s"),
        ({"timeout_s": "60"}, Code.TOOL_INVALID, "timeout_s"),
        ({"timeout_s": True}, Code.TOOL_INVALID, "timeout_s"),
    ],
)
async def test_a_definition_that_cannot_be_run_is_refused(
    holdfast: Holdfast, changes: dict[str, Any], code: Code, fault: str
) -> None:
    good = await holdfast.agents.create(holdfast.owner, {"name": "Clerk", "tools": [REFUND]})
    for refused in (
        holdfast.agents.create(holdfast.owner, {"name": "Other", "tools": [REFUND | changes]}),
        holdfast.agents.update(holdfast.owner, good.slug, {"tools": [REFUND | changes]}),
    ):
        with pytest.raises(Invalid) as error:
            await refused
        assert error.value.code is code
        assert fault in error.value.message
    assert (await holdfast.agents.get(holdfast.owner, good.slug)) == good


async def test_a_session_that_waits_is_forked_exported_searched_and_verified(home: Path) -> None:
    async with a_house(refunding(home)) as house:
        session = await sent(house)
        await requested(house, session)
        forked = await house.sessions.fork(house.owner, session.id, at=1)
        exported = await house.exports.export(house.owner, session.id, ExportFormat.JSONL)
        found = await house.search.find(house.owner, SearchQuery(text="Refund"))
        states = [await calls_now(house, each) for each in (session, forked)]
        waiting = await house.sessions.verify(house.owner, session.id)
        await give(house, session, OK)
        await played(house, session.id)
        answered = await house.sessions.verify(house.owner, session.id)

    assert "Refund order 17" in exported.content.decode()
    assert found.items
    assert states == [{"c1": CallState.REQUESTED}, {}]
    assert not waiting.faults
    assert not answered.faults


async def test_ask_returns_what_it_waits_for_and_later_the_same_answer(home: Path) -> None:
    async with a_house(refunding(home)) as house:
        await house.agents.create(house.owner, {"name": "Clerk", "tools": [REFUND]})
        first = await house.ask("Refund 17", agent="clerk", key="17", on_wait="return")
        await house.calls.answer(house.owner, first.session_id, "c1", OK)
        again = await house.ask("Refund 17", agent="clerk", key="17")

    assert first.waiting is not None
    assert (first.waiting.reason, first.waiting.call_ids) == ("client", ("c1",))
    assert (again.text, again.session_id, again.waiting) == ("done", first.session_id, None)


async def test_a_registered_loop_waits_for_a_client_and_is_replayed(home: Path) -> None:
    async with a_house(refunding(home)) as house:
        runs = 0

        @house.runtime("planner")
        async def plan(turn: Turn) -> str:
            nonlocal runs
            runs += 1
            done = await turn.call("refund", {"order": "17"})
            return f"refunded: {done['refunded']}"

        session = await house.open("planner")
        await house.agents.update(house.owner, "planner", {"tools": [REFUND]})
        session = await house.open("planner")
        await house.send(session.id, "go")
        while not (found := (await house.calls.list(house.owner, session.id)).items):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        await requested(house, session, found[0].id)
        await give(house, session, OK, found[0].id)
        rows = await played(house, session.id)

    assert rows[-1].text == "refunded: True"
    assert runs == 2
    assert plan.__name__ == "plan"


async def test_a_held_turn_has_no_tools_of_clients(home: Path) -> None:
    async with a_house(refunding(home)) as house:
        agent = await house.agents.create(house.owner, {"name": "Clerk", "tools": [REFUND]})
        session = await house.open(agent.slug)
        async with house.turn(session.id, "go") as turn:
            with pytest.raises(ToolFailed) as refused:
                await turn.call("refund", {"order": "17"})
            await turn.say("no")
    assert "There is no tool 'refund'" in str(refused.value)
