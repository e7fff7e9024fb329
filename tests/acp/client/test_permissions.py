"""Permission requests of a program: who decides, what is answered, and what is kept of it."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import Environment
from holdfast.domain.approvals import ApprovalAnswer, ApprovalMode, ApprovalScope, ApprovalState
from holdfast.domain.errors import Code, Conflict
from holdfast.domain.messages import ResultStatus, Role, ToolResult
from holdfast.domain.sessions import Session, StopReason
from tests.acp.harness import END, Aboard, aboard
from tests.houses import head_of

pytestmark = pytest.mark.anyio

ONCE = {"optionId": "yes", "name": "Yes", "kind": "allow_once"}
ALWAYS = {"optionId": "ever", "name": "Always", "kind": "allow_always"}
NO = {"optionId": "no", "name": "No", "kind": "reject_once"}
NEVER = {"optionId": "never", "name": "Never", "kind": "reject_always"}
ALL = [ONCE, ALWAYS, NO, NEVER]
CANCELLED = {"outcome": {"outcome": "cancelled"}}


def chosen(id_: str) -> dict[str, Any]:
    """Return the answer that selects an option."""
    return {"outcome": {"outcome": "selected", "optionId": id_}}


def asking(
    options: list[dict[str, Any]] | None = None, *, name: str = "asked", **call: Any
) -> dict[str, Any]:
    """Return the step that asks for a permission."""
    told = {"toolCallId": f"call-{name}", "title": "Run it", "kind": "execute",
            "rawInput": {"command": "make"}, **call}  # fmt: skip
    params = {
        "sessionId": "$session",
        "toolCall": told,
        "options": ALL if options is None else options,
    }
    return {"ask": {"method": "session/request_permission", "params": params, "as": name}}


def beside(step: dict[str, Any]) -> dict[str, Any]:
    """Return a step that asks and does not wait."""
    return {"ask": {**step["ask"], "wait": False}}


def asks(*steps: Any) -> dict[str, Any]:
    """Return a script whose prompt does these steps and ends."""
    return {"session/prompt": [*steps, {"text": "done"}, END]}


MODES = [
    (ApprovalMode.DENY, "read", "yes"),
    (ApprovalMode.DENY, "edit", "no"),
    (ApprovalMode.DENY, "execute", "no"),
    (ApprovalMode.ASK, "search", "yes"),
    (ApprovalMode.EDITS, "edit", "yes"),
    (ApprovalMode.AUTO, "execute", "yes"),
    (ApprovalMode.AUTO, "fetch", "yes"),
    (ApprovalMode.AUTO, "switch_mode", "yes"),
    (ApprovalMode.AUTO, "other", "yes"),
    (ApprovalMode.DENY, "think", "yes"),
    (ApprovalMode.DENY, "fetch", "no"),
    (ApprovalMode.DENY, "a word of its own", "no"),
    (ApprovalMode.EDITS, "delete", "yes"),
    (ApprovalMode.EDITS, "move", "yes"),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("mode", "kind", "option"), MODES)
async def test_a_mode_decides_by_kind_and_leaves_a_row(
    tmp_path: Path, mode: ApprovalMode, kind: str, option: str
) -> None:
    script = asks(asking(kind=kind))
    async with aboard(tmp_path, config_approval=ApprovalMode.AUTO, on=script) as ship:
        session = await ship.open(approval=mode)
        await ship.tell(session)
        (row,) = (await ship.house.approvals.list(ship.house.owner, session.id)).items

    assert ship.peer.answers()["asked"]["result"] == chosen(option)
    is_yes = option == "yes"
    assert (row.state, row.answered_by, row.question.call_id) == (
        ApprovalState.ALLOWED if is_yes else ApprovalState.DENIED,
        f"policy:{mode}",
        "call-asked",
    )


ANSWERS: dict[str, tuple[list[dict[str, Any]], ApprovalAnswer, dict[str, Any]]] = {
    "allowed once": (ALL, ApprovalAnswer(state=ApprovalState.ALLOWED, by="me"), chosen("yes")),
    "allowed for the session": (
        ALL,
        ApprovalAnswer(state=ApprovalState.ALLOWED, by="me", scope=ApprovalScope.SESSION),
        chosen("ever"),
    ),
    "for the session, where only once is offered": (
        [ONCE, NO],
        ApprovalAnswer(state=ApprovalState.ALLOWED, by="me", scope=ApprovalScope.SESSION),
        chosen("yes"),
    ),
    "denied": (ALL, ApprovalAnswer(state=ApprovalState.DENIED, by="me"), chosen("no")),
    "denied, where only never is offered": (
        [ONCE, NEVER],
        ApprovalAnswer(state=ApprovalState.DENIED, by="me"),
        chosen("never"),
    ),
    "denied, where no is not offered": (
        [ONCE],
        ApprovalAnswer(state=ApprovalState.DENIED, by="me"),
        CANCELLED,
    ),
    "the first of two of one kind": (
        [ONCE, {**ONCE, "optionId": "second"}, NO],
        ApprovalAnswer(state=ApprovalState.ALLOWED, by="me"),
        chosen("yes"),
    ),
    "the one that was named": (
        [ONCE, {**ONCE, "optionId": "second"}, NO],
        ApprovalAnswer(state=ApprovalState.ALLOWED, by="me", choice="second"),
        chosen("second"),
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", ANSWERS)
async def test_an_answer_becomes_the_option_that_means_it(tmp_path: Path, case: str) -> None:
    options, answer, outcome = ANSWERS[case]
    async with aboard(tmp_path, on=asks(asking(options))) as ship:
        session = await ship.open()
        await ship.house.send(session.id, "go")
        (question,) = await ship.waiting(session)
        before = ship.peer.answers()
        await ship.house.approvals.answer(ship.house.owner, session.id, question.id, answer)
        await ship.settled(session)

    assert before == {}
    assert ship.peer.answers()["asked"]["result"] == outcome


REFUSED: dict[str, tuple[list[dict[str, Any]], ApprovalAnswer]] = {
    "once is never widened": ([ALWAYS, NO], ApprovalAnswer(state=ApprovalState.ALLOWED, by="me")),
    "no yes is offered": ([NO], ApprovalAnswer(state=ApprovalState.ALLOWED, by="me")),
    "unknown option": (ALL, ApprovalAnswer(state=ApprovalState.ALLOWED, by="me", choice="other")),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", REFUSED)
async def test_what_is_not_offered_cannot_be_answered(tmp_path: Path, case: str) -> None:
    options, answer = REFUSED[case]
    async with aboard(tmp_path, on=asks(asking(options))) as ship:
        session = await ship.open()
        await ship.house.send(session.id, "go")
        (question,) = await ship.waiting(session)
        with pytest.raises(Conflict) as caught:
            await ship.house.approvals.answer(ship.house.owner, session.id, question.id, answer)
        await _deny(ship, session)
        await ship.settled(session)

    assert caught.value.code is Code.OPTION_NOT_OFFERED


async def test_a_policy_does_not_widen_a_yes_either(tmp_path: Path) -> None:
    script = asks(asking([ALWAYS, NO]))
    async with aboard(tmp_path, config_approval=ApprovalMode.AUTO, on=script) as ship:
        await ship.tell(await ship.open(approval=ApprovalMode.AUTO))

    assert ship.peer.answers()["asked"]["result"] == chosen("no")


async def test_a_second_answer_changes_nothing(tmp_path: Path) -> None:
    async with aboard(tmp_path, on=asks(asking())) as ship:
        session = await ship.open()
        await ship.house.send(session.id, "go")
        (question,) = await ship.waiting(session)
        approvals, owner = ship.house.approvals, ship.house.owner
        yes, no = (
            ApprovalAnswer(state=state, by="me")
            for state in (ApprovalState.ALLOWED, ApprovalState.DENIED)
        )
        await approvals.answer(owner, session.id, question.id, yes)
        with pytest.raises(Conflict):
            await approvals.answer(owner, session.id, question.id, no)
        await ship.settled(session)

    assert ship.peer.answers()["asked"]["result"] == chosen("yes")


async def test_several_wait_at_once_and_keep_nothing_else_waiting(tmp_path: Path) -> None:
    script = asks(
        beside(asking(name="one")),
        beside(asking(name="two", rawInput={"command": "test"})),
        {"text": "meanwhile "},
        {"mark": "said"},
        {"await": "one"},
        {"await": "two"},
    )
    async with aboard(tmp_path, on=script) as ship:
        session = await ship.open()
        await ship.house.send(session.id, "go")
        first, second = await ship.waiting(session, 2)
        await ship.logged("mark", name="said")
        for question in (second, first):
            yes = ApprovalAnswer(state=ApprovalState.ALLOWED, by="me")
            await ship.house.approvals.answer(ship.house.owner, session.id, question.id, yes)
        rows = await ship.settled(session)

    assert {name: each["result"] for name, each in ship.peer.answers().items()} == {
        "one": chosen("yes"),
        "two": chosen("yes"),
    }
    assert "".join(row.text for row in rows if row.role is Role.ASSISTANT) == "meanwhile done"


async def test_two_sessions_wait_each_for_its_own_answer(tmp_path: Path) -> None:
    async with aboard(tmp_path, on=asks(asking(name="$prompt"))) as ship:
        sessions = [await ship.open(), await ship.open()]
        for session, word in zip(sessions, ("one", "two"), strict=True):
            await ship.house.send(session.id, word)
        questions = [(await ship.waiting(session))[0] for session in sessions]
        states = (ApprovalState.DENIED, ApprovalState.ALLOWED)
        # The one that was asked last is answered first.
        for session, question, state in [*zip(sessions, questions, states, strict=True)][::-1]:
            answer = ApprovalAnswer(state=state, by="me")
            await ship.house.approvals.answer(ship.house.owner, session.id, question.id, answer)
            await ship.settled(session)

    assert {name: each["result"] for name, each in ship.peer.answers().items()} == {
        "one": chosen("no"),
        "two": chosen("yes"),
    }


async def test_a_question_nobody_can_be_asked_is_a_no(tmp_path: Path) -> None:
    outside = Environment(is_attended=False)
    async with aboard(tmp_path, outside=outside, on=asks(asking())) as ship:
        session = await ship.open()
        await ship.tell(session)
        (row,) = (await ship.house.approvals.list(ship.house.owner, session.id)).items

    assert ship.peer.answers()["asked"]["result"] == chosen("no")
    assert (row.state, row.answered_by) == (ApprovalState.DENIED, "unattended")


async def test_time_answers_no_when_nobody_does(tmp_path: Path) -> None:
    brief = timedelta(seconds=0.3)
    async with aboard(tmp_path, config_approvals_expire_after=brief, on=asks(asking())) as ship:
        session = await ship.open()
        await ship.tell(session)
        (row,) = (await ship.house.approvals.list(ship.house.owner, session.id)).items

    assert ship.peer.answers()["asked"]["result"] == chosen("no")
    assert (row.state, row.answered_by) == (ApprovalState.EXPIRED, "time")


async def test_a_program_that_waits_keeps_its_process_and_lease_but_no_place(
    tmp_path: Path,
) -> None:
    at_once = timedelta()
    settings = {"config_approvals_pause_after": at_once, "config_turns_at_a_time": 1}
    async with aboard(tmp_path, **settings, on=asks(asking(name="$prompt"))) as ship:
        sessions = [await ship.open(), await ship.open()]
        for session, word in zip(sessions, ("one", "two"), strict=True):
            await ship.house.send(session.id, word)
        questions = [(await ship.waiting(session))[0] for session in sessions]
        heads = [await head_of(ship.house, session) for session in sessions]
        yes = ApprovalAnswer(state=ApprovalState.ALLOWED, by="me")
        for session, question in zip(sessions, questions, strict=True):
            await ship.house.approvals.answer(ship.house.owner, session.id, question.id, yes)
            await ship.settled(session)
        after = [await ship.now(session) for session in sessions]

    assert [head.until > 0 for head in heads] == [True, True]
    assert [session.last_stop for session in after] == [StopReason.STOP] * 2
    assert ship.peer.answers()["two"]["result"] == chosen("yes")


async def test_what_was_allowed_for_the_session_is_not_asked_again(tmp_path: Path) -> None:
    script = asks(asking([ONCE, NO], name="one"), asking([ONCE, NO], name="two"))
    async with aboard(tmp_path, on=script) as ship:
        session = await ship.open()
        await ship.house.send(session.id, "go")
        (question,) = await ship.waiting(session)
        yes = ApprovalAnswer(state=ApprovalState.ALLOWED, by="me", scope=ApprovalScope.SESSION)
        await ship.house.approvals.answer(ship.house.owner, session.id, question.id, yes)
        await ship.settled(session)

    assert ship.peer.answers()["two"]["result"] == chosen("yes")


async def test_an_interrupt_answers_what_waits_with_cancelled(tmp_path: Path) -> None:
    async with aboard(tmp_path, on={"session/prompt": [asking(), END]}) as ship:
        session = await ship.open()
        await ship.house.send(session.id, "go")
        await ship.waiting(session)
        await ship.house.sessions.interrupt(ship.house.owner, session.id)
        await ship.logged("cancelled")
        rows = await ship.settled(session)
        now = await ship.now(session)
        (row,) = (await ship.house.approvals.list(ship.house.owner, session.id)).items

    answers = [each["message"] for each in ship.peer.log("got") if "result" in each["message"]]
    assert answers[-1]["result"] == CANCELLED
    methods = [each.get("method") for each in ship.peer.got()]
    # The answer comes before the cancel.
    assert methods[-2:] == [None, "session/cancel"]
    assert (now.last_stop, row.state) == (StopReason.ABORTED, ApprovalState.EXPIRED)
    results = [part for each in rows for part in each.parts if isinstance(part, ToolResult)]
    assert [each.status for each in results] == [ResultStatus.UNKNOWN]


async def _deny(ship: Aboard, session: Session) -> None:
    (question,) = await ship.waiting(session)
    no = ApprovalAnswer(state=ApprovalState.DENIED, by="me")
    await ship.house.approvals.answer(ship.house.owner, session.id, question.id, no)
