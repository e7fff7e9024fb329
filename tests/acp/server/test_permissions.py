"""Questions of a turn at the client: the first answer counts, from wherever it comes."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.acp.server.client_session import choices_of, read_answer
from holdfast.acp.server.updates import UpdateTranslator
from holdfast.domain.approvals import (
    Approval,
    ApprovalChoice,
    ApprovalScope,
    ApprovalState,
    Decision,
    Question,
)
from holdfast.domain.events import ApprovalAnswered
from holdfast.domain.ids import ApprovalId, SessionId
from holdfast.domain.tools import ToolClass
from tests.acp.editor import Editor, Frame, here, is_question, selected, words
from tests.marks import each_case
from tests.stand_ins import SettableClock

pytestmark = pytest.mark.anyio

OPTIONS = [
    {"optionId": "allow_once", "name": "Allow once", "kind": "allow_once"},
    {"optionId": "allow_always", "name": "Allow for this session", "kind": "allow_always"},
    {"optionId": "reject_once", "name": "Reject", "kind": "reject_once"},
]


def states(editor: Editor) -> list[str]:
    """Return how far the calls came, and forget the frames."""
    return [each["status"] for each in editor.updates() if "toolCallId" in each]


async def test_a_question_shows_the_whole_call(home: Path, desk: Path) -> None:
    async with here(home, desk) as (_, editor):
        session = await editor.opened(desk)
        await editor.prompt(session, "write a.txt: hi")

        (question,) = filter(is_question, editor.frames)
        assert question["params"] == {
            "sessionId": session,
            "toolCall": {
                "toolCallId": "call_1",
                "title": "Write a.txt",
                "kind": "edit",
                "rawInput": {"path": "a.txt", "content": "hi\n"},
                "locations": [{"path": f"{desk}/a.txt"}],
                "status": "pending",
                "content": [
                    {
                        "type": "content",
                        "content": {"type": "text", "text": f"{desk}/a.txt (new file)\n+hi"},
                    }
                ],
            },
            "options": OPTIONS,
        }
        assert states(editor) == ["in_progress", "completed"]
        assert (desk / "a.txt").read_text() == "hi\n"


@each_case(
    "answer",
    [
        selected("reject_once"),
        selected("nonsense"),
        {"result": {"outcome": {"outcome": "cancelled"}}},
        {"result": {"outcome": "allow_once"}},
        {"result": None},
        {"error": {"code": -32601, "message": "no such method"}},
    ],
)
async def test_whatever_is_no_yes_is_a_no_and_the_turn_goes_on(
    home: Path, desk: Path, answer: Frame
) -> None:
    async with here(home, desk) as (house, editor):
        editor.answer = lambda _: answer
        session = await editor.opened(desk)

        ended = await editor.prompt(session, "write a.txt: hi")

        assert ended["result"]["stopReason"] == "end_turn"
        assert states(editor) == ["failed"]
        assert not (desk / "a.txt").exists()
        asked = await house.approvals.list(house.owner, SessionId(session))
        found = [(each.state, each.answered_by) for each in asked.items]
        assert found == [(ApprovalState.DENIED, "acp")]


async def test_a_yes_for_the_session_is_not_asked_for_again(home: Path, desk: Path) -> None:
    async with here(home, desk) as (_, editor):
        editor.answer = lambda _: selected("allow_always")
        session = await editor.opened(desk)

        await editor.prompt(session, "write a.txt: hi")
        await editor.prompt(session, "write b.txt: hi")

        assert len(list(filter(is_question, editor.frames))) == 1
        assert (desk / "b.txt").exists()


async def test_an_answer_from_elsewhere_is_the_first_one(home: Path, desk: Path) -> None:
    async with here(home, desk) as (house, editor):
        editor.answer = lambda _: None
        session = await editor.opened(desk)
        asked = await editor.begin(
            "session/prompt", sessionId=session, prompt=words("write a.txt: hi")
        )
        question = await editor.until(is_question)
        waiting = await house.approvals.list(house.owner, SessionId(session))

        yes = Decision(state=ApprovalState.ALLOWED, by="terminal")
        await house.approvals.answer(house.owner, SessionId(session), waiting.items[0].id, yes)

        assert (await editor.reply(asked))["result"]["stopReason"] == "end_turn"
        assert (desk / "a.txt").exists()
        # Too late, and no harm done.
        await editor.send(id=question["id"], **selected("reject_once"))
        again = await editor.prompt(session, "What is 2+3?")
        assert again["result"]["stopReason"] == "end_turn"


async def test_a_cancel_at_a_question_ends_the_turn(home: Path, desk: Path) -> None:
    async with here(home, desk) as (house, editor):
        editor.answer = lambda _: None
        session = await editor.opened(desk)
        asked = await editor.begin(
            "session/prompt", sessionId=session, prompt=words("write a.txt: hi")
        )
        question = await editor.until(is_question)

        await editor.send(method="session/cancel", params={"sessionId": session})
        cancelled = {"outcome": {"outcome": "cancelled"}}
        await editor.send(id=question["id"], result=cancelled)

        assert (await editor.reply(asked))["result"]["stopReason"] == "cancelled"
        found = await house.approvals.list(house.owner, SessionId(session))
        assert [each.state for each in found.items] == [ApprovalState.EXPIRED]
        assert not (desk / "a.txt").exists()


def test_a_question_about_money_has_no_call_and_is_closed_all_the_same() -> None:
    asked = Approval(
        session_id=SessionId("s"), question=a_question(), asked_at=SettableClock().now()
    )
    telling = UpdateTranslator("/desk")

    def answered(decision: str) -> list[dict[str, Any]]:
        return telling.of(
            ApprovalAnswered(approval_id=ApprovalId("a"), decision=decision, by="acp")
        )

    assert answered("allowed") == []
    for decision, status in (("allowed", "completed"), ("denied", "failed")):
        assert telling.approval_update(asked) == {
            "toolCallId": "a",
            "title": "spend",
            "kind": "other",
            "rawInput": {},
            "status": "pending",
            "content": [{"type": "content", "content": {"type": "text", "text": "More?"}}],
        }
        update = {"sessionUpdate": "tool_call_update", "toolCallId": "a", "status": status}
        assert answered(decision) == [update]


def a_question(**more: Any) -> Question:
    """Return a question that can be answered once only."""
    fields = {
        "id": ApprovalId("a"),
        "tool": "spend",
        "tool_class": ToolClass.MONEY,
        "question": "More?",
        "digest": "d",
    }
    return Question(**fields | more)


def test_what_cannot_be_allowed_for_the_session_is_not_offered_so() -> None:
    assert choices_of(a_question()) == [OPTIONS[0], OPTIONS[2]]
    assert read_answer(a_question(), selected("allow_always")["result"]).state == "denied"


@each_case(
    ("option", "answer"),
    [
        ("once", Decision(state=ApprovalState.ALLOWED, by="acp", choice="once")),
        (
            "ever",
            Decision(
                state=ApprovalState.ALLOWED, by="acp", choice="ever", scope=ApprovalScope.SESSION
            ),
        ),
        ("no", Decision(state=ApprovalState.DENIED, by="acp", choice="no")),
        ("what", Decision(state=ApprovalState.DENIED, by="acp")),
    ],
)
def test_the_options_of_an_agent_behind_ours_pass_through(option: str, answer: Decision) -> None:
    choices = (
        ApprovalChoice(id="once", name="Yes", kind="allow_once"),
        ApprovalChoice(id="ever", name="Always", kind="allow_always"),
        ApprovalChoice(id="no", name="No", kind="reject_once"),
    )
    question = a_question(choices=choices, memory="all")

    assert [each["optionId"] for each in choices_of(question)] == ["once", "ever", "no"]
    assert read_answer(question, selected(option)["result"]) == answer


def test_always_without_a_memory_of_ours_is_a_yes_for_once() -> None:
    choices = (ApprovalChoice(id="ever", name="Always", kind="allow_always"),)
    answer = read_answer(a_question(choices=choices), selected("ever")["result"])

    assert answer == Decision(state=ApprovalState.ALLOWED, by="acp", choice="ever")
