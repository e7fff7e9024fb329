"""What is asked about, how it is shown, by whom it can be answered, and what is asked in vain."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.app import Environment
from holdfast.domain.approvals import ApprovalMode, ApprovalState
from holdfast.domain.messages import ResultStatus, ToolResult
from tests.acp.client.test_agent_requests import does, prompt
from tests.acp.client.test_approval_reuse import EVER, NAY, YES, again, free, rows_of, settle
from tests.acp.client.test_permissions import ALL, CANCELLED, asking, chosen
from tests.acp.harness import aboard

pytestmark = pytest.mark.anyio


async def test_variables_are_shown_and_choose_no_program(tmp_path: Path) -> None:
    evil = tmp_path / "tree" / "evil"
    evil.mkdir(parents=True)
    (evil / "sh").write_text(f"#!/bin/sh\n: > {tmp_path}/loot\n")
    (evil / "sh").chmod(0o755)
    variables = [{"name": "PATH", "value": f"{evil}:/usr/bin:/bin"}, {"name": "A", "value": "b"}]
    made = does("terminal/create", "made", command="sh", args=["-c", "echo $A"], env=variables)
    made["ask"]["save"] = {"t": "terminalId"}
    steps = (
        made,
        does("terminal/wait_for_exit", "ended", terminalId="$t"),
        does("terminal/output", "shown", terminalId="$t"),
    )
    async with aboard(tmp_path, on=prompt(*steps)) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        await ship.house.send(session.id, "go")
        asked = await settle(ship, session, YES)
        await ship.settled(session)

    assert asked.question.arguments["env"] == {"PATH": f"{evil}:/usr/bin:/bin", "A": "b"}
    assert f"{evil}:/usr/bin:/bin" in asked.question.question
    assert ship.peer.answers()["shown"]["result"]["output"] == "b\n"
    assert not (tmp_path / "loot").exists()


async def test_the_same_command_with_other_variables_is_another_question(tmp_path: Path) -> None:
    runs = [
        does("terminal/create", name, command="true", env=[{"name": "A", "value": value}])
        for name, value in (("one", "1"), ("two", "1"), ("three", "2"))
    ]
    async with aboard(tmp_path, on=prompt(*runs)) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        await ship.house.send(session.id, "go")
        first = await settle(ship, session, EVER)
        other = await settle(ship, session, NAY)
        await ship.settled(session)

    assert (first.question.arguments["env"], other.question.arguments["env"]) == (
        {"A": "1"},
        {"A": "2"},
    )
    answers = ship.peer.answers()
    assert ["result" in answers[name] for name in ("one", "two", "three")] == [True, True, False]


FLAGS = [
    ({"name": "fetch", "kind": "execute"}, "fetch", False),
    ({"name": "terminal.create", "kind": "execute"}, "terminal.create", False),
    ({"name": "x", "kind": "write_file"}, "write_file", False),
    ({"name": "x", "kind": "unheard of"}, "other", True),
    ({"name": "fetch", "kind": "execute"}, "execute", True),
    ({"kind": "fetch"}, "fetch", True),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("call", "flag", "is_answered"), FLAGS)
async def test_a_flag_knows_a_foreign_call_by_its_kind(
    tmp_path: Path, call: dict[str, Any], flag: str, is_answered: bool
) -> None:
    outside = Environment(is_attended=False, yes_to=frozenset({flag}))
    step = asking(ALL)
    step["ask"]["params"]["toolCall"] |= call
    async with aboard(tmp_path, outside=outside, on=prompt(step)) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        await ship.tell(session)
        ((_, state, by),) = await rows_of(ship, session)

    assert (state, by) == (("allowed", "flag") if is_answered else ("denied", "unattended"))


async def test_a_flag_knows_our_own_verbs_by_their_names(tmp_path: Path) -> None:
    outside = Environment(is_attended=False, yes_to=frozenset({"terminal.create"}))
    run = does("terminal/create", "run", command="true")
    async with aboard(tmp_path, outside=outside, on=prompt(run)) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        await ship.tell(session)
        rows = await rows_of(ship, session)

    assert rows == [("terminal.create", "allowed", "flag")]


async def test_a_write_is_asked_about_with_what_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "tree" / "a.txt"
    file.parent.mkdir()
    file.write_text("one\ntwo\n")
    write = does("fs/write_text_file", "write", path=str(file), content="one\n2\n")
    async with aboard(tmp_path, on=prompt(write)) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        await ship.house.send(session.id, "go")
        asked = await settle(ship, session, YES)
        await ship.settled(session)

    assert asked.question.question == f"{file} (change)\n@@ -1,2 +1,2 @@\n one\n-two\n+2"
    assert asked.question.preview == {"path": str(file)}
    assert file.read_text() == "one\n2\n"


async def test_a_file_that_changed_while_somebody_was_asked_is_not_written(tmp_path: Path) -> None:
    file = tmp_path / "tree" / "a.txt"
    write = does("fs/write_text_file", "write", path=str(file), content="ours")
    async with aboard(tmp_path, on=prompt(write)) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        await ship.house.send(session.id, "go")
        await ship.waiting(session)
        file.write_text("theirs")
        await settle(ship, session, YES)
        rows = await ship.settled(session)

    results = [part for row in rows for part in row.parts if isinstance(part, ToolResult)]
    assert ([each.status for each in results], file.read_text()) == ([ResultStatus.ERROR], "theirs")
    assert ship.peer.answers()["write"]["error"]["code"] == -32603


async def test_a_write_that_nobody_can_be_shown_is_not_done(tmp_path: Path) -> None:
    file = tmp_path / "tree" / "a.txt"
    write = does("fs/write_text_file", "write", path=str(file), content="x" * (1 << 20))
    async with aboard(tmp_path, on=prompt(write)) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        await ship.tell(session)
        rows = await rows_of(ship, session)

    assert rows == [("fs.write_text_file", "denied", "too_large")]
    assert not file.exists()


async def test_what_nobody_was_asked_about_is_not_kept_whole(tmp_path: Path) -> None:
    file = tmp_path / "tree" / "a.txt"
    write = does("fs/write_text_file", "write", path=str(file), content="x" * (1 << 20))
    async with free(tmp_path, on=prompt(write)) as ship:
        session = await ship.open(approval=ApprovalMode.EDITS)
        await ship.tell(session)
        (row,) = (await ship.house.approvals.list(ship.house.owner, session.id)).items

    assert row.state is ApprovalState.ALLOWED
    assert row.question.question == f"{file} (new file)\n[1048606 bytes not shown]"
    assert file.stat().st_size == 1 << 20


async def test_a_command_too_long_to_be_shown_is_refused(tmp_path: Path) -> None:
    run = does("terminal/create", "run", command="true", args=["x" * (1 << 20)])
    async with free(tmp_path, on=prompt(run)) as ship:
        await ship.tell(await ship.open(approval=ApprovalMode.AUTO))

    assert ship.peer.answers()["run"]["error"]["code"] == -32602


def _taken_back(step: dict[str, Any], name: str) -> tuple[Any, ...]:
    """Return the steps that ask, and take the question back when a file is there."""
    ask = {"ask": {**step["ask"], "id": "unwanted", "wait": False}}
    cancel = {"notify": {"method": "$/cancel_request", "params": {"requestId": "unwanted"}}}
    return ask, cancel, {"await": name}


ACTS: dict[str, dict[str, Any]] = {
    "permission": asking(name="it"),
    "write": does("fs/write_text_file", path="$cwd/a.txt", content="x"),
    "command": does("terminal/create", command="true"),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", ACTS)
async def test_what_is_not_wanted_any_more_is_not_asked_any_more(tmp_path: Path, case: str) -> None:
    step = {"ask": {**ACTS[case]["ask"]}}
    if case == "write":
        params = {**step["ask"]["params"], "path": str(tmp_path / "tree" / "a.txt")}
        step["ask"]["params"] = params
    ask, cancel, wait = _taken_back(step, "it")
    go = {"wait_file": str(tmp_path / "go")}
    async with aboard(tmp_path, on=prompt(ask, go, cancel, wait, {"text": "on"})) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        await ship.house.send(session.id, "go")
        await ship.waiting(session)
        (tmp_path / "go").touch()
        rows = await ship.settled(session)
        ((_, state, by),) = await rows_of(ship, session)

    assert ship.peer.answers()["it"]["error"]["code"] == -32800
    assert (state, by) == ("expired", "agent")
    results = [part for row in rows for part in row.parts if isinstance(part, ToolResult)]
    expected = ResultStatus.OK if case == "permission" else ResultStatus.ERROR
    assert [each.status for each in results] == [expected]
    assert not (tmp_path / "tree" / "a.txt").exists()


async def test_what_was_taken_back_may_be_asked_again(tmp_path: Path) -> None:
    ask, cancel, wait = _taken_back(again("one"), "one")
    go = {"wait_file": str(tmp_path / "go")}
    async with aboard(tmp_path, on=prompt(ask, go, cancel, wait, again("two"))) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        await ship.house.send(session.id, "go")
        await ship.waiting(session)
        (tmp_path / "go").touch()
        await ship.logged("answer", name="one")
        await settle(ship, session, YES)
        await ship.settled(session)

    assert ship.peer.answers()["two"]["result"] == chosen("yes")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", [ApprovalMode.ASK, ApprovalMode.AUTO])
@pytest.mark.parametrize("options", [[], [{"name": "neither id nor kind"}]])
async def test_who_offers_no_answer_is_denied(
    tmp_path: Path, mode: ApprovalMode, options: list[dict[str, Any]]
) -> None:
    async with free(tmp_path, on=prompt(asking(options))) as ship:
        session = await ship.open(approval=mode)
        await ship.tell(session)
        rows = await rows_of(ship, session)

    assert ship.peer.answers()["asked"]["result"] == CANCELLED
    assert rows == [("execute", "denied", "option_not_offered")]
