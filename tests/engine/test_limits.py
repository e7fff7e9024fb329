"""How far a turn may go: rounds, fruitless rounds, calls in a step, text in a step."""

import pytest

from holdfast.domain.calls import Call
from holdfast.domain.costs import Usage
from holdfast.domain.drafts import CostDraft, MessageDraft, Outcome
from holdfast.domain.events import Failure, FailureCode, StepFailed
from holdfast.domain.ids import CallId, SessionId
from holdfast.domain.messages import Message, ResultStatus
from holdfast.domain.models import model_of
from holdfast.domain.sessions import StopReason
from holdfast.domain.tools import ResultCode
from holdfast.engine.streaming import CALLS_MOST, LONGEST
from holdfast.ports.llm import (
    CallArguments,
    CallEnded,
    CallStarted,
    LlmDelta,
    LlmReasoningDelta,
    LlmTextDelta,
)
from holdfast.ports.runtime import Limits
from holdfast.ports.tools import CallOutcome
from tests.engine.builders import MODEL, call, result, user
from tests.engine.scripts import (
    USAGE,
    bad,
    cost,
    ended,
    good,
    intent,
    looks,
    named,
    says,
    start,
    started,
)
from tests.engine.stand_ins import ScriptedLlm, Stage, StandInTool, StandInToolbox
from tests.marks import demands, each_case

pytestmark = pytest.mark.anyio

ROUNDS_USED = Outcome(
    stop_reason=StopReason.TURN_LIMIT,
    failure=Failure(
        code=FailureCode.TURN_LIMIT,
        message="The turn has used all its tool rounds. Send a message to continue.",
    ),
)
TOOLS_FAIL = Outcome(
    stop_reason=StopReason.ERROR,
    failure=Failure(
        code=FailureCode.TOOL_FAILED,
        message="No tool call has succeeded for five rounds, so the turn was stopped. Check "
        "the results, then send a message with how to continue.",
    ),
)


def skipped(call_id: str) -> tuple[object, ...]:
    return bad(
        call_id,
        ResultCode.LIMIT,
        "the turn has used all its tool rounds",
        status=ResultStatus.SKIPPED,
    )


@demands("S0-118")
async def test_sixteen_rounds_are_seventeen_requests_and_no_more() -> None:
    scripts = [looks(f"c{number}") for number in range(1, 31)]
    stage = Stage(ScriptedLlm(*scripts))

    batches = await stage.play(stage.turn())

    assert len(stage.llm.requests) == 17
    assert stage.toolbox.done[-1] == "run c16"
    assert named(batches)[-1] == (
        ended(17, "id33"),
        intent("c17"),
        cost("id34"),
        *skipped("c17"),
        ROUNDS_USED,
    )


async def test_every_call_of_the_step_too_many_is_answered() -> None:
    stage = Stage(ScriptedLlm(looks("c1"), looks("c2", "c3")))

    batches = await stage.play(stage.turn(limits=Limits(tool_rounds=1)))

    assert named(batches) == [
        (started(1, "id1"),),
        (ended(1, "id1"), intent("c1"), cost("id2"), *start("c1")),
        (*good("c1"), started(2, "id3")),
        (
            ended(2, "id3"),
            intent("c2"),
            intent("c3"),
            cost("id4"),
            *skipped("c2"),
            *skipped("c3"),
            ROUNDS_USED,
        ),
    ]


async def test_a_turn_may_answer_after_its_last_round() -> None:
    stage = Stage(ScriptedLlm(looks("c1"), says("Seen.")))

    batches = await stage.play(stage.turn(limits=Limits(tool_rounds=1)))

    assert batches[-1][-1] == Outcome(stop_reason=StopReason.STOP)


async def test_no_round_at_all_may_be_allowed() -> None:
    stage = Stage(ScriptedLlm(looks("c1")))

    batches = await stage.play(stage.turn(limits=Limits(tool_rounds=0)))

    assert (batches[-1][-1], stage.toolbox.done) == (ROUNDS_USED, [])


def failing_but(good_calls: set[str]) -> StandInToolbox:
    """Return tools that fail, but for these calls."""
    failed = CallOutcome(status=ResultStatus.ERROR)
    tool = StandInTool(acts=lambda asked: "well" if asked.id in good_calls else failed)
    return StandInToolbox({"look": tool})


async def test_five_fruitless_rounds_end_the_turn() -> None:
    scripts = [looks(f"a{number}", f"b{number}") for number in range(1, 31)]
    stage = Stage(ScriptedLlm(*scripts), failing_but(set()))

    batches = await stage.play(stage.turn())

    assert batches[-1][-1] == TOOLS_FAIL
    assert len(stage.llm.requests) == 5
    assert stage.toolbox.done[-1] == "run b5"


@each_case("lucky", ["a1", "b1", "a4", "b5", "a5"])
async def test_one_success_lets_a_turn_go_on_for_five_more(lucky: str) -> None:
    scripts = [looks(f"a{number}", f"b{number}") for number in range(1, 31)]
    stage = Stage(ScriptedLlm(*scripts), failing_but({lucky}))

    batches = await stage.play(stage.turn())

    assert batches[-1][-1] == TOOLS_FAIL
    assert len(stage.llm.requests) == int(lucky[1]) + 5


async def test_a_fifth_round_that_succeeds_is_seen_before_the_turn_is_judged() -> None:
    scripts = [*(looks(f"c{number}") for number in range(1, 6)), says("At last.")]
    stage = Stage(ScriptedLlm(*scripts), failing_but({"c5"}))

    batches = await stage.play(stage.turn())

    assert batches[-1][-1] == Outcome(stop_reason=StopReason.STOP)


def fruitless(rounds: int) -> list[Message]:
    rows = [user(1, "Hello")]
    for number in range(rounds):
        rows.append(call(len(rows) + 1, f"c{number}"))
        rows.append(result(len(rows) + 1, f"c{number}", status=ResultStatus.DENIED))
    return rows


async def test_fruitless_rounds_before_a_crash_count() -> None:
    stage = Stage(ScriptedLlm(says("Never.")))

    assert await stage.play(stage.turn(*fruitless(5))) == [(TOOLS_FAIL,)]
    assert stage.llm.requests == []


async def test_rounds_before_a_crash_count() -> None:
    stage = Stage(ScriptedLlm(looks("new")))
    limits = Limits(tool_rounds=3)

    batches = await stage.play(stage.turn(*fruitless(3), limits=limits))

    assert batches[-1][-1] == ROUNDS_USED


async def test_what_failed_in_an_earlier_turn_does_not_count() -> None:
    stage = Stage(ScriptedLlm(says("Hello.")))
    history = [*fruitless(5), user(12, "Again", turn=2)]

    batches = await stage.play(stage.turn(*history, turn=2))

    assert batches[-1][-1] == Outcome(stop_reason=StopReason.STOP)


ENDLESS = Failure(
    code=FailureCode.PROVIDER_UNAVAILABLE,
    message="The provider's answer was longer than 4 MiB, or had more than 128 tool calls. "
    "Send a message to try again.",
)
FAILED = Outcome(stop_reason=StopReason.ERROR, failure=ENDLESS)


async def test_as_many_calls_as_are_allowed_are_run() -> None:
    stage = Stage(ScriptedLlm(looks(*(f"c{number}" for number in range(CALLS_MOST))), says("!")))

    await stage.play(stage.turn())

    assert len(stage.toolbox.keys) == CALLS_MOST == 128


async def test_one_call_more_fails_the_step_and_runs_nothing() -> None:
    stage = Stage(ScriptedLlm(looks(*(f"c{number}" for number in range(CALLS_MOST + 1)))))

    batches = named(await stage.play(stage.turn()))

    assert batches == [
        (started(1, "id1"),),
        (StepFailed(step=1, failure=ENDLESS), cost("id2", Usage()), FAILED),
    ]
    assert stage.toolbox.done == []


@pytest.mark.parametrize(
    "script",
    [
        [CallStarted(id=f"c{number}", name="look") for number in range(100_000)],
        [
            CallStarted(id="c", name="look"),
            *[CallArguments(id="c", text="x" * 1_000)] * 10_000,
            CallEnded(id="c"),
        ],
    ],
)
async def test_calls_without_end_are_not_listened_to_without_end(script: list[LlmDelta]) -> None:
    stage = Stage(ScriptedLlm(script))

    batches = await stage.play(stage.turn())

    assert batches[-1][-1] == FAILED
    assert stage.llm.endings == ["GeneratorExit"]


@pytest.mark.parametrize("kind", [LlmTextDelta, LlmReasoningDelta])
async def test_text_without_end_is_kept_up_to_its_limit_and_fails_the_step(
    kind: type[LlmTextDelta] | type[LlmReasoningDelta],
) -> None:
    stage = Stage(ScriptedLlm([kind(text="x" * 65_536)] * 1_000))

    batches = await stage.play(stage.turn())

    assert batches[-1][-1] == FAILED
    assert batches[-1][-4] == StepFailed(step=1, failure=ENDLESS)
    rows = [draft for batch in batches for draft in batch if isinstance(draft, MessageDraft)]
    assert [len(part.text) for row in rows for part in row.parts] == [LONGEST]  # type: ignore[union-attr]
    assert stage.llm.endings == ["GeneratorExit"]


async def test_a_text_of_exactly_the_limit_is_an_answer() -> None:
    text = [LlmTextDelta(text="x" * (LONGEST >> 2))] * 4
    stage = Stage(ScriptedLlm([*text, *says("")]))

    batches = await stage.play(stage.turn())

    assert LONGEST == 4 << 20
    assert batches[-1][-1] == Outcome(stop_reason=StopReason.STOP)


async def test_one_huge_piece_is_not_written_down() -> None:
    stage = Stage(ScriptedLlm([LlmTextDelta(text="x" * (LONGEST + 1)), *says("")]))

    batches = await stage.play(stage.turn())

    assert batches[-1][-1] == FAILED
    assert all(len(repr(draft)) < 1_000 for batch in batches for draft in batch)


async def test_arguments_that_never_say_anything_take_no_memory() -> None:
    nothing = [CallArguments(id="c", text="")] * 1_000
    script = [CallStarted(id="c", name="look"), *nothing, CallEnded(id="c"), *says("")]
    stage = Stage(ScriptedLlm(script, says("Well.")))

    await stage.play(stage.turn())

    assert stage.toolbox.done == ["plan c", "run c"]


async def test_an_answer_too_long_is_an_answer_that_somebody_else_may_give() -> None:
    stage = Stage(ScriptedLlm(looks(*map(str, range(CALLS_MOST + 1))), says("Well.")))
    other = model_of("other:model")

    batches = await stage.play(stage.turn(models=(MODEL, other)))

    assert [request.model for request in stage.llm.requests] == [MODEL, other]
    assert batches[1][0] == StepFailed(step=1, failure=ENDLESS, next_model_id=other.id)
    assert batches[-1][-1] == Outcome(stop_reason=StopReason.STOP)


def open_calls(*ids: str) -> tuple[Call, ...]:
    return tuple(
        Call(
            id=CallId(each),
            session_id=SessionId("session"),
            turn=1,
            name="look",
            arguments={"at": each},
            idempotency_key=f"session:{each}",
        )
        for each in ids
    )


async def test_a_retried_call_asks_no_model() -> None:
    stage = Stage(ScriptedLlm(says("Never.")))
    history = [user(1, "Hello"), call(2, "c1"), call(3, "again", turn=2)]

    batches = await stage.play(stage.turn(*history, turn=2, calls=open_calls("again")))

    assert batches == [
        start("again"),
        (*good("again"), Outcome(stop_reason=StopReason.STOP)),
    ]
    assert stage.llm.requests == []


async def test_costs_are_of_their_requests_only() -> None:
    stage = Stage(ScriptedLlm(looks("c1"), says("Seen.")))

    batches = await stage.play(stage.turn())

    costs = [draft for batch in batches for draft in batch if isinstance(draft, CostDraft)]
    assert [each.usage for each in costs] == [USAGE, USAGE]
    assert len({each.request_id for each in costs}) == len(stage.llm.requests) == 2
