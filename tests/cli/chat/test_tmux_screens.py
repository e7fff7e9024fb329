"""`holdfast chat` on a screen, as a demanding person uses it; compared by what can be read."""

import re
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path

import pytest

from tests.cli.processes import beside
from tests.cli.tmux import Screen, on_screen

pytestmark = pytest.mark.slow

Script = Callable[[str], str]

# What was left unanswered comes with the next message, so the later word is looked for first.
MODEL = """
match:
- {contains: quick, step: {text: here I am}}
- contains: plan
  step:
    text: |-
      # A plan

      It is **bold**:

      - one
      - two

      ```python
      x = 1
      ```

      That is all.
- {contains: slow, step: {text: never, delay_ms: 600000}}
"""
EDIT = """
- tool_calls: [{name: edit_file, arguments: {path: notes.txt, old: hold fast, new: let go}}]
- text: It is changed.
"""


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """Make a folder to work in, with a file to read."""
    folder = tmp_path / "desk"
    folder.mkdir()
    (folder / "notes.txt").write_text("hold fast\n")
    return folder


def at_prompt(screen: Screen) -> None:
    """Wait until something can be said."""
    screen.wait_for("Ctrl-D leaves.", "\n>")


def behind(screen: Screen, said: str) -> list[str]:
    """Return what came behind something that was said, up to the line of the meter."""
    lines = screen.lines()
    first = lines.index(f"> {said}") + 1
    return list(takewhile(lambda line: not line.startswith("holdfast ·"), lines[first:]))


def test_a_tool_is_asked_about_whole_and_told_of_in_one_line(home: Path, desk: Path) -> None:
    with on_screen(home, "chat", "--cwd", str(desk)) as screen:
        at_prompt(screen)
        screen.say("write one.txt: hold on")
        screen.wait_for("Allow? [y/a/n]")
        screen.say("y")
        screen.wait_for("I wrote 8 bytes to one.txt.", "out, free\nholdfast ·")
        told = behind(screen, "write one.txt: hold on")
        screen.press("C-d")
        code = screen.ended()

    assert code == 0
    assert told[:4] == [
        "",
        "write_file asks for approval (write):",
        f"{desk}/one.txt (new file)",
        "+hold on",
    ]
    assert told[-4:-1] == [
        "Allow? [y/a/n] y",
        "✓ write_file one.txt: ok, 8 bytes written",
        "I wrote 8 bytes to one.txt.",
    ]
    assert (desk / "one.txt").read_text() == "hold on\n"


def test_an_edit_that_nobody_is_asked_about_is_shown_as_a_difference(
    home: Path, desk: Path, script: Script
) -> None:
    home.mkdir(mode=0o700)
    (home / "holdfast.toml").write_text('[chat]\napproval = "edits"\n')

    with on_screen(home, "chat", "--cwd", str(desk), "--model", script(EDIT)) as screen:
        at_prompt(screen)
        screen.say("change it")
        screen.wait_for("It is changed.", "(unpriced)\nholdfast ·")
        told = behind(screen, "change it")

    assert told[:-1] == [
        "",
        "  edit_file notes.txt",
        "  -hold fast",
        "  +let go",
        "✓ edit_file notes.txt: ok, 1 place changed",
        "It is changed.",
    ]


def test_markdown_is_drawn_and_its_colours_are_ours(home: Path, script: Script) -> None:
    with on_screen(home, "chat", "--model", script(MODEL)) as screen:
        at_prompt(screen)
        screen.say("a plan")
        screen.wait_for("That is all.", "(unpriced)\nholdfast ·")
        told = behind(screen, "a plan")
        coded = screen.shown(coded=True)

    assert told[:-1] == [
        *("", "A plan", "", "It is bold:", "", " • one", " • two", "", "  x = 1", ""),
        "That is all.",
    ]
    assert "\x1b[1mbold" in coded


def test_what_is_said_in_a_turn_is_queued_and_esc_stops_the_turn_and_not_the_line(
    home: Path, script: Script
) -> None:
    with on_screen(home, "chat", "--model", script(MODEL)) as screen:
        at_prompt(screen)
        screen.say("slow")
        screen.wait_for("> slow\n", "saved, waiting …")
        screen.say("quick, please")
        screen.wait_for("queued: quick, please")
        screen.type("half a li")
        screen.press("Escape")
        screen.wait_for("here I am", "\n> half a li")
        screen.type("ne")
        screen.wait_for("\n> half a line")
        lines = screen.lines()
        # The line is given up first, then the chat.
        screen.press("C-c")
        screen.wait_until_gone("half a line")
        screen.press("Up")
        screen.wait_for("tokens · unknown (unpriced)\n> quick, please")
        screen.press("C-c", "C-c")
        screen.wait_for("Press Ctrl-C again, or Ctrl-D, to leave.")
        screen.press("C-c")
        code = screen.ended()

    assert code == 0
    first = lines.index("> slow")
    assert lines[first : first + 7] == [
        "> slow",
        "",
        "Stopped; the partial answer is saved.",
        "",
        "> quick, please",
        "",
        "here I am",
    ]
    assert not any(line.startswith("queued: ") for line in lines)


def test_a_line_can_have_several_and_a_file_comes_along(
    home: Path, desk: Path, script: Script
) -> None:
    with on_screen(home, "chat", "--cwd", str(desk), "--model", script(MODEL)) as screen:
        at_prompt(screen)
        screen.type("be quick \\")
        screen.press("Enter")
        screen.type("with @no")
        screen.wait_for("@notes.txt")
        screen.press("Tab", "Enter")
        screen.say(" and mail a@b.example")
        screen.wait_for("here I am")
        told = screen.lines()
        screen.say("see @../secret and @nothing")
        screen.wait_for("> see @../secret and @nothing")

    first = told.index("> be quick")
    assert told[first : first + 7] == [
        "> be quick",
        "  with @notes.txt and mail a@b.example",
        "",
        "  notes.txt:",
        "  ```",
        "  hold fast",
        "  ```",
    ]


def test_a_turn_that_runs_is_waited_for_when_leaving_and_goes_on_elsewhere_when_not(
    home: Path, script: Script
) -> None:
    model = script(MODEL)
    with on_screen(home, "chat", "--model", model) as screen:
        at_prompt(screen)
        screen.say("slow")
        screen.wait_for("saved, waiting …")
        screen.press("C-d")
        screen.wait_for("Leaving when the turn ends;")
        screen.press("C-d")
        screen.wait_for("A turn is still open; it continues when the session is resumed.")
        left = screen.ended()
    session = beside(home, "sessions", "list").stdout.splitlines()[1].split("\t")[0]
    script(MODEL.replace("600000", "0").replace("never", "at last"))
    with on_screen(home, "chat-resume", session) as screen:
        screen.wait_for("> slow\n", "Continuing an interrupted turn.", "at last")
        screen.say("/status")
        screen.wait_for("idle, 1 turns, 2 messages")
        screen.say("/exit")
        resumed = screen.ended()

    assert (left, resumed) == (0, 0)


def test_commands_are_completed_and_an_export_is_written(
    home: Path, desk: Path, script: Script
) -> None:
    target = desk / "talk.md"
    with on_screen(home, "chat", "--model", script(MODEL)) as screen:
        at_prompt(screen)
        screen.say("quick")
        screen.wait_for("here I am", "(unpriced)\nholdfast ·")
        screen.type("/ex")
        screen.wait_for("/export [FILE] [--force]  ")
        screen.type("port ")
        screen.say(str(target))
        screen.wait_for("talk.md")
        screen.say("/exit")
        code = screen.ended()

    assert code == 0
    assert "here I am" in target.read_text()


@pytest.mark.parametrize("more", [{}, {"NO_COLOR": "1"}])
def test_twenty_columns_are_enough_and_colours_are_not_needed(
    home: Path, desk: Path, script: Script, more: dict[str, str]
) -> None:
    with on_screen(
        home, "chat", "--cwd", str(desk), "--model", script(MODEL), size=(20, 40), more=more
    ) as screen:
        screen.wait_for("\n>")
        screen.say("a plan")
        screen.wait_for("That is all.")
        screen.say("/status")
        screen.wait_for("messages")
        coded = screen.shown(all=True, coded=True)
        screen.say("/exit")
        code = screen.ended()

    assert code == 0
    assert ("\x1b[" in coded) is (not more)
    assert ("x = 1" in coded) is bool(more)
    assert max(map(len, screen_lines(coded))) <= 20


def screen_lines(coded: str) -> list[str]:
    """Return lines without their colours."""
    return [re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip() for line in coded.split("\n")]
