"""The life of one tool call."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.calls import (
    NEXT,
    Call,
    CallState,
    Settlement,
    add_details,
    finish_call,
    is_open,
    is_unrun_retry,
    reopen_call,
    request_call,
    retry_id,
    settle_call,
    start_call,
)
from holdfast.domain.errors import Code, Conflict
from holdfast.domain.messages import ResultStatus
from holdfast.domain.tools import Effect
from tests.builders import AT, a_call
from tests.marks import each_case

LATER = AT + timedelta(seconds=1)

INTENDED, REQUESTED, STARTED = CallState.INTENDED, CallState.REQUESTED, CallState.STARTED
FINISHED, UNKNOWN, SETTLED = CallState.FINISHED, CallState.UNKNOWN, CallState.SETTLED

ALLOWED = {
    (INTENDED, REQUESTED),
    (INTENDED, STARTED),
    (INTENDED, FINISHED),
    (REQUESTED, STARTED),
    (REQUESTED, FINISHED),
    (STARTED, STARTED),
    (STARTED, REQUESTED),
    (STARTED, FINISHED),
    (STARTED, UNKNOWN),
    (UNKNOWN, SETTLED),
}

STEPS: Mapping[str, tuple[Callable[[Call], Call], CallState]] = {
    "requested": (partial(request_call, deadline_at=LATER), REQUESTED),
    "started": (partial(start_call, at=AT), STARTED),
    **{
        f"finished {status}": (
            partial(finish_call, status=status, at=LATER, sequence=7),
            UNKNOWN if status is ResultStatus.UNKNOWN else FINISHED,
        )
        for status in ResultStatus
    },
    **{f"settled {how}": (partial(settle_call, how=how), SETTLED) for how in Settlement},
}


def test_the_table_of_steps_is_the_drawing() -> None:
    assert {(state, after) for state, nexts in NEXT.items() for after in nexts} == ALLOWED
    assert set(NEXT) == set(CallState)


@each_case(("state", "step"), list(product(CallState, STEPS)))
def test_every_step_is_in_the_table_or_refused(state: CallState, step: str) -> None:
    take, after = STEPS[step]
    call = a_call(state=state, effect=Effect.IDEMPOTENT)

    if (state, after) in ALLOWED:
        moved = take(call)
        # What a step notes beside the state is the business of the tests below.
        marks: dict[str, None] = dict.fromkeys(
            ("started_at", "ended_at", "result_sequence", "settlement", "deadline_at")
        )
        assert msgspec.structs.replace(moved, state=state, **marks) == call
        assert moved.state is after
    else:
        with pytest.raises(Conflict) as refused:
            take(call)
        assert refused.value.body() == {
            "error": Code.CALL_NOT_OPEN,
            "message": f"Call call-1 is {state}; it cannot become {after}.",
            "details": {"state": state},
        }


@each_case("effect", [Effect.PURE, Effect.IDEMPOTENT])
def test_a_recovered_call_that_may_run_twice_starts_again(effect: Effect) -> None:
    running = start_call(a_call(effect=effect), at=AT)

    assert running == a_call(effect=effect, state=STARTED, started_at=AT)
    assert start_call(running, at=LATER) == a_call(effect=effect, state=STARTED, started_at=LATER)


def test_an_unsafe_call_never_starts_twice() -> None:
    running = start_call(a_call(effect=Effect.UNSAFE), at=AT)

    with pytest.raises(Conflict) as refused:
        start_call(running, at=LATER)

    assert refused.value.code is Code.CALL_NOT_OPEN


@each_case("how", Settlement)
def test_an_unknown_outcome_is_settled_once(how: Settlement) -> None:
    unknown = finish_call(start_call(a_call(), at=AT), ResultStatus.UNKNOWN, at=LATER, sequence=3)

    put_right = settle_call(unknown, how)

    assert put_right == a_call(
        state=SETTLED, settlement=how, started_at=AT, ended_at=LATER, result_sequence=3
    )
    with pytest.raises(Conflict):
        settle_call(put_right, how)


def test_what_a_retry_did_not_put_right_is_unknown_again() -> None:
    unknown = finish_call(start_call(a_call(), at=AT), ResultStatus.UNKNOWN, at=LATER, sequence=3)

    assert reopen_call(settle_call(unknown, Settlement.RETRIED)) == unknown
    for other in (unknown, *(settle_call(unknown, how) for how in Settlement if how != "retried")):
        with pytest.raises(Conflict):
            reopen_call(other)


@each_case("status", ResultStatus)
def test_a_retry_that_never_started_was_not_run(status: ResultStatus) -> None:
    retry = a_call(id=retry_id("7"))

    begun = finish_call(start_call(retry, at=AT), status, at=LATER, sequence=3)
    is_denied = status in {ResultStatus.DENIED, ResultStatus.SKIPPED}
    assert is_unrun_retry(begun, status) is is_denied
    assert is_unrun_retry(retry, status) is False
    if status is not ResultStatus.UNKNOWN:
        assert is_unrun_retry(finish_call(retry, status, at=LATER, sequence=3), status) is True
        assert is_unrun_retry(finish_call(a_call(), status, at=LATER, sequence=3), status) is False


def test_a_call_that_never_started_has_no_unknown_outcome() -> None:
    with pytest.raises(Conflict):
        finish_call(a_call(state=INTENDED), ResultStatus.UNKNOWN, at=AT, sequence=2)


def test_a_call_that_never_started_has_no_time_of_its_start() -> None:
    refused = finish_call(a_call(), ResultStatus.DENIED, at=LATER, sequence=2)

    assert refused == a_call(state=FINISHED, ended_at=LATER, result_sequence=2)


def test_a_requested_call_has_a_deadline_until_it_is_answered_or_given_up() -> None:
    requested = request_call(a_call(), deadline_at=LATER)

    assert requested == a_call(state=REQUESTED, deadline_at=LATER)
    assert start_call(requested, at=AT) == a_call(state=STARTED, started_at=AT)
    given_up = finish_call(requested, ResultStatus.ERROR, at=LATER, sequence=2)
    assert given_up == a_call(state=FINISHED, ended_at=LATER, result_sequence=2)


@each_case("state", CallState)
def test_a_call_is_open_until_it_has_its_one_result(state: CallState) -> None:
    assert is_open(a_call(state=state)) is (state in (INTENDED, REQUESTED, STARTED))


@given(st.sampled_from(Effect), st.lists(st.sampled_from(sorted(STEPS))))
def test_no_history_gives_a_call_two_results_or_two_settlements(
    effect: Effect, history: list[str]
) -> None:
    call, taken = a_call(effect=effect), []
    for step in history:
        try:
            call = STEPS[step][0](call)
        except Conflict:
            continue
        taken.append(step)

    results = [step for step in taken if step.startswith("finished")]
    assert len(results) == (0 if is_open(call) else 1)
    assert taken.count("started") <= 1 or effect is not Effect.UNSAFE
    assert sum(step.startswith("settled") for step in taken) == (call.state is SETTLED)
    assert (call.settlement is not None) == (call.state is SETTLED)


def test_a_call_is_unsafe_until_its_tool_says_otherwise() -> None:
    assert a_call().effect is Effect.UNSAFE


def test_arguments_that_became_known_later_change_nothing_else() -> None:
    call = start_call(a_call(arguments={}), at=AT)

    detailed = add_details({"command": "ls"})(call)

    assert detailed == msgspec.structs.replace(call, arguments={"command": "ls"})
