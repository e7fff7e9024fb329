"""Approvals: answered once."""

from datetime import timedelta
from itertools import product

import pytest

from holdfast.domain.approvals import ApprovalMode, ApprovalScope, ApprovalState, answered, tighter
from holdfast.domain.errors import Code, Conflict
from tests.builders import APPROVAL_ID, AT, an_approval

FINAL = [ApprovalState.ALLOWED, ApprovalState.DENIED, ApprovalState.EXPIRED]
STRICTEST_FIRST = [ApprovalMode.DENY, ApprovalMode.ASK, ApprovalMode.EDITS, ApprovalMode.AUTO]


def test_every_state_but_waiting_is_final() -> None:
    assert set(ApprovalState) == {ApprovalState.WAITING, *FINAL}


@pytest.mark.parametrize("state", FINAL)
def test_a_waiting_question_takes_its_first_answer(state: ApprovalState) -> None:
    later = AT + timedelta(minutes=1)

    assert answered(an_approval(), state, by="anna", at=later) == an_approval(
        state=state, answered_by="anna", answered_at=later
    )


@pytest.mark.parametrize("state", FINAL)
def test_the_same_answer_again_is_heard_and_changes_nothing(state: ApprovalState) -> None:
    first = answered(an_approval(), state, by="anna", at=AT)

    assert answered(first, state, by="ben", at=AT + timedelta(hours=1)) == first


@pytest.mark.parametrize(
    ("state", "answer"), [pair for pair in product(FINAL, ApprovalState) if pair[0] != pair[1]]
)
def test_another_answer_is_refused(state: ApprovalState, answer: ApprovalState) -> None:
    with pytest.raises(Conflict) as refused:
        answered(an_approval(state=state), answer, by="ben", at=AT)

    assert refused.value.body() == {
        "error": Code.APPROVAL_CLOSED,
        "message": f"Approval {APPROVAL_ID} is {state}; run the call again to be asked again.",
        "details": {"state": state},
    }


def test_a_question_covers_one_call_unless_somebody_says_more() -> None:
    assert an_approval().scope is ApprovalScope.ONCE


@pytest.mark.parametrize(("one", "other"), list(product(ApprovalMode, repeat=2)))
def test_the_stricter_of_two_modes_holds(one: ApprovalMode, other: ApprovalMode) -> None:
    expected = min(one, other, key=STRICTEST_FIRST.index)

    assert tighter(one, other) is expected
    assert tighter(other, one) is expected
