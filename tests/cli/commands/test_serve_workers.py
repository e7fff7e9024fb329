"""`holdfast serve --workers`: several processes, one server."""

import http.client
import json
import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.commands.serve import restart_delay
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


def test_a_worker_that_dies_at_once_again_and_again_is_restarted_more_slowly() -> None:
    assert [restart_delay(failures) for failures in range(8)] == [1, 1, 2, 4, 8, 16, 32, 32]


@pytest.mark.slow
def test_a_stop_does_not_wait_for_a_restart(home: Path) -> None:
    with running(home, "serve", "--port", "0", "--json", "--workers", "2") as server:
        card_of(server)
        for worker in children_of(server.pid):
            os.kill(worker, signal.SIGKILL)
        os.kill(server.pid, signal.SIGTERM)
        server.communicate(timeout=PATIENCE)

    assert server.returncode == 0


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


class Talk:
    """A connection that is kept, and so always reaches the same worker."""

    def __init__(self, url: str, secret: str) -> None:
        self._wire = http.client.HTTPConnection(url.partition("//")[2], timeout=PATIENCE)
        self._headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
        self.worker = ""
        self.ask("GET", "/healthz")

    def close(self) -> None:
        """Hang up."""
        self._wire.close()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return the document that comes back."""
        self._wire.request(method, path, body and json.dumps(body), self._headers)
        answer = self._wire.getresponse()
        self.worker = answer.headers["x-request-id"].partition("-")[0]
        return json.load(answer)

    def events(self, session: str) -> Iterator[tuple[int, str]]:
        """Follow a session until it rests; yield the number and the name of each event."""
        path = f"/v1/sessions/{session}/events?until=settled"
        self._wire.request("GET", path, headers=self._headers)
        number = 0
        for line in self._wire.getresponse():
            field, _, value = line.decode().strip().partition(": ")
            if field == "id":
                number = int(value)
            elif field == "event" and number:
                yield number, value
                # The last ones of a stream have no number.
                number = 0

    def begin(self, agent: str) -> str:
        """Open a session and send it a message; return the session."""
        session: str = self.ask("POST", f"/v1/agents/{agent}/sessions", {})["id"]
        body = {"role": "user", "content": {"text": "hello"}}
        self.ask("POST", f"/v1/sessions/{session}/messages", body)
        return session

    def served_by(self, pids: Iterable[int]) -> int:
        """Return which of some processes has the other end of this connection."""
        here, there = (f"{end[1]:04X}" for end in _ends(self._wire))
        lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        (inode,) = (line[9] for line in lines if line[1].endswith(there) and line[2].endswith(here))
        held = f"socket:[{inode}]"
        (pid,) = (pid for pid in pids if held in map(_target, Path(f"/proc/{pid}/fd").iterdir()))
        return pid


def _ends(wire: http.client.HTTPConnection) -> tuple[Any, Any]:
    return wire.sock.getsockname(), wire.sock.getpeername()


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:
        return ""


@contextmanager
def two_talks(url: str, home: Path) -> Iterator[tuple[Talk, Talk]]:
    """Connect to two workers."""
    found: dict[str, Talk] = {}
    with ExitStack() as opened:

        def connect() -> bool:
            talk = Talk(url, (home / "token").read_text().strip())
            opened.callback(talk.close)
            found.setdefault(talk.worker, talk)
            return len(found) == 2

        wait_until(connect)
        one, other = found.values()
        yield one, other


def agent_of(talk: Talk, script: Path) -> str:
    """Make an agent whose answers come from a file."""
    fields = {"name": "A", "system_prompt": "", "default_model_id": f"scripted:{script}"}
    return str(talk.ask("POST", "/v1/agents", fields)["id"])


@pytest.mark.slow
def test_a_stream_of_one_worker_shows_the_turns_of_the_other(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "script.yaml"
    file.write_text("[{text: done, delay_ms: 200, repeat: 9}]")
    with (
        running(home, "serve", "--port", "0", "--json", "--workers", "2") as server,
        two_talks(card_of(server)["url"], home) as talks,
    ):
        agent = agent_of(talks[0], file)

        shown = [
            list(reader.events(sender.begin(agent))) for sender, reader in (talks, talks[::-1])
        ]

    for events in shown:
        assert [number for number, _ in events] == list(range(1, len(events) + 1))
        assert [name for _, name in events].count("session.completed") == 1


@pytest.mark.slow
def test_a_turn_whose_worker_is_killed_goes_on_and_its_readers_see_no_gap(
    home: Path, tmp_path: Path
) -> None:
    file = tmp_path / "script.yaml"
    file.write_text("[{text: done, delay_ms: 1500, repeat: 9}]")
    with (
        running(home, "serve", "--port", "0", "--json", "--workers", "2") as server,
        two_talks(card_of(server)["url"], home) as (sender, reader),
    ):
        session = sender.begin(agent_of(sender, file))
        stream = reader.events(session)
        events = [next(stream)]
        while events[-1][1] != "step.started":
            events.append(next(stream))
        os.kill(sender.served_by(children_of(server.pid)), signal.SIGKILL)
        events += stream
        texts = reader.ask("GET", f"/v1/sessions/{session}/messages")["data"]

    assert [number for number, _ in events] == list(range(1, len(events) + 1))
    assert [name for _, name in events].count("session.completed") == 1
    assert [each["content"] for each in texts if each["role"] == "assistant"] == [{"text": "done"}]
