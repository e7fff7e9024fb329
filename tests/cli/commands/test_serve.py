"""`holdfast serve`: it starts, says where, plays turns, and stops."""

import json
import os
import select
import signal
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from holdfast import RunScope, open_holdfast
from holdfast.api import Holdfast
from holdfast.config.models import DEFAULT_MODELS
from holdfast.domain.errors import Unavailable
from tests.cli.conftest import Cli
from tests.cli.processes import PATIENCE, beside, ran, running
from tests.cli.server_probe import card_of, got, wait_until
from tests.cli.test_command import until, until_line
from tests.marks import each_case

SLOW = "[{text: done, delay_ms: 60000}]"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_and_stops_when_told(home: Path, number: signal.Signals) -> None:
    with running(home, "serve", "--port", "0", "--json") as server:
        told = json.loads(until_line(server))
        link = told.pop("sign_in")
        file = home / "server.json"
        kept, mode = json.loads(file.read_text()), file.stat().st_mode & 0o777
        health = got(f"{told['url']}/healthz")
        nobody = got(f"{told['url']}/v1/agents")
        somebody = got(f"{told['url']}/v1/agents", secret=(home / "token").read_text().strip())
        page = shown(told["url"] + link)
        os.kill(server.pid, number)
        out, err = server.communicate(timeout=PATIENCE)

    assert (kept, mode) == (told, 0o600)
    assert (told["pid"], health) == (server.pid, (200, {"status": "ok"}))
    assert (nobody[0], somebody) == (401, (200, {"data": [], "next_cursor": None}))
    # The link leads to a page that greets whoever comes, also without the cookie it has set.
    assert page.startswith("<!doctype html>")
    assert (server.returncode, out, err) == (0, "", "")
    assert not file.exists()


def shown(url: str) -> str:
    """Return the page that a browser without cookies is led to."""
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return str(answer.read().decode())


@pytest.mark.slow
def test_a_busy_port_is_a_conflict_and_leaves_the_other_alone(home: Path) -> None:
    with running(home, "serve", "--port", "0", "--json") as server:
        card = card_of(server)
        port = card["url"].rpartition(":")[2]

        second = ran(home, "serve", "--port", port, "--json")

        assert json.loads((home / "server.json").read_text()) == card
    assert (second.returncode, second.stdout) == (5, "")
    assert json.loads(second.stderr)["error"] == "port_in_use"


@pytest.mark.torture
@pytest.mark.slow
def test_the_card_names_the_first_of_two_servers_as_long_as_it_runs(home: Path) -> None:
    file = home / "server.json"
    with running(home, "serve", "--port", "0", "--json") as first:
        card = card_of(first)
        with running(home, "serve", "--port", "0") as second:
            url = until_line(second).split()[-1]
            assert json.loads(file.read_text()) == card
            os.kill(second.pid, signal.SIGTERM)
            _, told = second.communicate(timeout=PATIENCE)
        assert json.loads(file.read_text()) == card
        with running(home, "serve", "--port", "0", "--json") as third:
            mine = card_of(third)
            first.kill()
            first.wait(timeout=PATIENCE)
            wait_until(lambda: file.exists() and json.loads(file.read_text()) == mine)
            os.kill(third.pid, signal.SIGTERM)
            third.communicate(timeout=PATIENCE)

    assert url != card["url"]
    assert f"Another server of this home folder listens on {card['url']}; server.json names" in told
    assert not file.exists()


@pytest.mark.torture
@pytest.mark.slow
def test_it_plays_turns_that_others_left(home: Path) -> None:
    session = beside(home, "chat", "hello", "--json").stdout.splitlines()[0]
    session_id = json.loads(session)["sessionId"]
    leave_waiting(home, session_id)

    with running(home, "serve", "--port", "0", "--json") as server:
        until_line(server)
        with running(home, "sessions", "events", session_id, "--follow", "--json") as follower:
            turns = 0
            while turns < 2:
                turns += json.loads(until_line(follower))["type"] == "session:turn_completed"

    assert turns == 2


@pytest.mark.torture
@pytest.mark.slow
def test_a_turn_that_runs_when_it_stops_is_left_to_be_resumed(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "script.yaml"
    file.write_text(SLOW)
    with running(home, "chat", "slow", "--model", f"scripted:{file}", "--json") as chat:
        session = json.loads(until_line(chat))["sessionId"]
        while json.loads(until_line(chat))["type"] != "holdfast:step.started":
            pass
    with running(home, "serve", "--port", "0", "--json") as server:
        until_line(server)
        with running(home, "sessions", "events", session, "--follow", "--json") as follower:
            while json.loads(until_line(follower)).get("step") != 2:
                pass
            os.kill(server.pid, signal.SIGTERM)
            server.communicate(timeout=PATIENCE)
    file.write_text("[{text: at last}]")

    resumed = beside(home, "chat", "--resume", session)

    assert server.returncode == 0
    assert (resumed.returncode, resumed.stdout) == (0, "at last\n")


@pytest.mark.torture
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_who_only_reads_along_leaves_without_stopping_the_servers_turn(
    home: Path, tmp_path: Path, number: signal.Signals
) -> None:
    file = tmp_path / "script.yaml"
    file.write_text("[{text: hello}, {text: done, delay_ms: 60000}]")
    chat = beside(home, "chat", "hi", "--model", f"scripted:{file}", "--json")
    first = chat.stdout.splitlines()[0]
    session = json.loads(first)["sessionId"]
    with running(home, "serve", "--port", "0", "--json") as server:
        until_line(server)
        with running(home, "sessions", "events", session, "--follow", "--json") as follower:
            leave_waiting(home, session)
            while json.loads(until_line(follower)).get("turn") != 2:
                pass
            until(follower, "holdfast:step.started")
        with running(home, "chat", "--resume", session, "--json") as reader:
            # Nothing is said in it; that it shows what is said elsewhere tells that it reads.
            while not select.select([reader.stdout], [], [], 0)[0]:
                leave_waiting(home, session)
            os.kill(reader.pid, number)
            out, _ = reader.communicate(timeout=PATIENCE)
        shown = json.loads(beside(home, "sessions", "show", session, "--json").stdout)

    types = {json.loads(line)["type"] for line in out.splitlines()}
    assert (reader.returncode, types) == (130, {"holdfast:message.appended"})
    assert (shown["state"], shown["settled"]) == ("running", 1)


def test_other_machines_cannot_be_served(cli_without_home: Cli, home: Path) -> None:
    ran = cli_without_home("serve", "--host", "0.0.0.0", "--json")

    assert (ran.code, ran.error["error"]) == (3, "not_loopback")
    assert not home.exists()


@each_case(
    ("arguments", "code", "error"),
    [
        (["--host", "example.org"], 2, "invalid_input"),
        (["--name", "http://x"], 2, "invalid_input"),
        (["--tls-key", "key.pem"], 2, "config_invalid"),
        (["--tls-cert", "missing.pem"], 2, "config_invalid"),
        (["--port", "70000"], 2, "invalid_input"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_is_opened(
    cli_without_home: Cli, home: Path, arguments: list[str], code: int, error: str
) -> None:
    ran = cli_without_home("serve", *arguments, "--json")

    assert (ran.code, ran.error["error"]) == (code, error)
    assert not home.exists()


def test_it_starts_and_stops_in_this_process_too(cli: Cli, home: Path) -> None:
    stop_when_shown(home / "server.json")

    ran = cli("serve", "--port", "0")

    listening, link, hint = ran.out.splitlines()
    url = listening.rpartition(" ")[2]
    assert ran.code == 0
    assert listening.startswith("Holdfast 0.1.0 listens on http://127.0.0.1:")
    assert link.startswith(f"Sign in with this link, valid once: {url}/sign-in?code=hf_")
    assert hint.endswith(" chat`; stop with Ctrl-C.")
    assert ran.err == "Stopped; open turns continue at the next start.\n"
    assert not (home / "server.json").exists()


def test_the_card_of_another_server_stays(cli: Cli, home: Path) -> None:
    card = home / "server.json"
    stop_when_shown(card, instead='{"url": "another"}')

    cli("serve", "--port", "0", "--json")

    assert card.read_text() == '{"url": "another"}'


@pytest.mark.anyio
async def test_a_house_that_is_open_can_be_written(holdfast: Holdfast) -> None:
    await holdfast.store.require_writable()


@pytest.mark.anyio
async def test_a_house_that_is_closed_cannot(home: Path) -> None:
    async with open_holdfast(home, scope=RunScope.NONE) as holdfast:
        pass

    with pytest.raises(Unavailable):
        await holdfast.store.require_writable()


def leave_waiting(home: Path, session: str) -> None:
    """Write a message down in a house that plays no turns."""
    from tests.cli.commands.test_sessions import leave_a_turn_waiting

    leave_a_turn_waiting(home, session)


def stop_when_shown(card: Path, *, instead: str | None = None) -> None:
    """Send this process SIGTERM as soon as the server's card is there."""

    def wait() -> None:
        deadline = time.monotonic() + PATIENCE
        while not card.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        if instead is not None:
            card.write_text(instead)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def test_a_model_that_was_not_named_is_said_at_the_start(home: Path) -> None:
    with running(home, "serve", "--port", "0", more={"GEMINI_API_KEY": "key"}) as server:
        assert server.stderr is not None
        said = server.stderr.readline()

    assert said == (
        f"{DEFAULT_MODELS['GEMINI_API_KEY']} answers, because GEMINI_API_KEY is set and no model "
        "was chosen; HOLDFAST_MODEL=provider:name chooses another.\n"
    )
