"""The real command as scripts meet it: exit codes, pipes, signals, crashes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import __version__
from holdfast.cli.command import run_on_loop
from tests.cli.processes import COMMAND, PATIENCE, environment, ran, running

Script = Callable[[str], str]
SLOW = "[{text: done, delay_ms: 60000}]"


def test_the_version_is_told(home: Path) -> None:
    done = ran(home, "--version")

    assert (done.returncode, done.stdout, done.stderr) == (0, f"holdfast {__version__}\n", "")


async def _loop_name() -> str:
    return type(asyncio.get_running_loop()).__module__


def test_commands_run_on_uvloop_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = run_on_loop(_loop_name())
    monkeypatch.setitem(sys.modules, "uvloop", None)
    usual = run_on_loop(_loop_name())

    assert fast == "uvloop"
    assert usual.startswith("asyncio.")


def test_a_question_a_pipe_and_an_unknown_id(home: Path) -> None:
    asked = ran(home, "chat", "What is 2+3?")
    piped = ran(home, "chat", "-", stdin="What is 4*4?")
    unknown = ran(home, "--json", "sessions", "show", "nothing")

    assert (asked.returncode, asked.stderr) == (0, "")
    assert asked.stdout.startswith("2+3 = 5\n")
    assert piped.stdout.startswith("4*4 = 16\n")
    assert (unknown.returncode, unknown.stdout) == (4, "")
    assert json.loads(unknown.stderr)["error"] == "session_not_found"


def test_a_home_that_is_no_folder_is_invalid(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    done = ran(tmp_path / "file", "sessions", "list", "--json")

    assert (done.returncode, done.stdout) == (2, "")
    assert str(tmp_path / "file") in json.loads(done.stderr)["message"]


@pytest.mark.torture
def test_a_reader_that_leaves_early_is_no_error(home: Path) -> None:
    ran(home, "chat", "hello")

    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {COMMAND} sessions list --json | true"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        env=environment(home),
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_closed_streams_are_no_error(home: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{COMMAND} sessions list <&- >&- 2>&-"],
        timeout=PATIENCE,
        check=False,
        env=environment(home),
    )

    assert done.returncode == 0


@pytest.mark.torture
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_turn_and_ends_with_130(
    home: Path, script: Script, number: signal.Signals
) -> None:
    with running(home, "chat", "slow", "--model", script(SLOW), "--json") as chat:
        session = until(chat, "holdfast:step.started")["sessionId"]
        os.kill(chat.pid, number)
        out, err = chat.communicate(timeout=PATIENCE)

    last = json.loads(out.splitlines()[-1])
    assert (chat.returncode, err) == (130, "")
    assert (last["type"], last["stopReason"]) == ("session:turn_completed", "aborted")
    shown = json.loads(ran(home, "sessions", "show", session, "--json").stdout)
    assert (shown["state"], shown["last_stop"]) == ("idle", "aborted")


@pytest.mark.torture
@pytest.mark.slow
def test_a_turn_of_a_killed_process_goes_on_when_its_session_is_picked_up(
    home: Path, tmp_path: Path
) -> None:
    file = tmp_path / "script.yaml"
    file.write_text(SLOW)
    with running(home, "chat", "hello", "--model", f"scripted:{file}", "--json") as chat:
        session = until(chat, "holdfast:step.started")["sessionId"]
        chat.kill()
        chat.wait(timeout=PATIENCE)
    file.write_text("[{text: there you are}]")

    resumed = ran(home, "chat", "--resume", session)

    assert (resumed.returncode, resumed.stdout) == (0, "there you are\n")
    assert ran(home, "sessions", "verify", session).returncode == 0


@pytest.mark.torture
@pytest.mark.slow
def test_another_process_can_interrupt_and_follow(home: Path, script: Script) -> None:
    with running(home, "chat", "slow", "--model", script(SLOW), "--json") as chat:
        session = until(chat, "holdfast:step.started")["sessionId"]
        with running(home, "sessions", "events", session, "--follow", "--json") as follower:
            until(follower, "holdfast:step.started")
            ran(home, "sessions", "interrupt", session)
            ended = until(follower, "session:turn_completed")
            os.kill(follower.pid, signal.SIGINT)
            follower.communicate(timeout=PATIENCE)
        chat.communicate(timeout=PATIENCE)

    assert ended["stopReason"] == "aborted"
    assert (chat.returncode, follower.returncode) == (130, 130)


@pytest.mark.slow
def test_a_session_that_is_closed_under_a_waiting_chat_is_a_conflict(
    home: Path, script: Script
) -> None:
    with running(home, "chat", "slow", "--model", script(SLOW), "--json") as chat:
        session = until(chat, "holdfast:step.started")["sessionId"]
        ran(home, "sessions", "close", session, "--as", "cancelled")
        out, _ = chat.communicate(timeout=PATIENCE)

    types = [json.loads(line)["type"] for line in out.splitlines()]
    assert types[-1] in {"session:turn_completed", "session:cancelled"}
    assert chat.returncode in {5, 130}


@pytest.mark.slow
def test_lines_are_answered_while_the_pipe_stays_open(home: Path) -> None:
    with running(home, "chat", "--json") as chat:
        assert chat.stdin is not None
        for number in (1, 2):
            chat.stdin.write(f"What is {number}+{number}?\n")
            chat.stdin.flush()
            ended = until(chat, "session:turn_completed")
            assert ended["turn"] == number
        chat.communicate(timeout=PATIENCE)

    assert chat.returncode == 0


@pytest.mark.slow
def test_leaving_does_not_wait_for_a_pipe_that_says_nothing(home: Path) -> None:
    with running(home, "chat", "--json") as chat:
        until(chat, "session:started")
        os.kill(chat.pid, signal.SIGTERM)

        assert chat.wait(timeout=PATIENCE) == 130


def until(process: subprocess.Popen[str], kind: str) -> dict[str, object]:
    """Return the next line of that type."""
    assert process.stdout is not None
    for line in process.stdout:
        event: dict[str, object] = json.loads(line)
        if event["type"] == kind:
            return event
    raise AssertionError(f"{kind} never came: {process.stderr.read() if process.stderr else ''}")


def until_line(process: subprocess.Popen[str]) -> str:
    """Return the next line of stdout."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr.read() if process.stderr else ""
    return line
