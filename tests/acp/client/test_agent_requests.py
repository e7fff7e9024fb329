"""Files and commands that a program has us handle: inside the repository, written down, allowed."""

import asyncio
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
from holdfast.domain.messages import ResultStatus, Role, ToolCall, ToolResult
from holdfast.domain.sessions import Session
from holdfast.domain.tools import ToolClass
from tests.acp.client.test_permissions import ALL, asking
from tests.acp.harness import END, Aboard, aboard
from tests.marks import demands

pytestmark = pytest.mark.anyio


def does(method: str, name: str = "it", *, wait: bool = True, **params: Any) -> dict[str, Any]:
    """Return the step that asks us for something."""
    told = {"sessionId": "$session", **params}
    return {"ask": {"method": method, "params": told, "as": name, "wait": wait}}


def prompt(*steps: Any) -> dict[str, Any]:
    """Return a script whose prompt does these steps and ends."""
    return {"session/prompt": [*steps, END]}


async def _played(ship: Aboard, mode: ApprovalMode = ApprovalMode.EDITS) -> Any:
    session = await ship.open(approval=mode)
    return await ship.tell(session)


def _free(folder: Path, **more: Any) -> Any:
    return aboard(folder, config_approval=ApprovalMode.AUTO, **more)


def _files(folder: Path, name: str) -> list[Path]:
    return [each for each in folder.rglob(name) if each.is_file()]


TEXT = "one\ntwo\nthree\n"
READS: dict[str, tuple[dict[str, Any], Any]] = {
    "whole": ({"path": "a.txt"}, TEXT),
    "from a line": ({"path": "a.txt", "line": 2}, "two\nthree\n"),
    "some lines": ({"path": "a.txt", "line": 2, "limit": 1}, "two\n"),
    "the first lines": ({"path": "a.txt", "limit": 2}, "one\ntwo\n"),
    "behind the end": ({"path": "a.txt", "line": 9}, ""),
    "unicode": ({"path": "ä b/ü.txt"}, "grün"),
    "only what ends a line": ({"path": "odd", "line": 2, "limit": 1}, "c\u2028d\x85e\n"),
    "a link inside": ({"path": "inner"}, TEXT),
    "missing": ({"path": "no.txt"}, -32002),
    "not text": ({"path": "bytes"}, -32603),
    "too large": ({"path": "large"}, -32602),
    "a folder": ({"path": "ä b"}, -32602),
    "up and out": ({"path": "../outside.txt"}, -32602),
    "up and in again": ({"path": "ä b/../a.txt"}, TEXT),
    "a link out": ({"path": "outer"}, -32602),
    "a sibling with the same beginning": ({"path": "../tree-evil/x.txt"}, -32602),
    "a file as if it were a folder": ({"path": "a.txt/x"}, -32002),
    "slashes": ({"path": "/ä b//ü.txt"}, "grün"),
}


@pytest.mark.sampled(5)
@demands("S1-048")
@pytest.mark.parametrize("case", READS)
async def test_reading(tmp_path: Path, case: str) -> None:
    params, expected = READS[case]
    tree = tmp_path / "tree"
    (tree / "ä b").mkdir(parents=True)
    (tree / "a.txt").write_text(TEXT)
    (tree / "ä b" / "ü.txt").write_text("grün")
    (tree / "bytes").write_bytes(b"\xff\xfe")
    (tree / "odd").write_text("a\x0cb\nc\u2028d\x85e\nf\n")
    (tree / "large").write_bytes(b"x" * (8 * 2**20 + 1))
    (tmp_path / "outside.txt").write_text("secret")
    (tmp_path / "tree-evil").mkdir()
    (tmp_path / "tree-evil" / "x.txt").write_text("secret")
    (tree / "inner").symlink_to("a.txt")
    (tree / "outer").symlink_to(tmp_path / "outside.txt")
    whole = {**params, "path": f"{tree}/{params['path']}"}
    async with aboard(tmp_path, on=prompt(does("fs/read_text_file", **whole))) as ship:
        await _played(ship)

    answer = ship.peer.answers()["it"]
    found = answer["result"]["content"] if "result" in answer else answer["error"]["code"]
    assert found == expected


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("path", "code"), [("a.txt", -32602), ("", -32602), (7, -32602), ("/etc/passwd", -32602)]
)
async def test_a_path_that_is_none_of_ours_is_refused(tmp_path: Path, path: Any, code: int) -> None:
    async with aboard(tmp_path, on=prompt(does("fs/read_text_file", path=path))) as ship:
        await _played(ship)

    assert ship.peer.answers()["it"]["error"]["code"] == code


async def test_a_missing_file_may_read_as_empty(tmp_path: Path) -> None:
    step = does("fs/read_text_file", path=str(tmp_path / "tree" / "no.txt"))
    async with aboard(tmp_path, options={"fs_missing": "empty"}, on=prompt(step)) as ship:
        await _played(ship)

    assert ship.peer.answers()["it"]["result"] == {"content": ""}


@demands("S1-048b")
async def test_a_way_out_of_the_repository_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outside = str(tmp_path / "home" / "history.db")
    steps = (
        does("fs/read_text_file", "one", path=outside),
        does("fs/write_text_file", "two", path=outside, content="x"),
        does("terminal/create", "three", command="sh", cwd=str(tmp_path)),
    )
    async with _free(tmp_path, on=prompt(*steps)) as ship:
        await _played(ship, ApprovalMode.AUTO)

    told = [vars(each)["fields"] for each in caplog.records if each.msg == "security.path_refused"]
    assert [each["surface"] for each in told] == ["fs.read", "fs.write", "terminal"]
    assert {each["error"]["code"] for each in ship.peer.answers().values()} == {-32602}


async def test_a_write_is_on_record_before_it_is_done(tmp_path: Path) -> None:
    file = tmp_path / "tree" / "deep" / "new.txt"
    step = does("fs/write_text_file", path=str(file), content="grün\n")
    async with _free(tmp_path, on=prompt(step)) as ship:
        rows = await _played(ship)

    assert file.read_text() == "grün\n"
    assert ship.peer.answers()["it"]["result"] == {}
    calls = [part for row in rows for part in row.parts if isinstance(part, ToolCall)]
    results = [part for row in rows for part in row.parts if isinstance(part, ToolResult)]
    assert [(each.name, each.arguments["path"], each.arguments["before"]) for each in calls] == [
        ("fs.write_text_file", str(file), None)
    ]
    assert [each.status for each in results] == [ResultStatus.OK]
    assert results[0].result == {"sha256": calls[0].arguments["after"]}


async def test_a_write_keeps_the_mode_and_leaves_nothing_beside_the_file(tmp_path: Path) -> None:
    file = tmp_path / "tree" / "notes.txt"
    file.parent.mkdir(parents=True)
    file.write_text("old")
    file.chmod(0o640)
    step = does("fs/write_text_file", path=str(file), content="new")
    async with _free(tmp_path, on=prompt(step)) as ship:
        await _played(ship)

    assert (file.read_text(), file.stat().st_mode & 0o777) == ("new", 0o640)
    assert {each.name for each in file.parent.iterdir()} == {".git", "notes.txt"}


async def test_a_write_to_an_executable_is_asked_about_and_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "tree" / "tool"
    file.parent.mkdir(parents=True)
    file.write_text("old")
    file.chmod(0o755)
    step = does("fs/write_text_file", path=str(file), content="new")
    async with _free(tmp_path, on=prompt(step)) as ship:
        session = await ship.open(approval=ApprovalMode.AUTO)
        await ship.house.send(session.id, "go")
        (waiting,) = await ship.waiting(session)
        assert waiting.question.tool_class is ToolClass.SENSITIVE_WRITE
        yes = ApprovalAnswer(state=ApprovalState.ALLOWED, by="me")
        await ship.house.approvals.answer(ship.house.owner, session.id, waiting.id, yes)
        await ship.settled(session)

    assert (file.read_text(), file.stat().st_mode & 0o777) == ("new", 0o755)


WAYS_OUT = [
    ("../out.txt", -32602),
    ("link/out.txt", -32602),
    ("../tree-evil/out.txt", -32602),
    (".git/hooks/pre-commit", -32602),
    ("file/out.txt", -32002),
]


@pytest.mark.sampled(2)
@demands("S1-048")
@pytest.mark.parametrize(("path", "code"), WAYS_OUT)
async def test_nothing_is_written_elsewhere(tmp_path: Path, path: str, code: int) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tmp_path / "tree-evil").mkdir()
    (tree / "link").symlink_to(tmp_path)
    (tree / "file").touch()
    step = does("fs/write_text_file", path=f"{tree}/{path}", content="x")
    async with _free(tmp_path, on=prompt(step)) as ship:
        await _played(ship, ApprovalMode.AUTO)

    assert ship.peer.answers()["it"]["error"]["code"] == code
    assert not _files(tmp_path, "out.txt")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("is_allowed", [True, False])
async def test_a_write_nobody_has_allowed_is_asked_about(tmp_path: Path, is_allowed: bool) -> None:
    file = tmp_path / "tree" / "a.txt"
    step = does("fs/write_text_file", path=str(file), content="x")
    async with aboard(tmp_path, on=prompt(step)) as ship:
        session = await ship.open()
        await ship.house.send(session.id, "go")
        (question,) = await ship.waiting(session)
        before = file.exists()
        noted = [part for row in await ship.house.read(session.id) for part in row.parts]
        state = ApprovalState.ALLOWED if is_allowed else ApprovalState.DENIED
        await ship.house.approvals.answer(
            ship.house.owner, session.id, question.id, ApprovalAnswer(state=state, by="me")
        )
        rows = await ship.settled(session)

    results = [part for row in rows for part in row.parts if isinstance(part, ToolResult)]
    status = ResultStatus.OK if is_allowed else ResultStatus.DENIED
    assert (before, file.exists(), [each.status for each in results]) == (
        False,
        is_allowed,
        [status],
    )
    assert [part.name for part in noted if isinstance(part, ToolCall)] == ["fs.write_text_file"]
    assert ("result" in ship.peer.answers()["it"]) is is_allowed


async def test_what_was_allowed_in_the_agents_own_words_is_not_asked_again(tmp_path: Path) -> None:
    file = tmp_path / "tree" / "a.txt"
    asked = asking(ALL, kind="edit", locations=[{"path": str(file)}])
    step = does("fs/write_text_file", path=str(file), content="x")
    other = does("fs/write_text_file", "other", path=f"{file}.other", content="x", wait=False)
    async with aboard(tmp_path, on=prompt(asked, step, other, {"await": "other"})) as ship:
        session = await ship.open()
        await ship.house.send(session.id, "go")
        (question,) = await ship.waiting(session)
        yes = ApprovalAnswer(state=ApprovalState.ALLOWED, by="me")
        await ship.house.approvals.answer(ship.house.owner, session.id, question.id, yes)
        (second,) = await ship.waiting(session)
        no = ApprovalAnswer(state=ApprovalState.DENIED, by="me")
        await ship.house.approvals.answer(ship.house.owner, session.id, second.id, no)
        await ship.settled(session)

    assert file.exists()
    assert second.question.tool == "fs.write_text_file"
    assert not _files(tmp_path, "a.txt.other")


async def test_files_can_be_switched_off(tmp_path: Path) -> None:
    step = does("fs/read_text_file", path=str(tmp_path / "tree" / "a.txt"))
    async with aboard(tmp_path, options={"fs": False}, on=prompt(step)) as ship:
        await _played(ship)

    offered = ship.peer.got("initialize")[0]["params"]["clientCapabilities"]["fs"]
    assert offered == {"readTextFile": False, "writeTextFile": False}
    assert ship.peer.answers()["it"]["error"]["code"] == -32601


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "method", ["_auth/status_update", "craft/drain", "session/new", "fs/delete"]
)
async def test_what_nobody_knows_is_refused_and_the_turn_goes_on(
    tmp_path: Path, method: str
) -> None:
    async with aboard(tmp_path, on=prompt(does(method), {"text": "on"})) as ship:
        rows = await _played(ship)

    assert ship.peer.answers()["it"]["error"]["code"] == -32601
    assert rows[-1].text == "on"


async def test_another_session_is_not_ours(tmp_path: Path) -> None:
    step = does("fs/read_text_file", path=str(tmp_path / "tree"), sessionId="another")
    async with aboard(tmp_path, on=prompt(step)) as ship:
        await _played(ship)

    assert ship.peer.answers()["it"]["error"]["code"] == -32602


async def test_a_command_runs_in_the_repository_and_is_let_go_of(tmp_path: Path) -> None:
    steps = (
        {
            "ask": {
                "method": "terminal/create",
                "as": "made",
                "save": {"t": "terminalId"},
                "params": {
                    "sessionId": "$session",
                    "command": "sh",
                    "args": ["-c", "pwd; echo $X"],
                    "env": [{"name": "X", "value": "why"}],
                },
            }
        },
        does("terminal/wait_for_exit", "ended", terminalId="$t"),
        does("terminal/output", "shown", terminalId="$t"),
        does("terminal/release", "released", terminalId="$t"),
        does("terminal/output", "gone", terminalId="$t"),
    )
    async with _free(tmp_path, on=prompt(*steps)) as ship:
        rows = await _played(ship, ApprovalMode.AUTO)

    answers = ship.peer.answers()
    assert answers["ended"]["result"] == {"exitCode": 0, "signal": None}
    shown = answers["shown"]["result"]
    assert (shown["output"], shown["truncated"]) == (f"{ship.tree}\nwhy\n", False)
    assert answers["released"]["result"] == {}
    assert "error" in answers["gone"]
    calls = [part for row in rows for part in row.parts if isinstance(part, ToolCall)]
    assert [(each.name, each.arguments["command"]) for each in calls] == [("terminal.create", "sh")]


async def test_a_command_that_is_not_allowed_does_not_run(tmp_path: Path) -> None:
    step = does("terminal/create", command="touch", args=[str(tmp_path / "tree" / "x")])
    async with aboard(tmp_path, on=prompt(step)) as ship:
        rows = await _played(ship, ApprovalMode.DENY)

    assert "error" in ship.peer.answers()["it"]
    assert not (tmp_path / "tree" / "x").exists()
    results = [part for row in rows for part in row.parts if isinstance(part, ToolResult)]
    assert [each.status for each in results] == [ResultStatus.DENIED]


async def test_what_changed_without_a_call_is_told(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    process = await asyncio.create_subprocess_exec("git", "init", "-q", str(tree))
    await process.wait()
    steps = (
        {"file": {"path": str(tree / "silent.txt"), "content": "x"}},
        does("fs/write_text_file", path=str(tree / "named.txt"), content="y"),
        {"text": "done"},
    )
    async with _free(tmp_path, on=prompt(*steps)) as ship:
        rows = await _played(ship)

    told = [row.parts[0].text for row in rows if row.role is Role.SYSTEM]  # type: ignore[union-attr]
    assert told == [
        "The repository has changed in this turn without a reported tool call: silent.txt."
    ]


async def _answered(ship: Aboard, session: Session, **answer: Any) -> Approval:
    """Wait for a question and allow it."""
    (question,) = await ship.waiting(session)
    yes = ApprovalAnswer(state=ApprovalState.ALLOWED, by="me", **answer)
    await ship.house.approvals.answer(ship.house.owner, session.id, question.id, yes)
    return question


async def test_a_yes_for_the_session_covers_plain_writes_in_its_folder(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    steps = (
        asking(ALL, kind="edit", locations=[{"path": f"{tree}/a.txt"}]),
        does("fs/write_text_file", "one", path=f"{tree}/a.txt", content="x"),
        does("fs/write_text_file", "two", path=f"{tree}/b.txt", content="x"),
        does("fs/write_text_file", "three", path=f"{tree}/Makefile", content="all:", wait=False),
        {"await": "three"},
    )
    async with aboard(tmp_path, on=prompt(*steps)) as ship:
        session = await ship.open()
        await ship.house.send(session.id, "go")
        await _answered(ship, session, scope=ApprovalScope.SESSION)
        delicate = await _answered(ship, session)
        await ship.settled(session)

    assert {each.name for each in tree.iterdir()} == {".git", "Makefile", "a.txt", "b.txt"}
    assert delicate.question.tool_class is ToolClass.SENSITIVE_WRITE


async def test_a_yes_for_once_is_good_for_one_write(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    path = f"{tree}/a.txt"
    steps = (
        asking(ALL, kind="edit", rawInput={"file": "a.txt"}),
        does("fs/write_text_file", "one", path=path, content="x"),
        does("fs/write_text_file", "two", path=path, content="y", wait=False),
        {"await": "two"},
    )
    async with aboard(tmp_path, on=prompt(*steps)) as ship:
        session = await ship.open()
        await ship.house.send(session.id, "go")
        first = await _answered(ship, session)
        second = await _answered(ship, session)
        await ship.settled(session)

    assert (first.question.tool, second.question.tool) == ("edit", "fs.write_text_file")


COMMANDS = [
    ({"command": "echo hi"}, ("sh", "-c", "echo hi"), True),
    ({"command": "echo hi"}, ("echo", "hi"), True),
    ({"cmd": ["x", "echo hi"]}, ("echo", "hi"), True),
    ({"command": "echo hi"}, ("echo", "ho"), False),
    ({"command": "echo hi"}, ("sh", "-c", "echo hi; rm x"), False),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("allowed", "argv", "is_covered"), COMMANDS)
async def test_a_command_that_was_allowed_is_this_very_one(
    tmp_path: Path, allowed: dict[str, Any], argv: tuple[str, ...], is_covered: bool
) -> None:
    run = does("terminal/create", command=argv[0], args=list(argv[1:]), wait=False)
    steps = (asking(ALL, rawInput=allowed), run, {"await": "it"})
    async with aboard(tmp_path, on=prompt(*steps)) as ship:
        session = await ship.open()
        await ship.house.send(session.id, "go")
        await _answered(ship, session)
        if not is_covered:
            second = await _answered(ship, session)
            assert second.question.tool == "terminal.create"
        await ship.settled(session)

    assert "result" in ship.peer.answers()["it"]


BAD: dict[str, dict[str, Any]] = {
    "no command": {"method": "terminal/create", "command": ""},
    "words that are none": {"method": "terminal/create", "command": "sh", "args": [7]},
    "a bad variable": {"method": "terminal/create", "command": "sh", "env": [{"name": "A=B"}]},
    "no such program": {"method": "terminal/create", "command": "no-such-program"},
    "no terminal": {"method": "terminal/output"},
    "an unknown terminal": {"method": "terminal/kill", "terminalId": "t9"},
    "no content": {"method": "fs/write_text_file", "path": "/x"},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", BAD)
async def test_what_cannot_be_meant_is_refused(tmp_path: Path, case: str) -> None:
    params = dict(BAD[case])
    method = params.pop("method")
    async with _free(tmp_path, on=prompt(does(method, **params), {"text": "on"})) as ship:
        rows = await _played(ship, ApprovalMode.AUTO)

    assert "error" in ship.peer.answers()["it"]
    assert "".join(row.text for row in rows if row.role is Role.ASSISTANT) == "on"


async def test_a_terminal_can_be_killed_and_still_read(tmp_path: Path) -> None:
    made = {
        "ask": {
            "method": "terminal/create",
            "as": "made",
            "save": {"t": "terminalId"},
            "params": {"sessionId": "$session", "command": "sleep", "args": ["600"]},
        }
    }
    steps = (
        made,
        does("terminal/output", "running", terminalId="$t"),
        does("terminal/kill", "killed", terminalId="$t"),
        does("terminal/output", "after", terminalId="$t"),
    )
    async with _free(tmp_path, on=prompt(*steps)) as ship:
        await _played(ship, ApprovalMode.AUTO)

    answers = ship.peer.answers()
    assert "exitStatus" not in answers["running"]["result"]
    assert answers["killed"]["result"] == {}
    assert answers["after"]["result"]["exitStatus"]["signal"] == "15"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("method", ["session/request_permission", "fs/read_text_file", "other"])
async def test_between_turns_nobody_decides(tmp_path: Path, method: str) -> None:
    late = does(method, path=str(tmp_path / "tree" / "a"), toolCall={"toolCallId": "c"})
    steps = [{"text": "done"}, END, late]
    async with aboard(tmp_path, on={"session/prompt": steps}) as ship:
        session = await ship.open()
        await ship.tell(session)
        answer = await ship.logged("answer", name="it")

    found = answer["message"]
    expected = {"other": -32601, "fs/read_text_file": -32603}
    if method in expected:
        assert found["error"]["code"] == expected[method]
    else:
        assert found["result"] == {"outcome": {"outcome": "cancelled"}}
