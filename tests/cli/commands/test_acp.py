"""`holdfast acp` from the command line: what it refuses, and a conversation out of a file."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.app import run
from tests.cli.conftest import Cli
from tests.cli.remote_server import serve

REQUESTS = (
    {"id": 1, "method": "initialize", "params": {"protocolVersion": 1}},
    {"id": 2, "method": "session/new", "params": {"cwd": "{desk}", "mcpServers": []}},
    {"id": 3, "method": "session/list", "params": {}},
)


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder."""
    folder = tmp_path / "desk"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@contextmanager
def swapped(said: Path, heard: Path) -> Iterator[None]:
    """Let a file be the standard input of this process, and another one its output."""
    sys.stdout.flush()
    kept = [os.dup(number) for number in (0, 1)]
    source = os.open(said, os.O_RDONLY)
    target = os.open(heard, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.dup2(source, 0)
        os.dup2(target, 1)
        yield
    finally:
        for number, descriptor in enumerate(kept):
            os.dup2(descriptor, number)
        for descriptor in (*kept, source, target):
            os.close(descriptor)


def talked(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """Say the requests out of a file, and return what was answered into another one."""
    said, heard = folder.with_name("said.jsonl"), folder.with_name("heard.jsonl")
    heard.unlink(missing_ok=True)
    lines = (json.dumps({"jsonrpc": "2.0", **each}) for each in REQUESTS)
    said.write_text("\n".join(lines).replace("{desk}", str(folder)))
    with swapped(said, heard):
        assert run(["acp", *arguments]) == 0
    return [json.loads(line) for line in heard.read_text().splitlines()]


def test_a_conversation_can_come_out_of_a_file(cli: Cli, desk: Path) -> None:
    answers = {each["id"]: each["result"] for each in talked(desk)}

    session = answers[2]["sessionId"]
    assert answers[1]["protocolVersion"] == 1
    listed = cli("sessions", "list", "--json").document["data"]
    assert [(each["id"], each["context"]["working_dir"]) for each in listed] == [
        (session, str(desk))
    ]


def test_an_agent_is_chosen_by_its_name(cli: Cli, desk: Path) -> None:
    made = cli("agents", "create", "--name", "Helper", "--system-prompt", "Help.", "--json")

    talked(desk, "--agent", "helper")

    (session,) = cli("sessions", "list", "--json").document["data"]
    assert session["agent_id"] == made.document["id"]


def test_an_agent_that_is_not_there_is_refused_before_anything_is_said(
    cli: Cli, desk: Path
) -> None:
    done = cli("acp", "--agent", "nobody")

    assert (done.code, done.out) == (4, "")
    assert done.err == "holdfast: There is no such agent; `holdfast agents list` shows yours.\n"


def test_an_agent_that_is_archived_is_refused(cli: Cli, desk: Path) -> None:
    cli("agents", "create", "--name", "Helper", "--system-prompt", "Help.")
    cli("agents", "archive", "helper")

    done = cli("acp", "--agent", "helper")

    assert (done.code, done.out) == (5, "")
    assert "`holdfast agents edit helper --status active` to restore it." in done.err


def test_behind_a_server_the_root_is_the_servers(
    cli: Cli, desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serve(tmp_path / "far", AGENT_WORKSPACE_ROOT=str(desk)) as server:
        monkeypatch.setenv("HOLDFAST_TOKEN", server.secret)
        done = cli("acp", "--root", str(desk), "--server", server.url)
        assert (done.code, done.out) == (2, "")
        answers = {each["id"]: each for each in talked(desk, "--server", server.url)}
        assert answers[1]["result"]["agentCapabilities"]["promptCapabilities"]["image"] is True
        assert answers[3]["result"]["sessions"] == []
