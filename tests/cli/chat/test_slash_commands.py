"""Slash commands about what an agent does, asks and costs."""

import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from holdfast import open_holdfast
from holdfast.api import Holdfast
from holdfast.app import Environment
from holdfast.config import Config
from holdfast.domain.approvals import ApprovalMode
from tests.cli.chat.test_repl import CTRL_D, conversing, talked
from tests.marks import each_case

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

Script = Callable[[str], str]

WRITING = """
- tool_calls: [{id: c1, name: write_file, arguments: {path: a.txt, content: hi}}]
- text: done
"""


@pytest.fixture
async def flagged(home: Path) -> AsyncIterator[Holdfast]:
    """Open a home in which a flag answers for writing, and which allows edits at most."""
    outside = Environment(is_attended=False, yes_to=frozenset({"write_file"}))
    config = Config(home=home, approval=ApprovalMode.EDITS)
    async with open_holdfast(config=config, outside=outside) as opened:
        yield opened


@pytest.fixture
def folder(holdfast: Holdfast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in an empty folder, with the home that is open."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOLDFAST_HOME", str(holdfast.config.home))
    return folder


async def told(
    holdfast: Holdfast,
    capsys: pytest.CaptureFixture[str],
    *lines: str,
    model: str | None = None,
) -> tuple[list[str], str]:
    """Type lines and leave; return what was shown, and what was said on the side."""
    async with conversing(holdfast, model) as (conversation, keys):
        keys.send_text("".join(f"{line}\r" for line in lines) + CTRL_D)
        await talked(conversation)
    shown = capsys.readouterr()
    return shown.out.splitlines(), shown.err


async def test_the_cost_is_told_by_model_from_the_ledger(
    holdfast: Holdfast, script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    model = script("[{text: five, repeat: 9}]")

    free, _ = await told(holdfast, capsys, "/cost", "What is 2+3?", "/cost")
    unpriced, _ = await told(holdfast, capsys, "one", "two", "/cost", model=model)

    assert free[0] == "No model requests yet."
    assert free[-1].startswith("offline:holdfast  1 requests, ")
    assert free[-1].endswith(" out, free")
    assert unpriced[-1].startswith(f"{model}  2 requests, ")
    assert unpriced[-1].endswith(" out, unknown (unpriced)")


async def test_the_mode_is_shown_and_tightened_and_never_loosened(
    flagged: Holdfast, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = flagged.config.home
    monkeypatch.setenv("HOLDFAST_HOME", str(home))
    out, err = await told(
        flagged, capsys, "/mode", "/mode deny", "/mode EDITS", "/mode auto", "/mode strict"
    )

    assert out == [
        "The approval mode is ask.",
        "The approval mode is deny.",
        "The approval mode is edits.",
    ]
    assert f"holdfast: The configuration allows at most edits; edit chat.approval in {home}" in err
    assert "Usage: /mode [deny|ask|edits|auto]." in err


async def test_questions_and_calls_of_the_session_are_shown(
    flagged: Holdfast, script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = await told(
        flagged,
        capsys,
        "/approvals",
        "/calls",
        "go",
        "/approvals",
        "/calls",
        model=script(WRITING),
    )

    assert out[:2] == ["No approval requests.", "No tool calls yet."]
    assert out[2] == "done"
    assert out[3].endswith("  allowed  write_file a.txt (by flag)")
    assert out[4] == "c1  finished  write_file a.txt"


async def test_a_call_that_failed_is_told_as_such(
    holdfast: Holdfast, script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    reading = "[{tool_calls: [{id: c1, name: read_file, arguments: {path: no.txt}}]}, {text: so}]"

    out, _ = await told(holdfast, capsys, "go", "/calls", model=script(reading))

    assert out == ["so", "c1  error  read_file no.txt"]


async def test_what_came_before_is_summed_up_when_asked(
    holdfast: Holdfast, script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    out, err = await told(
        holdfast,
        capsys,
        "/compact",
        "one",
        "two",
        "/compact",
        model=script("[{text: an answer, repeat: 9}]"),
    )

    assert out == ["There is nothing to summarize.", "an answer", "an answer"]
    assert err.count("has been summarized.\n") == 1


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("/export kept.yaml --force", ["kept.yaml"]),
        ("/export --force kept.yaml", ["kept.yaml"]),
        ("/export a file.yaml", ["a file.yaml", "kept.yaml"]),
        ("/export kept.yaml", ["kept.yaml"]),
        ("/export --forced", ["kept.yaml"]),
        ("/export nowhere/a.yaml", ["kept.yaml"]),
    ],
)
async def test_a_session_is_written_out_and_over_a_file_only_by_force(
    holdfast: Holdfast,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    line: str,
    names: list[str],
) -> None:
    kept = folder / "kept.yaml"
    kept.write_text("mine")

    await told(holdfast, capsys, "What is 2+3?", line)

    assert sorted(os.listdir(folder)) == names
    assert (kept.read_text() == "mine") is ("--force " not in f"{line} ")


async def test_the_doctor_comes_to_the_chat(
    holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(holdfast.config.home))

    out, _ = await told(holdfast, capsys, "What is 2+3?", "/doctor")

    assert out[-1] == "No problems found."


@each_case("name", ["cost", "approvals", "calls", "compact", "doctor"])
async def test_an_argument_that_is_not_taken_is_refused(
    holdfast: Holdfast, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out, err = await told(holdfast, capsys, f"/{name} now")

    assert (out, f"Usage: /{name}." in err) == ([], True)
