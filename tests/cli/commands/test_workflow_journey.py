"""A real session, in processes of its own: talked in, exported, checked, and played again."""

import json
from pathlib import Path

import pytest

from holdfast.parsing.workflow_files import read_workflow, write_workflow
from tests.cli.processes import beside

pytestmark = pytest.mark.slow

STEPS = [
    {"text": "I look.", "tool_calls": [{"name": "list_directory", "arguments": {"path": "."}}]},
    {"text": "There is one file."},
    {"tool_calls": [{"name": "write_file", "arguments": {"path": "b.txt", "content": "b"}}]},
    {"text": "I wrote another, {{as}} you said."},
]


def test_the_workflow_of_a_real_session_is_valid_and_plays(home: Path, tmp_path: Path) -> None:
    work, script = tmp_path / "work", tmp_path / "script.json"
    work.mkdir()
    (work / "a.txt").write_text("a")
    script.write_text(json.dumps(STEPS))
    place = ("--cwd", str(work), "--yes-to", "write_file")
    first = beside(
        home, "chat", "What is here? {{x}}", "--model", f"scripted:{script}", *place, "--json"
    )
    session = json.loads(first.stdout.splitlines()[0])["sessionId"]
    assert (
        beside(home, "chat", "--resume", session, "Write one.", "--yes-to", "write_file").returncode
        == 0
    )
    assert (work / "b.txt").read_text() == "b"
    file = tmp_path / "talk.relavium.yaml"

    exported = beside(home, "chat-export", session, "--out", str(file), "--json")
    checked = beside(home, "workflow", "validate", str(file), "--json")
    (work / "b.txt").unlink()
    played = beside(home, "workflow", "run", str(file), *place)

    assert json.loads(exported.stdout)["workflowPath"] == str(file)
    workflow = read_workflow(file)
    assert write_workflow(workflow) == file.read_text()
    assert [node.get("tools") for node in workflow.nodes.values()] == [
        None,
        ["list_directory"],
        ["write_file"],
        None,
    ]
    told = json.loads(checked.stdout)
    assert (checked.returncode, told["findings"], told["runnable"]) == (0, [], True)
    answers = "I look.\nThere is one file.\nI wrote another, {{as}} you said.\n"
    assert (played.returncode, played.stdout) == (0, answers)
    assert (work / "b.txt").read_text() == "b"
    sessions = json.loads(beside(home, "chat-list", "--json").stdout)["data"]
    assert [each["turn"] for each in sessions] == [2, 2]
