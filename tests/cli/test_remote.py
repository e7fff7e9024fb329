"""Every group of commands against a server: the same words as beside it, and nothing kept here."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands.test_approvals import ask
from tests.cli.commands.test_calls import cut
from tests.cli.conftest import Cli
from tests.cli.remote_server import Far, Server, serve
from tests.http.v1.client import a_repository

# A server is started for each, which belongs to the whole run and not to the quick one.
pytestmark = pytest.mark.slow

AGENT_FILE = """id: reviewer
name: Reviewer
description: Reads what others write.
provider: offline
model: holdfast
system_prompt: Be kind.
temperature: 0.5
reasoning_effort: low
tools: [read_file]
memory: {type: window, window_size: 4}
"""


@pytest.fixture
def server(home: Path, tmp_path: Path) -> Iterator[Server]:
    """Run a server whose repositories lie in the test's folder."""
    with serve(home, AGENT_WORKSPACE_ROOT=str(tmp_path)) as found:
        yield found


@pytest.fixture
def far(server: Server, cli: Cli, tmp_path: Path) -> Far:
    """Be somebody with the server's token and a home of their own."""
    return Far(server, cli, tmp_path / "elsewhere")


def session_in(far: Far) -> str:
    """Return the session that was written to last."""
    return str(far("sessions", "list", "--json", "--limit", "1").document["data"][0]["id"])


def test_a_question_is_answered_as_at_home(far: Far) -> None:
    there, here = far("chat", "What is 2+3?"), far.here("chat", "What is 2+3?")
    piped = far("chat", "-", stdin="What is 6*7?")

    assert (there.code, there.err) == (0, "")
    assert there.out.startswith("2+3 = 5\n")
    assert (there.out, there.err) == (here.out, here.err)
    assert piped.out.startswith("6*7 = 42\n")


def test_a_stream_of_json_is_the_same_stream(far: Far) -> None:
    there = far("chat", "What is 2+3?", "--title", "Sums", "--json").lines
    session = str(there[0]["sessionId"])
    more = far("chat", "--resume", session[:23], "And 4+4?", "--json").lines

    told = far.both("sessions", "events", session)["data"]
    assert [line["sequenceNumber"] for line in there] == list(range(1, len(there) + 1))
    assert there + more == told
    assert there[0]["type"] == "session:started"
    assert there[-1]["type"] == "session:turn_completed"


def test_what_was_spent_is_added_up_as_at_home(far: Far) -> None:
    assert far.both("costs")["data"] == []
    far("chat", "What is 2+3?")
    session = session_in(far)

    assert far.both("costs")["total"]["requests"] == 1
    (spent,) = far.both("costs", "--group-by", "session", "--session", session[:23])["data"]
    assert spent["key"] == session
    assert far.both("costs", "--agent", "holdfast", "--to", "2020-01-01")["data"] == []


def test_a_session_is_written_out_as_at_home(far: Far, tmp_path: Path) -> None:
    far("chat", "What is 2+3?", "--title", "Sums")
    session = session_in(far)

    readable = ("--format", "markdown")
    for flags in (readable, (*readable, "--through", "1"), ("--format", "jsonl")):
        there, here = (
            far("sessions", "export", session, *flags),
            far.here("sessions", "export", session, *flags),
        )
        assert (there.code, there.out, there.err) == (0, here.out, here.err)
    file = tmp_path / "sums.md"
    assert far("sessions", "export", session[:23], *readable, "--out", str(file)).code == 0
    assert file.read_text() == far.here("sessions", "export", session, *readable).out


def test_a_session_becomes_a_workflow_and_is_played_as_at_home(far: Far, tmp_path: Path) -> None:
    first = far("chat", "What is 2+3?", "--title", "Sums")
    session = session_in(far)
    there, here = tmp_path / "there.relavium.yaml", tmp_path / "here.relavium.yaml"

    told = far("chat-export", session, "--out", str(there), "--json").document
    noted = far.here("chat-export", session, "--out", str(here), "--json").document

    assert there.read_bytes() == here.read_bytes()
    assert (told["type"], told["workflowPath"]) == ("session:exported", str(there))
    assert noted["sequenceNumber"] == told["sequenceNumber"] + 1
    assert far("workflow", "validate", str(there)).code == 0
    played = far("workflow", "run", str(there))
    assert (played.code, played.out) == (0, first.out)
    assert len(far.both("sessions", "list")["data"]) == 2


def test_sessions_are_looked_at_as_at_home(far: Far) -> None:
    assert far("sessions", "list").err == "No sessions; start one with `holdfast chat`.\n"
    far("chat", "What is 2+3?", "--title", "Sums")
    far("chat", "Hello", "--model", "offline:holdfast")
    session = session_in(far)

    listed = far.both("sessions", "list")
    assert [each["title"] for each in listed["data"]] == ["Hello", "Sums"]
    page = far.both("sessions", "list", "--limit", "1")
    assert far("sessions", "list", "--cursor", page["next_cursor"], "--json").document == {
        "data": listed["data"][1:],
        "next_cursor": None,
    }
    assert far.both("sessions", "list", "--status", "idle", "--query", "sum")["data"] == [
        listed["data"][1]
    ]
    assert far.both("sessions", "list", "--agent", "holdfast", "--all") == listed
    assert far.both("sessions", "show", session)["agent_id"] == listed["data"][0]["agent_id"]
    assert len(far.both("sessions", "messages", session)["data"]) == 2
    first = far.both("sessions", "messages", session, "--limit", "1")
    assert first["next_cursor"] == "1"
    assert far.both("sessions", "messages", session, "--cursor", "1")["data"][0]["sequence"] == 2
    events = far.both("sessions", "events", session, "--limit", "3")
    assert events["next_cursor"] == "3"
    assert far.both("sessions", "verify", session)["faults"] == []
    assert len(far.both("sessions", "verify")["data"]) == 2


def test_sessions_are_steered_as_at_home(far: Far) -> None:
    far("chat", "What is 2+3?")
    session = session_in(far)

    closed = far("sessions", "close", session, "--as", "cancelled", "--reason", "done", "--json")
    resumed = far("sessions", "resume", session)
    stopped = far("sessions", "interrupt", session, "--json")
    fork = far("sessions", "fork", session, "--at", "1", "--title", "Other", "--json").document
    refused = far("sessions", "delete", session, "--json")
    deleted = far("sessions", "delete", session, "--cascade", "--json")

    assert (closed.document["state"], closed.document["reason"]) == ("cancelled", "done")
    assert resumed.out == f"Session {session} is idle.\n"
    assert (stopped.document["session"]["state"], stopped.document["turn"]) == ("idle", None)
    assert fork["forked_from"] == {"session_id": session, "sequence": 1}
    assert (refused.code, refused.error["error"]) == (5, "session_has_forks")
    assert deleted.document == {"deleted": [fork["id"], session]}
    assert far.both("sessions", "list")["data"] == []


def test_a_session_is_summed_up_there(far: Far) -> None:
    far("chat", "What is 2+3?")
    session = session_in(far)
    far("chat", "--resume", session, "Tell me more.")

    done = far("sessions", "compact", session, "--json")

    assert (done.code, done.document["session"]) == (0, far.both("sessions", "show", session))


def test_agents_are_made_changed_and_archived_as_at_home(far: Far, tmp_path: Path) -> None:
    file = tmp_path / "reviewer.agent.yaml"
    file.write_text(AGENT_FILE)
    made = far(
        *("agents", "create", "--name", "Ada", "--system-prompt", "Be terse.", "--tag", "demo"),
        *("--model", "offline:holdfast", "--json"),
    ).document
    edited = far("agents", "edit", "ada", "--description", "Terse.", "--slug", "lovelace")
    imported = far("agents", "import", str(file))
    again = far("agents", "import", str(file))

    assert (made["slug"], made["system_prompt"], made["tags"]) == ("ada", "Be terse.", ["demo"])
    assert (edited.code, edited.out) == (0, "Changed agent lovelace.\n")
    assert imported.out.startswith("Created agent reviewer")
    assert again.out == f"Updated agent reviewer from {file}.\n"
    assert [each["slug"] for each in far.both("agents", "list")["data"]] == ["reviewer", "lovelace"]
    assert far.both("agents", "show", "lovelace")["description"] == "Terse."
    exported = far.both("agents", "export", "reviewer")
    assert (exported["reasoning_effort"], exported["memory"]) == (
        "low",
        {"type": "window", "window_size": 4},
    )
    assert far("chat", "--agent", "lovelace", "What is 2+3?").out.startswith("2+3 = 5\n")
    assert far("agents", "archive", "lovelace").code == 0
    assert far.both("agents", "list", "--status", "archived")["data"][0]["slug"] == "lovelace"
    assert far("chat", "--agent", "lovelace", "Hello").code == 5


def test_what_only_a_file_of_the_machine_may_say_is_refused(far: Far, tmp_path: Path) -> None:
    file = tmp_path / "wired.agent.yaml"
    file.write_text(
        AGENT_FILE + "mcp_servers: [{id: notes, transport: stdio, command: notes-server}]\n"
    )

    refused = far("agents", "import", str(file), "--json")

    assert (refused.code, refused.error["error"]) == (2, "agent_invalid")
    assert "on the server's machine" in refused.error["message"]
    assert far.both("agents", "list")["data"] == []


def test_repositories_are_those_of_the_server(far: Far, tmp_path: Path) -> None:
    desk = a_repository(tmp_path / "desk")
    (desk / "notes.txt").write_text("hold fast\n")

    added = far("repos", "add", str(desk), "--json").document
    listed = far.both("repos", "list")
    read = far("chat", "read notes.txt", "--repo", str(desk))
    varied = far("chat", "Hello", "--repo", str(desk), "--var", "ticket=7", "--json")
    session = far.both("sessions", "show", str(varied.lines[0]["sessionId"]))

    assert listed["data"] == [added]
    assert (read.code, read.out) == (0, "lines 1 to 1 of 1:\n\nhold fast\n")
    assert session["context"]["variables"] == {"ticket": "7"}
    assert session["context"]["working_dir"] == str(desk)
    assert far("repos", "remove", added["id"]).code == 5
    outside = far("repos", "add", str(tmp_path.parent), "--json")
    assert (outside.code, outside.error["error"]) == (3, "repo_outside_root")
    lost = far("chat", "Hello", "--var", "ticket=7", "--json")
    assert (lost.code, lost.error["error"]) == (2, "invalid_input")


def test_where_nobody_can_be_asked_the_answer_is_no(far: Far) -> None:
    done = far("chat", "write a.txt: hi")
    (asked,) = far.both("approvals", "list", "--session", session_in(far))["data"]

    assert done.code == 0
    assert "denied (rejected)" in done.out
    assert "No user is present to approve this. Allow it with --yes-to write_file.\n" in done.err
    assert (asked["state"], asked["note"]) == ("denied", "No user is present to approve this.")


@pytest.mark.parametrize("as_json", [False, True])
def test_a_flag_answers_for_its_tool(far: Far, as_json: bool) -> None:
    flags = ["--json"] if as_json else []
    done = far("chat", "write a.txt: hi", "--yes-to", "write_file", *flags)
    shown = far.both("sessions", "show", session_in(far))
    (call,) = far.both("calls", "list", "--session", shown["id"])["data"]
    (asked,) = far.both("approvals", "list", "--session", shown["id"])["data"]

    assert done.code == 0
    assert Path(shown["context"]["working_dir"], "a.txt").read_text() == "hi\n"
    assert (call["name"], call["state"]) == ("write_file", "finished")
    assert far.both("calls", "show", call["id"], "--session", shown["id"])["status"] == "ok"
    assert (asked["state"], asked["answered_by"]) == ("allowed", "http")


def test_a_question_that_waits_is_answered_from_afar(home: Path, cli: Cli, tmp_path: Path) -> None:
    desk = tmp_path / "desk"
    desk.mkdir()
    session = ask(home, desk).session_id
    with serve(home) as server:
        far = Far(server, cli, tmp_path / "elsewhere")
        (waiting,) = far.both("approvals", "list")["data"]
        left = far("chat", "--resume", session, "Hello", "--json")
        answered = far("approvals", "answer", waiting["id"][:13], "--allow", "--json").document
        shown = far.both("approvals", "show", session, waiting["id"])
        other = far("approvals", "answer", session, waiting["id"], "--deny", "--json")
        revoked = far("approvals", "revoke", session, waiting["id"], "--json").document

    assert (left.code, left.error["error"]) == (5, "approval_waiting")
    assert (answered["state"], answered["answered_by"]) == ("allowed", "http")
    assert shown == answered
    assert (other.code, other.error["error"]) == (5, "approval_closed")
    assert revoked["scope"] == "once"


def test_an_unknown_call_is_settled_from_afar(home: Path, cli: Cli, tmp_path: Path) -> None:
    desk = tmp_path / "desk"
    desk.mkdir()
    session = cut(home, desk, cli)
    with serve(home) as server:
        far = Far(server, cli, tmp_path / "elsewhere")
        (unknown,) = far.both("calls", "list", "--unknown")["data"]
        retried = far("calls", "settle", unknown["id"], "--retry", "--yes-to", "run_command")
        settled = far.both("calls", "list", "--state", "settled", "--session", session)["data"]
        denied = far("calls", "settle", unknown["id"], "--session", session, "--skip", "--json")

    assert (retried.code, json.loads(retried.out)["stdout"]) == (0, "done\n")
    assert [(each["id"], each["settled"]) for each in settled] == [(unknown["id"], "retried")]
    assert (denied.code, denied.error["error"]) == (5, "call_not_open")


@pytest.mark.parametrize(
    "command",
    [
        ("serve",),
        ("migrate", "status"),
        ("migrate", "up"),
        ("backup", "copy.db"),
        ("restore", "copy.db"),
        ("salvage", "copy.db"),
        ("copy", "--to", "copy.db"),
        ("doctor",),
        ("key", "list"),
        ("token", "list"),
        ("config",),
    ],
)
def test_what_works_on_files_runs_where_the_server_runs(
    cli: Cli, command: tuple[str, ...], home: Path
) -> None:
    ran = cli(*command, "--server", "http://127.0.0.1:1", "--json")

    assert (ran.code, ran.out, ran.error["error"]) == (2, "", "invalid_input")
    assert "run it on the server's machine" in ran.error["message"]
    assert not home.exists()


def test_on_one_machine_the_homes_own_token_is_enough(
    server: Server, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SERVER", server.url)

    assert cli("chat", "What is 2+3?").out.startswith("2+3 = 5\n")


def test_a_token_of_this_home_goes_to_no_other_machine(server: Server, cli: Cli) -> None:
    ran = cli("sessions", "list", "--server", "http://192.0.2.1:8765", "--json")

    assert (ran.code, ran.error["error"]) == (3, "unauthenticated")
    assert "HOLDFAST_TOKEN" in ran.error["message"]


def test_a_wrong_token_is_denied_and_never_shown(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", "hf_" + "w" * 40)
    ran = far.run("sessions", "list", "--server", far.server.url, "--json", "-vv")

    assert (ran.code, ran.error["error"]) == (3, "unauthenticated")
    assert "HOLDFAST_TOKEN" in ran.error["message"]
    assert "wwww" not in ran.err


def test_without_a_server_the_remedy_is_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", "hf_something")
    ran = cli("sessions", "list", "--server", "http://127.0.0.1:1", "--json")

    assert (ran.code, ran.error["error"]) == (7, "server_unreachable")
    assert "holdfast serve" in ran.error["message"]


@pytest.mark.parametrize("token", ["hf_something", ""])
@pytest.mark.parametrize("address", ["somewhere", "ftp://x", "http://", "http://[", "x:8765"])
def test_what_is_no_address_is_refused(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, token: str, address: str
) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", token)
    ran = cli("sessions", "list", "--server", address, "--json")

    assert (ran.code, ran.error["error"]) == (2, "invalid_input")
    assert "http://HOST:PORT" in ran.error["message"]
