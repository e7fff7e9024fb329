"""The JSON form of questions and calls."""

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from holdfast.cli.forms import approval_form, call_form, result_form
from holdfast.domain.approvals import Approval, ApprovalScope, ApprovalState, Question
from holdfast.domain.calls import Call, CallState, Settlement
from holdfast.domain.ids import ApprovalId, CallId, SessionId
from holdfast.domain.messages import ResultStatus, ToolError, ToolResult
from holdfast.domain.tools import Effect, ToolClass
from tests.builders import an_id

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER = datetime(2026, 1, 3, 3, 4, 5, 6, tzinfo=UTC)

APPROVAL = Approval(
    session_id=SessionId(an_id(2)),
    question=Question(
        id=ApprovalId(an_id(1)),
        call_id=CallId("c1"),
        tool="write_file",
        tool_class=ToolClass.WRITE,
        arguments={"path": "a.txt"},
        question="May\x1b I?",
        digest="d1",
        memory="write:/desk",
    ),
    asked_at=AT,
    expires_at=LATER,
)
ONCE = {"id": "once", "name": "Allow once", "kind": "allow_once"}
SESSION = {"id": "session", "name": "Allow in this session", "kind": "allow_always"}
DENY = {"id": "deny", "name": "Deny", "kind": "reject_once"}


def test_a_question_that_waits() -> None:
    assert approval_form(APPROVAL) == {
        "id": an_id(1),
        "session_id": an_id(2),
        "tool_call_id": "c1",
        "question": "May\x1b I?",
        "tool": "write_file",
        "class": "write",
        "arguments": {"path": "a.txt"},
        "digest": "d1",
        "options": [ONCE, SESSION, DENY],
        "covers": "write:/desk",
        "state": "waiting",
        "scope": None,
        "answered_by": None,
        "note": None,
        "created_at": "2026-01-02T03:04:05.000000Z",
        "expires_at": "2026-01-03T03:04:05.000006Z",
        "answered_at": None,
    }


def test_a_question_that_has_its_answer() -> None:
    answered = replace(
        APPROVAL,
        state=ApprovalState.ALLOWED,
        scope=ApprovalScope.SESSION,
        answered_by="ada",
        note="go on",
        answered_at=LATER,
    )

    form = approval_form(answered)

    named = ("state", "scope", "answered_by", "note", "answered_at")
    assert [form[name] for name in named] == [
        "allowed",
        "session",
        "ada",
        "go on",
        "2026-01-03T03:04:05.000006Z",
    ]


@pytest.mark.parametrize("kind", [ToolClass.SENSITIVE_WRITE, ToolClass.COMMIT, ToolClass.MONEY])
def test_what_has_to_be_seen_each_time_is_not_offered_for_a_session(kind: ToolClass) -> None:
    form = approval_form(replace(APPROVAL, question=replace(APPROVAL.question, tool_class=kind)))

    assert (form["options"], form["covers"]) == ([ONCE, DENY], None)


CALL = Call(
    id=CallId("c1"),
    session_id=SessionId(an_id(2)),
    turn=3,
    name="run_command",
    arguments={"command": "ls"},
    state=CallState.UNKNOWN,
    effect=Effect.UNSAFE,
    idempotency_key="k",
    sequence=4,
    result_sequence=5,
    started_at=AT,
    ended_at=LATER,
)


@pytest.mark.parametrize(
    ("call", "settled"),
    [
        (CALL, None),
        (replace(CALL, state=CallState.SETTLED, settlement=Settlement.MARKED_DONE), "marked_done"),
    ],
)
def test_a_call_whose_outcome_is_unknown_stays_so(call: Call, settled: str | None) -> None:
    assert call_form(call) == {
        "id": "c1",
        "session_id": an_id(2),
        "turn": 3,
        "name": "run_command",
        "arguments": {"command": "ls"},
        "effect": "unsafe",
        "state": "unknown",
        "settled": settled,
        "idempotency_key": "k",
        "started_at": "2026-01-02T03:04:05.000000Z",
        "ended_at": "2026-01-03T03:04:05.000006Z",
        "message_sequence": 4,
        "result_sequence": 5,
    }


def test_what_came_of_a_call() -> None:
    fine = ToolResult(call_id=CallId("c1"), name="x", status=ResultStatus.OK, result={"a": 1})
    error = ToolError(code="rejected", message="No.")
    bad = ToolResult(call_id=CallId("c1"), name="x", status=ResultStatus.DENIED, error=error)

    assert [result_form(each) for each in (None, fine, bad)] == [
        {"status": None, "result": None, "error": None},
        {"status": "ok", "result": {"a": 1}, "error": None},
        {"status": "denied", "result": None, "error": {"code": "rejected", "message": "No."}},
    ]
