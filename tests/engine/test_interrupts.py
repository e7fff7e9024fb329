"""The abort signal: it reaches whoever is waited for, once, and nothing happens after it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.domain.agents import LlmRuntime, Retry
from holdfast.domain.approvals import ApprovalMode, ApprovalState
from holdfast.domain.costs import Usage
from holdfast.domain.drafts import Outcome
from holdfast.domain.errors import Code, StorageFull
from holdfast.domain.events import ToolEnded
from holdfast.domain.messages import ResultStatus
from holdfast.domain.models import Prices
from holdfast.domain.sessions import Budget, OnExceed
from holdfast.domain.tools import ToolClass
from holdfast.engine.cancellation import (
    finish_despite_cancel,
    stop_if_cancelled,
)
from holdfast.engine.streaming import coalesce
from holdfast.engine.tool_results import LARGEST
from holdfast.ports.llm import FailureKind, LlmDelta, LlmRequest, LlmTextDelta
from holdfast.ports.runtime import TurnInput
from holdfast.ports.tools import CallOutcome, PlannedCall, RequestedCall, ToolWorkspace
from tests.engine.builders import MODEL, Batch, an_agent, assistant, run_turn, user
from tests.engine.scripts import fails, looks, says
from tests.engine.stand_ins import (
    Gate,
    ScriptedLlm,
    Stage,
    StandInApprover,
    StandInShelf,
    StandInTool,
    StandInToolbox,
    raising,
)
from tests.stand_ins import PATIENCE

pytestmark = pytest.mark.anyio


async def interrupted(stage: Stage, turn: TurnInput, gate: Gate) -> list[Batch]:
    """Play until somebody waits at the gate, stop the turn there, and return what was written."""
    task = asyncio.create_task(stage.play(turn))
    await gate.reached()
    written = list(stage.paper.batches)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    # Nothing is emitted after the signal.
    assert stage.paper.batches == written
    assert stage.paper.faults == []
    return [*written]


async def test_a_provider_that_streams_is_told_once() -> None:
    gate = Gate()
    stage = Stage(ScriptedLlm([LlmTextDelta(text="Half"), gate]))

    written = await interrupted(stage, stage.turn(), gate)

    assert stage.llm.endings == ["CancelledError"]
    assert not [each for batch in written for each in batch if isinstance(each, Outcome)]


async def test_a_provider_that_has_not_said_a_word_is_told_once() -> None:
    gate = Gate()
    stage = Stage(ScriptedLlm([gate]))

    await interrupted(stage, stage.turn(), gate)

    assert stage.llm.endings == ["CancelledError"]


async def test_a_provider_that_writes_a_summary_is_told_once() -> None:
    gate = Gate()
    stage = Stage(ScriptedLlm([gate]))
    history = (
        user(1, "one"),
        assistant(2, "two"),
        user(3, "three", turn=2),
        assistant(4, "four", turn=2),
        user(5, "five", turn=3),
    )
    turn = stage.turn(
        *history,
        turn=3,
        model=replace(MODEL, context_window=10),
        last_usage=Usage(input=10),
    )

    assert await interrupted(stage, turn, gate) == []
    assert stage.llm.endings == ["CancelledError"]


async def test_a_tool_that_runs_is_told_once_and_the_next_one_never_starts() -> None:
    gate = Gate()
    stage = Stage(
        ScriptedLlm(looks("c1", "c2"), says("Never.")),
        StandInToolbox({"look": StandInTool(gate=gate)}),
    )

    await interrupted(stage, stage.turn(), gate)

    assert stage.toolbox.cancelled == ["c1"]
    assert stage.toolbox.done == ["plan c1", "run c1"]
    assert len(stage.llm.requests) == 1


WRITES = {"look": StandInTool(tool_class=ToolClass.WRITE)}


async def test_a_question_that_waits_is_told_once_and_nothing_runs() -> None:
    gate = Gate()
    approver = StandInApprover(ApprovalMode.ASK, gate, ApprovalState.ALLOWED)
    stage = Stage(ScriptedLlm(looks("c1")), StandInToolbox(WRITES), approver)

    await interrupted(stage, stage.turn(), gate)

    assert len(approver.cancelled) == 1
    assert stage.toolbox.done == ["plan c1"]


async def test_a_question_about_money_that_waits_is_told_once_and_nothing_is_sent() -> None:
    gate = Gate()
    approver = StandInApprover(ApprovalMode.ASK, gate, ApprovalState.ALLOWED)
    stage = Stage(ScriptedLlm(says("Never.")), approver=approver)
    priced = replace(MODEL, prices=Prices(input=1_000_000, output=1_000_000))
    budget = Budget(microcents=1, on_exceed=OnExceed.PAUSE)

    await interrupted(stage, stage.turn(model=priced, budget=budget), gate)

    assert len(approver.cancelled) == 1
    assert stage.llm.requests == []


async def test_a_pause_between_two_attempts_is_over_at_once() -> None:
    stage = Stage(ScriptedLlm(fails(FailureKind.RATE_LIMIT, retry_after=14.0)))
    turn = replace(stage.turn(), agent=an_agent(LlmRuntime(retry=Retry(max=2))))
    is_closed = asyncio.Event()

    async def write(batch: Batch) -> None:
        await stage.write(batch)
        if len(stage.paper.batches) == 2:
            is_closed.set()

    task = asyncio.create_task(run_turn(stage.engine, turn, write))
    await is_closed.wait()
    # The task comes to its pause and no further.
    await asyncio.sleep(0)
    task.cancel()
    async with asyncio.timeout(10):
        with pytest.raises(asyncio.CancelledError):
            await task

    assert len(stage.paper.batches) == 2
    assert len(stage.llm.requests) == 1


@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize("number", range(1, 5))
async def test_cancelling_the_write_of_a_batch_ends_the_turn_there(
    number: int, is_written: bool
) -> None:
    stage = Stage(ScriptedLlm(looks("c1"), says("Seen.")))
    gate = Gate()

    async def write(batch: Batch) -> None:
        if is_written:
            await stage.write(batch)
        if len(stage.paper.batches) == number - (not is_written):
            await gate.passed()
        if not is_written:
            await stage.write(batch)

    task = asyncio.create_task(run_turn(stage.engine, stage.turn(), write))
    await gate.reached()
    requests, done = len(stage.llm.requests), list(stage.toolbox.done)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert len(stage.paper.batches) == number - (not is_written)
    assert (len(stage.llm.requests), stage.toolbox.done) == (requests, done)
    assert stage.paper.faults == []


class Deaf(StandInToolbox):
    """A toolbox that does not listen when it is cancelled, and finishes its work."""

    async def run(self, place: ToolWorkspace, planned: PlannedCall) -> CallOutcome:
        try:
            return await super().run(place, planned)
        except asyncio.CancelledError:
            return CallOutcome(status=ResultStatus.OK, result="done all the same")


async def test_a_result_that_was_complete_is_kept_and_nothing_comes_after_it() -> None:
    gate = Gate()
    toolbox = Deaf({"look": StandInTool(gate=gate)})
    stage = Stage(ScriptedLlm(looks("c1", "c2"), says("Never.")), toolbox)
    task = asyncio.create_task(stage.play(stage.turn()))
    await gate.reached()

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert "done all the same" in repr(stage.paper.batches[-1])
    assert "run c2" not in toolbox.done
    assert len(stage.llm.requests) == 1


async def test_no_request_is_sent_after_a_signal_that_a_tool_did_not_hear() -> None:
    gate = Gate()
    toolbox = Deaf({"look": StandInTool(gate=gate)})
    stage = Stage(ScriptedLlm(looks("c1"), says("Never.")), toolbox)
    task = asyncio.create_task(stage.play(stage.turn()))
    await gate.reached()

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert len(stage.llm.requests) == 1


async def test_an_allow_that_arrives_with_the_signal_runs_nothing() -> None:
    gate = Gate()

    class DeafApprover(StandInApprover):
        async def decision(self, question: Any) -> Any:
            try:
                return await super().decision(question)
            except asyncio.CancelledError:
                gate.open()
                self._answers.insert(0, ApprovalState.ALLOWED)
                return await super().decision(question)

    approver = DeafApprover(ApprovalMode.ASK, gate)
    stage = Stage(ScriptedLlm(looks("c1")), StandInToolbox(WRITES), approver)

    await interrupted(stage, stage.turn(), gate)

    assert stage.toolbox.done == ["plan c1"]


async def test_a_provider_that_does_not_listen_is_not_listened_to() -> None:
    reached = Gate()

    async def deaf() -> AsyncGenerator[LlmDelta, None]:
        yield LlmTextDelta(text="a")
        with suppress(asyncio.CancelledError):
            await reached.passed()
        while True:
            yield LlmTextDelta(text="b" * 300)

    async def write(_: object) -> bool:
        return False

    async with asyncio.timeout(10):
        reader = asyncio.create_task(coalesce(deaf(), write))
        await reached.reached()
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader


async def test_a_provider_that_cancels_itself_has_failed_and_the_turn_goes_on() -> None:
    stage = Stage(ScriptedLlm([asyncio.CancelledError()]))

    batches = await stage.play(stage.turn())

    assert batches[-1][-1].failure.code == "internal"  # type: ignore[union-attr]


async def test_offers_that_cancel_themselves_have_failed() -> None:
    stage = Stage(ScriptedLlm(says("Never.")))
    stage.toolbox.offering = asyncio.CancelledError()

    [[outcome]] = await stage.play(stage.turn())

    assert outcome.failure.code == "internal"  # type: ignore[union-attr]


@pytest.mark.parametrize("where", ["refusal", "acts"])
async def test_a_tool_that_cancels_itself_has_failed_and_the_turn_goes_on(where: str) -> None:
    itself = asyncio.CancelledError()
    tools = {"refusal": StandInTool(refusal=itself), "acts": StandInTool(acts=raising(itself))}
    stage = Stage(ScriptedLlm(looks("c1"), says("Done.")), StandInToolbox({"look": tools[where]}))

    batches = await stage.play(stage.turn())

    [ended] = [draft for draft in stage.paper.drafts if isinstance(draft, ToolEnded)]
    assert (ended.status, ended.failure and ended.failure.code) == ("error", "failed")
    assert batches[-1][-1].stop_reason == "stop"  # type: ignore[union-attr]


async def test_the_signal_is_passed_on_wherever_it_was_lost() -> None:
    async def lose_it() -> str:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        stop_if_cancelled()
        return "not stopped"

    task = asyncio.create_task(lose_it())
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_shelf_that_is_slow_keeps_a_turn_from_going_on_with_a_lost_result() -> None:
    gate = Gate()

    class SlowShelf(StandInShelf):
        async def keep(self, content: bytes, *, mime_type: str = "text/plain") -> str:
            await gate.passed()
            return await super().keep(content, mime_type=mime_type)

    stage = Stage(
        ScriptedLlm(looks("c1"), says("Never.")),
        StandInToolbox({"look": StandInTool(acts=lambda _: "x" * (LARGEST + 1))}),
    )
    stage.shelf = SlowShelf()

    await interrupted(stage, stage.turn(), gate)

    assert len(stage.llm.requests) == 1


async def test_a_result_that_is_being_put_away_is_written_in_spite_of_the_signal() -> None:
    gate = Gate()

    class SlowShelf(StandInShelf):
        async def keep(self, content: bytes, *, mime_type: str = "text/plain") -> str:
            await gate.passed()
            return await super().keep(content, mime_type=mime_type)

    stage = Stage(
        ScriptedLlm(looks("c1", "c2"), says("Never.")),
        StandInToolbox({"look": StandInTool(acts=lambda _: "x" * (LARGEST + 1))}),
    )
    stage.shelf = SlowShelf()
    task = asyncio.create_task(stage.play(stage.turn()))
    await gate.reached()

    task.cancel()
    await asyncio.sleep(0)
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await task

    told = stage.paper.batches[-1][0]
    assert isinstance(told, ToolEnded)
    assert told.call_id == "c1"
    # Nobody is asked about the next call, and no model about anything.
    assert stage.toolbox.done == ["plan c1", "run c1"]
    assert len(stage.llm.requests) == 1


async def test_the_last_result_is_not_held_back_for_a_request_that_will_not_be_made() -> None:
    gate = Gate()

    class SlowShelf(StandInShelf):
        async def keep(self, content: bytes, *, mime_type: str = "text/plain") -> str:
            await gate.passed()
            return await super().keep(content, mime_type=mime_type)

    stage = Stage(
        ScriptedLlm(looks("c1"), says("Never.")),
        StandInToolbox({"look": StandInTool(acts=lambda _: b"bytes")}),
    )
    stage.shelf = SlowShelf()
    task = asyncio.create_task(stage.play(stage.turn()))
    await gate.reached()

    task.cancel()
    await asyncio.sleep(0)
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert isinstance(stage.paper.batches[-1][0], ToolEnded)
    assert len(stage.llm.requests) == 1


async def test_a_second_signal_is_not_waited_with() -> None:
    never = asyncio.Event()
    task = asyncio.create_task(finish_despite_cancel(never.wait()))
    await asyncio.sleep(0)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0)

    async with asyncio.timeout(PATIENCE):
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_what_the_store_raises_is_for_whoever_writes_to_it() -> None:
    class FullShelf(StandInShelf):
        async def keep(self, content: bytes, *, mime_type: str = "text/plain") -> str:
            raise StorageFull(Code.STORAGE_FULL, "The disk is full; free some space.")

    stage = Stage(
        ScriptedLlm(looks("c1"), says("Never.")),
        StandInToolbox({"look": StandInTool(acts=lambda _: "x" * (LARGEST + 1))}),
    )
    stage.shelf = FullShelf()

    with pytest.raises(StorageFull):
        await stage.play(stage.turn())

    assert len(stage.llm.requests) == 1


async def test_a_tool_that_raises_what_ends_programs_ends_the_turn() -> None:
    tools = {"look": StandInTool(acts=raising(SystemExit()))}
    stage = Stage(ScriptedLlm(looks("c1")), StandInToolbox(tools))

    with pytest.raises(SystemExit):
        await stage.play(stage.turn())


def test_the_stand_ins_see_what_the_tests_claim() -> None:
    request = LlmRequest(model=MODEL, messages=(), ordinal=1)
    asked = RequestedCall(id="c1", name="look", arguments={}, idempotency_key="")
    paper = Stage(ScriptedLlm()).paper

    paper.require_open_step(request)
    paper.require_start(asked)
    paper.acted.append("c1")
    paper.require_results("something")

    assert paper.faults == [
        "request 1 left before its step was started",
        "c1 acted before its start",
        "c1 acted before its intent",
        "something came before the result of c1",
    ]
