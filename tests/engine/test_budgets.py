"""Budgets: what the next request would cost, by hand, and what happens when that is too much."""

from math import ceil
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.domain.agents import LlmRuntime, Retry
from holdfast.domain.approvals import ApprovalMode, ApprovalState, Question, digest_of
from holdfast.domain.costs import Usage
from holdfast.domain.drafts import CostDraft, Draft, MessageDraft, Outcome, Summary
from holdfast.domain.events import Failure, FailureCode, StepStarted
from holdfast.domain.ids import ApprovalId
from holdfast.domain.messages import Media, Message, Notice, NoticeCode, Role, encode_parts
from holdfast.domain.models import Model, Prices, model_of
from holdfast.domain.sessions import Budget, OnExceed, StopReason
from holdfast.domain.tools import ToolClass
from holdfast.engine.budgets import Estimate, charge, estimate, is_affordable
from holdfast.engine.play import Play
from holdfast.ports import Limits, TurnInput
from tests.engine.builders import (
    MODEL,
    a_row,
    a_turn,
    an_agent,
    assistant,
    call,
    result,
    summary,
    user,
)
from tests.engine.scripts import fails, looks, named, says
from tests.engine.stand_ins import ScriptedLlm, Stage, StandInApprover, an_approval

pytestmark = pytest.mark.anyio

# One micro-cent for a token in, two for a token out.
PRICED = replace(MODEL, prices=Prices(input=1_000_000, output=2_000_000))
BRIEF = an_agent(LlmRuntime(max_tokens=100, retry=Retry(max=1)), system_prompt="Be kind.")


def projected(*history: Message, model: Model = PRICED, **changes: Any) -> Estimate:
    turn = a_turn(*history, model=model, **{"agent": BRIEF, **changes})
    return estimate(Play(turn), model)


def costs(projected: int | None, spent: int = 0) -> Estimate:
    return Estimate(spent=spent, projected=projected)


def test_a_first_request_is_counted_by_its_bytes() -> None:
    # 8 bytes of prompt and 32 of [{"type":"text","text":"Hello"}]: 10 tokens, and 100 out.
    assert projected(user(1, "Hello")) == costs(10 + 200)


@pytest.mark.parametrize(
    ("mime_type", "byte_length", "tokens"),
    [
        ("image/png", 5 << 20, 1_600),
        ("application/pdf", None, 1_600),
        ("application/pdf", 1 << 20, 32_768),
    ],
)
def test_a_handle_counts_for_what_it_stands_for(
    mime_type: str, byte_length: int | None, tokens: int
) -> None:
    media = Media(mime_type=mime_type, ref="media://x", byte_length=byte_length)
    words = ceil((8 + len(encode_parts((media,)))) / 4)

    assert projected(a_row(1, Role.USER, media)) == costs(words + tokens + 200)


def test_bytes_are_rounded_up_to_tokens() -> None:
    # 8 and 33 bytes: 11 tokens.
    assert projected(user(1, "Hello!")) == costs(11 + 200)


def test_characters_are_counted_by_their_bytes() -> None:
    # 8 and 31 + 4 bytes: 11 tokens.
    assert projected(user(1, "Hell😀")) == costs(11 + 200)


def test_an_agent_without_a_limit_of_its_own_is_counted_with_4096_tokens() -> None:
    assert projected(user(1, "Hello"), agent=an_agent(LlmRuntime())) == costs(8 + 8192)


def test_what_was_spent_is_added() -> None:
    assert projected(user(1, "Hello"), spent=1_000) == costs(1_210, spent=1_000)


def test_the_newest_request_tells_what_it_took_in_and_gave_out() -> None:
    usage = Usage(input=50, cache_read=20, cache_write=5, output=25, reasoning=9)

    # 100 tokens that were counted, and 8 for the 32 bytes that are new.
    assert projected(user(1, "Hello"), last_usage=usage) == costs(108 + 200)


def test_a_request_that_failed_tells_nothing() -> None:
    assert projected(user(1, "Hello"), last_usage=Usage()) == costs(10 + 200)


def test_what_a_model_has_said_itself_is_counted_already() -> None:
    history = (user(1, "Hello"), assistant(2, "Let me look."), call(3, "c1"))
    usage = Usage(input=50, output=50)

    assert projected(*history, last_usage=usage) == costs(100 + 200)


def test_what_tools_have_found_since_is_new() -> None:
    history = (user(1, "Hello"), call(2, "c1"), result(3, "c1", "x" * 100))

    # 98 bytes of a result around its 100 characters.
    wrapped = (
        '[{"type":"tool_result","call_id":"c1","name":"look","status":"ok","result":"'
        + "x" * 100
        + '","error":null}]'
    )
    tokens = -(-len(wrapped) // 4)
    assert projected(*history, last_usage=Usage(input=50, output=50)) == costs(100 + tokens + 200)


def test_what_tools_have_found_is_counted_when_nobody_has_told_tokens() -> None:
    without = projected(user(1, "Hello"), call(2, "c1"), result(3, "c1", ""))
    found = projected(user(1, "Hello"), call(2, "c1"), result(3, "c1", "x" * 4_000))

    assert found.projected == (without.projected or 0) + 1_000


def test_what_a_summary_stands_for_is_not_counted() -> None:
    history = (
        user(1, "x" * 10_000),
        assistant(2, "y" * 10_000),
        summary(3, "They talked.", dropped_through=2),
        user(4, "Hello", turn=2),
    )

    # 8 bytes of prompt, 66 of the summary, 32 of the question.
    wrapped = '[{"type":"compaction","summary":"They talked.","dropped_through":2}]'
    tokens = -(-(8 + len(wrapped) + 32) // 4)
    assert projected(*history, turn=2) == costs(tokens + 200)


def test_a_model_without_a_price_has_no_projection() -> None:
    assert projected(user(1, "Hello"), model=MODEL, spent=7) == costs(None, spent=7)


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


@pytest.mark.parametrize(("model", "usage", "microcents", "priced"), CHARGES)
def test_a_request_costs_what_its_tokens_cost(
    model: Model, usage: Usage | None, microcents: int, priced: bool
) -> None:
    assert charge(model, usage, "r") == CostDraft(
        request_id="r", model_id=model.id, usage=usage, microcents=microcents, priced=priced
    )


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
    "The session has cost $0.0000; with the next request it could be $0.0000, "
    "and its budget is $0.0000."
)


@pytest.mark.parametrize("on_exceed", OnExceed)
async def test_as_much_as_the_budget_has_is_not_too_much(on_exceed: OnExceed) -> None:
    stage = a_stage()

    batches = await stage.play(a_capped_turn(stage, 210, on_exceed))

    assert batches[-1][-1] == Outcome(stop_reason=StopReason.STOP)
    assert not [part for part in rows(batches) if isinstance(part, Notice)]


async def test_one_micro_cent_more_fails_the_turn_before_anything_is_sent() -> None:
    stage = a_stage()

    batches = await stage.play(a_capped_turn(stage, 209, OnExceed.FAIL))

    told = f"{OVER} Raise the session's budget to go on."
    failure = Failure(code=FailureCode.BUDGET_EXCEEDED, message=told)
    assert batches == [(Outcome(stop_reason=StopReason.BUDGET, failure=failure),)]
    assert not failure.retryable
    assert stage.llm.requests == []


@pytest.mark.parametrize("on_exceed", OnExceed)
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
        question=f"{OVER} Add $0.0000 and go on?",
        digest=digest_of("budget", arguments, "", ()),
        amount=amount,
    )


@pytest.mark.parametrize("mode", ApprovalMode)
async def test_a_pause_asks_for_as_much_again_and_a_yes_goes_on(mode: ApprovalMode) -> None:
    stage = a_stage(ApprovalState.ALLOWED, mode=mode)

    batches = await stage.play(a_capped_turn(stage, 150, OnExceed.PAUSE))

    assert named(batches)[0] == (the_question(150, 150),)
    assert isinstance(batches[1][0], StepStarted)
    assert batches[-1][-1] == Outcome(stop_reason=StopReason.STOP)
    assert [question.amount for question in stage.approver.asked] == [150]


async def test_a_yes_covers_the_request_it_was_asked_about() -> None:
    stage = a_stage(ApprovalState.ALLOWED)

    await stage.play(a_capped_turn(stage, 50, OnExceed.PAUSE))

    # 210 are to be expected: with 200 more than 50 there are whole caps enough.
    assert [question.amount for question in stage.approver.asked] == [200]
    assert len(stage.llm.requests) == 1


@pytest.mark.parametrize("answer", [ApprovalState.DENIED, ApprovalState.EXPIRED])
async def test_a_no_ends_the_turn_like_a_failure(answer: ApprovalState) -> None:
    stage = a_stage(answer)

    batches = await stage.play(a_capped_turn(stage, 150, OnExceed.PAUSE))

    told = f"{OVER} Raise the session's budget to go on."
    failure = Failure(code=FailureCode.BUDGET_EXCEEDED, message=told)
    assert named(batches) == [
        (the_question(150, 150),),
        (Outcome(stop_reason=StopReason.BUDGET, failure=failure),),
    ]
    assert stage.llm.requests == []


async def test_where_nobody_can_be_asked_for_money_the_turn_ends() -> None:
    stage = a_stage()
    stage.approver.standing_now = replace(stage.approver.standing_now, is_attended=False)

    [batch] = await stage.play(a_capped_turn(stage, 150, OnExceed.PAUSE))

    assert batch[-1].stop_reason is StopReason.BUDGET  # type: ignore[union-attr]


async def test_what_was_allowed_once_is_asked_again_when_it_is_spent() -> None:
    used = Usage(input=100, output=100)
    stage = a_stage(
        *[ApprovalState.ALLOWED] * 3,
        scripts=[looks("c1", usage=used), looks("c2", usage=used), says("Seen.", usage=used)],
    )

    await stage.play(a_capped_turn(stage, 150, OnExceed.PAUSE))

    # 210 > 150; with 300 spent and 400 to come it is more than 300, and then more than 750.
    assert [question.arguments["cap"] for question in stage.approver.asked] == [150, 300, 750]


@pytest.mark.parametrize(
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
    earlier = an_approval(the_question(150, 150), state)
    stage.approver.standing_now = replace(stage.approver.standing_now, earlier=earlier)

    batches = await stage.play(a_capped_turn(stage, 150, OnExceed.PAUSE))

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

    batches = await stage.play(a_capped_turn(stage, 150, OnExceed.WARN))

    assert batches[0] == (
        MessageDraft(role=Role.SYSTEM, parts=(Notice(code=NoticeCode.BUDGET_WARNING, text=OVER),)),
    )
    assert warnings(batches) == [OVER]
    assert batches[-1][-1] == Outcome(stop_reason=StopReason.STOP)


async def test_a_warning_of_an_earlier_turn_is_not_repeated_until_the_budget_is_another() -> None:
    warned = a_row(2, Role.SYSTEM, Notice(code=NoticeCode.BUDGET_WARNING, text=OVER))
    history = (user(1, "Hello"), warned, user(3, "Again", turn=2))
    stage = a_stage()

    same = await stage.play(a_capped_turn(stage, 150, OnExceed.WARN, history=history, turn=2))

    assert warnings(same) == []
    richer = a_stage()
    cap = 200_000
    turn = a_capped_turn(richer, cap, OnExceed.WARN, history=history, turn=2, spent=cap)
    assert warnings(await richer.play(turn)) == [
        "The session has cost $0.0020; with the next request it could be $0.0020, "
        "and its budget is $0.0020."
    ]


async def test_a_model_without_a_price_passes_and_is_told_of_once() -> None:
    stage = a_stage(scripts=[looks("c1"), says("Seen.")])

    batches = await stage.play(a_capped_turn(stage, 1, OnExceed.FAIL, model=MODEL))

    told = "maker:model has no known price: this session's budget cannot count it."
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

    batches = await stage.play(a_capped_turn(stage, 300, OnExceed.FAIL, models=(PRICED, dear)))

    # 10 and 900 for the second one, whose turn it is when the first has failed.
    assert [request.model for request in stage.llm.requests] == [PRICED]
    assert batches[-1][-1].stop_reason is StopReason.BUDGET  # type: ignore[union-attr]


async def test_a_round_of_tools_is_counted_before_the_next_request() -> None:
    used = Usage(input=10, output=10)
    stage = a_stage(scripts=[looks("c1", usage=used), says("Never.")])

    batches = await stage.play(a_capped_turn(stage, 230, OnExceed.FAIL))

    # 30 are spent; 20 tokens were counted and some are new, and 200 for what comes out.
    assert len(stage.llm.requests) == 1
    drafts: list[Draft] = [draft for batch in batches for draft in batch]
    assert isinstance(drafts[-1], Outcome)
    assert drafts[-1].stop_reason is StopReason.BUDGET
    assert stage.toolbox.done == ["plan c1", "run c1"]


AFFORDABLE = [
    (None, PRICED, True, True),
    (a_budget(0, OnExceed.FAIL), PRICED, True, True),
    (a_budget(210, OnExceed.FAIL), PRICED, True, True),
    (a_budget(209, OnExceed.FAIL), PRICED, True, False),
    (a_budget(209, OnExceed.PAUSE), PRICED, True, False),
    (a_budget(209, OnExceed.WARN), PRICED, True, True),
    (a_budget(1, OnExceed.FAIL), MODEL, True, True),
    (a_budget(1, OnExceed.FAIL), MODEL, False, False),
]


@pytest.mark.parametrize(("budget", "model", "allow_unpriced", "expected"), AFFORDABLE)
def test_what_nobody_waits_for_is_done_if_it_can_be_paid(
    budget: Budget | None, model: Model, allow_unpriced: bool, expected: bool
) -> None:
    limits = Limits(allow_unpriced=allow_unpriced)
    turn = a_turn(user(1, "Hello"), model=model, agent=BRIEF, budget=budget, limits=limits)

    assert is_affordable(Play(turn), model) is expected


def known_usage(*drafts: Draft) -> tuple[Usage | None, int]:
    """Return what is known of the newest request after these drafts, and the bytes since then."""
    play = Play(a_turn(user(1, "Hello"), model=PRICED, last_usage=Usage(input=7)))
    play.note(drafts)
    return play.last_usage, play.uncounted


def a_cost(**changes: Any) -> CostDraft:
    return replace(CostDraft(request_id="r", model_id=MODEL.id, usage=Usage(input=9)), **changes)


def test_a_request_tells_how_much_a_conversation_takes() -> None:
    assert known_usage(a_cost()) == (Usage(input=9), 0)


@pytest.mark.parametrize("cost", [a_cost(usage=None), a_cost(usage=Usage()), a_cost(is_aside=True)])
def test_a_request_that_failed_or_was_an_aside_tells_nothing(cost: CostDraft) -> None:
    assert known_usage(cost) == (Usage(input=7), 32)


def test_after_a_summary_nobody_knows_how_much_a_conversation_takes() -> None:
    folded = Summary(text="They talked.", dropped_through=1, kept=0, reason="auto")

    assert known_usage(a_cost(), folded)[0] is None
