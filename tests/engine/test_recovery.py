"""A turn that is killed anywhere and played on: the same transcript, and no effect twice.

A kill is the end of the list of batches, at every place: before the next thing was done, and
after it was done but before anything about it was written down.
"""

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.agents import LlmRuntime, Recovery, Retry
from holdfast.domain.approvals import (
    Approval,
    ApprovalContext,
    ApprovalMode,
    ApprovalState,
    Question,
)
from holdfast.domain.calls import Call, CallState
from holdfast.domain.costs import Usage
from holdfast.domain.drafts import Draft, Outcome
from holdfast.domain.events import ToolStarted
from holdfast.domain.ids import CallId, MessageId, SessionId
from holdfast.domain.messages import Message, ResultStatus, Role, ToolResult
from holdfast.domain.models import Model
from holdfast.domain.sessions import StopReason
from holdfast.domain.tools import Effect, ToolClass
from holdfast.domain.waits import Wait, WaitReason
from holdfast.engine.turn_state import THOUGHTS_MOST, PausedThoughts, TurnState
from holdfast.ports.llm import (
    FailureKind,
    LlmDelta,
    LlmReasoning,
    LlmReasoningDelta,
    LlmTextDelta,
    ReasoningEnded,
)
from holdfast.ports.runtime import TurnInput, TurnPausedError
from tests.engine.builders import (
    MODEL,
    Batch,
    CountingRandomness,
    an_agent,
    assistant,
    call,
    result,
    run_turn,
    user,
)
from tests.engine.folds import Disk
from tests.engine.scripts import asks, fails, good, looks, named, says, start, started
from tests.engine.stand_ins import (
    LoopClock,
    ScriptedLlm,
    Stage,
    StandInApprover,
    StandInTool,
    StandInToolbox,
    an_approval,
)
from tests.engine.virtual_time import VirtualTimeLoop
from tests.marks import each_case

pytestmark = pytest.mark.anyio

SAFE = {
    "look": StandInTool(),
    "set": StandInTool(effect=Effect.IDEMPOTENT),
    "ask": StandInTool(effect=Effect.IDEMPOTENT, tool_class=ToolClass.COMMIT),
}
UNSAFE = {**SAFE, "push": StandInTool(effect=Effect.UNSAFE)}


class DurableApprover(StandInApprover):
    """Answers yes once asked; knows what was asked before, because the paper does."""

    async def standing(self, question: Question) -> ApprovalContext:
        return ApprovalContext(mode=ApprovalMode.AUTO, earlier=self._earlier(question))

    async def decision(self, question: Question) -> Approval:
        self.paper.require_question(question)
        self.asked.append(question)
        return an_approval(question, ApprovalState.ALLOWED)

    def _earlier(self, question: Question) -> Approval | None:
        same = [
            each
            for each in self.paper.drafts
            if isinstance(each, Question)
            and (each.call_id, each.digest) == (question.call_id, question.digest)
        ]
        return an_approval(same[-1]) if same else None


class Story(Struct, frozen=True, kw_only=True):
    """What providers and tools do in a turn, whoever plays it and however often."""

    scripts: tuple[list[LlmDelta], ...]
    tools: dict[str, StandInTool]
    history: tuple[Message, ...] = ()
    turn: int = 1
    models: tuple[Model, ...] = (MODEL,)


class Ended(Struct, frozen=True, kw_only=True):
    """How a story came out: what is on disk, and what was done."""

    disk: Disk
    batches: list[tuple[Draft, ...]]
    acts: list[str]
    keys: dict[str, set[str]]


async def told(story: Story, *cuts: tuple[int, bool]) -> Ended:
    """Play a story to its end, killed once for each cut: after so many batches, late or early."""
    disk, randomness = None, CountingRandomness()
    batches, acts, keys = [], [], {}
    for cut in [*cuts, None]:
        stage = Stage(
            ScriptedLlm(*story.scripts),
            StandInToolbox(story.tools),
            DurableApprover(),
            LoopClock(),
            randomness,
        )
        stage.paper.batches = batches
        first = stage.turn(
            *story.history,
            turn=story.turn,
            models=story.models,
            agent=an_agent(LlmRuntime(retry=Retry(max=3))),
        )
        disk = disk or Disk(first)
        turn = first if not batches else disk.recovered()
        if turn is not None:
            turn = replace(turn, workspace=first.workspace, approver=first.approver)
            await _until(stage, turn, disk, cut)
        acts += [each for each in stage.toolbox.done if each.startswith("run")]
        for act, key in zip(
            [each for each in stage.toolbox.done if each.startswith("run")],
            stage.toolbox.keys,
            strict=True,
        ):
            keys.setdefault(act, set()).add(key)
        assert stage.paper.faults == []
        if disk.outcome is not None:
            break
    assert disk is not None
    return Ended(disk=disk, batches=batches, acts=acts, keys=keys)


class KilledError(BaseException):
    """The process ends here."""


async def _until(stage: Stage, turn: TurnInput, disk: Disk, cut: tuple[int, bool] | None) -> None:
    """Play until so many batches are written; late means that the next one was made and lost."""
    stage.paper.known |= {call.id for call in turn.calls}
    if cut == (0, False):
        return
    written = 0

    async def write(batch: Batch) -> None:
        nonlocal written
        if cut is not None and written == cut[0]:
            raise KilledError
        disk.write(batch)
        await stage.write(batch)
        # What a killed process did is not held against the next one.
        written += 1
        if (written, False) == cut:
            raise KilledError

    with suppress(KilledError):
        await run_turn(stage.engine, turn, write)


TWO_ROUNDS = Story(
    scripts=(
        looks("a1", "a2", text="Let me look."),
        asks(("b1", "set", '{"x":1}'), ("b2", "ask", "{}"), ("b3", "look", "{}")),
        says("Well. " * 100),
    ),
    tools=SAFE,
)
FAILING = Story(
    scripts=(
        fails(FailureKind.UNAVAILABLE),
        looks("a1"),
        fails(FailureKind.RATE_LIMIT, retry_after=3.0),
        fails(FailureKind.UNAVAILABLE),
        says("At last."),
    ),
    tools=SAFE,
)
WINDOWED = replace(MODEL, context_window=100)
COMPACTING = Story(
    scripts=(
        looks("a1", usage=Usage(input=90)),
        says("They talked."),
        looks("a2", usage=Usage(input=10)),
        says("Done."),
    ),
    tools=SAFE,
    history=(
        user(1, "one"),
        assistant(2, "two"),
        user(3, "three", turn=2),
        assistant(4, "four", turn=2),
        user(5, "five", turn=3),
    ),
    turn=3,
    models=(WINDOWED,),
)
OVERFLOWING = Story(
    scripts=(
        fails(FailureKind.TOO_LONG),
        says("They talked."),
        looks("a2"),
        says("Done."),
    ),
    tools=SAFE,
    history=COMPACTING.history,
    turn=3,
)
STORIES = {
    "two rounds": TWO_ROUNDS,
    "failing": FAILING,
    "compacting": COMPACTING,
    "overflowing": OVERFLOWING,
}


def play(story: Story, *cuts: tuple[int, bool]) -> Ended:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(told(story, *cuts))


def require_same(killed: Ended, unkilled: Ended) -> None:
    """Refuse a difference in what people see; costs may come twice, effects may not."""
    assert killed.disk.transcript == unkilled.disk.transcript
    assert killed.disk.outcome == unkilled.disk.outcome
    assert killed.disk.calls.keys() == unkilled.disk.calls.keys()
    assert set(killed.acts) == set(unkilled.acts)
    # A call that runs again is known by the same key.
    assert killed.keys == unkilled.keys
    requests = [cost.request_id for cost in killed.disk.costs]
    assert len(requests) == len(set(requests))


@each_case("is_late", [False, True])
@each_case("name", STORIES)
def test_a_turn_killed_anywhere_comes_to_the_same_end(name: str, is_late: bool) -> None:
    story = STORIES[name]
    unkilled = play(story)
    assert unkilled.disk.outcome == Outcome(stop_reason=StopReason.STOP)

    for cut in range(len(unkilled.batches)):
        require_same(play(story, (cut, is_late)), unkilled)


CUTS = st.lists(st.tuples(st.integers(0, 8), st.booleans()), max_size=6)


@given(st.sampled_from(sorted(STORIES)), CUTS)
def test_a_turn_killed_again_and_again_comes_to_the_same_end(
    name: str, cuts: list[tuple[int, bool]]
) -> None:
    require_same(play(STORIES[name], *cuts), play(STORIES[name]))


PUSHING = Story(
    scripts=(
        asks(("a1", "push", "{}"), ("a2", "push", "{}"), text="Let me push."),
        asks(("b1", "look", "{}"), ("b2", "push", "{}")),
        says("Pushed."),
    ),
    tools=UNSAFE,
)


def unknown_calls(ended: Ended) -> list[str]:
    return [
        part.call_id
        for row in ended.disk.rows
        for part in row.parts
        if isinstance(part, ToolResult) and part.status is ResultStatus.UNKNOWN
    ]


@pytest.mark.parametrize("is_late", [False, True])
def test_an_unsafe_call_is_never_run_twice_and_only_it_ends_the_turn(is_late: bool) -> None:
    unkilled = play(PUSHING)

    for cut in range(len(unkilled.batches)):
        killed = play(PUSHING, (cut, is_late))

        pushes = [act for act in killed.acts if act != "run b1"]
        assert len(pushes) == len(set(pushes))
        if unknown := unknown_calls(killed):
            assert killed.disk.outcome is not None
            assert killed.disk.outcome.stop_reason is StopReason.INTERRUPTED
            # On disk the call was started and not ended; nobody can know more.
            [newest] = unkilled.batches[cut - 1]
            assert isinstance(newest, ToolStarted)
            assert newest.call_id == unknown[0]
        else:
            require_same(killed, unkilled)


@given(CUTS)
def test_no_number_of_kills_runs_an_unsafe_call_twice(cuts: list[tuple[int, bool]]) -> None:
    ended = play(PUSHING, *cuts)

    pushes = [act for act in ended.acts if act != "run b1"]
    assert len(pushes) == len(set(pushes))
    # Every call has one result, whatever happened.
    assert not [call for call in ended.disk.calls.values() if call.state is CallState.STARTED]


def open_call(call_id: str, state: CallState, effect: Effect = Effect.PURE) -> Call:
    return Call(
        id=CallId(call_id),
        session_id=SessionId("session"),
        turn=1,
        name="look",
        arguments={"at": call_id},
        state=state,
        effect=effect,
        idempotency_key=f"session:{call_id}",
    )


@pytest.mark.parametrize("state", [CallState.INTENDED, CallState.STARTED])
@pytest.mark.parametrize("effect", [Effect.PURE, Effect.IDEMPOTENT])
async def test_an_open_call_is_run_before_any_model_is_asked(
    state: CallState, effect: Effect
) -> None:
    stage = Stage(ScriptedLlm(says("Seen.")))
    history = [user(1, "Hello"), call(2, "c1"), call(3, "c2"), result(4, "c1", "x"), call(5, "c3")]
    calls = [
        open_call("c1", CallState.FINISHED),
        open_call("c2", state, effect),
        open_call("c3", CallState.INTENDED, effect),
    ]

    batches = await stage.play(stage.turn(*history, calls=tuple(calls), step=2, ordinal=2))

    assert named(batches)[:4] == [
        start("c2"),
        good("c2"),
        start("c3"),
        good("c3"),
    ]
    assert named(batches)[4] == (started(2, "id1"),)
    assert stage.toolbox.keys == ["session:c2", "session:c3"]
    assert [request.ordinal for request in stage.llm.requests] == [2]


@each_case("state", [CallState.FINISHED, CallState.UNKNOWN, CallState.SETTLED])
async def test_a_call_that_has_its_result_is_left_alone(state: CallState) -> None:
    stage = Stage(ScriptedLlm(says("Seen.")))
    history = [user(1, "Hello"), call(2, "c1"), result(3, "c1", "x")]

    await stage.play(stage.turn(*history, calls=(open_call("c1", state),), step=2, ordinal=2))

    assert stage.toolbox.done == []


async def test_a_question_that_waits_is_not_asked_twice() -> None:
    tools = {"look": StandInTool(tool_class=ToolClass.COMMIT)}
    first = Stage(
        ScriptedLlm(looks("c1"), says("Seen.")),
        StandInToolbox(tools),
        StandInApprover(ApprovalMode.ASK, ApprovalState.ALLOWED),
    )
    batches = await first.play(first.turn())
    [question] = [each for batch in batches for each in batch if isinstance(each, Question)]
    approver = StandInApprover(
        ApprovalMode.ASK, ApprovalState.ALLOWED, earlier=an_approval(question)
    )
    second = Stage(ScriptedLlm(says("Seen.")), StandInToolbox(tools), approver)
    calls = (open_call("c1", CallState.INTENDED),)

    played = await second.play(second.turn(user(1, "Hello"), call(2, "c1"), calls=calls))

    assert approver.asked == [question]
    assert not [each for batch in played for each in batch if isinstance(each, Question)]
    assert second.toolbox.done == ["plan c1", "run c1"]


async def test_a_model_that_was_cut_off_is_asked_again_under_a_new_step() -> None:
    story = Story(scripts=([LlmTextDelta(text="x" * 300), *says("!")],), tools=SAFE)

    ended = await told(story, (2, False))

    steps = [each for batch in ended.batches for each in batch if "StepStarted" in repr(each)]
    assert [each.step for each in steps] == [1, 2]  # type: ignore[union-attr]
    assert len({each.message_id for each in steps}) == 2  # type: ignore[union-attr]
    assert ended.disk.transcript[1:] == [(1, Role.ASSISTANT, ended.disk.rows[-1].parts)]
    assert ended.disk.rows[-1].text == "x" * 300 + "!"


async def test_an_agent_that_continues_goes_on_with_the_unknown_result() -> None:
    disk = Disk(Stage(ScriptedLlm()).turn())
    # A process that dies while the first push runs leaves its start, and no result.
    killed = (await told(PUSHING)).batches[:3]
    for batch in killed:
        disk.write(batch)

    turn = disk.recovered(Recovery.CONTINUE)

    assert turn is not None
    stage = Stage(ScriptedLlm(*PUSHING.scripts), StandInToolbox(UNSAFE))
    stage.paper.batches = killed
    batches = await stage.play(
        replace(turn, workspace=stage.place(), approver=stage.approver, ordinal=3)
    )
    assert batches[-1][-1] == Outcome(stop_reason=StopReason.STOP)
    assert "outcome unknown" in repr(stage.llm.requests[0].messages)
    assert stage.toolbox.done == ["plan a2", "run a2"]


class PausingApprover(DurableApprover):
    """Does not wait for its first answer."""

    async def decision(self, question: Question) -> Approval:
        if not self.asked:
            self.asked.append(question)
            raise TurnPausedError(Wait(reason=WaitReason.APPROVAL, text="May I?"))
        return await super().decision(question)


async def test_a_paused_turn_goes_on_with_the_thoughts_that_are_not_stored() -> None:
    first = [LlmReasoningDelta(text="Hm."), ReasoningEnded(signature="signed")]
    scripts = [*first, *asks(("c1", "ask", "{}"))], says("Done.")
    stage = Stage(ScriptedLlm(*scripts), StandInToolbox(SAFE), PausingApprover())
    turn = stage.turn()
    with pytest.raises(TurnPausedError):
        await stage.play(turn)
    again = Disk(turn, stage.paper.batches).recovered()
    assert again is not None
    await stage.play(again)

    answers = [each for each in stage.llm.requests[-1].messages if each.role == "assistant"]
    thought = LlmReasoning(text="Hm.", signature="signed", provider=MODEL.provider)
    assert [each.reasoning for each in answers] == [(thought,)]
    assert (stage.toolbox.done[-1], len(stage.llm.requests)) == ("run c1", 2)


def test_what_is_kept_for_paused_turns_is_bounded() -> None:
    kept = PausedThoughts()
    plays = []
    for number in range(3):
        row = replace(assistant(2, "Well."), id=MessageId(f"row-{number}"))
        play = TurnState(Stage(ScriptedLlm()).turn(user(1, "Hello"), row))
        said = LlmReasoning(text="x" * (THOUGHTS_MOST // 2), signature="s", provider="maker")
        play.thoughts[row.id] = (said,)
        kept.keep(play)
        plays.append(play)
        play.thoughts = {}
    for play in plays:
        kept.give_back(play)

    assert [len(play.thoughts) for play in plays] == [0, 0, 1]
