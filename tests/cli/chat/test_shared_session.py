"""One session and several processes: what is said behind another's turn, and whose questions."""

import asyncio
import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import SessionId, Turn, TurnPaused, TurnStarted, open_holdfast
from tests.cli.approval_lookups import waiting
from tests.cli.commands.test_approvals import ask
from tests.cli.processes import at_terminal, beside, running
from tests.cli.remote_server import serve
from tests.houses import news_until

pytestmark = pytest.mark.slow

Script = Callable[[str], str]
SLOW = "[{text: slow, delay_ms: 600000}, {text: next}]"
NEXT = "Another process is running a turn of this session; your message is saved and runs next."


def begun(process: subprocess.Popen[str]) -> str:
    """Wait until a model is asked, and return the session."""
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        if event["type"] == "holdfast:step.started":
            return str(event["sessionId"])
    raise AssertionError("no model was asked")


def said(home: Path, session: str) -> list[str]:
    """Return what was said to the agent."""
    listed = json.loads(beside(home, "sessions", "messages", session, "--json").stdout)
    return [each["content"]["text"] for each in listed["data"] if each["role"] == "user"]


async def a_loop_that_is_gone(home: Path) -> str:
    """Return a session whose turn waits for a loop that no process has."""
    async with open_holdfast(home) as hf:

        @hf.runtime("planner")
        async def plan(turn: Turn) -> str:
            await asyncio.Event().wait()
            return ""

        session = await hf.open("planner")
        await hf.send(session.id, "Plan my week")
        await news_until(hf, session.id, TurnStarted)
    return session.id


def test_a_chat_says_what_its_turn_waits_for(home: Path) -> None:
    session = asyncio.run(a_loop_that_is_gone(home))
    text = "The turn waits for a process that has the loop planner.\n"
    with running(home, "chat", "hi", "--agent", "planner") as new:
        assert new.stderr is not None
        assert text in new.stderr
    with running(home, "chat", "--resume", session) as resumed:
        assert resumed.stderr is not None
        assert text in resumed.stderr


def test_without_a_terminal_a_chat_does_not_wait_for_a_program(home: Path) -> None:
    session = asyncio.run(a_loop_that_is_gone(home))

    new = beside(home, "chat", "hi", "--agent", "planner")
    resumed = beside(home, "chat", "--resume", session, "go on")

    assert (new.returncode, resumed.returncode) == (5, 5)
    assert "It stays open, and continues when that program runs" in new.stderr
    shown = json.loads(beside(home, "sessions", "show", session, "--json").stdout)
    assert shown["waiting"]["reason"] == "runtime"


async def paused_again(home: Path, session: str) -> None:
    """Have a process without the loop pause the turn, and leave."""
    async with open_holdfast(home) as hf:
        await news_until(hf, SessionId(session), TurnPaused)


def test_a_chat_does_not_wait_for_a_turn_that_was_paused_before_it(home: Path) -> None:
    session = asyncio.run(a_loop_that_is_gone(home))
    asyncio.run(paused_again(home, session))

    resumed = beside(home, "chat", "--resume", session, "go on")

    assert resumed.returncode == 5
    assert "It stays open, and continues when that program runs" in resumed.stderr


@pytest.mark.torture
@pytest.mark.parametrize("stdin", [False, True])
def test_what_is_said_while_another_process_plays_is_on_disk_at_once(
    home: Path, script: Script, stdin: bool
) -> None:
    with running(home, "chat", "first", "--model", script(SLOW), "--json") as other:
        session = begun(other)
        prompt = [] if stdin else ["important"]
        with running(home, "chat", "--resume", session, *prompt) as mine:
            assert mine.stdin is not None
            assert mine.stderr is not None
            if stdin:
                mine.stdin.write("important\n")
                mine.stdin.flush()
            told = mine.stderr.readline()
            heard = said(home, session)
            mine.send_signal(signal.SIGTERM)
            left = mine.stderr.read()

    assert told == f"{NEXT}\n"
    assert heard == ["first", "important"]
    assert left.startswith("Left the chat; the session is saved")


@pytest.mark.torture
def test_what_was_said_behind_another_turn_is_answered_when_that_has_ended(
    home: Path, script: Script
) -> None:
    with running(home, "chat", "first", "--model", script(SLOW), "--json") as other:
        session = begun(other)
        with running(home, "chat", "--resume", session, "second") as mine:
            assert mine.stderr is not None
            mine.stderr.readline()
            beside(home, "sessions", "interrupt", session)
            out, err = mine.communicate()

    assert (mine.returncode, out) == (0, "next\n")
    assert err == "Stopped; the partial answer is saved.\n"


def test_over_a_server_it_is_on_disk_at_once_too(home: Path, script: Script) -> None:
    with serve(home) as server:
        far = ("--server", server.url)
        with running(home, "chat", "first", "--model", script(SLOW), "--json", *far) as other:
            session = begun(other)
            with running(home, "chat", "--resume", session, "important", *far) as mine:
                assert mine.stderr is not None
                told = mine.stderr.readline()

        assert (told, said(home, session)) == (f"{NEXT}\n", ["first", "important"])


def test_a_second_terminal_is_told_who_plays(home: Path, script: Script) -> None:
    with running(home, "chat", "first", "--model", script(SLOW), "--json") as other:
        session = begun(other)
        with at_terminal(home, "chat", "--resume", session) as terminal:
            terminal.wait_for(
                "Another process is running this turn; following it (Ctrl-C stops it)."
            )
            terminal.type("\x03")
            terminal.wait_for("Stopped; the partial answer is saved.")

    assert "left open" not in terminal.plain


def test_a_question_that_waits_in_a_server_is_not_waited_for_where_nobody_is(
    home: Path, tmp_path: Path
) -> None:
    asked = ask(home, tmp_path / "desk")
    with serve(home):
        until_running(home, asked.session_id)
        refused = beside(home, "chat", "--resume", asked.session_id, "go on", "--json")
        silent = beside(home, "chat", "--resume", asked.session_id)
        flagged = beside(home, "chat", "--resume", asked.session_id, "--yes-to", "write_file")

    told = json.loads(refused.stderr)
    assert (refused.returncode, refused.stdout, told["error"]) == (5, "", "approval_waiting")
    assert f"`holdfast approvals answer {asked.id} --allow`" in told["message"]
    assert silent.returncode == 5
    assert (flagged.returncode, flagged.stdout) == (0, "I wrote 3 bytes to a.txt.\n")
    assert (tmp_path / "desk" / "a.txt").read_text() == "hi\n"


@pytest.mark.torture
@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ((), " Allow it with --yes-to write_file."),
        (("--yes-to", "write_file"), "write_file b.txt: ok, 2 bytes written"),
    ],
)
def test_what_a_server_asks_about_our_turn_is_answered_as_if_we_played_it(
    home: Path, tmp_path: Path, script: Script, flags: tuple[str, ...], told: str
) -> None:
    calls = "tool_calls: [{name: write_file, arguments: {path: b.txt, content: hi}}]"
    model = script(f"[{{text: slow, delay_ms: 600000}}, {{{calls}}}, {{text: so be it}}]")
    with serve(home) as server:
        far = ("--server", server.url)
        with running(home, "chat", "first", "--model", model, "--json", *far) as other:
            session = begun(other)
            with running(home, "chat", "--resume", session, "write it", *flags) as mine:
                assert mine.stderr is not None
                mine.stderr.readline()
                beside(home, "sessions", "interrupt", session)
                out, err = mine.communicate(timeout=30)

    assert (mine.returncode, out) == (0, "so be it\n")
    assert told in err
    assert "holdfast approvals answer" not in err


def test_the_question_of_another_turn_is_named_with_its_remedy_and_not_answered(
    home: Path, script: Script
) -> None:
    calls = "tool_calls: [{name: write_file, arguments: {path: b.txt, content: hi}}]"
    model = script(f"[{{{calls}, delay_ms: 2000}}, {{text: well}}]")
    with serve(home) as server:
        far = ("--server", server.url)
        with running(home, "chat", "first", "--model", model, "--json", *far) as other:
            session = begun(other)
            # Whoever asked for the turn has gone; the server waits for somebody.
            other.kill()
            with running(home, "chat", "--resume", session, "second") as mine:
                assert mine.stderr is not None
                assert mine.stderr.readline() == f"{NEXT}\n"
                asks, *_, remedy = [mine.stderr.readline() for _ in range(4)]
                (asked,) = waiting(home)

    assert asks.startswith("write_file asks for approval: ")
    assert (
        remedy == f"Answer it with `holdfast approvals answer {asked['id']} --allow` or --deny.\n"
    )


def until_running(home: Path, session: str) -> None:
    """Wait until a server has taken a session's turn up."""
    state = ""
    while state != "running":
        state = json.loads(beside(home, "sessions", "show", session, "--json").stdout)["state"]
