"""Approvals: bound to exactly what was asked, and answered once."""

import json
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.approvals import (
    TIGHTNESS,
    Approval,
    ApprovalMode,
    ApprovalScope,
    ApprovalState,
    Decision,
    Question,
    apply_answer,
    digest_call,
    flag_of,
    stricter_mode,
)
from holdfast.domain.errors import Code, Conflict
from holdfast.domain.tools import ToolClass
from tests.builders import APPROVAL_ID, AT, CALL_ID, SESSION_ID
from tests.domain.strategies import JSON, TEXTS
from tests.marks import each_case

FINAL = [ApprovalState.ALLOWED, ApprovalState.DENIED, ApprovalState.EXPIRED]
STRICTEST_FIRST = [ApprovalMode.DENY, ApprovalMode.ASK, ApprovalMode.EDITS, ApprovalMode.AUTO]
LATER = AT + timedelta(minutes=1)


def a_question(**changes: Any) -> Question:
    """Return a question about one command, which can be allowed for the whole session."""
    fields: dict[str, Any] = {
        "id": APPROVAL_ID,
        "call_id": CALL_ID,
        "tool": "run_command",
        "tool_class": ToolClass.PROCESS,
        "arguments": {"command": "make"},
        "question": "Run make?",
        "digest": "0" * 64,
        "memory": "process:make",
    }
    return Question(**fields | changes)


def an_approval(**changes: Any) -> Approval:
    """Return a question that waits for its answer."""
    fields: dict[str, Any] = {"session_id": SESSION_ID, "question": a_question(), "asked_at": AT}
    return Approval(**fields | changes)


def test_every_state_but_waiting_is_final() -> None:
    assert set(ApprovalState) == {ApprovalState.WAITING, *FINAL}


@each_case("scope", ApprovalScope)
@each_case("state", FINAL)
def test_a_waiting_question_takes_its_first_answer(
    state: ApprovalState, scope: ApprovalScope
) -> None:
    answer = Decision(state=state, by="anna", scope=scope, note="because")

    assert apply_answer(an_approval(), answer, at=LATER) == an_approval(
        state=state, scope=scope, answered_by="anna", note="because", answered_at=LATER
    )


@each_case("state", FINAL)
def test_the_same_answer_again_is_heard_and_changes_nothing(state: ApprovalState) -> None:
    first = apply_answer(an_approval(), Decision(state=state, by="anna"), at=AT)
    again = Decision(state=state, by="ben", scope=ApprovalScope.SESSION, note="me too")

    assert apply_answer(first, again, at=LATER) == first


@each_case(
    ("state", "other"), [pair for pair in product(FINAL, ApprovalState) if pair[0] != pair[1]]
)
def test_another_answer_is_refused(state: ApprovalState, other: ApprovalState) -> None:
    with pytest.raises(Conflict) as refused:
        apply_answer(an_approval(state=state), Decision(state=other, by="ben"), at=AT)

    assert refused.value.body() == {
        "error": Code.APPROVAL_CLOSED,
        "message": f"Approval {APPROVAL_ID} is already {state}; "
        "run the call again to get a new request.",
        "details": {"state": state},
    }


def test_what_no_memory_can_cover_is_not_allowed_for_a_whole_session() -> None:
    once_only = an_approval(question=a_question(memory=None))
    for_good = Decision(state=ApprovalState.ALLOWED, by="anna", scope=ApprovalScope.SESSION)

    with pytest.raises(Conflict) as refused:
        apply_answer(once_only, for_good, at=AT)

    assert refused.value.code is Code.OPTION_NOT_OFFERED


def test_a_question_covers_one_call_unless_somebody_says_more() -> None:
    assert an_approval().scope is ApprovalScope.ONCE
    assert Decision(state=ApprovalState.ALLOWED, by="anna").scope is ApprovalScope.ONCE


@each_case(("preview", "name"), [({}, "run_command"), ({"path": "/w/a", "kind": "fetch"}, "fetch")])
def test_a_flag_knows_a_foreign_call_by_its_kind_alone(preview: dict[str, str], name: str) -> None:
    assert flag_of(a_question(preview=preview)) == name


def test_an_approval_is_known_by_the_id_of_its_question() -> None:
    assert an_approval().id == APPROVAL_ID


@each_case(("one", "other"), list(product(ApprovalMode, repeat=2)))
def test_the_stricter_of_two_modes_holds(one: ApprovalMode, other: ApprovalMode) -> None:
    expected = min(one, other, key=STRICTEST_FIRST.index)

    assert stricter_mode(one, other) is expected
    assert stricter_mode(other, one) is expected


def test_every_mode_has_its_tightness() -> None:
    assert sorted(TIGHTNESS, key=TIGHTNESS.__getitem__) == STRICTEST_FIRST


def test_a_digest_never_changes_its_recipe() -> None:
    made = digest_call("write_file", {"path": "a", "content": "b"}, "/desk", ["/desk/a"])

    # SHA-256 of ["write_file",{"content":"b","path":"a"},"/desk",["/desk/a"]].
    assert made == "a56f8bb71efd8f341d4853dfc059e54bb342af69defe971a978a4c4c35e82c53"


ASKED = st.tuples(TEXTS, st.dictionaries(TEXTS, JSON, max_size=3), TEXTS, st.lists(TEXTS))


@given(ASKED)
def test_a_digest_does_not_depend_on_the_order_of_the_arguments(
    asked: tuple[str, dict[str, Any], str, list[str]],
) -> None:
    tool, arguments, working_dir, targets = asked
    turned = dict(reversed(arguments.items()))

    assert digest_call(*asked) == digest_call(tool, turned, working_dir, targets)


@given(ASKED, ASKED)
def test_an_answer_is_for_nothing_that_differs_in_anything(
    one: tuple[str, dict[str, Any], str, list[str]],
    other: tuple[str, dict[str, Any], str, list[str]],
) -> None:
    mixed = [
        (one[0], *other[1:]),
        (one[0], other[1], *one[2:]),
        (*one[:2], other[2], one[3]),
        (*one[:3], other[3]),
    ]

    for asked in mixed:
        is_same = json.dumps(asked, sort_keys=True) == json.dumps(one, sort_keys=True)
        assert (digest_call(*asked) == digest_call(*one)) is is_same


def test_what_moves_between_the_fields_is_something_else() -> None:
    one = digest_call("tool", {}, "/a", ["/b"])

    assert one not in {
        digest_call("tool", {}, "/a/b", []),
        digest_call("tool", {}, "/b", ["/a"]),
        digest_call("tool", {"/a": "/b"}, "", []),
        digest_call("tool", {}, "/a", ["/b", ""]),
    }
