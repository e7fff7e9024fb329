"""Tools at a real terminal: read along, be asked, answer, from here and from elsewhere."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import RunScope, SessionId, open_holdfast
from tests.cli.approval_lookups import session_of, waiting
from tests.cli.processes import Terminal, at_terminal, beside, running

pytestmark = pytest.mark.slow

Script = Callable[[str], str]
CTRL_C, CTRL_D = "\x03", "\x04"


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """Make a folder to work in, with a file to read."""
    folder = tmp_path / "desk"
    folder.mkdir()
    (folder / "notes.txt").write_text("hold fast\n")
    return folder


def at_prompt(terminal: Terminal) -> None:
    """Wait until something can be said."""
    terminal.wait_for("Ctrl-D leaves.")
    terminal.wait_for(">")


def leave(terminal: Terminal) -> int:
    """Leave; as a line, because a terminal that no prompt has taken over keeps Ctrl-D to itself."""
    terminal.type("/exit\r")
    return terminal.ended()


def is_asked(terminal: Terminal, about: str, options: str = "[y/a/n]") -> str:
    """Wait for a question about something, and return what was shown of it."""
    terminal.wait_for(about)
    shown = terminal.wait_for("REASON: deny.")
    terminal.wait_for(f"Allow? {options}")
    return shown


def test_a_file_is_read_what_is_outside_is_refused_and_it_costs_nothing(
    home: Path, desk: Path
) -> None:
    with at_terminal(home, "chat", "--cwd", str(desk)) as terminal:
        at_prompt(terminal)
        terminal.type("read notes.txt\r")
        terminal.wait_for("read_file notes.txt: ok, lines 1 to 1 of 1")
        terminal.wait_for("hold fast")
        terminal.wait_for("out, free")
        terminal.type("read /etc/passwd\r")
        terminal.wait_for(
            "read_file /etc/passwd: denied (outside_scope): /etc/passwd is outside the "
            "session's file scope."
        )
        terminal.wait_for("out, free")
        terminal.type("/cost\r")
        terminal.wait_for("offline:holdfast  4 requests, ")

        assert leave(terminal) == 0


def test_a_command_is_asked_about_where_commands_are_allowed(home: Path, desk: Path) -> None:
    home.mkdir(mode=0o700)
    (home / "holdfast.toml").write_text('[chat]\nallowed_commands = ["cat notes.txt"]\n')

    with at_terminal(home, "chat", "--cwd", str(desk)) as terminal:
        at_prompt(terminal)
        terminal.type("run cat notes.txt\r")
        shown = is_asked(terminal, "run_command asks for approval (process):")
        terminal.type("y\r")
        terminal.wait_for("run_command cat notes.txt: ok, exit code 0")
        terminal.wait_for("hold fast")
        terminal.type("run rm notes.txt\r")
        terminal.wait_for("run_command rm notes.txt: denied (command_not_allowed): ")
        leave(terminal)

    assert '"cat" "notes.txt"\nprogram: /' in shown
    assert f"in: {desk}" in shown
    assert (desk / "notes.txt").exists()


def test_once_is_once_and_a_reason_reaches_the_agent(home: Path, desk: Path) -> None:
    with at_terminal(home, "chat", "--cwd", str(desk)) as terminal:
        at_prompt(terminal)
        terminal.type("write one.txt: first\r")
        shown = is_asked(terminal, "one.txt (new file)")
        terminal.type("perhaps\r")
        terminal.wait_for("Answer y, a or n; n may be followed by a reason.")
        terminal.type("y\r")
        terminal.wait_for("I wrote 6 bytes to one.txt.")
        terminal.type("write notes.txt: let go\r")
        changed = is_asked(terminal, "notes.txt (change)")
        terminal.type("n I need those\r")
        terminal.wait_for("I could not do that: denied (rejected): ")
        terminal.wait_for("Their note: 'I need those'")
        leave(terminal)

    assert shown.startswith("\n+first\n")
    assert "\n-hold fast\n+let go\n" in changed
    assert (desk / "one.txt").read_text() == "first\n"
    assert (desk / "notes.txt").read_text() == "hold fast\n"


@pytest.mark.torture
def test_what_is_allowed_for_the_session_is_not_asked_again_until_it_is_taken_back(
    home: Path, desk: Path
) -> None:
    with at_terminal(home, "chat", "--cwd", str(desk)) as terminal:
        at_prompt(terminal)
        terminal.type("write one.txt: first\r")
        is_asked(terminal, "one.txt (new file)")
        terminal.type("a\r")
        terminal.wait_for("I wrote 6 bytes to one.txt.")
        terminal.type("write two.txt: second\r")
        terminal.wait_for("I wrote 7 bytes to two.txt.")
        terminal.type("/approvals\r")
        approval = terminal.wait_for("  allowed  write_file one.txt").split()[-1]
        terminal.wait_for(f"(by terminal, for write:{desk})")
        session = session_of(home)
        beside(home, "approvals", "revoke", session, approval)
        terminal.type("write three.txt: third\r")
        is_asked(terminal, "three.txt (new file)")
        terminal.type("n\r")
        terminal.wait_for("I could not do that")
        leave(terminal)

    assert sorted(each.name for each in desk.iterdir()) == ["notes.txt", "one.txt", "two.txt"]


def test_ctrl_c_at_a_question_stops_the_turn_and_the_chat_goes_on(home: Path, desk: Path) -> None:
    with at_terminal(home, "chat", "--cwd", str(desk)) as terminal:
        at_prompt(terminal)
        terminal.type("write one.txt: first\r")
        is_asked(terminal, "one.txt (new file)")
        terminal.type(CTRL_C)
        terminal.wait_for("Stopped; the partial answer is saved.")
        terminal.type("read notes.txt\r")
        terminal.wait_for("hold fast")

        assert leave(terminal) == 0

    assert not (desk / "one.txt").exists()
    assert waiting(home) == []


@pytest.mark.torture
def test_ctrl_d_at_a_question_leaves_it_waiting_and_it_is_asked_again(
    home: Path, desk: Path
) -> None:
    with at_terminal(home, "chat", "--cwd", str(desk)) as terminal:
        at_prompt(terminal)
        terminal.type("write one.txt: first\r")
        is_asked(terminal, "one.txt (new file)")
        terminal.type(CTRL_D)
        terminal.wait_for("The approval request is pending;")
        left = terminal.ended()
    (asked,) = waiting(home)
    with at_terminal(home, "chat", "--resume", asked["session_id"]) as terminal:
        is_asked(terminal, "one.txt (new file)")
        terminal.type("y\r")
        terminal.wait_for("I wrote 6 bytes to one.txt.")
        leave(terminal)

    assert left == 0
    assert (desk / "one.txt").read_text() == "first\n"


@pytest.mark.torture
@pytest.mark.parametrize(
    ("flags", "told", "outcome"),
    [
        (["--allow"], "allowed, by cli.", "I wrote 6 bytes to one.txt."),
        (["--deny", "--note", "not now"], "denied, by cli.", "Their note: 'not now'"),
    ],
)
def test_an_answer_from_elsewhere_takes_the_question_back(
    home: Path, desk: Path, flags: list[str], told: str, outcome: str
) -> None:
    with at_terminal(home, "chat", "--cwd", str(desk)) as terminal:
        at_prompt(terminal)
        terminal.type("write one.txt: first\r")
        is_asked(terminal, "one.txt (new file)")
        (asked,) = waiting(home)
        answered = beside(home, "approvals", "answer", asked["id"], *flags)
        terminal.wait_for(f"Already answered elsewhere: {told}")
        terminal.wait_for(outcome)

        assert leave(terminal) == 0

    assert answered.returncode == 0


@pytest.mark.torture
def test_what_was_typed_before_a_question_does_not_answer_it_and_is_not_lost(
    home: Path, desk: Path
) -> None:
    with at_terminal(home, "chat", "--cwd", str(desk)) as terminal:
        at_prompt(terminal)
        terminal.type("write one.txt: first\ry\r")
        is_asked(terminal, "one.txt (new file)")
        terminal.type("n\r")
        terminal.wait_for("I could not do that")
        terminal.wait_for("You wrote: y")
        leave(terminal)

    assert not (desk / "one.txt").exists()


@pytest.mark.torture
def test_a_servers_question_is_asked_at_the_prompt_and_the_begun_line_is_kept(
    home: Path, desk: Path
) -> None:
    beside(home, "chat", "hello", "--cwd", str(desk))
    session = session_of(home)

    with running(home, "serve", "--port", "0") as server:
        assert server.stdout is not None
        server.stdout.readline()
        with at_terminal(home, "chat", "--resume", session) as terminal:
            at_prompt(terminal)
            terminal.type("What is 2+")
            terminal.wait_for("What is 2+")
            asyncio.run(send(home, session, "write one.txt: first"))
            is_asked(terminal, "one.txt (new file)")
            terminal.type("y\r")
            terminal.wait_for("I wrote 6 bytes to one.txt.")
            terminal.wait_for("What is 2+")
            terminal.type("3?\r")
            terminal.wait_for("2+3 = 5")
            leave(terminal)

    assert (desk / "one.txt").read_text() == "first\n"


async def send(home: Path, session: str, text: str) -> None:
    """Write a message down and leave its turn to whoever plays turns."""
    async with open_holdfast(home, scope=RunScope.NONE) as house:
        await house.send(SessionId(session), text)


def test_one_question_at_a_terminal_can_be_asked_about_too(home: Path, desk: Path) -> None:
    with at_terminal(home, "chat", "write one.txt: first", "--cwd", str(desk)) as terminal:
        is_asked(terminal, "one.txt (new file)")
        terminal.type("y\r")
        code = terminal.ended()

    assert code == 0
    assert (desk / "one.txt").read_text() == "first\n"


@pytest.mark.torture
def test_at_a_terminal_json_waits_for_an_answer_from_elsewhere(home: Path, desk: Path) -> None:
    said = ("chat", "write one.txt: first", "--cwd", str(desk), "--json")
    with at_terminal(home, *said) as terminal:
        terminal.wait_for("agent:approval_requested")
        (asked,) = waiting(home)
        beside(home, "approvals", "answer", asked["id"], "--allow")
        terminal.wait_for("session:turn_completed")
        code = terminal.ended()

    assert code == 0
    assert "Allow?" not in terminal.plain
    assert (desk / "one.txt").read_text() == "first\n"


@pytest.mark.torture
@pytest.mark.parametrize(("columns", "term"), [(20, "xterm"), (100, "dumb"), (20, "dumb")])
def test_narrow_and_colourless_terminals_show_the_whole_question(
    home: Path, desk: Path, columns: int, term: str
) -> None:
    words = "a-rather-long-line-" * 4
    with at_terminal(home, "chat", "--cwd", str(desk), columns=columns, term=term) as terminal:
        at_prompt(terminal)
        terminal.type(f"write one.txt: {words}\r")
        terminal.wait_for("one.txt (new file)")
        shown = terminal.wait_for("REASON: deny.")
        terminal.wait_for("Allow?")
        terminal.type("y\r")
        terminal.wait_for("I wrote")
        leave(terminal)

    assert f"+{words}\n" in shown
    assert (desk / "one.txt").read_text() == f"{words}\n"


def test_a_question_shows_what_would_hide(home: Path, desk: Path, script: Script) -> None:
    model = script(
        "- tool_calls:\n"
        '  - {name: write_file, arguments: {path: one.txt, content: "safe\\e[2K\\u202e evil"}}\n'
        "- text: so be it\n"
    )
    with at_terminal(home, "chat", "go", "--cwd", str(desk), "--model", model) as terminal:
        shown = is_asked(terminal, "one.txt (new file)")
        terminal.type("n\r")
        terminal.ended()

    assert "+safe\\u001b[2K\\u202e evil\n" in shown
    assert "\u202e" not in terminal.shown


def test_the_mode_can_be_tightened_and_not_loosened(home: Path, desk: Path) -> None:
    with at_terminal(home, "chat", "--cwd", str(desk)) as terminal:
        at_prompt(terminal)
        terminal.type("/mode auto\r")
        terminal.wait_for("The configuration allows at most ask; edit chat.approval in")
        terminal.type("/mode deny\r")
        terminal.wait_for("The approval mode is deny.")
        terminal.type("write one.txt: first\r")
        terminal.wait_for("denied (rejected): The session's approval mode does not allow this.")

        assert leave(terminal) == 0
