"""Folders that are replaced while a program works: whatever stands there now, nobody goes out."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.acp.client.agent_command import AgentStart
from holdfast.acp.client.agent_process import Terminals
from holdfast.acp.rpc.framing import RequestRefused
from holdfast.domain.approvals import ApprovalAnswer, ApprovalMode, ApprovalState
from holdfast.domain.messages import ResultStatus, ToolResult
from tests.acp.client.test_agent_requests import does, prompt
from tests.acp.harness import aboard

pytestmark = pytest.mark.anyio

REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "fs.read": ("fs/read_text_file", {"path": "secret.txt"}),
    "fs.write": ("fs/write_text_file", {"path": "new.txt", "content": "x"}),
    "terminal": ("terminal/create", {"command": "touch", "args": ["new.txt"]}),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("above", [False, True])
@pytest.mark.parametrize("surface", REQUESTS)
async def test_a_repository_that_became_a_link_is_not_followed(
    tmp_path: Path, surface: str, above: bool, caplog: pytest.LogCaptureFixture
) -> None:
    method, given = REQUESTS[surface]
    home = tmp_path / "home"
    place = tmp_path / "place" if above else tmp_path
    outside = tmp_path / "outside"
    away = outside / "tree" if above else outside
    away.mkdir(parents=True)
    (away / "secret.txt").write_text("SECRET")
    tree = place / "tree"
    params = dict(given)
    if "path" in params:
        params["path"] = str(tree / params["path"])
    steps = ({"mark": "there"}, {"wait_file": str(tmp_path / "go")}, does(method, **params))
    settings: dict[str, Any] = {
        "config_approval": ApprovalMode.AUTO,
        "options": {"writable": [str(tmp_path)]},
    }
    async with aboard(place, on=prompt(*steps), **settings) as ship:
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
        answer = ship.peer.answers()["it"]

    told = [vars(each)["fields"] for each in caplog.records if each.msg == "security.path_refused"]
    assert [(each["surface"], each["root"]) for each in told] == [(surface, str(tree))]
    assert answer["error"]["code"] == -32602
    assert {each.name for each in away.iterdir() if not each.is_symlink()} == {"secret.txt"}
    assert home.exists() is not above


async def _swapped(tmp_path: Path, target: Path) -> tuple[dict[str, Any], list[ResultStatus]]:
    """Swap the folder of a command for a link while somebody is asked; return what came of it."""
    folder = tmp_path / "tree" / "sub"
    run = does("terminal/create", command="touch", args=["loot"], cwd=str(folder))
    async with aboard(tmp_path, on=prompt(run)) as ship:
        session = await ship.open(approval=ApprovalMode.ASK)
        await ship.house.send(session.id, "go")
        (asked,) = await ship.waiting(session)
        folder.rename(tmp_path / "tree" / "sub2")
        folder.symlink_to(target)
        yes = ApprovalAnswer(state=ApprovalState.ALLOWED, by="me")
        await ship.house.approvals.answer(ship.house.owner, session.id, asked.id, yes)
        rows = await ship.settled(session)
    assert asked.question.arguments["cwd"] == str(folder)
    results = [part for row in rows for part in row.parts if isinstance(part, ToolResult)]
    return ship.peer.answers()["it"], [each.status for each in results]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("where", ["outside", "tree/other"])
async def test_a_command_runs_in_the_folder_that_was_asked_about(
    tmp_path: Path, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    for each in ("tree/sub", where):
        (tmp_path / each).mkdir(parents=True)
    answer, statuses = await _swapped(tmp_path, tmp_path / where)

    told = [vars(each)["fields"] for each in caplog.records if each.msg == "security.path_refused"]
    assert [each["surface"] for each in told] == ["terminal"]
    assert (answer["error"]["code"], statuses) == (-32602, [ResultStatus.ERROR])
    assert not [each for each in (where, "tree/sub2") if (tmp_path / each / "loot").exists()]


async def test_a_folder_is_entered_as_what_it_is_and_not_by_its_name(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    marked = {"PATH": "/usr/bin:/bin", "HOLDFAST_SESSION_ID": "x"}
    start = AgentStart(argv=("pwd",), folder=str(link), environment=marked, is_pinned=True)
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
