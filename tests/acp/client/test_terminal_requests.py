"""Terminals as a program sees them: bounded, waited for, released, and not without number."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.approvals import ApprovalMode
from tests.acp.client.test_agent_requests import does
from tests.acp.harness import END, aboard
from tests.tools.process_fixture import known_means, marked

pytestmark = pytest.mark.anyio

MOST = 16


def runs(line: str, name: str, **more: Any) -> dict[str, Any]:
    """Return the step that has a line of shell run; its terminal is `$name` afterwards."""
    step = does("terminal/create", name, command="sh", args=["-c", line], **more)
    step["ask"]["save"] = {name: "terminalId"}
    return step


async def _answers(folder: Path, *steps: Any) -> dict[str, Any]:
    async with aboard(
        folder, on={"session/prompt": [*steps, END]}, config_approval=ApprovalMode.AUTO
    ) as ship:
        await ship.tell(await ship.open(approval=ApprovalMode.AUTO))
    return ship.peer.answers()


async def test_the_beginning_is_dropped_between_two_characters(tmp_path: Path) -> None:
    answers = await _answers(
        tmp_path,
        runs("printf aäöü", "t", outputByteLimit=5),
        does("terminal/wait_for_exit", "ended", terminalId="$t"),
        does("terminal/output", "shown", terminalId="$t"),
    )

    assert answers["shown"]["result"] == {
        "output": "öü",
        "truncated": True,
        "exitStatus": {"exitCode": 0, "signal": None},
    }


async def test_two_may_wait_and_both_are_told(tmp_path: Path) -> None:
    answers = await _answers(
        tmp_path,
        runs("sleep 0.2; exit 3", "t"),
        *(does("terminal/wait_for_exit", name, terminalId="$t", wait=False) for name in "ab"),
        {"await": "a"},
        {"await": "b"},
        does("terminal/wait_for_exit", "c", terminalId="$t"),
    )

    ended = {"exitCode": 3, "signal": None}
    assert [answers[name]["result"] for name in "abc"] == [ended] * 3


@pytest.mark.torture
async def test_one_more_than_there_may_be_is_refused_until_one_is_released(
    tmp_path: Path,
) -> None:
    many = [runs("sleep 600", f"t{number}") for number in range(MOST)]
    answers = await _answers(
        tmp_path,
        *many,
        runs("sleep 600", "refused"),
        does("terminal/release", "released", terminalId="$t0"),
        does("terminal/output", "gone", terminalId="$t0"),
        runs("true", "again"),
    )

    assert [answers[name].get("result") is not None for name in ("refused", "again")] == [
        False,
        True,
    ]
    assert answers["released"]["result"] == {}
    assert answers["gone"]["error"]["code"] == -32002


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

    answers = await _answers(
        tmp_path,
        runs(line, "t", env=[{"name": "GIVEN", "value": "given"}]),
        does("terminal/wait_for_exit", "ended", terminalId="$t"),
        does("terminal/output", "shown", terminalId="$t"),
    )

    shown = answers["shown"]["result"]["output"]
    assert answers["ended"]["result"] == {"exitCode": 3, "signal": None}, shown
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

    answers = await _answers(
        tmp_path,
        runs(line, "t"),
        does("terminal/wait_for_exit", "ended", terminalId="$t"),
    )

    assert answers["ended"]["result"] == {"exitCode": 0, "signal": None}
    assert not marked("echo > ready")
    assert not (work / ".envrc").exists()
