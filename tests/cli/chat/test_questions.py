"""A question as a person is asked it."""

from datetime import UTC, datetime

from holdfast.cli.chat.approvals import question_lines, read_answer
from holdfast.domain.approvals import (
    Approval,
    ApprovalScope,
    ApprovalState,
    Decision,
    Question,
)
from holdfast.domain.ids import ApprovalId, SessionId
from holdfast.domain.tools import ToolClass
from tests.builders import an_id
from tests.marks import each_case

ALLOWED = Decision(state=ApprovalState.ALLOWED, by="terminal")
FOR_ALL = Decision(state=ApprovalState.ALLOWED, by="terminal", scope=ApprovalScope.SESSION)
DENIED = Decision(state=ApprovalState.DENIED, by="terminal")


def an_approval(
    text: str, *, kind: ToolClass = ToolClass.WRITE, memory: str | None = "write:/desk"
) -> Approval:
    """Return a question that waits."""
    question = Question(
        id=ApprovalId(an_id(1)),
        tool="write_file",
        tool_class=kind,
        question=text,
        digest="d",
        memory=memory,
    )
    return Approval(
        session_id=SessionId(an_id(2)), question=question, asked_at=datetime(2026, 1, 1, tzinfo=UTC)
    )


def test_a_question_is_whole_and_its_changes_are_coloured() -> None:
    asked = an_approval("/desk/a.txt (change)\n@@ -1 +1 @@\n-old\n+new\n same")

    assert list(question_lines(asked)) == [
        ("write_file asks for approval (write):", "1"),
        ("/desk/a.txt (change)", ""),
        ("@@ -1 +1 @@", "36"),
        ("-old", "31"),
        ("+new", "32"),
        (" same", ""),
        (
            "y: allow once, a: allow for this session (write:/desk), n or n REASON: deny.",
            "",
        ),
    ]


def test_nothing_is_cut_and_nothing_hides() -> None:
    asked = an_approval("x" * 100_000 + "\x1b[2K\u202e\u200b")

    lines = [line for line, _ in question_lines(asked)]

    assert lines[1] == "x" * 100_000 + "\\u001b[2K\\u202e\\u200b"


@each_case(
    ("kind", "memory"),
    [
        (ToolClass.WRITE, None),
        (ToolClass.SENSITIVE_WRITE, "write:/desk"),
        (ToolClass.COMMIT, "commit"),
        (ToolClass.MONEY, "money"),
    ],
)
def test_what_has_to_be_seen_each_time_is_offered_once(kind: ToolClass, memory: str | None) -> None:
    lines = [line for line, _ in question_lines(an_approval("x", kind=kind, memory=memory))]

    assert lines[-1] == "y: allow once, n or n REASON: deny."


@each_case(
    ("said", "answer"),
    [
        ("y", ALLOWED),
        (" YES ", ALLOWED),
        ("a", FOR_ALL),
        ("always", FOR_ALL),
        ("n", DENIED),
        ("no", DENIED),
        ("n not now", Decision(state=ApprovalState.DENIED, by="terminal", note="not now")),
        ("no, later", Decision(state=ApprovalState.DENIED, by="terminal", note="later")),
        (
            f"n {'x' * 500}",
            Decision(state=ApprovalState.DENIED, by="terminal", note="x" * 500),
        ),
    ],
)
def test_a_letter_answers(said: str, answer: Decision) -> None:
    assert read_answer(said, has_more=True) == answer


@each_case("said", ["", "x", "y please", "yn", "a lot", "ya", "/exit"])
def test_everything_else_is_asked_again(said: str) -> None:
    assert read_answer(said, has_more=True) == ("Answer y, a or n; n may be followed by a reason.")


def test_what_is_not_offered_is_no_answer() -> None:
    assert read_answer("a", has_more=False) == "This call can be allowed only once; answer y or n."
    assert read_answer("x", has_more=False) == "Answer y or n; n may be followed by a reason."


def test_a_reason_is_not_cut_but_asked_for_again() -> None:
    assert read_answer(f"n {'x' * 501}", has_more=True) == (
        "A reason may have at most 500 characters; this one has 501."
    )
