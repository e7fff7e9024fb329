"""`holdfast serve --workers`: several processes, one server."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.cli.commands.test_serve import SLOW
from tests.cli.processes import PATIENCE, beside, ran, running
from tests.cli.server_probe import card_of, children_of, processes_of, sent, wait_until
from tests.cli.test_command import until_line


@pytest.mark.slow
def test_several_processes_share_the_work_and_one_that_dies_is_replaced(home: Path) -> None:
    with running(home, "serve", "--port", "0", "--json", "--workers", "2") as server:
        card = card_of(server)
        first = processes_of(card["url"])
        workers = children_of(server.pid)
        os.kill(workers[0], signal.SIGKILL)
        wait_until(lambda: len(set(children_of(server.pid)) - set(workers)) == 1)
        second = processes_of(card["url"])
        os.kill(server.pid, signal.SIGTERM)
        out, err = server.communicate(timeout=PATIENCE)

    assert (card["pid"], len(workers), len(first), len(second)) == (server.pid, 2, 2, 2)
    assert len(first & second) == 1
    assert (server.returncode, out) == (0, "")
    # One line for the one that died, whichever it was, and nothing of a second server.
    assert [json.loads(line)["message"] for line in err.splitlines()] == ["a worker exited"]
    assert not (home / "server.json").exists()


@pytest.mark.slow
def test_no_process_outlives_the_one_that_watches_them(home: Path) -> None:
    with running(home, "serve", "--port", "0", "--json", "--workers", "2") as server:
        card_of(server)
        workers = children_of(server.pid)
        server.kill()
        server.wait(timeout=PATIENCE)

        wait_until(lambda: not any(Path(f"/proc/{each}").exists() for each in workers))

    assert len(workers) == 2


@pytest.mark.torture
@pytest.mark.slow
def test_processes_that_cannot_begin_are_not_started_again_and_again(home: Path) -> None:
    beside(home, "sessions", "list")
    (home / "history.db").write_bytes(b"no store at all" * 1000)

    alone = ran(home, "serve", "--port", "0", "--json")
    shared = ran(home, "serve", "--port", "0", "--json", "--workers", "2")

    assert alone.returncode == shared.returncode != 0


@pytest.mark.torture
@pytest.mark.slow
def test_shared_work_that_runs_when_it_stops_is_left_to_be_resumed(
    home: Path, tmp_path: Path
) -> None:
    file = tmp_path / "script.yaml"
    file.write_text(SLOW)
    with running(home, "serve", "--port", "0", "--json", "--workers", "2") as server:
        url, secret = card_of(server)["url"], (home / "token").read_text().strip()
        model = {"model_id": f"scripted:{file}"}
        agent = sent(f"{url}/v1/agents", {"name": "A", "system_prompt": ""}, secret)["id"]
        session = sent(f"{url}/v1/agents/{agent}/sessions", model, secret)["id"]
        body = {"role": "user", "content": {"text": "hello"}}
        sent(f"{url}/v1/sessions/{session}/messages", body, secret)
        with running(home, "sessions", "events", session, "--follow", "--json") as follower:
            while json.loads(until_line(follower))["type"] != "holdfast:step.started":
                pass
        os.kill(server.pid, signal.SIGTERM)
        server.communicate(timeout=PATIENCE)
    file.write_text("[{text: at last}]")

    resumed = beside(home, "chat", "--resume", session)

    assert server.returncode == 0
    assert (resumed.returncode, resumed.stdout) == (0, "at last\n")
