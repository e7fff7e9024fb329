"""`holdfast workflow validate|format|run`: files of workflows, checked, written and played."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from holdfast.parsing.workflow_files import write_workflow
from holdfast.workflows.model import Workflow
from tests.cli.conftest import Cli
from tests.marks import each_case
from tests.parsing.workflows import WHOLE

Script = Callable[[str], str]
Write = Callable[..., str]

AGENT = {"id": "helper", "model": "holdfast", "provider": "offline", "system_prompt": "Help."}


def player(id_: str, ref: str = "helper", **more: Any) -> dict[str, Any]:
    """Return a node of an agent that says its own name."""
    return {"id": id_, "type": "agent", "agent_ref": ref, "prompt_template": f"say {id_}"} | more


def line(*players: dict[str, Any], agents: Any = (AGENT,), **more: Any) -> dict[str, Any]:
    """Return a workflow that is one line."""
    nodes = [{"id": "input", "type": "input"}, *players, {"id": "output", "type": "output"}]
    ids = [node["id"] for node in nodes]
    edges = [{"from": a, "to": b} for a, b in pairwise(ids)]
    body = {"id": "w", "nodes": nodes, "edges": edges, "agents": list(agents)} | more
    return {"schema_version": "1.0", "workflow": body}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a workflow into the folder that commands work in."""
    monkeypatch.chdir(tmp_path)

    def written(document: dict[str, Any], name: str = "w.relavium.yaml") -> str:
        (tmp_path / name).write_text(write_workflow(Workflow(document)))
        return name

    return written


def test_a_workflow_is_checked(cli: Cli, write: Write, home: Path) -> None:
    file = write(line(player("a")))

    told = cli("workflow", "validate", file)

    assert (told.code, told.out) == (0, f"{file} is a valid workflow, w, with 3 nodes.\n")
    assert told.err == "`holdfast workflow run` can run it.\n"
    assert cli("workflow", "validate", file, "--json").document == {
        "file": file,
        "id": "w",
        "nodes": 3,
        "edges": 2,
        "findings": [],
        "runnable": True,
        "why": None,
    }
    # A check of what needs no agent of here opens nothing.
    assert not (home / "history.db").exists()


def test_what_means_nothing_is_found(cli: Cli, write: Write) -> None:
    file = write(line(player("a", "ghost"), player("b", tools=["read_file"])))

    told = cli("workflow", "validate", file, "--json")

    assert told.code == 1
    assert told.document["findings"] == [
        {"code": "agent_ref_unresolved", "node": "a", "message": "there is no agent ghost"},
        {
            "code": "tools_exceed_agent",
            "node": "b",
            "message": "agent helper does not have read_file",
        },
    ]
    assert (
        "agent_ref_unresolved at a: there is no agent ghost."
        in cli("workflow", "validate", file).out
    )


def test_an_agent_that_is_known_here_is_no_finding(cli: Cli, write: Write, tmp_path: Path) -> None:
    cli("agents", "create", "--name", "Stored", "--tools", "read_file")
    own = tmp_path / ".holdfast" / "agents"
    own.mkdir(parents=True)
    (own / "near.agent.yaml").write_text(
        "id: near\nmodel: holdfast\nprovider: offline\nsystem_prompt: x\ntools: [find_text]\n"
    )
    (tmp_path / "far.agent.yaml").write_text(
        "id: far\nmodel: holdfast\nprovider: offline\nsystem_prompt: x\n"
    )
    players = (
        player("a", "stored", tools=["read_file"]),
        player("b", "near", tools=["find_text"]),
        player("c", "far"),
    )
    file = write(line(*players, agents=[{"$ref": "far.agent.yaml"}]))

    assert cli("workflow", "validate", file, "--json").document["findings"] == []


def test_one_that_cannot_be_played_says_why(cli: Cli, write: Write) -> None:
    (Path("agents")).mkdir()
    Path("agents/other.agent.yaml").write_text(
        "id: other\nmodel: holdfast\nprovider: offline\nsystem_prompt: x\n"
    )
    file = write(WHOLE)

    told = cli("workflow", "validate", file, "--json").document

    assert (told["runnable"], told["why"].startswith("The workflow cannot be run yet")) == (
        False,
        True,
    )


@pytest.mark.parametrize("verb", ["validate", "format", "run"])
@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, (4, "path_not_found")),
        (b"a: [", (2, "yaml_invalid")),
        (b"\xff", (2, "yaml_invalid")),
        (b"a: &x [*x]", (2, "yaml_invalid")),
        (b"schema_version: '2.0'", (2, "workflow_invalid")),
        (b"PK\x03\x04", (2, "yaml_invalid")),
    ],
)
def test_a_file_that_is_no_workflow_is_refused(
    cli: Cli, write: Write, verb: str, content: bytes | None, told: tuple[int, str]
) -> None:
    if content is not None:
        Path("x.yaml").write_bytes(content)

    ran = cli("workflow", verb, "x.yaml", "--json")

    assert (ran.out, (ran.code, ran.error["error"])) == ("", told)


def test_a_workflow_has_one_form(cli: Cli, write: Write) -> None:
    file = write(line(player("a")))
    wanted = Path(file).read_text()
    Path("odd.yaml").write_text("# mine\n" + json.dumps(line(player("a"))))

    assert cli("workflow", "format", "odd.yaml").out == wanted
    assert cli("workflow", "format", "-", stdin=wanted).out == wanted
    assert cli("workflow", "format", "-", stdin=b"\xff").code == 2
    assert cli("workflow", "format", "odd.yaml", "--check").code == 1
    written = cli("workflow", "format", "odd.yaml", "--write", "--json")
    assert written.document == {"file": "odd.yaml", "formatted": False, "written": True}
    assert Path("odd.yaml").read_text() == wanted
    checked = cli("workflow", "format", "odd.yaml", "--check")
    assert (checked.code, checked.out) == (0, "odd.yaml is in canonical form.\n")


@pytest.mark.parametrize("words", [("w", "--check", "--write"), ("-", "--write")])
def test_wishes_that_do_not_go_together_are_refused(cli: Cli, words: tuple[str, ...]) -> None:
    assert cli("workflow", "format", *words, "--json").error["error"] == "invalid_input"


def test_a_line_is_played_as_turns_of_sessions(cli: Cli, write: Write, script: Script) -> None:
    steps = [{"text": f"answer {number}"} for number in (1, 2, 3)]
    other = AGENT | {"id": "other"}
    file = write(line(player("a"), player("b"), player("c", "other"), agents=[AGENT, other]))

    told = cli("workflow", "run", file, "--model", script(json.dumps(steps)))

    assert (told.code, told.out) == (0, "answer 1\nanswer 2\nanswer 1\n")
    sessions = cli("sessions", "list", "--json").document["data"]
    assert [(each["turn"], each["message_count"]) for each in sessions] == [(1, 2), (2, 4)]
    assert [each.split(":")[0] for each in told.err.splitlines()] == ["a", "b", "c"]
    rows = cli("sessions", "messages", sessions[0]["id"], "--json").document["data"]
    assert rows[0]["content"]["text"] == "answer 2\n\nsay c"


def test_with_json_the_events_of_its_sessions_are_printed(cli: Cli, write: Write) -> None:
    lines = cli("workflow", "run", write(line(player("a"))), "--json").lines

    assert lines[0]["type"] == "session:started"
    assert lines[-1]["type"] == "session:turn_completed"
    assert [each["sequenceNumber"] for each in lines] == list(range(1, len(lines) + 1))


def test_a_turn_that_fails_ends_it_with_its_code(cli: Cli, write: Write, script: Script) -> None:
    file = write(line(player("a"), player("b")))

    told = cli("workflow", "run", file, "--model", script('[{"error": "bad_request"}]'))

    assert told.code == 2
    assert "Stopped at a; " in told.err
    assert cli("sessions", "list", "--json").document["data"][0]["turn"] == 1


@each_case(
    ("document", "code", "error"),
    [
        (line(player("a", model="x")), 2, "workflow_not_runnable"),
        (line(player("a", prompt_template="{{ctx.x}}")), 2, "workflow_not_runnable"),
        (line(player("a"), player("b", "ghost")), 4, "agent_not_found"),
        (line(player("a", tools=["read_file"])), 3, "grant_exceeded"),
        (line(player("a"), player("b", "holdfast", tools=["ghost"])), 3, "grant_exceeded"),
        (line(player("a"), agents=[{"$ref": "ghost.yaml"}]), 4, "agent_not_found"),
    ],
)
def test_what_cannot_be_played_is_refused_before_the_first_turn(
    cli: Cli, write: Write, document: dict[str, Any], code: int, error: str
) -> None:
    told = cli("workflow", "run", write(document), "--json")

    assert (told.code, told.out, told.error["error"]) == (code, "", error)
    assert cli("sessions", "list", "--json").document["data"] == []


def test_an_agent_of_yours_is_not_changed_by_one_of_its_name(cli: Cli, write: Write) -> None:
    cli("agents", "create", "--name", "Helper", "--system-prompt", "Mine.")
    file = write(line(player("a")))

    assert [cli("workflow", "run", file).code for _ in range(2)] == [0, 0]

    agents = cli("agents", "list", "--json").document["data"]
    assert cli("agents", "show", "helper", "--json").document["system_prompt"] == "Mine."
    assert len(agents) == 2
    assert agents[0]["slug"].startswith("helper-")
