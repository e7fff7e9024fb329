"""A chat with a server at a real terminal: streamed, asked, answered, stopped, left."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.chat.test_terminal_tools import at_prompt, is_asked, leave
from tests.cli.processes import Terminal, at_terminal, beside, running
from tests.cli.remote_server import Server, serve

pytestmark = pytest.mark.slow


@pytest.fixture
def server(home: Path) -> Iterator[Server]:
    """Run a server; the chats of these tests share its home, and so its token."""
    with serve(home) as found:
        yield found


def test_a_person_is_asked_before_the_server_writes(home: Path, server: Server) -> None:
    with at_terminal(home, "chat", "--server", server.url) as terminal:
        at_prompt(terminal)
        terminal.type("write a.txt: hi\r")
        assert "+hi" in is_asked(terminal, "write_file asks for approval (write):")
        terminal.type("y\r")
        terminal.wait_for("write_file a.txt: ok")
        terminal.wait_for("out, free")
        terminal.type("write b.txt: no\r")
        is_asked(terminal, "write_file asks for approval (write):")
        terminal.type("n not today\r")
        terminal.wait_for("denied")
        terminal.type("/cost\r")
        terminal.wait_for("offline:holdfast")
        terminal.type("/doctor\r")
        terminal.wait_for("run it on the server's machine")
        code = leave(terminal)

    (session,) = json.loads(beside(home, "sessions", "list", "--json").stdout)["data"]
    listed = beside(home, "approvals", "list", "--session", session["id"], "--json").stdout
    folder = Path(session["context"]["working_dir"])
    assert code == 0
    assert (folder / "a.txt").read_text() == "hi\n"
    assert not (folder / "b.txt").exists()
    assert "elsewhere" not in terminal.plain
    assert [(each["state"], each["answered_by"]) for each in json.loads(listed)["data"]] == [
        ("allowed", "http"),
        ("denied", "http"),
    ]


def test_an_answer_is_stopped_and_the_chat_goes_on(
    home: Path, server: Server, tmp_path: Path
) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps([{"text": "never", "delay_ms": 600_000}, {"text": "here again"}]))
    arguments = ("chat", "--server", server.url, "--model", f"scripted:{script}")
    with at_terminal(home, *arguments) as terminal:
        at_prompt(terminal)
        terminal.type("go\r")
        running_turn(home, terminal)
        terminal.type("\x03")
        terminal.wait_for("Stopped; the partial answer is saved.")
        terminal.type("and now?\r")
        terminal.wait_for("here again")
        assert leave(terminal) == 0


def test_events_are_followed_while_they_happen(home: Path, server: Server) -> None:
    asked = ("chat", "What is 2+3?", "--json", "--server", server.url)
    session = json.loads(beside(home, *asked).stdout.splitlines()[0])["sessionId"]
    head = json.loads(beside(home, "sessions", "show", session, "--json").stdout)["last_event"]
    arguments = ("sessions", "events", session, "--follow", "--json", "--server", server.url)
    with running(home, *arguments) as process:
        assert process.stdout is not None
        past = [json.loads(process.stdout.readline()) for _ in range(head)]
        beside(home, "sessions", "close", session)
        after = json.loads(process.stdout.readline())

    assert [line["sequenceNumber"] for line in past] == list(range(1, head + 1))
    assert after["sequenceNumber"] == head + 1


def running_turn(home: Path, terminal: Terminal) -> None:
    """Wait until the server plays the turn."""
    while True:
        (session,) = json.loads(beside(home, "sessions", "list", "--json").stdout)["data"]
        if session["state"] == "running":
            return
