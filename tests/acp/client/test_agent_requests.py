"""Files and commands that a program has us handle: inside the repository, written down, allowed."""

import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.acp.client.agent_command import AgentStart
from holdfast.acp.client.agent_process import Terminals
from holdfast.acp.rpc.framing import RequestRefused
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.messages import ResultStatus, Role, ToolCall, ToolResult
from holdfast.domain.tools import ToolClass
from tests.acp.harness import END, Aboard, aboard, parts
from tests.acp.steps import CANCELLED, NAY, YES, asking, command, does, prompt, runs, turns, write
from tests.marks import demands
from tests.tools.process_fixture import known_means, marked

pytestmark = pytest.mark.anyio

MISSING, INVALID, INTERNAL, UNKNOWN = -32002, -32602, -32603, -32601


async def played(ship: Aboard, mode: ApprovalMode = ApprovalMode.AUTO) -> Any:
    """Play one turn in a mode."""
    return await ship.tell(await ship.open(approval=mode))


def free(folder: Path, **more: Any) -> Any:
    """Open a home in which a session may be as loose as it wants."""
    return aboard(folder, config_approval=ApprovalMode.AUTO, **more)


def codes(ship: Aboard) -> dict[str, Any]:
    """Return the error codes of the answers, and what was answered without one."""
    return {
        name: answer["error"]["code"] if "error" in answer else answer["result"]
        for name, answer in ship.peer.answers().items()
    }


def refusals(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Return what was logged of paths that were refused."""
    return [vars(each)["fields"] for each in caplog.records if each.msg == "security.path_refused"]


def names_below(folder: Path) -> set[str]:
    """Return the names of all that is in a folder."""
    return {each.name for each in folder.rglob("*")}


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
    "missing": ({"path": "no.txt"}, MISSING),
    "not text": ({"path": "bytes"}, INTERNAL),
    "too large": ({"path": "large"}, INVALID),
    "a folder": ({"path": "ä b"}, INVALID),
    "up and out": ({"path": "../outside.txt"}, INVALID),
    "up and in again": ({"path": "ä b/../a.txt"}, TEXT),
    "a link out": ({"path": "outer"}, INVALID),
    "a sibling with the same beginning": ({"path": "../tree-evil/x.txt"}, INVALID),
    "a file as if it were a folder": ({"path": "a.txt/x"}, MISSING),
    "slashes": ({"path": "/ä b//ü.txt"}, "grün"),
    "another session": ({"path": "a.txt", "sessionId": "another"}, INVALID),
}
NO_PATHS = {"relative": "a.txt", "empty": "", "a number": 7, "of the system": "/etc/passwd"}


@demands("S1-048")
async def test_reading(tmp_path: Path) -> None:
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
    asked = {name: params | {"path": f"{tree}/{params['path']}"} for name, (params, _) in
             READS.items()} | {name: {"path": path} for name, path in NO_PATHS.items()}  # fmt: skip
    steps = [does("fs/read_text_file", name, **params) for name, params in asked.items()]
    async with aboard(tmp_path, on=prompt(*steps)) as ship:
        await played(ship, ApprovalMode.EDITS)

    expected = {name: wanted if isinstance(wanted, int) else {"content": wanted}
                for name, (_, wanted) in READS.items()}  # fmt: skip
    assert codes(ship) == expected | dict.fromkeys(NO_PATHS, INVALID)


async def test_a_missing_file_may_read_as_empty(tmp_path: Path) -> None:
    step = does("fs/read_text_file", path=str(tmp_path / "tree" / "no.txt"))
    async with aboard(tmp_path, options={"fs_missing": "empty"}, on=prompt(step)) as ship:
        await played(ship)

    assert codes(ship) == {"it": {"content": ""}}


async def test_files_can_be_switched_off(tmp_path: Path) -> None:
    step = does("fs/read_text_file", path=str(tmp_path / "tree" / "a.txt"))
    async with aboard(tmp_path, options={"fs": False, "terminal": False}, on=prompt(step)) as ship:
        await played(ship)

    offered = ship.peer.got("initialize")[0]["params"]["clientCapabilities"]
    assert offered["fs"] == {"readTextFile": False, "writeTextFile": False}
    assert offered["terminal"] is False
    assert codes(ship) == {"it": UNKNOWN}


BAD: dict[str, tuple[dict[str, Any], int]] = {
    "no command": ({"method": "terminal/create", "command": ""}, INVALID),
    "words that are none": ({"method": "terminal/create", "command": "sh", "args": [7]}, INVALID),
    "a bad variable": (
        {"method": "terminal/create", "command": "sh", "env": [{"name": "A=B"}]},
        INVALID,
    ),
    "no such program": ({"method": "terminal/create", "command": "no-such-program"}, INTERNAL),
    "no terminal": ({"method": "terminal/output"}, INVALID),
    "an unknown terminal": ({"method": "terminal/kill", "terminalId": "t9"}, MISSING),
    "no content": ({"method": "fs/write_text_file", "path": "/x"}, INVALID),
    "too long to be shown": (
        {"method": "terminal/create", "command": "true", "args": ["x" * (1 << 20)]},
        INVALID,
    ),
    **{
        method: ({"method": method}, UNKNOWN)
        for method in ("_auth/status_update", "craft/drain", "session/new", "fs/delete")
    },
}
WAYS_OUT = {
    "../out.txt": INVALID,
    "link/out.txt": INVALID,
    "../tree-evil/out.txt": INVALID,
    ".git/hooks/pre-commit": INVALID,
    "file/out.txt": MISSING,
}
PLACES = {"..": INVALID, "link": INVALID, "../tree-evil": INVALID, "missing": MISSING,
          "file": MISSING}  # fmt: skip
INSIDE = [".", "ä b/"]


@demands("S1-048", "S1-048b")
async def test_nothing_is_written_or_run_elsewhere(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tree = tmp_path / "tree"
    (tree / "ä b").mkdir(parents=True)
    (tmp_path / "tree-evil").mkdir()
    (tree / "link").symlink_to(tmp_path)
    (tree / "file").touch()
    steps = [does(name=name, **params) for name, (params, _) in BAD.items()]
    steps += [write(f"{tree}/{way}", name=way) for way in WAYS_OUT]
    steps += [command(place, "touch", "loot", cwd=f"{tree}/{place}") for place in PLACES]
    steps += [command("relative", "touch", "loot", cwd="relative")]
    for place in INSIDE:
        steps += [command(place, "touch", "mark", cwd=f"{tree}/{place}")]
        steps += [does("terminal/wait_for_exit", f"end {place}", terminalId=f"${place}")]
    outside = str(tmp_path / "home" / "history.db")
    steps += [does("fs/read_text_file", "read outside", path=outside), {"text": "on"}]
    async with free(tmp_path, on=prompt(*steps)) as ship:
        rows = await played(ship)

    found = codes(ship)
    assert all(isinstance(found.pop(place), dict) for place in INSIDE)
    ends = {found.pop(f"end {place}")["exitCode"] for place in INSIDE}
    wanted = {name: code for name, (_, code) in BAD.items()} | WAYS_OUT | PLACES
    assert found == wanted | {"relative": MISSING, "read outside": INVALID}
    assert (ends, (tree / "mark").exists(), (tree / "ä b" / "mark").exists()) == ({0}, True, True)
    assert not {"out.txt", "loot", "pre-commit"} & names_below(tmp_path)
    assert "".join(row.text for row in rows if row.role is Role.ASSISTANT) == "on"
    surfaces = {each["surface"] for each in refusals(caplog)}
    assert surfaces == {"fs.read", "fs.write", "terminal"}


async def test_a_write_is_on_record_before_it_is_done(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    new, kept = tree / "deep" / "er" / "new.txt", tree / "notes.txt"
    tree.mkdir()
    kept.write_text("old")
    kept.chmod(0o640)
    steps = (write(new, "grün\n"), write(kept, "new", "other"))
    async with free(tmp_path, on=prompt(*steps)) as ship:
        rows = await played(ship, ApprovalMode.EDITS)

    assert (new.read_text(), codes(ship)) == ("grün\n", {"write": {}, "other": {}})
    assert (kept.read_text(), kept.stat().st_mode & 0o777) == ("new", 0o640)
    assert {each.name for each in tree.iterdir()} == {".git", "notes.txt", "deep"}
    calls, results = parts(rows, ToolCall), parts(rows, ToolResult)
    written = [(each.name, each.arguments["path"], each.arguments["before"]) for each in calls]
    old = sha256(b"old").hexdigest()
    assert written == [
        ("fs.write_text_file", str(new), None),
        ("fs.write_text_file", str(kept), old),
    ]
    assert [(each.status, each.result) for each in results] == [
        (ResultStatus.OK, {"sha256": each.arguments["after"]}) for each in calls
    ]


async def test_a_write_to_an_executable_is_asked_about_and_keeps_its_mode(tmp_path: Path) -> None:
    file = tmp_path / "tree" / "tool"
    file.parent.mkdir(parents=True)
    file.write_text("old")
    file.chmod(0o755)
    async with free(tmp_path, on=prompt(write(file, "new"))) as ship:
        (asked,) = await ship.asked(await ship.open(approval=ApprovalMode.AUTO), YES)

    assert asked.question.tool_class is ToolClass.SENSITIVE_WRITE
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("new", 0o755)


async def test_a_write_nobody_has_allowed_is_asked_about(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    names = {"a.txt": NAY, "b.txt": YES}
    async with aboard(tmp_path, on=turns(*([write(tree / name, name=name)] for name in names))) \
            as ship:  # fmt: skip
        session = await ship.open()
        for name, answer in names.items():
            await ship.house.send(session.id, "go")
            await ship.waiting(session)
            assert not (tree / name).exists()
            assert parts(await ship.house.read(session.id), ToolCall)[-1].name == (
                "fs.write_text_file"
            )
            await ship.answer(session, answer)
            rows = await ship.settled(session)

    assert [each.status for each in parts(rows, ToolResult)] == [
        ResultStatus.DENIED,
        ResultStatus.OK,
    ]
    assert {name: (tree / name).exists() for name in names} == {"a.txt": False, "b.txt": True}
    assert codes(ship) == {"a.txt": INTERNAL, "b.txt": {}}


async def test_a_command_runs_in_the_repository_and_is_let_go_of(tmp_path: Path) -> None:
    def of(name: str, verb: str, terminal: str = "t", **more: Any) -> dict[str, Any]:
        return does(f"terminal/{verb}", name, terminalId=f"${terminal}", **more)

    steps = (
        runs("pwd; echo $X", "t", env=[{"name": "X", "value": "why"}]),
        of("ended", "wait_for_exit"),
        of("shown", "output"),
        of("released", "release"),
        of("gone", "output"),
        runs("printf aäöü", "cut", outputByteLimit=5),
        of("cut ended", "wait_for_exit", "cut"),
        of("cut shown", "output", "cut"),
        runs("sleep 0.2; exit 3", "both"),
        of("a", "wait_for_exit", "both", wait=False),
        of("b", "wait_for_exit", "both"),
        {"await": "a"},
        command("long", "sleep", "600"),
        of("running", "output", "long"),
        of("killed", "kill", "long"),
        of("after", "output", "long"),
    )
    async with free(tmp_path, on=prompt(*steps)) as ship:
        rows = await played(ship)

    answers = codes(ship)
    exited = {"exitCode": 0, "signal": None}
    shown = {"truncated": False, "exitStatus": exited}
    assert answers["ended"] == exited
    assert answers["shown"] == {"output": f"{ship.tree}\nwhy\n"} | shown
    assert (answers["released"], answers["gone"]) == ({}, MISSING)
    assert answers["cut shown"] == {"output": "öü", "truncated": True, "exitStatus": exited}
    assert answers["a"] == answers["b"] == {"exitCode": 3, "signal": None}
    assert "exitStatus" not in answers["running"]
    assert (answers["killed"], answers["after"]["exitStatus"]["signal"]) == ({}, "15")
    calls = [(each.name, each.arguments["command"]) for each in parts(rows, ToolCall)]
    assert calls == [("terminal.create", each) for each in ("sh", "sh", "sh", "sleep")]


async def test_a_command_that_is_not_allowed_does_not_run(tmp_path: Path) -> None:
    step = command("it", "touch", str(tmp_path / "tree" / "x"))
    async with aboard(tmp_path, on=prompt(step)) as ship:
        rows = await played(ship, ApprovalMode.DENY)

    assert (codes(ship), (tmp_path / "tree" / "x").exists()) == ({"it": INTERNAL}, False)
    assert [each.status for each in parts(rows, ToolResult)] == [ResultStatus.DENIED]


async def test_what_changed_without_a_call_is_told(tmp_path: Path) -> None:
    tree = _repository(tmp_path / "tree")
    steps = (
        {"file": {"path": str(tree / "silent.txt"), "content": "x"}},
        write(tree / "named.txt"),
        {"text": "done"},
    )
    async with free(tmp_path, on=prompt(*steps)) as ship:
        rows = await played(ship, ApprovalMode.EDITS)

    told = [row.parts[0].text for row in rows if row.role is Role.SYSTEM]  # type: ignore[union-attr]
    assert told == [
        "The repository has changed in this turn without a reported tool call: silent.txt."
    ]


async def test_between_turns_nobody_decides(tmp_path: Path) -> None:
    methods = ("session/request_permission", "fs/read_text_file", "other")
    late = [does(each, each, path="/a", toolCall={"toolCallId": "c"}) for each in methods]
    async with aboard(tmp_path, on={"session/prompt": [{"text": "done"}, END, *late]}) as ship:
        await played(ship)
        await ship.logged("answer", name="other")

    assert codes(ship) == dict(zip(methods, (CANCELLED, INTERNAL, UNKNOWN), strict=True))


def _repository(folder: Path) -> Path:
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    return folder


async def test_protected_paths_hold_for_the_commands_of_a_terminal(tmp_path: Path) -> None:
    if not known_means().mounts:
        # Not claimed where the kernel cannot hold it; such a command is asked about.
        return
    work = _repository(tmp_path / "tree")
    (work / ".env").write_text("canary")
    (work / "Makefile").write_text("all:\n")
    settings = (work / ".git/config").read_bytes()
    line = (
        "cat .env; cat $PWD/.env; cat /proc/$PPID/cwd/.env; cat /proc/*/root$PWD/.env;"
        " echo x > Makefile; echo x > .git/hooks/pre-commit;"
        " git config core.fsmonitor x; echo x > .envrc; echo kept > plain.txt; git add plain.txt;"
        " echo $GIVEN; exit 3"
    )
    steps = (
        runs(line, "t", env=[{"name": "GIVEN", "value": "given"}]),
        does("terminal/wait_for_exit", "ended", terminalId="$t"),
        does("terminal/output", "shown", terminalId="$t"),
    )
    async with free(tmp_path, options={"confined": True}, on=prompt(*steps)) as ship:
        await played(ship)

    shown = codes(ship)["shown"]["output"]
    assert codes(ship)["ended"] == {"exitCode": 3, "signal": None}, shown
    assert "canary" not in shown
    assert "given" in shown
    assert ".envrc is protected" in shown
    assert (work / "Makefile").read_text() == "all:\n"
    assert (work / ".git/config").read_bytes() == settings
    assert not (work / ".git/hooks/pre-commit").exists()
    assert not (work / ".envrc").exists()
    assert (work / "plain.txt").read_text() == "kept\n"
    assert (work / ".git/index").exists()


async def test_a_background_process_of_a_terminal_makes_no_protected_file(tmp_path: Path) -> None:
    if not known_means().mounts:
        return
    work = _repository(tmp_path / "tree")
    late = "trap '' TERM; echo > ready; sleep 3; echo x > .envrc"
    line = f'setsid sh -c "{late}" > /dev/null 2>&1 & while [ ! -e ready ]; do sleep 0.1; done'
    steps = (runs(line, "t"), does("terminal/wait_for_exit", "ended", terminalId="$t"))
    async with free(tmp_path, options={"confined": True}, on=prompt(*steps)) as ship:
        await played(ship)

    assert codes(ship)["ended"] == {"exitCode": 0, "signal": None}
    assert not marked("echo > ready")
    assert not (work / ".envrc").exists()


REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "fs.read": ("fs/read_text_file", {"path": "secret.txt"}),
    "fs.write": ("fs/write_text_file", {"path": "loot.txt", "content": "loot"}),
    "terminal": ("terminal/create", {"command": "touch", "args": ["loot.txt"]}),
}


@pytest.mark.parametrize("above", [False, True])
async def test_a_repository_that_becomes_a_link_in_the_middle_of_a_turn_is_left(
    tmp_path: Path, above: bool, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "place" if above else tmp_path
    outside = tmp_path / "outside"
    away = outside / "tree" if above else outside
    away.mkdir(parents=True)
    (away / "secret.txt").write_text("SECRET")
    tree = place / "tree"
    asked = [does(method, name, **given) for name, (method, given) in REQUESTS.items()]
    for step in asked[:2]:
        step["ask"]["params"]["path"] = f"{tree}/{step['ask']['params']['path']}"
    steps = ({"mark": "there"}, {"wait_file": str(tmp_path / "go")}, *asked)
    async with free(place, on=prompt(*steps)) as ship:
        session = await ship.open(approval=ApprovalMode.AUTO)
        await ship.house.send(session.id, "go")
        await ship.logged("mark", name="there")
        swapped = place if above else tree
        swapped.rename(tmp_path / "moved")
        swapped.symlink_to(outside)
        if above:
            # The house and its peer are where they were.
            for name in ("home", "peer"):
                (outside / name).symlink_to(tmp_path / "moved" / name)
        (tmp_path / "go").touch()
        await ship.settled(session)
        answers = codes(ship)

    found = [(each["surface"], each["root"]) for each in refusals(caplog)]
    assert found == [(surface, str(tree)) for surface in REQUESTS]
    assert answers == dict.fromkeys(REQUESTS, INVALID)
    assert {each.name for each in away.iterdir() if not each.is_symlink()} == {"secret.txt"}


@pytest.mark.parametrize("where", ["outside", "tree/other"])
async def test_a_command_runs_in_the_folder_that_was_asked_about(
    tmp_path: Path, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    for each in ("tree/sub", where):
        (tmp_path / each).mkdir(parents=True)
    folder = tmp_path / "tree" / "sub"
    async with aboard(tmp_path, on=prompt(command("it", "touch", "loot", cwd=str(folder)))) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        await ship.house.send(session.id, "go")
        await ship.waiting(session)
        folder.rename(tmp_path / "tree" / "sub2")
        folder.symlink_to(tmp_path / where)
        asked = await ship.answer(session, YES)
        rows = await ship.settled(session)

    assert asked.question.arguments["cwd"] == str(folder)
    assert [each["surface"] for each in refusals(caplog)] == ["terminal"]
    assert (codes(ship), [each.status for each in parts(rows, ToolResult)]) == (
        {"it": INVALID},
        [ResultStatus.ERROR],
    )
    assert not [each for each in (where, "tree/sub2") if (tmp_path / each / "loot").exists()]


async def test_a_folder_is_entered_as_what_it_is_and_not_by_its_name(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    environment = {"PATH": "/usr/bin:/bin", "HOLDFAST_SESSION_ID": "x"}
    start = AgentStart(argv=("pwd",), folder=str(link), environment=environment, is_pinned=True)
    terminals = Terminals()
    try:
        with pytest.raises(RequestRefused, match="symbolic links"):
            await terminals.create(start)
        here = await terminals.create(replace(start, folder=str(real)))
        await terminals.wait(here)
        shown = terminals.output(here).text
    finally:
        await terminals.aclose()

    assert shown == f"{real}\n"


async def test_a_call_that_waited_for_an_answer_when_the_program_died_has_one_result(
    tmp_path: Path,
) -> None:
    gone = tmp_path / "gone"
    steps = [runs("true", "t", wait=False), {"wait_file": str(gone)}, {"exit": 3}]
    async with aboard(tmp_path, on={"session/prompt": steps}) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        await ship.house.send(session.id, "hello")
        await ship.waiting(session)
        gone.touch()
        rows = await ship.settled(session)

    assert [(each.name, each.status) for each in parts(rows, ToolResult)] == [
        ("terminal.create", ResultStatus.ERROR)
    ]


async def test_a_terminal_of_nobodys_making_is_only_named(tmp_path: Path) -> None:
    done = {"sessionUpdate": "tool_call", "toolCallId": "c", "kind": "execute", "title": "ls",
            "rawInput": {"command": "ls"}, "status": "completed",
            "content": [{"type": "terminal", "terminalId": "theirs"}]}  # fmt: skip
    async with aboard(tmp_path, on=prompt({"update": done}, asking(kind="read"))) as ship:
        rows = await played(ship, ApprovalMode.EDITS)

    assert [(each.status, each.result) for each in parts(rows, ToolResult)][:1] == [
        (ResultStatus.OK, {"output": None, "terminals": ["theirs"]})
    ]
