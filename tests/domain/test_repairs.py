"""What a crash or an interrupt leaves of a turn, and what is appended to put it right."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.agents import Recovery
from holdfast.domain.calls import Call, CallState, finish_call, is_open
from holdfast.domain.drafts import CostDraft, Draft, MessageDraft, Outcome
from holdfast.domain.events import Failure, FailureCode, StepFailed, ToolEnded, ToolStarted
from holdfast.domain.messages import (
    CLOSING_NOTICES,
    Notice,
    NoticeCode,
    ResultStatus,
    Role,
    Text,
    ToolError,
    ToolResult,
)
from holdfast.domain.sessions import StopReason
from holdfast.domain.tools import Effect
from holdfast.domain.turns import (
    OpenStep,
    Repair,
    closing_notice,
    group_by_turn,
    repair_after_abort,
    repair_after_crash,
    repair_after_restart,
)
from tests.builders import AT, MODEL_ID, a_call, a_message, an_open_step
from tests.domain.strategies import calls, open_steps
from tests.marks import each_case

BAD_ENDS = [
    StopReason.ABORTED,
    StopReason.INTERRUPTED,
    StopReason.TURN_LIMIT,
    StopReason.BUDGET,
    StopReason.ERROR,
]


def results(mend: Repair) -> list[ToolResult]:
    return [
        part
        for draft in mend.drafts
        if isinstance(draft, MessageDraft)
        for part in draft.parts
        if isinstance(part, ToolResult)
    ]


def mended(before: Sequence[Call], mend: Repair) -> list[Call]:
    """Apply the results to the calls; a second result, or an impossible one, raises."""
    after = {call.id: call for call in before}
    for result in results(mend):
        assert result.name == after[result.call_id].name
        call = after[result.call_id]
        after[result.call_id] = finish_call(call, result.status, at=AT, sequence=1)
    return list(after.values())


CUT_OFF = Failure(code=FailureCode.INTERRUPTED, message="The model's answer was cut off.")


def kept_text(step: OpenStep) -> MessageDraft:
    return MessageDraft(
        id=step.started.message_id,
        role=Role.ASSISTANT,
        parts=(Text(text=step.text),),
        model_id=MODEL_ID,
    )


def is_doubtful(call: Call) -> bool:
    return call.state is CallState.STARTED and call.effect is Effect.UNSAFE


RECOVERIES = st.sampled_from(Recovery)
MENDS = st.one_of(
    st.builds(
        lambda step, before, recovery: (step, before, repair_after_crash(step, before, recovery)),
        open_steps(),
        calls(),
        RECOVERIES,
    ),
    st.builds(
        lambda step, before: (step, before, repair_after_abort(step, before)), open_steps(), calls()
    ),
)
Cut = tuple[OpenStep | None, list[Call], Repair]


@given(MENDS)
def test_a_turn_that_is_over_leaves_every_call_with_one_result(cut: Cut) -> None:
    _, before, mend = cut
    after = mended(before, mend)

    answered = [result.call_id for result in results(mend)]
    assert len(answered) == len(set(answered))
    if mend.outcome is not None:
        assert answered == [call.id for call in before if is_open(call)]
        assert not any(is_open(call) for call in after)


@given(MENDS)
def test_only_an_unsafe_call_that_had_started_is_unknown(cut: Cut) -> None:
    _, before, mend = cut

    unknown = [each.call_id for each in results(mend) if each.status is ResultStatus.UNKNOWN]
    assert unknown == [call.id for call in before if is_doubtful(call)]


@given(MENDS)
def test_a_result_is_a_row_and_a_piece_of_news_that_say_the_same(cut: Cut) -> None:
    _, _, mend = cut
    news = [draft for draft in mend.drafts if isinstance(draft, ToolEnded)]

    assert news == [
        ToolEnded(
            call_id=result.call_id, name=result.name, status=result.status, failure=result.error
        )
        for result in results(mend)
    ]
    assert all(result.error and result.result is None for result in results(mend))


@given(MENDS)
def test_a_step_that_was_cut_off_is_closed_and_its_text_kept_if_the_turn_is_over(cut: Cut) -> None:
    step, _, mend = cut
    closed = [] if step is None else [StepFailed(step=3, failure=CUT_OFF)]
    kept = [kept_text(step)] if step and step.text and mend.outcome else []
    stopped = mend.outcome is not None and mend.outcome.stop_reason is StopReason.ABORTED
    sent = [a_sent_request(step)] if step and stopped else []

    answers = 2 * len(results(mend))
    assert list(mend.drafts[: len(mend.drafts) - answers]) == closed + kept + sent


def a_sent_request(step: OpenStep) -> CostDraft:
    """The ledger's entry of a request that its user stopped: sent, and charged its bound."""
    started = step.started
    return CostDraft(
        request_id=started.message_id, model_id=started.model_id, microcents=started.bound
    )


@each_case("bound", [0, 7])
@each_case("recovery", Recovery)
def test_a_request_with_a_bound_that_a_crash_cut_off_is_charged(
    bound: int, recovery: Recovery
) -> None:
    step = an_open_step(bound=bound)
    unsafe = a_call(state=CallState.STARTED, effect=Effect.UNSAFE)

    for before in ([], [unsafe]):
        drafts = repair_after_crash(step, before, recovery).drafts
        costs = [each for each in drafts if isinstance(each, CostDraft)]
        assert costs == ([a_sent_request(step)] if bound else [])


@given(calls(), RECOVERIES, open_steps())
def test_a_crash_ends_a_turn_exactly_when_an_unsafe_call_is_in_doubt(
    before: list[Call], recovery: Recovery, step: OpenStep | None
) -> None:
    mend = repair_after_crash(step, before, recovery)

    over = recovery is Recovery.STOP and any(map(is_doubtful, before))
    assert (mend.outcome is not None) == over
    if mend.outcome is not None and mend.outcome.failure is not None:
        assert mend.outcome.stop_reason is StopReason.INTERRUPTED
        assert mend.outcome.failure.code is FailureCode.INTERRUPTED
        assert mend.outcome.failure.retryable


@given(calls(), RECOVERIES)
def test_a_turn_that_goes_on_leaves_open_what_may_run(
    before: list[Call], recovery: Recovery
) -> None:
    mend = repair_after_crash(None, before, recovery)
    after = mended(before, mend)

    if mend.outcome is None:
        may_run = [call for call in before if is_open(call) and not is_doubtful(call)]
        assert [call for call in after if is_open(call)] == may_run


@given(calls(), RECOVERIES, open_steps())
def test_a_crash_in_the_middle_of_recovery_is_recovered_without_a_second_result(
    before: list[Call], recovery: Recovery, step: OpenStep | None
) -> None:
    after = mended(before, repair_after_crash(step, before, recovery))

    assert repair_after_crash(None, after, recovery) == Repair(drafts=())


@given(calls(), open_steps())
def test_a_second_interrupt_finds_nothing_left_to_do(
    before: list[Call], step: OpenStep | None
) -> None:
    after = mended(before, repair_after_abort(step, before))

    assert repair_after_abort(None, after) == Repair(
        drafts=(), outcome=Outcome(stop_reason=StopReason.ABORTED)
    )


@given(MENDS)
def test_what_a_cut_off_turn_keeps_never_passes_for_an_answer(cut: Cut) -> None:
    _, _, mend = cut
    if mend.outcome is None:
        return
    closing = closing_notice(mend.outcome)
    drafts: list[Draft | None] = [*mend.drafts, closing]
    rows = [
        a_message(role=draft.role, parts=draft.parts, sequence=sequence)
        for sequence, draft in enumerate(drafts, 1)
        if isinstance(draft, MessageDraft)
    ]

    [turn] = group_by_turn(rows)
    assert not turn.is_answered


UNKNOWN = ToolError(code="unknown", message="outcome unknown: the call was cut off while it ran")
SKIPPED = ToolError(code="aborted", message="the call was not run: its turn ended before")
STOPPED = ToolError(code="aborted", message="the call was stopped while it ran")

ENDS = [
    (CallState.INTENDED, Effect.PURE, ResultStatus.SKIPPED, SKIPPED),
    (CallState.INTENDED, Effect.IDEMPOTENT, ResultStatus.SKIPPED, SKIPPED),
    (CallState.INTENDED, Effect.UNSAFE, ResultStatus.SKIPPED, SKIPPED),
    (CallState.STARTED, Effect.PURE, ResultStatus.ERROR, STOPPED),
    (CallState.STARTED, Effect.IDEMPOTENT, ResultStatus.ERROR, STOPPED),
    (CallState.STARTED, Effect.UNSAFE, ResultStatus.UNKNOWN, UNKNOWN),
]


@each_case(("state", "effect", "status", "error"), ENDS)
def test_an_open_call_is_told_why_its_turn_left_it(
    state: CallState, effect: Effect, status: ResultStatus, error: ToolError
) -> None:
    call = a_call(id="c1", state=state, effect=effect)
    doubtful = a_call(id="c2", state=CallState.STARTED)
    told = ToolResult(call_id=call.id, name=call.name, status=status, error=error)

    assert results(repair_after_abort(None, [call])) == [told]
    assert results(repair_after_crash(None, [call, doubtful], Recovery.STOP))[0] == told


def test_a_crash_while_an_unsafe_tool_ran_ends_the_turn() -> None:
    call = a_call(state=CallState.STARTED)
    result = ToolResult(call_id=call.id, name=call.name, status=ResultStatus.UNKNOWN, error=UNKNOWN)

    assert repair_after_crash(None, [call], Recovery.STOP) == Repair(
        drafts=(
            ToolEnded(
                call_id=call.id, name=call.name, status=ResultStatus.UNKNOWN, failure=UNKNOWN
            ),
            MessageDraft(role=Role.TOOL_RESULT, parts=(result,)),
        ),
        outcome=Outcome(
            stop_reason=StopReason.INTERRUPTED,
            failure=Failure(
                code=FailureCode.INTERRUPTED,
                message="The turn was interrupted while a tool was running. `holdfast calls list "
                "--unknown` shows the call; settle it, or send a message.",
            ),
        ),
    )


def test_nobody_knows_what_became_of_the_calls_of_a_program_that_is_gone() -> None:
    asked, begun = a_call(id="c1"), a_call(id="c2", state=CallState.STARTED)

    mend = repair_after_restart(None, [asked, begun])

    started = [draft for draft in mend.drafts if isinstance(draft, ToolStarted)]
    # It says that it asks and never that it begins, so it may have begun.
    assert started == [ToolStarted(call_id=asked.id, name=asked.name, arguments=asked.arguments)]
    assert [(each.call_id, each.status) for each in results(mend)] == [
        (asked.id, ResultStatus.UNKNOWN),
        (begun.id, ResultStatus.UNKNOWN),
    ]
    assert mend.outcome is not None
    assert mend.outcome.stop_reason is StopReason.INTERRUPTED


def test_text_that_was_streamed_beside_a_doubtful_call_is_kept() -> None:
    step, call = an_open_step("I am about to"), a_call(state=CallState.STARTED)
    without = repair_after_crash(None, [call], Recovery.STOP)

    assert repair_after_crash(step, [call], Recovery.STOP) == Repair(
        drafts=(StepFailed(step=1, failure=CUT_OFF), kept_text(step), *without.drafts),
        outcome=without.outcome,
    )


def test_an_agent_may_be_told_to_continue_with_the_unknown_result() -> None:
    call = a_call(state=CallState.STARTED)
    stopped = repair_after_crash(None, [call], Recovery.STOP)

    assert repair_after_crash(None, [call], Recovery.CONTINUE) == Repair(drafts=stopped.drafts)


def test_a_step_cut_off_by_a_crash_is_asked_again() -> None:
    mend = repair_after_crash(an_open_step("half an ans", step=2), [], Recovery.STOP)

    assert mend == Repair(drafts=(StepFailed(step=2, failure=CUT_OFF),))


@each_case("reason", StopReason)
def test_a_turn_that_ended_badly_says_so_in_its_last_row(reason: StopReason) -> None:
    told = closing_notice(Outcome(stop_reason=reason))

    if reason not in BAD_ENDS:
        assert told is None
        return
    assert told is not None
    [notice] = told.parts
    assert isinstance(notice, Notice)
    assert (told.role, notice.code.value) == (Role.SYSTEM, reason.value)
    assert notice.code in CLOSING_NOTICES
    assert notice.text.endswith(".")


def test_every_closing_notice_has_its_stop_reason() -> None:
    assert {code.value for code in CLOSING_NOTICES} == {reason.value for reason in BAD_ENDS}


def test_a_failure_is_told_with_its_code_and_its_remedy() -> None:
    failure = Failure(code=FailureCode.PROVIDER_AUTH, message="Set a key.")
    outcome = Outcome(stop_reason=StopReason.ERROR, failure=failure)

    notice = Notice(code=NoticeCode.ERROR, text="provider_auth: Set a key.")
    assert closing_notice(outcome) == MessageDraft(role=Role.SYSTEM, parts=(notice,))


def test_a_turn_that_was_stopped_is_told_with_the_reason_of_who_stopped_it() -> None:
    outcome = repair_after_abort(None, (), "Enough.").outcome

    assert outcome == Outcome(stop_reason=StopReason.ABORTED, reason="Enough.")
    notice = Notice(code=NoticeCode.ABORTED, text="The turn was stopped by its user: Enough.")
    assert closing_notice(outcome) == MessageDraft(role=Role.SYSTEM, parts=(notice,))
