"""How many requests a command makes with `--server`: what its work needs, and at most two more."""

import json
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands.test_history import SESSION, UNIT
from tests.cli.conftest import Cli
from tests.cli.remote_server import Far, Server, serve
from tests.http.v1.client import a_repository

pytestmark = pytest.mark.slow

EXTRA_MOST = 2
COUNTED = re.compile(r'holdfast_requests_total\{route="([^"]+)",status="\d+"\} (\d+)')
AGENT_FILE = """id: reviewer
name: Reviewer
provider: offline
model: holdfast
system_prompt: Be kind.
"""
# Each command with the requests that its work needs. A session is named by its whole id.
COMMANDS: tuple[tuple[tuple[str, ...], int], ...] = (
    # A new session, a message, and the stream of events.
    (("chat", "hi"), 3),
    (("chat", "hi", "--json"), 3),
    # The session, its questions and its agent are read before it is reopened and written to.
    (("chat", "--resume", "SESSION", "hi"), 6),
    (("sessions", "list"), 1),
    (("sessions", "list", "--json"), 1),
    (("sessions", "show", "SESSION"), 1),
    (("sessions", "messages", "SESSION"), 1),
    (("sessions", "events", "SESSION"), 2),
    (("sessions", "verify", "SESSION"), 1),
    (("sessions", "export", "SESSION", "--format", "markdown"), 1),
    (("sessions", "export", "SESSION", "--out", "FILE"), 2),
    (("sessions", "interrupt", "SESSION"), 1),
    (("sessions", "fork", "SESSION", "--at", "1"), 1),
    (("sessions", "close", "SESSION"), 1),
    (("sessions", "resume", "SESSION"), 1),
    (("sessions", "compact", "SESSION"), 2),
    (("sessions", "delete", "SESSION", "--detach"), 2),
    (("agents", "create", "--name", "Ada"), 1),
    # The agent is read before a session is opened for it.
    (("chat", "hi", "--agent", "ada"), 4),
    (("agents", "edit", "ada", "--description", "Terse."), 1),
    (("agents", "list"), 1),
    (("agents", "show", "ada"), 1),
    (("agents", "import", "AGENT"), 2),
    (("agents", "export", "reviewer"), 3),
    (("agents", "archive", "ada"), 1),
    (("repos", "add", "REPO"), 1),
    (("repos", "list"), 1),
    (("approvals", "list"), 1),
    (("calls", "list"), 1),
    (("costs",), 1),
    (("search", "hi"), 1),
    (("history", "submit"), 1),
    (("history", "submit-entity", "feature_unit"), 1),
    (("history", "query"), 1),
    (("history", "query", "abc123"), 1),
    (("history", "observations", "abc123"), 1),
    (("history", "checkpoint", "abc123", "spec_complete"), 1),
    (("history", "entities", "feature_unit"), 1),
    (("history", "correct", "abc123", "duration", "60"), 1),
    (("history", "delete", "abc123"), 1),
    (("history", "restore", "abc123"), 1),
    (("timeline", "FU-061"), 1),
    (("zones", "write", "a"), 1),
    (("zones", "append", "a"), 1),
    (("zones", "show", "a"), 1),
    (("zones", "read", "a"), 1),
    (("zones", "replay", "a"), 1),
    (("zones", "archive", "a"), 1),
    (("zones", "archives", "a"), 1),
)
STDIN = {
    ("history", "submit"): json.dumps(SESSION),
    ("history", "submit-entity"): json.dumps(UNIT),
    ("zones", "write"): "{}",
    ("zones", "append"): "line",
}


@pytest.fixture
def server(home: Path, tmp_path: Path) -> Iterator[Server]:
    """Run a server whose repositories lie in the test's folder."""
    with serve(home, AGENT_WORKSPACE_ROOT=str(tmp_path)) as found:
        yield found


def counted(server: Server) -> Counter[str]:
    """Return the requests of the server by route, when none is under way."""
    before: Counter[str] | None = None
    while True:
        headers = {"authorization": f"Bearer {server.secret}"}
        request = urllib.request.Request(f"{server.url}/metrics", headers=headers)
        with urllib.request.urlopen(request, timeout=10) as response:
            text = response.read().decode()
        now: Counter[str] = Counter()
        for route, number in COUNTED.findall(text):
            now[route] += int(number)
        now.pop("metrics", None)
        if now == before:
            return now
        before = now
        # A stream is counted when the server sees that its reader has left.
        time.sleep(0.1)


def test_a_command_makes_few_requests(server: Server, cli: Cli, tmp_path: Path) -> None:
    far = Far(server, cli, tmp_path / "elsewhere")
    (tmp_path / "reviewer.agent.yaml").write_text(AGENT_FILE)
    names = {
        "REPO": str(a_repository(tmp_path / "desk")),
        "AGENT": str(tmp_path / "reviewer.agent.yaml"),
        "FILE": str(tmp_path / "out.relavium.yaml"),
    }
    too_many = {}
    for command, needs in COMMANDS:
        if "SESSION" in command and "SESSION" not in names:
            names["SESSION"] = far("sessions", "list", "--json").document["data"][0]["id"]
        before = counted(server)
        ran = far(*(names.get(word, word) for word in command), stdin=STDIN.get(command[:2], ""))
        made = counted(server) - before
        assert ran.code == 0, (command, ran.err)
        if made.total() > needs + EXTRA_MOST:
            too_many[" ".join(command)] = (needs, dict(made))

    assert not too_many, json.dumps(too_many, indent=1)
