"""Every group of commands against a server: the same words as beside it, and nothing kept here."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import RunScope, open_holdfast
from holdfast.domain.queries import SessionQuery
from holdfast.domain.sessions import Budget, OnExceed
from holdfast.parsing.workflow_files import write_workflow
from holdfast.workflows.model import Workflow
from tests.cli.conftest import Cli
from tests.cli.remote_server import Far, Server, serve
from tests.http.v1.client import a_repository
from tests.marks import each_case

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


def test_files_are_attached_from_afar(far: Far, tmp_path: Path) -> None:
    picture = tmp_path / "dot.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n....")
    notes = tmp_path / "notes.txt"
    notes.write_text("hold fast")
    attached = ("--attach", str(picture), "--attach", str(notes))
    ran = far("chat", "Look.", *attached)
    missing = far("chat", "Look.", "--attach", str(tmp_path / "missing.png"))

    assert (ran.code, missing.code) == (0, 2)
    (user, _) = far.both("sessions", "messages", session_in(far))["data"]
    assert user["content"]["text"] == f"Look.\n\n{notes}:\n```\nhold fast\n```"
    media = [part for part in user["parts"] if part["type"] == "media"]
    assert [(part["mime_type"], part["name"]) for part in media] == [("image/png", "dot.png")]


def test_a_question_is_answered_as_at_home(far: Far) -> None:
    there, here = far("chat", "What is 2+3?"), far.here("chat", "What is 2+3?")
    piped = far("chat", "-", stdin="What is 6*7?")

    assert (there.code, there.err) == (0, "")
    assert there.out.startswith("2+3 = 5\n")
    assert (there.out, there.err) == (here.out, here.err)
    assert piped.out.startswith("6*7 = 42\n")


def test_a_session_is_summed_up_there(far: Far) -> None:
    far("chat", "What is 2+3?")
    session = session_in(far)
    far("chat", "--resume", session, "Tell me more.")

    done = far("sessions", "compact", session, "--json")

    assert (done.code, done.document["session"]) == (0, far.both("sessions", "show", session))


def test_a_workflow_with_inputs_and_settings_is_played_as_at_home(far: Far, tmp_path: Path) -> None:
    node = {
        "id": "a",
        "type": "agent",
        "agent_ref": "holdfast",
        "prompt_template": "What is {{inputs.n}}+3?",
        "temperature": 0.5,
        "system_prompt_append": "Be brief.",
        "retry": {"max": 1, "backoff": "linear", "retry_on": ["unavailable"]},
    }
    body = {
        "id": "w",
        "inputs": [{"name": "n", "type": "number"}],
        "budget": {"max_cost_microcents": 5, "on_exceed": "fail"},
        "tools": {"allowedTools": ["read_file"], "allowedDomains": []},
        "nodes": [{"id": "i", "type": "input"}, node, {"id": "o", "type": "output"}],
        "edges": [{"from": "i", "to": "a"}, {"from": "a", "to": "o"}],
    }
    file = tmp_path / "w.relavium.yaml"
    file.write_text(write_workflow(Workflow({"schema_version": "1.0", "workflow": body})))

    ran = far("workflow", "run", str(file), "--input", "n=2")

    assert (ran.code, ran.out) == (0, far("chat", "What is 2+3?").out)
    session = asyncio.run(first_session(far.server.home))
    assert session.agent.runtime.temperature == 0.5
    assert session.agent.runtime.retry.retry_on == ("unavailable",)
    assert session.agent.system_prompt.endswith("\n\nBe brief.")
    assert session.budget == Budget(microcents=5, on_exceed=OnExceed.FAIL)
    assert [tool.name for tool in session.tools] == ["read_file"]


async def first_session(home: Path) -> Any:
    """Return the oldest session of a home."""
    async with open_holdfast(home, scope=RunScope.NONE) as house:
        return (await house.sessions.list(SessionQuery(owner=house.owner))).items[-1]


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


@each_case(
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
    cli_without_home: Cli, command: tuple[str, ...], home: Path
) -> None:
    ran = cli_without_home(*command, "--server", "http://127.0.0.1:1", "--json")

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
@each_case("address", ["somewhere", "ftp://x", "http://", "http://[", "x:8765"])
def test_what_is_no_address_is_refused(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, token: str, address: str
) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", token)
    ran = cli("sessions", "list", "--server", address, "--json")

    assert (ran.code, ran.error["error"]) == (2, "invalid_input")
    assert "http://HOST:PORT" in ran.error["message"]
