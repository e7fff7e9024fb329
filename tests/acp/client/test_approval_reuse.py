"""What a yes is good for: this act, as it was asked about, once, and for as long as it stands."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.approvals import Approval, ApprovalMode
from holdfast.domain.tools import ToolClass
from tests.acp.harness import Aboard, aboard
from tests.acp.steps import (
    ALWAYS,
    CANCELLED,
    EVER,
    NAY,
    NO,
    ONCE,
    YES,
    asking,
    beside,
    chosen,
    command,
    does,
    prompt,
    runs,
    turns,
    write,
)

pytestmark = pytest.mark.anyio

DELICATE = ".github/workflows/x.yml"


def tools(asked: list[Approval]) -> list[str]:
    """Return what was asked about."""
    return [each.question.tool for each in asked]


def results(ship: Aboard, *names: str) -> list[Any]:
    """Return the answers to some questions."""
    answers = ship.peer.answers()
    return [answers[name].get("result") for name in names]


async def test_a_yes_to_reading_runs_nothing_where_all_is_denied(tmp_path: Path) -> None:
    line = f"touch {tmp_path}/loot"
    kinds = ("read", "search", "think")
    steps = [(asking(kind=kind, name=kind, rawInput={kind: line}), runs(line, f"run {kind}"))
             for kind in kinds]  # fmt: skip
    async with aboard(tmp_path, on=prompt(*(each for pair in steps for each in pair))) as ship:
        session = await ship.open(approval=ApprovalMode.DENY)
        await ship.tell(session)
        rows = await ship.answered(session)

    denied = ("terminal.create", "denied", "policy:deny")
    assert rows == [row for kind in kinds for row in ((kind, "allowed", "policy:deny"), denied)]
    assert not (tmp_path / "loot").exists()


async def test_a_yes_is_good_for_a_command_that_is_this_very_one(tmp_path: Path) -> None:
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    hi = {"command": "echo hi"}
    over = {"sessionUpdate": "tool_call_update", "toolCallId": "call-ended", "status": "completed"}
    # Covered by the yes to the call before; the others are asked about, and denied.
    covered = [
        (hi, command("one", "sh", "-c", "echo hi")),
        (hi, command("two", "echo", "hi")),
        ({"cmd": ["x", "echo hi"]}, command("three", "echo", "hi")),
    ]
    others = [
        (hi, command("else", "echo", "ho")),
        (hi, command("more", "sh", "-c", "echo hi; rm x")),
        (hi, command("env", "echo", "hi", env=[{"name": "GIT_PAGER", "value": "evil"}])),
        (hi, command("cwd", "echo", "hi", cwd=str(tmp_path / "tree" / "sub"))),
    ]
    steps = [[asking(rawInput=given, name=f"for {run['ask']['as']}"), run]
             for given, run in (*covered, *others)]  # fmt: skip
    fetched = [asking(kind="fetch", rawInput=hi, name="fetch"), command("run", "echo", "hi")]
    read = [asking(kind="read", rawInput=hi, name="read"), command("run2", "echo", "hi")]
    ended = [asking(rawInput=hi, name="ended"), {"update": over}, command("late", "echo", "hi")]
    async with aboard(tmp_path, on=turns(*steps, fetched, read, ended)) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        for _ in covered:
            assert tools(await ship.asked(session, YES)) == ["execute"]
        for _ in others:
            assert tools(await ship.asked(session, YES, NAY)) == ["execute", "terminal.create"]
        assert tools(await ship.asked(session, YES, NAY)) == ["fetch", "terminal.create"]
        (running,) = await ship.asked(session, NAY)
        assert tools(await ship.asked(session, YES, NAY)) == ["execute", "terminal.create"]

    assert (running.question.tool, running.question.tool_class) == (
        "terminal.create", ToolClass.PROCESS)  # fmt: skip
    answers = ship.peer.answers()
    ran = {name for name, each in answers.items() if "terminalId" in (each.get("result") or {})}
    assert ran == {"one", "two", "three"}


async def test_the_same_command_with_other_variables_is_another_question(tmp_path: Path) -> None:
    steps = [
        command(name, "true", env=[{"name": "A", "value": value}])
        for name, value in (("one", "1"), ("two", "1"), ("three", "2"))
    ]
    async with aboard(tmp_path, on=prompt(*steps)) as ship:
        asked = await ship.asked(await ship.open(approval=ApprovalMode.ASK), EVER, NAY)

    assert [each.question.arguments["env"] for each in asked] == [{"A": "1"}, {"A": "2"}]
    found = [each is not None for each in results(ship, "one", "two", "three")]
    assert found == [True, True, False]


async def test_a_rule_for_plain_writes_lets_no_delicate_one_pass(tmp_path: Path) -> None:
    path = tmp_path / "tree" / DELICATE
    # Only by its locations a call is known to be about something delicate.
    steps = [asking(kind="edit", rawInput={"file": str(path)}), write(path, "on: push")]
    named = asking(kind="edit", name="named", locations=[{"path": str(path)}])
    script = turns(steps, steps, steps, [named, write(path, "on: push")])
    async with aboard(tmp_path, config_approval=ApprovalMode.AUTO, on=script) as ship:
        session = await ship.open(approval=ApprovalMode.EDITS)
        asked = await ship.asked(session, NAY)
        for mode in (ApprovalMode.AUTO, ApprovalMode.ASK):
            changes = {"approval": mode}
            await ship.house.sessions.update(ship.house.owner, session.id, changes)
            answers = (NAY,) if mode is ApprovalMode.AUTO else (YES, NAY)
            asked += await ship.asked(session, *answers)
        was_written = path.exists()
        # Somebody's yes covers it if it was asked about as what it is.
        asked += await ship.asked(session, YES)

    ours = "fs.write_text_file"
    assert tools(asked) == [ours, ours, "edit", ours, "edit"]
    assert asked[0].question.tool_class is ToolClass.SENSITIVE_WRITE
    assert (was_written, path.exists()) == (False, True)


async def test_a_yes_in_the_agents_own_words_is_good_for_one_write(tmp_path: Path) -> None:
    path = tmp_path / "tree" / "a.txt"
    script = turns(
        [asking(kind="edit", locations=[{"path": str(path)}]), write(path),
         write(f"{path}.other", name="other")],
        [asking(kind="edit", name="again", rawInput={"file": "a.txt"}), write(path, "y", "one"),
         write(path, "z", "two")],
    )  # fmt: skip
    async with aboard(tmp_path, on=script) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        first = await ship.asked(session, YES, NAY)
        second = await ship.asked(session, YES, NAY)

    assert tools(first) == tools(second) == ["edit", "fs.write_text_file"]
    assert (path.read_text(), path.with_name("a.txt.other").exists()) == ("y", False)
    assert results(ship, "write", "other", "one", "two") == [{}, None, {}, None]


async def test_a_yes_for_the_session_is_about_plain_writes_in_its_folder(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    edit = asking(kind="edit", locations=[{"path": f"{tree}/a.txt"}])
    script = turns(
        [edit, write(tree / "a.txt"), write(tree / "b.txt"), write(tree / "Makefile", "all:"),
         write(tree / "deep" / "b.txt")],
        [write(tree / "c.txt", name="later")],
        [write(tree / "d.txt", name="revoked")],
        [{**edit, "ask": edit["ask"] | {"as": "anew"}}],
        [write(tree / "e.txt", name="denied")],
    )  # fmt: skip
    async with aboard(tmp_path, on=script) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        asked = await ship.asked(session, EVER, YES, NAY)
        await ship.tell(session)
        await ship.house.approvals.revoke(ship.house.owner, session.id, asked[0].id)
        asked += await ship.asked(session, NAY)
        await ship.asked(session, EVER)
        changes = {"approval": ApprovalMode.DENY}
        await ship.house.sessions.update(ship.house.owner, session.id, changes)
        await ship.tell(session)
        rows = await ship.answered(session)

    ours = "fs.write_text_file"
    assert (tools(asked), asked[0].question.memory) == (["edit", *[ours] * 3], f"write:{tree}")
    assert asked[1].question.tool_class is ToolClass.SENSITIVE_WRITE
    assert rows[-1] == (ours, "denied", "policy:deny")
    assert {each.name for each in tree.iterdir()} == {
        ".git", "Makefile", "a.txt", "b.txt", "c.txt"}  # fmt: skip


async def test_who_lets_files_be_edited_has_not_let_them_go(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    kinds = ("edit", "delete", "move")
    steps = [asking(name=kind, kind=kind, locations=[{"path": f"{tree}/{kind}.txt"}])
             for kind in kinds]  # fmt: skip
    async with aboard(tmp_path, on=prompt(*steps)) as ship:
        asked = await ship.asked(await ship.open(approval=ApprovalMode.ASK), EVER, EVER, NAY)

    assert tools(asked) == list(kinds)


async def test_what_a_rule_says_by_memory_is_no_memory_itself(tmp_path: Path) -> None:
    names = ("one", "two", "three")
    script = turns(*([asking([ALWAYS, NO], name=name)] for name in names))
    async with aboard(tmp_path, on=script) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        (asked,) = await ship.asked(session, EVER)
        await ship.tell(session, "again")
        await ship.house.approvals.revoke(ship.house.owner, session.id, asked.id)
        await ship.asked(session, NAY)

    assert results(ship, *names) == [chosen("ever"), chosen("ever"), chosen("no")]


def again(name: str) -> dict[str, Any]:
    """Return the step that asks about one and the same call, under a name for the answer."""
    return asking([ONCE, NO], name=name, toolCallId="same")


async def test_a_yes_for_once_answers_once(tmp_path: Path) -> None:
    # Answered behind them, so both are waiting then.
    behind = does("fs/read_text_file", "behind", path=str(tmp_path / "tree" / "none"))
    script = turns(
        [again("one"), again("two"), again("three")],
        [beside(again("four")), beside(again("five")), behind, {"await": "four"},
         {"await": "five"}],
        [again("six"), again("seven")],
    )  # fmt: skip
    async with aboard(tmp_path, config_approval=ApprovalMode.AUTO, on=script) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        await ship.asked(session, YES, YES, NAY)
        await ship.house.send(session.id, "go")
        await ship.logged("answer", name="behind")
        await ship.answer(session, YES)
        await ship.settled(session)
        changes = {"approval": ApprovalMode.AUTO}
        await ship.house.sessions.update(ship.house.owner, session.id, changes)
        await ship.tell(session)
        rows = await ship.answered(session)

    mine, by_rule = ("execute", "allowed", "me"), ("execute", "allowed", "policy:auto")
    # Every answer of a rule leaves a row.
    assert rows == [mine, mine, ("execute", "denied", "me"), mine, by_rule, by_rule]
    yes, no = chosen("yes"), chosen("no")
    assert results(ship, "one", "two", "three", "six", "seven") == [yes, yes, no, yes, yes]
    # Of two who wait for one yes one gets it.
    assert sorted(results(ship, "four", "five"), key=str) == sorted([yes, CANCELLED], key=str)
