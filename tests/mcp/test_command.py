"""`holdfast mcp` as programs start it: nothing but messages on its output, and a clean end."""

import json
import signal
import sqlite3
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import COMMAND, environment, ran, running
from tests.mcp.clients import INITIALIZE
from tests.mcp.payloads import MINIMAL

pytestmark = pytest.mark.slow

SUBMIT = {"name": "submit_agent_session", "arguments": MINIMAL}


def lines(*messages: dict[str, Any]) -> str:
    """Return messages as they are sent."""
    return "".join(json.dumps({"jsonrpc": "2.0", **each}) + "\n" for each in messages)


MEET = lines(
    {"id": 0, "method": "initialize", "params": INITIALIZE},
    {"method": "notifications/initialized"},
)


def test_what_is_piped_in_is_answered_in_order_and_it_ends_with_its_input(home: Path) -> None:
    said = MEET + "nonsense\n" + lines({"id": 1, "method": "tools/call", "params": SUBMIT})
    done = ran(home, "mcp", stdin=said)

    frames = {each["id"]: each for each in map(json.loads, done.stdout.splitlines())}
    assert (done.returncode, done.stderr) == (0, "")
    assert set(frames) == {0, 1, None}
    assert frames[None]["error"]["code"] == -32700
    assert frames[1]["result"]["structuredContent"]["observation_count"] == 1


@pytest.mark.torture
def test_an_empty_input_is_an_end(home: Path) -> None:
    done = ran(home, "mcp")

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.torture
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(home: Path, number: int) -> None:
    with running(home, "mcp") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(MEET)
        process.stdin.flush()
        met = json.loads(process.stdout.readline())
        process.send_signal(number)
        rest, complaints = process.communicate(timeout=60)

    assert met["result"]["serverInfo"]["name"] == "holdfast"
    assert (process.returncode, rest, complaints) == (0, "", "")


@pytest.mark.torture
def test_what_was_answered_survives_the_end_of_the_process(home: Path) -> None:
    with running(home, "mcp") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(MEET + lines({"id": 1, "method": "tools/call", "params": SUBMIT}))
        process.stdin.flush()
        process.stdout.readline()
        answered = json.loads(process.stdout.readline())
        process.kill()
        process.wait()
    wanted = {"name": "query_agent_history", "arguments": {"session_id": "abc123"}}
    done = ran(home, "mcp", stdin=MEET + lines({"id": 2, "method": "tools/call", "params": wanted}))

    shown = json.loads(done.stdout.splitlines()[-1])["result"]["structuredContent"]
    assert answered["result"]["isError"] is False
    assert shown["observation_count"] == 1


def test_with_http_the_server_is_run_and_says_where_it_is(home: Path) -> None:
    with subprocess.Popen(
        [COMMAND, "mcp", "--http", "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(home),
    ) as process:
        try:
            assert process.stdout is not None
            card = json.loads(process.stdout.readline())
            body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode()
            secret = (home / "token").read_text().strip()
            request = urllib.request.Request(
                card["mcp"],
                data=body,
                headers={
                    "authorization": f"Bearer {secret}",
                    "content-type": "application/json",
                },
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                document = json.loads(answer.read())
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)

    assert card["mcp"] == f"{card['url']}/mcp"
    assert document["result"] == {}
    assert process.returncode == 0


def test_it_works_on_this_machines_files_only(home: Path) -> None:
    done = ran(home, "mcp", "--server", "http://127.0.0.1:1")

    assert done.returncode == 2
    assert "works on local files" in done.stderr


@pytest.mark.torture
def test_a_store_that_cannot_be_opened_is_told_before_anything_is_said(home: Path) -> None:
    home.mkdir(mode=0o700)
    with sqlite3.connect(home / "history.db") as foreign:
        foreign.execute("CREATE TABLE somebody (elses INTEGER)")
    foreign.close()
    done = ran(home, "mcp", stdin=MEET, more={"HOLDFAST_ENCRYPTION": "off"})

    assert (done.returncode != 0, done.stdout) == (True, "")
    assert done.stderr.startswith("holdfast: ")
