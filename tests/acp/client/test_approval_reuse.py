"""What a yes is good for: this act, as it was asked about, once, and for as long as it stands."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.approvals import (
    Approval,
    ApprovalAnswer,
    ApprovalMode,
    ApprovalScope,
    ApprovalState,
)
from holdfast.domain.sessions import Session
from holdfast.domain.tools import ToolClass
from tests.acp.client.test_agent_requests import does, prompt
from tests.acp.client.test_permissions import ALL, CANCELLED, NO, ONCE, asking, beside, chosen
from tests.acp.harness import END, Aboard, aboard

pytestmark = pytest.mark.anyio

YES = ApprovalAnswer(state=ApprovalState.ALLOWED, by="me")
NAY = ApprovalAnswer(state=ApprovalState.DENIED, by="me")
EVER = ApprovalAnswer(state=ApprovalState.ALLOWED, by="me", scope=ApprovalScope.SESSION)


async def settle(ship: Aboard, session: Session, answer: ApprovalAnswer) -> Approval:
    """Wait for the one question that waits, and answer it."""
    (found,) = await ship.waiting(session)
    await ship.house.approvals.answer(ship.house.owner, session.id, found.id, answer)
    return found


async def rows_of(ship: Aboard, session: Session) -> list[tuple[str, str, str | None]]:
    """Return the questions of a session: about what, how they stand, who answered."""
    page = await ship.house.approvals.list(ship.house.owner, session.id)
    return [(each.question.tool, str(each.state), each.answered_by) for each in page.items]


def free(folder: Path, **more: Any) -> Any:
    """Open a home in which a session may be as loose as it wants."""
    return aboard(folder, config_approval=ApprovalMode.AUTO, **more)


def _touching(loot: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a command as arguments of a call, and the step that has us run it."""
    line = f"touch {loot}"
    run = does("terminal/create", "run", command="sh", args=["-c", line], wait=False)
    return {"x": line}, run


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["read", "search", "think"])
async def test_a_yes_to_reading_runs_nothing_where_all_is_denied(tmp_path: Path, kind: str) -> None:
    given, run = _touching(tmp_path / "loot")
    steps = (asking(kind=kind, rawInput=given), run, {"await": "run"})
    async with aboard(tmp_path, on=prompt(*steps)) as ship:
        session = await ship.open(approval=ApprovalMode.DENY)
        await ship.tell(session)
        rows = await rows_of(ship, session)

    assert rows == [
        (kind, "allowed", "policy:deny"),
        ("terminal.create", "denied", "policy:deny"),
    ]
    assert not (tmp_path / "loot").exists()


async def test_a_yes_to_reading_is_not_taken_for_one_to_running(tmp_path: Path) -> None:
    given, run = _touching(tmp_path / "loot")
    steps = (asking(kind="read", rawInput=given), run, {"await": "run"})
    async with aboard(tmp_path, on=prompt(*steps)) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        await ship.house.send(session.id, "go")
        asked = await settle(ship, session, NAY)
        await ship.settled(session)

    assert (asked.question.tool, asked.question.tool_class) == (
        "terminal.create",
        ToolClass.PROCESS,
    )
    assert not (tmp_path / "loot").exists()


async def test_a_yes_to_fetching_is_not_taken_for_one_to_running(tmp_path: Path) -> None:
    given, run = _touching(tmp_path / "loot")
    steps = (asking(kind="fetch", rawInput=given), run, {"await": "run"})
    async with aboard(tmp_path, on=prompt(*steps)) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        await ship.house.send(session.id, "go")
        fetched = await settle(ship, session, YES)
        asked = await settle(ship, session, NAY)
        await ship.settled(session)

    assert (fetched.question.tool, asked.question.tool) == ("fetch", "terminal.create")
    assert not (tmp_path / "loot").exists()


DELICATE = ".github/workflows/x.yml"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", [ApprovalMode.EDITS, ApprovalMode.AUTO])
async def test_a_rule_for_plain_writes_lets_no_delicate_one_pass(
    tmp_path: Path, mode: ApprovalMode
) -> None:
    path = tmp_path / "tree" / DELICATE
    write = does("fs/write_text_file", "write", path=str(path), content="on: push", wait=False)
    steps = (asking(kind="edit", rawInput={"file": str(path)}), write, {"await": "write"})
    async with free(tmp_path, on=prompt(*steps)) as ship:
        session = await ship.open(approval=mode)
        await ship.house.send(session.id, "go")
        asked = await settle(ship, session, NAY)
        await ship.settled(session)

    assert (asked.question.tool, asked.question.tool_class) == (
        "fs.write_text_file",
        ToolClass.SENSITIVE_WRITE,
    )
    assert not path.exists()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_named", [True, False])
async def test_somebodys_yes_covers_a_delicate_write_if_it_was_asked_as_one(
    tmp_path: Path, is_named: bool
) -> None:
    path = tmp_path / "tree" / DELICATE
    # Only by its locations a call is known to be about something delicate.
    named: dict[str, Any] = {"locations": [{"path": str(path)}]} if is_named else {}
    write = does("fs/write_text_file", "write", path=str(path), content="on: push", wait=False)
    call = asking(kind="edit", rawInput={"file": str(path)}, **named)
    async with aboard(tmp_path, on=prompt(call, write, {"await": "write"})) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        await ship.house.send(session.id, "go")
        await settle(ship, session, YES)
        if not is_named:
            await settle(ship, session, NAY)
        await ship.settled(session)
        rows = await rows_of(ship, session)

    second = [] if is_named else [("fs.write_text_file", "denied", "me")]
    assert (rows, path.exists()) == ([("edit", "allowed", "me"), *second], is_named)


ELSEWHERE: dict[str, dict[str, Any]] = {
    "with variables": {"env": [{"name": "GIT_PAGER", "value": "evil"}]},
    "in another folder": {"cwd": "sub"},
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", ELSEWHERE)
async def test_a_command_that_was_allowed_is_asked_about_again(tmp_path: Path, case: str) -> None:
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    more = dict(ELSEWHERE[case])
    if "cwd" in more:
        more["cwd"] = str(tmp_path / "tree" / more["cwd"])
    run = does("terminal/create", "run", command="echo", args=["hi"], wait=False, **more)
    steps = (asking(rawInput={"command": "echo hi"}), run, {"await": "run"})
    async with aboard(tmp_path, on=prompt(*steps)) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        await ship.house.send(session.id, "go")
        await settle(ship, session, YES)
        asked = await settle(ship, session, NAY)
        await ship.settled(session)

    assert asked.question.tool == "terminal.create"
    assert "error" in ship.peer.answers()["run"]


async def _edited(ship: Aboard, session: Session, answer: ApprovalAnswer) -> Approval:
    """Play a turn in which an edit is asked about, and answer it."""
    await ship.house.send(session.id, "go")
    asked = await settle(ship, session, answer)
    await ship.settled(session)
    return asked


def _edit_then_write(tree: Path, name: str = "b.txt") -> dict[str, Any]:
    edit = asking(ALL, kind="edit", locations=[{"path": f"{tree}/a.txt"}])
    write = does("fs/write_text_file", "write", path=f"{tree}/{name}", content="x", wait=False)
    return {"session/prompt": [[edit, END], [write, {"await": "write"}, END]]}


async def test_a_yes_for_the_session_ends_with_the_mode(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    async with aboard(tmp_path, on=_edit_then_write(tree)) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        asked = await _edited(ship, session, EVER)
        changes = {"approval": ApprovalMode.DENY}
        await ship.house.sessions.update(ship.house.owner, session.id, changes)
        await ship.tell(session, "again")
        rows = await rows_of(ship, session)

    assert asked.question.memory == f"write:{tree}"
    assert rows[1:] == [("fs.write_text_file", "denied", "policy:deny")]
    assert not (tree / "b.txt").exists()


async def test_a_yes_for_the_session_ends_when_it_is_taken_back(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    async with aboard(tmp_path, on=_edit_then_write(tree)) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        asked = await _edited(ship, session, EVER)
        await ship.house.approvals.revoke(ship.house.owner, session.id, asked.id)
        second = await _edited(ship, session, NAY)

    assert second.question.tool == "fs.write_text_file"
    assert not (tree / "b.txt").exists()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "is_covered"), [("b.txt", True), ("deep/b.txt", False)])
async def test_a_yes_for_the_session_is_about_the_folder(
    tmp_path: Path, name: str, is_covered: bool
) -> None:
    tree = tmp_path / "tree"
    async with aboard(tmp_path, on=_edit_then_write(tree, name)) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        await _edited(ship, session, EVER)
        if is_covered:
            await ship.tell(session, "again")
        else:
            await _edited(ship, session, NAY)

    assert (tree / name).exists() is is_covered


async def test_who_lets_files_be_edited_has_not_let_them_go(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    steps = [
        [asking(ALL, name=kind, kind=kind, locations=[{"path": f"{tree}/{kind}.txt"}]), END]
        for kind in ("edit", "delete", "move")
    ]
    async with aboard(tmp_path, on={"session/prompt": steps}) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        asked = [await _edited(ship, session, answer) for answer in (EVER, EVER, NAY)]

    assert [each.question.tool for each in asked] == ["edit", "delete", "move"]


async def test_what_a_rule_says_by_memory_is_no_memory_itself(tmp_path: Path) -> None:
    always = [{"optionId": "ever", "name": "Always", "kind": "allow_always"}, NO]
    turns = [[asking(always, name=name), END] for name in ("one", "two", "three")]
    async with aboard(tmp_path, on={"session/prompt": turns}) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        asked = await _edited(ship, session, EVER)
        await ship.tell(session, "again")
        await ship.house.approvals.revoke(ship.house.owner, session.id, asked.id)
        await _edited(ship, session, NAY)

    answers = ship.peer.answers()
    assert [answers[name]["result"] for name in ("one", "two", "three")] == [
        chosen("ever"),
        chosen("ever"),
        chosen("no"),
    ]


def again(name: str) -> dict[str, Any]:
    """Return the step that asks about one and the same call, under a name for the answer."""
    return asking([ONCE, NO], name=name, toolCallId="same")


async def test_a_yes_for_once_answers_once(tmp_path: Path) -> None:
    async with aboard(tmp_path, on=prompt(again("one"), again("two"), again("three"))) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        await ship.house.send(session.id, "go")
        for answer in (YES, YES, NAY):
            await settle(ship, session, answer)
        await ship.settled(session)
        rows = await rows_of(ship, session)

    assert rows == [
        ("execute", "allowed", "me"),
        ("execute", "allowed", "me"),
        ("execute", "denied", "me"),
    ]
    answers = ship.peer.answers()
    assert [answers[name]["result"] for name in ("one", "two", "three")] == [
        chosen("yes"),
        chosen("yes"),
        chosen("no"),
    ]


async def test_every_answer_of_a_rule_leaves_a_row(tmp_path: Path) -> None:
    async with free(tmp_path, on=prompt(again("one"), again("two"))) as ship:
        session = await ship.open(approval=ApprovalMode.AUTO)
        await ship.tell(session)
        rows = await rows_of(ship, session)

    assert rows == [("execute", "allowed", "policy:auto")] * 2


async def test_of_two_who_wait_for_one_yes_one_gets_it(tmp_path: Path) -> None:
    # Answered behind them, so both are waiting then.
    behind = does("fs/read_text_file", "behind", path=str(tmp_path / "tree" / "none"))
    steps = (beside(again("one")), beside(again("two")), behind)
    async with aboard(tmp_path, on=prompt(*steps, {"await": "one"}, {"await": "two"})) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        await ship.house.send(session.id, "go")
        await ship.logged("answer", name="behind")
        await settle(ship, session, YES)
        await ship.settled(session)
        rows = await rows_of(ship, session)

    assert rows == [("execute", "allowed", "me")]
    answers = ship.peer.answers()
    found = [answers[name]["result"] for name in ("one", "two")]
    assert sorted(found, key=str) == sorted([chosen("yes"), CANCELLED], key=str)


async def test_a_yes_ends_with_its_call(tmp_path: Path) -> None:
    given, run = _touching(tmp_path / "loot")
    over = {
        "update": {
            "sessionUpdate": "tool_call_update",
            "toolCallId": "call-asked",
            "status": "completed",
        }
    }
    steps = (asking(rawInput=given), over, run, {"await": "run"})
    async with aboard(tmp_path, on=prompt(*steps)) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        await ship.house.send(session.id, "go")
        await settle(ship, session, YES)
        asked = await settle(ship, session, NAY)
        await ship.settled(session)

    assert asked.question.tool == "terminal.create"
    assert not (tmp_path / "loot").exists()
