"""`holdfast sessions export`, `chat-export`: a session as a file, or on the standard output."""

import json
from pathlib import Path

import pytest
import yaml

from holdfast.parsing.workflow_files import parse_workflow, read_workflow
from tests.cli.conftest import Cli
from tests.marks import demands, each_case

NOBODY = "019b7a00-0000-7000-8000-000000000000"
NAME = "what-is-2-3.relavium.yaml"
REVIEW = (
    "Review the file before you share or commit it: it contains the whole conversation, "
    "including everything you typed."
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder of its own, because a workflow is written where one stands."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@demands("S0-501", "S0-401", "S0-401b")
@pytest.mark.parametrize("words", [("sessions", "export"), ("chat-export",)])
def test_a_session_is_written_out_as_a_workflow(
    cli: Cli, chatted: str, folder: Path, words: tuple[str, ...]
) -> None:
    ran = cli(*words, chatted)

    assert (ran.code, ran.out) == (0, f"Exported session {chatted} to {NAME}.\n")
    assert ran.err == f"{REVIEW}\n"
    workflow = read_workflow(folder / NAME)
    assert list(workflow.nodes) == ["input", "turn-1", "output"]
    assert workflow.nodes["turn-1"]["prompt_template"] == "What is 2+3?"
    assert list(workflow.agents) == ["holdfast"]
    assert (folder / NAME).stat().st_mode & 0o777 == 0o600
    assert [each.name for each in folder.iterdir()] == [NAME]


@demands("S0-422", "S0-500")
def test_with_json_the_event_is_printed_and_every_export_is_the_same(
    cli: Cli, chatted: str, folder: Path
) -> None:
    (folder / "deep").mkdir()
    first = cli("chat-export", chatted, "--json", "--out", "deep/a.yaml")
    again = cli("chat-export", chatted, "--json", "--out", str(folder / "b.yaml"))

    assert (first.err, again.err) == ("", "")
    told = first.document
    assert (told["type"], told["sessionId"]) == ("session:exported", chatted)
    assert told["workflowPath"] == str(folder / "deep/a.yaml")
    assert again.document["sequenceNumber"] == told["sequenceNumber"] + 1
    one, other = folder / "deep/a.yaml", folder / "b.yaml"
    assert one.read_bytes() == other.read_bytes()
    printed = cli("chat-export", chatted, "--out", "-")
    assert printed.out == one.read_text()
    assert parse_workflow(printed.out, where="it").id == "what-is-2-3"


@demands("S0-413", "S0-415", "S0-039")
def test_the_whole_transcript_of_a_real_session_is_in_the_file(cli: Cli, folder: Path) -> None:
    looks = {"text": "I look.", "tool_calls": [{"name": "list_directory", "arguments": {}}]}
    away, wrong = {"error": "unavailable"}, {"error": "bad_request"}
    (folder / "one.yaml").write_text(json.dumps([away, away, away, away, wrong]))
    never, seen = {"text": "never"}, {"text": "Seen."}
    (folder / "two.yaml").write_text(json.dumps([never, looks, never, seen]))
    (folder / "helper.agent.yaml").write_text(
        "id: helper\nprovider: scripted\nmodel: one.yaml\nsystem_prompt: Help.\n"
        "tools: [list_directory]\nretry: {max: 1, backoff: linear}\n"
        "fallback_chain: [{provider: scripted, model: two.yaml, max_attempts: 1}]\n"
    )
    talk = ("chat", "--agent", "helper.agent.yaml", "--title", "Talk", "--json")
    session = cli(*talk, stdin="Look.\nAgain.\n").lines[0]["sessionId"]
    cli("chat-export", session)

    # Read by another reader than ours.
    body = yaml.safe_load((folder / "talk.relavium.yaml").read_text())["workflow"]
    (kept,) = body["metadata"].values()
    messages = kept.pop("messages")
    shown = cli("sessions", "show", session, "--json").document
    assert list(body["metadata"]) == ["relaviumExport"]
    assert kept | {"createdAt": 0, "updatedAt": 0} == {
        "source": "session",
        "sessionId": session,
        "agentSlug": "helper",
        "title": "Talk",
        "createdAt": 0,
        "updatedAt": 0,
    }
    assert kept["createdAt"][:19] == shown["created_at"][:19]
    # The turn without an answer has no node, and is in the transcript all the same.
    assert [node["id"] for node in body["nodes"]] == ["input", "turn-1", "output"]
    second = f"scripted:{folder / 'two.yaml'}"
    assert [(row["role"], row.get("modelId")) for row in messages] == [
        ("user", None),
        ("assistant", second),
        ("assistant", second),
        ("tool", None),
        ("assistant", second),
        ("user", None),
        ("system", None),
    ]
    assert [row["sequenceNumber"] for row in messages] == [1, 2, 3, 4, 5, 6, 7]
    assert {row["sessionId"] for row in messages} == {session}
    assert [part["type"] for row in messages for part in row["content"]] == [
        "text",
        "text",
        "tool_call",
        "tool_result",
        "text",
        "text",
        "text",
    ]
    before = (folder / "talk.relavium.yaml").read_bytes()
    assert cli("workflow", "format", "talk.relavium.yaml", "--write").code == 0
    assert (folder / "talk.relavium.yaml").read_bytes() == before


def test_a_file_that_is_there_is_not_replaced_unasked(cli: Cli, chatted: str, folder: Path) -> None:
    (folder / NAME).write_text("mine")
    before = cli("sessions", "show", chatted, "--json").document

    refused = cli("chat-export", chatted, "--json")

    assert (refused.code, refused.out, refused.error["error"]) == (5, "", "file_exists")
    assert (folder / NAME).read_text() == "mine"
    assert cli("sessions", "show", chatted, "--json").document == before
    assert cli("chat-export", chatted, "--force").code == 0
    assert read_workflow(folder / NAME).id == "what-is-2-3"


@each_case(
    ("out", "error"),
    [
        (".", "not_a_file"),
        ("/dev/null/x", "not_a_folder"),
        ("nowhere/x", "not_a_folder"),
        ("x" * 300, "invalid_input"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused(
    cli: Cli, chatted: str, folder: Path, out: str, error: str
) -> None:
    ran = cli("chat-export", chatted, "--out", out, "--json")

    assert (ran.code, ran.out, ran.error["error"]) == (2, "", error)
    assert list(folder.iterdir()) == []


def test_json_and_a_workflow_do_not_share_the_standard_output(cli: Cli, chatted: str) -> None:
    ran = cli("chat-export", chatted, "--out", "-", "--json")

    assert (ran.code, ran.out, ran.error["error"]) == (2, "", "invalid_input")


def test_a_tool_that_was_refused_is_named(cli: Cli, script: object, folder: Path) -> None:
    assert callable(script)
    steps = [{"tool_calls": [{"name": "ghost", "arguments": {}}]}, {"text": "no"}]
    lines = cli("chat", "go", "--model", script(json.dumps(steps)), "--json").lines

    ran = cli("chat-export", str(lines[0]["sessionId"]))

    assert ran.err == f"ghost is not in any node: the call was denied.\n{REVIEW}\n"
    assert "tools" not in read_workflow(folder / "go.relavium.yaml").nodes["turn-1"]


def test_an_agent_that_does_not_come_along_is_named(cli: Cli, folder: Path) -> None:
    cli("agents", "create", "--name", "Bare")
    session = str(cli("chat", "hi", "--agent", "bare", "--json").lines[0]["sessionId"])

    ran = cli("chat-export", session)

    assert ran.err.startswith("Bind agent_ref: the file does not contain agent bare.\n")
    assert "agents" not in read_workflow(folder / "hi.relavium.yaml").body


def test_a_session_is_written_out_to_be_read(cli: Cli, chatted: str) -> None:
    ran = cli("sessions", "export", chatted[:23], "--format", "markdown")

    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("# ")
    assert "## 1. User" in ran.out
    assert "What is 2+3?" in ran.out


def test_every_line_is_a_message(cli: Cli, chatted: str) -> None:
    lines = cli("sessions", "export", chatted, "--format", "jsonl").lines
    first = cli("sessions", "export", chatted, "--through", "1", "--format", "jsonl")
    all_of_it = cli("sessions", "export", chatted, "--through", "99", "--format", "jsonl")

    listed = cli("sessions", "messages", chatted, "--json").document["data"]
    assert lines == listed
    assert (first.lines, all_of_it.lines) == (lines[:1], lines)


def test_a_file_of_another_form_is_told_as_such(cli: Cli, chatted: str, folder: Path) -> None:
    markdown = ("--format", "markdown", "--out", "talk.md")

    first = cli("sessions", "export", chatted, "--json", *markdown)
    forced = cli("sessions", "export", chatted, "--force", *markdown)

    file = folder / "talk.md"
    assert first.document == {
        "session_id": chatted,
        "format": "markdown",
        "file": "talk.md",
        "bytes": file.stat().st_size,
    }
    assert (forced.code, forced.out) == (0, f"Exported session {chatted} to talk.md.\n")
    assert file.read_text() == cli("sessions", "export", chatted, "--format", "markdown").out


@pytest.mark.parametrize("through", ["0", "-3"])
def test_what_is_no_number_of_a_message_is_refused(cli: Cli, chatted: str, through: str) -> None:
    ran = cli("sessions", "export", chatted, "--through", through, "--json")

    assert (ran.code, ran.error["error"]) == (2, "invalid_input")


@pytest.mark.parametrize("words", [("sessions", "export"), ("chat-export",)])
def test_the_beginning_of_a_session_and_another_form_are_written_out_by_both_commands(
    cli: Cli, chatted: str, words: tuple[str, ...]
) -> None:
    workflow = parse_workflow(cli(*words, chatted, "--through", "1", "--out", "-").out, where="it")
    printed = cli(*words, chatted, "--format", "jsonl", "--through", "1").out

    assert list(workflow.nodes) == ["input", "output"]
    (row,) = workflow.body["metadata"]["relaviumExport"]["messages"]
    assert (row["role"], json.loads(printed)["id"]) == ("user", row["id"])


@pytest.mark.parametrize("words", [("sessions", "export"), ("chat-export",)])
def test_a_session_that_is_not_there_is_not_found(
    cli: Cli, folder: Path, words: tuple[str, ...]
) -> None:
    ran = cli(*words, NOBODY, "--json")

    assert (ran.code, ran.out, ran.error["error"]) == (4, "", "session_not_found")
    assert list(folder.iterdir()) == []


def test_a_terminal_gets_no_codes(
    cli: Cli, script: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(script)
    model = script(json.dumps([{"text": "a\x1b[31mb"}]))
    session = str(cli("chat", "hello", "--model", model, "--json").lines[0]["sessionId"])
    words = ("sessions", "export", session, "--format", "markdown")
    assert "\x1b[31m" in cli(*words).out
    monkeypatch.setattr("holdfast.cli.session_export.is_terminal", lambda _: True)

    shown = cli(*words).out

    assert "\x1b" not in shown
    assert "## 1. User" in shown


def test_another_default_model_changes_nothing_about_what_was_said(
    cli: Cli, chatted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("sessions", "export", chatted, "--out", "-")
    before = cli(*words)
    monkeypatch.setenv("HOLDFAST_MODEL", "openai:gpt-4.1")

    after = cli(*words)

    assert (after.code, after.out) == (0, before.out)
    assert "modelId: offline:holdfast" in after.out
