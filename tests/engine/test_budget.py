"""Budgets: what the next request would cost, by hand, and what happens when that is too much."""

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.domain.agents import LlmRuntime, Retry
from holdfast.domain.approvals import ApprovalMode, ApprovalState, Question, digest_call
from holdfast.domain.costs import Usage
from holdfast.domain.drafts import CostDraft, Draft, MessageDraft, Outcome, Summary
from holdfast.domain.events import Failure, FailureCode, StepStarted
from holdfast.domain.ids import ApprovalId
from holdfast.domain.messages import Message, Notice, NoticeCode, Role, Text
from holdfast.domain.models import Model, Prices, PriceTier, model_of
from holdfast.domain.sessions import Budget, OnExceed, StopReason
from holdfast.domain.tools import ToolClass
from holdfast.engine.budget import (
    PREAMBLE_TOKENS,
    TOOL_TOKENS,
    USEFUL_TOKENS,
    Estimate,
    Need,
    charge,
    estimate,
    is_affordable,
    need_aside,
    need_of,
    output_limit,
)
from holdfast.engine.streaming import ModelAnswer
from holdfast.engine.turn_state import MESSAGE_TOKENS, TurnState
from holdfast.ports.llm import (
    Failed,
    FailureKind,
    LlmMedia,
    LlmMessage,
    LlmReasoning,
    LlmRequest,
    LlmTool,
    LlmToolCall,
    StepStop,
    Stopped,
)
from holdfast.ports.runtime import Limits, TurnInput
from tests.engine.builders import (
    MODEL,
    a_row,
    a_turn,
    an_agent,
    assistant,
    user,
)
from tests.engine.scripts import fails, looks, named, says
from tests.engine.stand_ins import ScriptedLlm, Stage, StandInApprover, an_approval
from tests.marks import each_case

pytestmark = pytest.mark.anyio

# One micro-cent for a token in, two for a token out.
PRICED = replace(MODEL, prices=Prices(input=1_000_000, output=2_000_000))
BRIEF = an_agent(LlmRuntime(max_tokens=100, retry=Retry(max=1)), system_prompt="Be kind.")
UNLIMITED = an_agent(LlmRuntime(retry=Retry(max=1)), system_prompt="Be kind.")
# What a request of this conversation takes at most: 8 bytes of prompt, 5 of "Hello".
FIRST = PREAMBLE_TOKENS + 8 + MESSAGE_TOKENS + 5
# With 100 tokens out, and offered the stage's one tool.
TOOL = TOOL_TOKENS + len("look") + len("looks") + len('{"type":"object"}')
NEED = FIRST + TOOL + 200


def a_request(*messages: LlmMessage, **changes: Any) -> LlmRequest:
    told = messages or (LlmMessage(role="user", text="Hello"),)
    fields = {"model": PRICED, "system": "Be kind.", "max_tokens": 100, "ordinal": 1}
    return LlmRequest(messages=told, **fields | changes)


def needed(request: LlmRequest, *history: Message, **changes: Any) -> int:
    """Return the most tokens that a request takes in, in a turn with that history."""
    return need_of(TurnState(a_turn(*history, model=PRICED, **changes)), request).input


def test_a_first_request_is_bounded_by_its_bytes() -> None:
    assert needed(a_request()) == FIRST


def test_characters_are_counted_by_their_bytes() -> None:
    assert needed(a_request(LlmMessage(role="user", text="Hell😀"))) == FIRST - 1 + 4


def test_tools_calls_and_thoughts_are_part_of_the_bound() -> None:
    tool = LlmTool(name="look", description="looks", parameters={"type": "object"})
    called = LlmMessage(
        role="assistant",
        reasoning=(LlmReasoning(text="Hm.", signature="sig", provider="maker"),),
        calls=(LlmToolCall(id="c1", name="look", arguments={"at": "x"}),),
    )

    bound = needed(a_request(LlmMessage(role="user", text="Hello"), called, tools=(tool,)))

    assert bound == FIRST + TOOL + 2 * MESSAGE_TOKENS + 6 + len('c1look{"at":"x"}')


@pytest.mark.parametrize("is_counted", [False, True])
def test_media_are_counted_by_what_is_attached(is_counted: bool) -> None:
    media = LlmMedia(ref="media://x", mime_type="audio/wav", content=b"x" * 100_000)
    request = a_request(LlmMessage(role="user", text="Hello", media=(media,)))
    known = {"last_usage": Usage(input=1), "last_model": MODEL.id} if is_counted else {}

    assert needed(request, **known) >= 100_000


LONG = (LlmMessage(role="user", text="x" * 100_000), LlmMessage(role="assistant", text="Yes."))
COUNTED = Usage(input=50, cache_read=20, cache_write=5, output=25, reasoning=9)


def test_what_the_same_model_has_counted_is_taken_as_it_was_counted() -> None:
    history = (user(1, "x" * 100_000), assistant(2, "Yes."), user(3, "Hello", turn=2))
    turn = {"turn": 2, "last_usage": COUNTED, "last_model": MODEL.id}
    request = a_request(*LONG, LlmMessage(role="user", text="Hello"))

    # Prompt and tools may have changed since the turn before; 32 bytes of a row are new.
    fixed = PREAMBLE_TOKENS + len("Be kind.")
    assert needed(request, *history, **turn) == 100 + fixed + 32 + MESSAGE_TOKENS
    assert needed(request, *history, **turn | {"last_model": "another"}) > 100_000


def test_within_a_turn_the_prompt_and_the_tools_are_counted_already() -> None:
    play = TurnState(a_turn(user(1, "x" * 100_000), model=PRICED))
    play.carry([a_cost(usage=COUNTED), MessageDraft(role=Role.USER, parts=(Text(text="y"),))])

    assert need_of(play, a_request(*LONG)).input == 100 + 28 + MESSAGE_TOKENS


def test_what_was_written_for_this_turn_while_another_ran_is_not_counted_yet() -> None:
    early = user(2, "z" * 10_000, turn=2)
    history = (user(1, "x" * 100_000), early, assistant(3, "Yes."))
    turn = {"turn": 2, "last_usage": COUNTED, "last_model": MODEL.id}

    assert needed(a_request(*LONG), *history, **turn) > 10_000


def test_a_request_that_failed_tells_nothing() -> None:
    failed = {"last_usage": Usage(), "last_model": MODEL.id}

    assert needed(a_request(*LONG), **failed) > 100_000


def projected(request: LlmRequest, **changes: Any) -> Estimate:
    play = TurnState(a_turn(model=request.model, **changes))
    return estimate(play, need_aside(request))


def test_what_was_spent_is_added() -> None:
    assert projected(a_request(), spent=1_000) == Estimate(
        spent=1_000, projected=1_000 + FIRST + 200
    )


def test_input_is_paid_at_the_dearest_price() -> None:
    model = replace(PRICED, prices=Prices(input=1_000_000, output=0, cache_write=3_000_000))

    assert projected(a_request(model=model)).projected == 3 * FIRST


LONGER = PriceTier(above=10, input=2_000_000, output=5_000_000)
TIERED = replace(MODEL, prices=Prices(input=1_000_000, output=2_000_000, tiers=(LONGER,)))


@each_case(
    ("usage", "microcents"),
    [
        (Usage(input=10, output=1), 10 + 2),
        (Usage(input=11, output=1), 22 + 5),
        # Cached input counts for the length, whatever it costs.
        (Usage(input=1, cache_read=10, output=1), 2 + 5),
    ],
)
def test_a_long_request_pays_the_price_of_its_tier_for_all_tokens(
    usage: Usage, microcents: int
) -> None:
    answer = ModelAnswer(end=Stopped(reason=StepStop.STOP, usage=usage))

    cost = charge(TurnState(a_turn(model=TIERED)), Need(model=TIERED, input=11), answer, "r")

    assert cost is not None
    assert cost.microcents == microcents


def test_a_budget_assumes_the_tier_of_the_largest_size_of_a_request() -> None:
    play = TurnState(a_turn(model=TIERED, budget=a_budget(1_000, OnExceed.FAIL)))

    short, long = (Need(model=TIERED, input=size, output=100) for size in (10, 11))

    assert (estimate(play, short).projected, estimate(play, long).projected) == (210, 522)
    assert [output_limit(play, replace(each, output=None)) for each in (short, long)] == [495, 195]


def test_a_model_without_a_price_has_no_projection() -> None:
    request = a_request(model=MODEL)

    assert projected(request, spent=7) == Estimate(spent=7, projected=None)


LIMITS = [
    # Money for 100 tokens out, for 250, and for none.
    (FIRST + 200, OnExceed.FAIL, None, None, 100),
    (FIRST + 500, OnExceed.PAUSE, None, None, 250),
    (FIRST, OnExceed.FAIL, None, None, 1),
    # The agent's own limit, that of the model, and that of one nobody knows.
    (FIRST + 500, OnExceed.FAIL, 80, None, 80),
    (FIRST + 50_000, OnExceed.FAIL, None, 9_000, 9_000),
    (FIRST + 50_000, OnExceed.FAIL, None, None, 4_096),
    (FIRST + 50_000, OnExceed.FAIL, 20_000, 9_000, 20_000),
    # A budget that only warns sets no limit, and neither does none.
    (FIRST, OnExceed.WARN, None, 9_000, None),
    (0, OnExceed.FAIL, None, 9_000, None),
]


@each_case(("cap", "on_exceed", "own", "of_model", "limit"), LIMITS)
def test_the_output_limit_is_what_the_money_allows(
    cap: int, on_exceed: OnExceed, own: int | None, of_model: int | None, limit: int | None
) -> None:
    model = replace(PRICED, max_output=of_model)
    play = TurnState(a_turn(model=model, budget=a_budget(cap, on_exceed)))

    assert output_limit(play, need_aside(a_request(model=model, max_tokens=own))) == limit


HALVES = replace(MODEL, prices=Prices(input=500_000, output=499_999))
DEAR = replace(
    MODEL,
    prices=Prices(
        input=300_000_000, output=1_500_000_000, cache_read=30_000_000, cache_write=375_000_000
    ),
)
CHARGES = [
    (PRICED, Usage(input=3, output=2), 7, True),
    (PRICED, Usage(), 0, True),
    (PRICED, None, 0, False),
    (MODEL, Usage(input=3), 0, False),
    # Halves go up, less than half goes down, each class by itself.
    (HALVES, Usage(input=1, output=1), 1, True),
    (
        DEAR,
        Usage(input=1_000, output=100, cache_read=2_000, cache_write=400, reasoning=50),
        300_000 + 150_000 + 60_000 + 150_000,
        True,
    ),
]


@each_case(("model", "usage", "microcents", "priced"), CHARGES)
def test_a_request_costs_what_its_tokens_cost(
    model: Model, usage: Usage | None, microcents: int, priced: bool
) -> None:
    answer = ModelAnswer(end=Stopped(reason=StepStop.STOP, usage=usage))
    play = TurnState(a_turn(model=model))

    assert charge(play, Need(model=model, input=10), answer, "r") == CostDraft(
        request_id="r", model_id=model.id, usage=usage, microcents=microcents, priced=priced
    )


BROKEN = Failed(kind=FailureKind.UNAVAILABLE, message="It broke off.")
UNKNOWN = [
    # Ten tokens of input, and 100 of output: the limit, because reasoning is not always sent.
    (ModelAnswer(text="Good", end=Stopped(reason=StepStop.STOP)), 10 + 200),
    (ModelAnswer(text="Go", reasoning="od", end=BROKEN), 10 + 200),
    (ModelAnswer(end=BROKEN), 10 + 200),
    (ModelAnswer(text="Go", end=replace(BROKEN, billed=False)), 10 + 200),
    # Only the input was reported.
    (ModelAnswer(text="Go", end=Stopped(reason=StepStop.STOP, usage=Usage(input=3))), 3 + 200),
    # Refused by the provider, or not reached.
    (ModelAnswer(end=replace(BROKEN, billed=False)), 0),
]


@each_case(("answer", "microcents"), UNKNOWN)
def test_under_a_budget_an_unknown_usage_is_charged_with_its_bound(
    answer: ModelAnswer, microcents: int
) -> None:
    play = TurnState(a_turn(model=PRICED, budget=a_budget(5_000, OnExceed.FAIL)))

    cost = charge(play, Need(model=PRICED, input=10, output=100), answer, "r")

    assert cost is not None
    assert (cost.microcents, cost.priced) == (microcents, not microcents)


def test_what_never_left_is_not_charged() -> None:
    unsent = ModelAnswer(end=replace(BROKEN, sent=False))

    assert charge(TurnState(a_turn(model=PRICED)), Need(model=PRICED, input=1), unsent, "r") is None


def a_budget(microcents: int, on_exceed: OnExceed) -> Budget:
    return Budget(microcents=microcents, on_exceed=on_exceed)


def a_stage(*answers: ApprovalState, scripts: Any = None, mode: Any = None) -> Stage:
    approver = StandInApprover(mode or ApprovalMode.AUTO, *answers)
    return Stage(ScriptedLlm(*(scripts or [says("Hello.")])), approver=approver)


def a_capped_turn(stage: Stage, cap: int, on_exceed: OnExceed, **changes: Any) -> TurnInput:
    fields = {"agent": BRIEF, "budget": a_budget(cap, on_exceed)} | changes
    return stage.turn(**{"model": PRICED, **fields})


def rows(batches: Any) -> list[Any]:
    return [
        part
        for batch in batches
        for each in batch
        if isinstance(each, MessageDraft)
        for part in each.parts
    ]


OVER = (
    "The session has cost $0.0000; with the next request it could cost $0.0000, "
    "and its budget is $0.0000."
)


@each_case("on_exceed", OnExceed)
async def test_as_much_as_the_budget_has_is_not_too_much(on_exceed: OnExceed) -> None:
    stage = a_stage()

    batches = await stage.play(a_capped_turn(stage, NEED, on_exceed))

    assert batches[-1][-1] == Outcome(stop_reason=StopReason.STOP)
    assert not [part for part in rows(batches) if isinstance(part, Notice)]


async def test_one_micro_cent_more_fails_the_turn_before_anything_is_sent() -> None:
    stage = a_stage()

    batches = await stage.play(a_capped_turn(stage, NEED - 1, OnExceed.FAIL))

    told = f"{OVER} Raise the session's budget to continue."
    failure = Failure(code=FailureCode.BUDGET_EXCEEDED, message=told)
    assert batches == [(Outcome(stop_reason=StopReason.BUDGET, failure=failure),)]
    assert not failure.retryable
    assert stage.llm.requests == []


@each_case("on_exceed", OnExceed)
async def test_a_budget_of_nothing_is_none(on_exceed: OnExceed) -> None:
    stage = a_stage()

    batches = await stage.play(a_capped_turn(stage, 0, on_exceed, spent=1_000_000))

    assert batches[-1][-1] == Outcome(stop_reason=StopReason.STOP)


def the_question(cap: int, amount: int) -> Question:
    arguments = {"turn": 1, "cap": cap, "amount": amount}
    return Question(
        id=ApprovalId("id1"),
        tool="budget",
        tool_class=ToolClass.MONEY,
        arguments=arguments,
        question=f"{OVER} Add $0.0000 and continue?",
        digest=digest_call("budget", arguments, "", ()),
        amount=amount,
    )


@each_case("mode", ApprovalMode)
async def test_a_pause_asks_for_as_much_again_and_a_yes_goes_on(mode: ApprovalMode) -> None:
    stage = a_stage(ApprovalState.ALLOWED, mode=mode)

    batches = await stage.play(a_capped_turn(stage, 1_000, OnExceed.PAUSE))

    assert named(batches)[0] == (the_question(1_000, 1_000),)
    assert isinstance(batches[1][0], StepStarted)
    assert batches[-1][-1] == Outcome(stop_reason=StopReason.STOP)
    assert [question.amount for question in stage.approver.asked] == [1_000]


async def test_a_yes_covers_the_request_it_was_asked_about() -> None:
    stage = a_stage(ApprovalState.ALLOWED)

    await stage.play(a_capped_turn(stage, 50, OnExceed.PAUSE))

    # Whole caps, as many as the request needs.
    assert [question.amount for question in stage.approver.asked] == [-(-(NEED - 50) // 50) * 50]
    assert len(stage.llm.requests) == 1


@pytest.mark.parametrize("answer", [ApprovalState.DENIED, ApprovalState.EXPIRED])
async def test_a_no_ends_the_turn_like_a_failure(answer: ApprovalState) -> None:
    stage = a_stage(answer)

    batches = await stage.play(a_capped_turn(stage, 1_000, OnExceed.PAUSE))

    told = f"{OVER} Raise the session's budget to continue."
    failure = Failure(code=FailureCode.BUDGET_EXCEEDED, message=told)
    assert named(batches) == [
        (the_question(1_000, 1_000),),
        (Outcome(stop_reason=StopReason.BUDGET, failure=failure),),
    ]
    assert stage.llm.requests == []


async def test_where_nobody_can_be_asked_for_money_the_turn_ends() -> None:
    stage = a_stage()
    stage.approver.standing_now = replace(stage.approver.standing_now, is_attended=False)

    [batch] = await stage.play(a_capped_turn(stage, 1_000, OnExceed.PAUSE))

    assert batch[-1].stop_reason is StopReason.BUDGET  # type: ignore[union-attr]


async def test_what_was_allowed_once_is_asked_again_when_it_is_spent() -> None:
    used = Usage(input=1_000, output=1_000)
    stage = a_stage(
        *[ApprovalState.ALLOWED] * 3,
        scripts=[looks("c1", usage=used), looks("c2", usage=used), says("Seen.", usage=used)],
    )

    await stage.play(a_capped_turn(stage, 1_000, OnExceed.PAUSE))

    # With 3,000 spent at least 2,000 are to come; a yes is for as much as the budget was.
    assert [question.arguments["cap"] for question in stage.approver.asked] == [1_000, 2_000, 5_000]


@each_case(
    ("state", "reason"),
    [
        (ApprovalState.ALLOWED, StopReason.STOP),
        (ApprovalState.DENIED, StopReason.BUDGET),
        (ApprovalState.EXPIRED, StopReason.BUDGET),
    ],
)
async def test_an_answer_that_was_given_before_a_crash_counts(
    state: ApprovalState, reason: StopReason
) -> None:
    stage = a_stage()
    earlier = an_approval(the_question(1_000, 1_000), state)
    stage.approver.standing_now = replace(stage.approver.standing_now, earlier=earlier)

    batches = await stage.play(a_capped_turn(stage, 1_000, OnExceed.PAUSE))

    assert batches[-1][-1].stop_reason is reason  # type: ignore[union-attr]
    assert stage.approver.asked == []


def warnings(batches: Any) -> list[str]:
    return [
        part.text
        for part in rows(batches)
        if isinstance(part, Notice) and part.code is NoticeCode.BUDGET_WARNING
    ]


async def test_a_warning_is_written_once_and_the_turn_goes_on() -> None:
    stage = a_stage(scripts=[looks("c1"), looks("c2"), says("Seen.")])

    batches = await stage.play(a_capped_turn(stage, 1_000, OnExceed.WARN))

    assert batches[0] == (
        MessageDraft(role=Role.SYSTEM, parts=(Notice(code=NoticeCode.BUDGET_WARNING, text=OVER),)),
    )
    assert warnings(batches) == [OVER]
    assert batches[-1][-1] == Outcome(stop_reason=StopReason.STOP)


async def test_a_warning_of_an_earlier_turn_is_not_repeated_until_the_budget_is_another() -> None:
    warned = a_row(2, Role.SYSTEM, Notice(code=NoticeCode.BUDGET_WARNING, text=OVER))
    history = (user(1, "Hello"), warned, user(3, "Again", turn=2))
    stage = a_stage()

    same = await stage.play(a_capped_turn(stage, 1_000, OnExceed.WARN, history=history, turn=2))

    assert warnings(same) == []
    richer = a_stage()
    cap = 200_000
    turn = a_capped_turn(richer, cap, OnExceed.WARN, history=history, turn=2, spent=cap)
    assert warnings(await richer.play(turn)) == [
        "The session has cost $0.0020; with the next request it could cost $0.0020, "
        "and its budget is $0.0020."
    ]


async def test_a_model_without_a_price_passes_and_is_told_of_once() -> None:
    stage = a_stage(scripts=[looks("c1"), says("Seen.")])

    batches = await stage.play(a_capped_turn(stage, 1, OnExceed.FAIL, model=MODEL))

    told = "maker:model has no known price, so the session's budget cannot cover it."
    notice = Notice(code=NoticeCode.UNPRICED_MODEL, text=told)
    assert batches[0] == (MessageDraft(role=Role.SYSTEM, parts=(notice,)),)
    assert [part for part in rows(batches) if isinstance(part, Notice)] == [notice]
    assert batches[-1][-1] == Outcome(stop_reason=StopReason.STOP)
    costs = [each for batch in batches for each in batch if isinstance(each, CostDraft)]
    assert [each.priced for each in costs] == [False, False]


async def test_a_model_without_a_price_is_not_told_of_in_a_session_without_a_budget() -> None:
    stage = a_stage()

    batches = await stage.play(stage.turn())

    assert not [part for part in rows(batches) if isinstance(part, Notice)]


async def test_a_model_without_a_price_may_be_forbidden() -> None:
    stage = a_stage()
    turn = a_capped_turn(
        stage, 1_000, OnExceed.WARN, model=MODEL, limits=Limits(allow_unpriced=False)
    )

    [[outcome]] = await stage.play(turn)

    told = "maker:model has no known price, and the configuration does not allow that."
    failure = Failure(code=FailureCode.BUDGET_EXCEEDED, message=told)
    assert outcome == Outcome(stop_reason=StopReason.BUDGET, failure=failure)
    assert stage.llm.requests == []


async def test_every_attempt_and_every_model_is_paid_from_the_same_budget() -> None:
    dear = replace(model_of("other:dear"), prices=Prices(input=1_000_000, output=9_000_000))
    stage = a_stage(scripts=[fails()])

    batches = await stage.play(a_capped_turn(stage, NEED, OnExceed.FAIL, models=(PRICED, dear)))

    # The second one, whose turn it is when the first has failed, writes at another price.
    assert [request.model for request in stage.llm.requests] == [PRICED]
    assert batches[-1][-1].stop_reason is StopReason.BUDGET  # type: ignore[union-attr]


async def test_a_request_carries_the_limit_that_the_money_allows() -> None:
    stage = a_stage()
    cap = NEED - 200 + 2 * 1_500

    await stage.play(a_capped_turn(stage, cap, OnExceed.FAIL, agent=UNLIMITED))

    assert [request.max_tokens for request in stage.llm.requests] == [1_500]


async def test_less_than_a_useful_answer_is_not_asked_for() -> None:
    stage = a_stage()
    cap = NEED - 200 + 2 * USEFUL_TOKENS - 1

    batches = await stage.play(a_capped_turn(stage, cap, OnExceed.FAIL, agent=UNLIMITED))

    assert batches[-1][-1].stop_reason is StopReason.BUDGET  # type: ignore[union-attr]
    assert stage.llm.requests == []


async def test_without_a_budget_no_limit_is_sent() -> None:
    stage = a_stage()

    await stage.play(stage.turn(model=PRICED, agent=UNLIMITED))

    assert [request.max_tokens for request in stage.llm.requests] == [None]


@pytest.mark.parametrize(
    ("cap", "reason"), [(NEED + 5_000, StopReason.BUDGET), (10**6, StopReason.LENGTH)]
)
async def test_an_answer_that_the_budget_cuts_off_says_so(cap: int, reason: StopReason) -> None:
    stage = a_stage(scripts=[says("Good d", reason=StepStop.LENGTH)])

    batches = await stage.play(a_capped_turn(stage, cap, OnExceed.FAIL, agent=UNLIMITED))

    outcome = batches[-1][-1]
    assert isinstance(outcome, Outcome)
    assert outcome.stop_reason is reason
    assert (outcome.failure is not None) is (reason is StopReason.BUDGET)


async def test_a_round_of_tools_is_counted_before_the_next_request() -> None:
    used = Usage(input=1_330, output=100)
    stage = a_stage(scripts=[looks("c1", usage=used), says("Never.")])

    batches = await stage.play(a_capped_turn(stage, NEED + 100, OnExceed.FAIL))

    # 1,530 are spent, and nothing is left for another request.
    assert len(stage.llm.requests) == 1
    drafts: list[Draft] = [draft for batch in batches for draft in batch]
    assert isinstance(drafts[-1], Outcome)
    assert drafts[-1].stop_reason is StopReason.BUDGET
    assert stage.toolbox.done == ["plan c1", "run c1"]


AFFORDABLE = [
    (None, PRICED, True, True),
    (a_budget(0, OnExceed.FAIL), PRICED, True, True),
    (a_budget(FIRST + 200, OnExceed.FAIL), PRICED, True, True),
    (a_budget(FIRST + 199, OnExceed.FAIL), PRICED, True, False),
    (a_budget(FIRST + 199, OnExceed.PAUSE), PRICED, True, False),
    (a_budget(FIRST + 199, OnExceed.WARN), PRICED, True, True),
    (a_budget(1, OnExceed.FAIL), MODEL, True, True),
    (a_budget(1, OnExceed.FAIL), MODEL, False, False),
]


@each_case(("budget", "model", "allow_unpriced", "expected"), AFFORDABLE)
def test_what_nobody_waits_for_is_done_if_it_can_be_paid(
    budget: Budget | None, model: Model, allow_unpriced: bool, expected: bool
) -> None:
    limits = Limits(allow_unpriced=allow_unpriced)
    play = TurnState(a_turn(model=model, budget=budget, limits=limits))

    assert is_affordable(play, need_aside(a_request(model=model))) is expected


def known_usage(*drafts: Draft) -> tuple[Usage | None, int]:
    """Return what is known of the newest request after these drafts, and the bytes since then."""
    play = TurnState(a_turn(user(1, "Hello"), model=PRICED, last_usage=Usage(input=7)))
    play.carry(drafts)
    return play.last_usage, play.uncounted


def a_cost(**changes: Any) -> CostDraft:
    return replace(CostDraft(request_id="r", model_id=MODEL.id, usage=Usage(input=9)), **changes)


def test_a_request_tells_how_much_a_conversation_takes() -> None:
    assert known_usage(a_cost()) == (Usage(input=9), 0)


@each_case("cost", [a_cost(usage=None), a_cost(usage=Usage()), a_cost(is_aside=True)])
def test_a_request_that_failed_or_was_an_aside_tells_nothing(cost: CostDraft) -> None:
    assert known_usage(cost) == (Usage(input=7), 32 + MESSAGE_TOKENS)


def test_after_a_summary_nobody_knows_how_much_a_conversation_takes() -> None:
    folded = Summary(text="They talked.", dropped_through=1, kept=0, reason="auto")

    assert known_usage(a_cost(), folded)[0] is None
