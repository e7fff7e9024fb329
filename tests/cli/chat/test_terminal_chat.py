"""`holdfast chat` as a person meets it: at a real terminal, with real keys."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.processes import at_terminal, beside

pytestmark = pytest.mark.slow

Script = Callable[[str], str]
CTRL_C, CTRL_D = "\x03", "\x04"

# What was left unanswered comes with the next message, so the later word is looked for first.
FAST_AND_SLOW = (
    "match:\n"
    "- {contains: quick, step: {text: here I am}}\n"
    "- {contains: slow, step: {text: never, delay_ms: 60000}}\n"
)


def test_a_conversation_at_a_terminal(home: Path) -> None:
    with at_terminal(home, "chat") as terminal:
        terminal.wait_for("Ctrl-D leaves.")
        terminal.wait_for(">")
        terminal.type("What is 2+3?\r")
        terminal.wait_for("2+3 = 5")
        terminal.wait_for(">")
        terminal.type("/status\r")
        terminal.wait_for("idle, 1 turns, 2 messages")
        terminal.wait_for(">")
        terminal.type(CTRL_D)
        terminal.wait_for("is saved;")
        code = terminal.ended()

    assert code == 0
    assert "2+3" in beside(home, "sessions", "list").stdout


def test_ctrl_c_stops_the_answer_again_and_again_and_the_session_stays_open(
    home: Path, script: Script
) -> None:
    with at_terminal(home, "chat", "--model", script(FAST_AND_SLOW)) as terminal:
        terminal.wait_for("Ctrl-D leaves.")
        terminal.wait_for(">")
        for _ in range(2):
            terminal.type("slow\r")
            terminal.wait_for("saved, waiting …")
            terminal.type(CTRL_C)
            terminal.wait_for("Stopped; the partial answer is saved.")
            terminal.wait_for(">")
        terminal.type("quick\r")
        terminal.wait_for("here I am")
        # The end of the turn: until then Ctrl-C is about the turn.
        terminal.wait_for("tokens in")
        terminal.wait_for(">")
        terminal.type(CTRL_C)
        terminal.wait_for("Press Ctrl-C again, or Ctrl-D, to leave.")
        terminal.wait_for(">")
        terminal.type(CTRL_C)
        code = terminal.ended()

    assert code == 0
    assert beside(home, "sessions", "list").stdout.splitlines()[1].split("\t")[1] == "idle"


def test_sigterm_stops_the_turn_and_leaves(home: Path, script: Script) -> None:
    with at_terminal(home, "chat", "--model", script(FAST_AND_SLOW)) as terminal:
        terminal.wait_for("Ctrl-D leaves.")
        terminal.wait_for(">")
        terminal.type("slow\r")
        terminal.wait_for("saved, waiting …")
        terminal.send(signal.SIGTERM)
        terminal.wait_for("Left the chat; the session is saved")
        code = terminal.ended()

    session = beside(home, "sessions", "list").stdout.splitlines()[1].split("\t")[0]
    assert code == 130
    assert (
        "[The turn was stopped by its user.]"
        in beside(home, "sessions", "messages", session).stdout
    )


def test_what_an_agent_says_cannot_steer_the_terminal(home: Path, script: Script) -> None:
    model = script('[{text: "one \\e[5mtwo\\e]0;pwned\\a\\u202e three"}]')

    with at_terminal(home, "chat", "go", "--model", model) as terminal:
        code = terminal.ended()

    assert code == 0
    assert "one two three" in terminal.plain
    assert "\x1b[5m" not in terminal.shown
    assert "pwned" not in terminal.shown
    assert "\u202e" not in terminal.shown


def test_a_session_is_picked_up_with_its_past(home: Path) -> None:
    beside(home, "chat", "My name is Ada")
    session = beside(home, "sessions", "list").stdout.splitlines()[1].split("\t")[0]

    with at_terminal(home, "chat-resume", session) as terminal:
        terminal.wait_for("> My name is Ada")
        terminal.wait_for("Hello Ada")
        terminal.wait_for(">")
        terminal.type("what is my name?\r")
        terminal.wait_for("You said your name is Ada.")
        terminal.type("/exit\r")
        code = terminal.ended()

    assert code == 0


@pytest.mark.torture
def test_a_deletion_is_asked_about(home: Path) -> None:
    beside(home, "chat", "hello", "--title", "Tea")
    session = beside(home, "sessions", "list").stdout.splitlines()[1].split("\t")[0]

    codes = []
    for answer in ("n\r", "y\r"):
        with at_terminal(home, "sessions", "delete", session) as terminal:
            terminal.wait_for("Delete “Tea” and all its messages permanently? [y/N]")
            terminal.type(answer)
            codes.append(terminal.ended())

    assert codes == [1, 0]
    assert beside(home, "sessions", "show", session).returncode == 4


def test_a_list_is_a_table_at_a_terminal(home: Path) -> None:
    beside(home, "chat", "hello", "--title", "Tea")

    with at_terminal(home, "sessions", "list") as terminal:
        code = terminal.ended()

    heading, row = terminal.plain.strip().splitlines()
    assert code == 0
    assert heading.split() == ["ID", "STATUS", "UPDATED", "AGENT", "COST", "TITLE"]
    assert row.split()[-1] == "Tea"
