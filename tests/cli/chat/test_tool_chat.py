"""Tools in a chat without a person: what is done, what is not, and what a flag answers for."""

import json
import os
import pty
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.domain.tools import CATALOGUE
from tests.cli.commands.test_approvals import ask
from tests.cli.conftest import Cli
from tests.cli.processes import COMMAND, PATIENCE, beside, environment

Script = Callable[[str], str]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with a file to read."""
    folder = tmp_path / "desk"
    folder.mkdir()
    (folder / "notes.txt").write_text("hold fast\n")
    monkeypatch.chdir(folder)
    return folder


def configure(home: Path, text: str) -> None:
    """Write the configuration."""
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "holdfast.toml").write_text(text)


def test_a_file_is_read_and_the_call_stands_aside(cli: Cli, desk: Path) -> None:
    done = cli("chat", "read notes.txt")

    assert (done.code, done.out) == (0, "lines 1 to 1 of 1:\n\nhold fast\n")
    assert done.err == "read_file notes.txt …\nread_file notes.txt: ok, lines 1 to 1 of 1\n"


def test_what_is_outside_is_refused_with_its_reason(cli: Cli, desk: Path) -> None:
    done = cli("chat", "read ../secret.txt")

    assert done.code == 0
    assert done.err == (
        "read_file ../secret.txt: denied (outside_scope): ../secret.txt is outside "
        "the session's file scope.\n"
        ""
    )


@pytest.mark.parametrize("prompt", [["write a.txt: hi"], ["-"], []])
def test_where_nobody_can_be_asked_nothing_is_changed(
    cli: Cli, desk: Path, prompt: list[str]
) -> None:
    done = cli("chat", *prompt, stdin="write a.txt: hi")

    assert done.code == 0
    assert "denied (rejected)" in done.out
    assert done.err == (
        "write_file a.txt: denied (rejected): This call requires approval, and no "
        "user is present to give it (unattended). Allow it with --yes-to "
        "write_file.\n"
        ""
    )
    assert not (desk / "a.txt").exists()


def test_a_flag_answers_for_its_tool(cli: Cli, desk: Path) -> None:
    done = cli("chat", "write a.txt: hi", "--yes-to", "write_file")

    assert (done.code, done.out) == (0, "I wrote 3 bytes to a.txt.\n")
    assert done.err == (
        f"write_file asks for approval: {desk}/a.txt (new file)\n+hi\n"
        "write_file a.txt: allowed, by flag\n"
        "write_file a.txt …\n"
        "write_file a.txt: ok, 3 bytes written\n"
    )
    assert (desk / "a.txt").read_text() == "hi\n"


def test_a_flag_answers_for_no_other_tool(cli: Cli, desk: Path) -> None:
    cli("chat", "write a.txt: hi", "--yes-to", "edit_file", "--yes-to", "run_command")

    assert not (desk / "a.txt").exists()


def test_a_flag_does_not_reach_what_runs_later_by_itself(cli: Cli, desk: Path) -> None:
    done = cli("chat", "write Makefile: all:", "--yes-to", "write_file")

    # The flag is set already, so it is not recommended once more.
    assert done.err.endswith("no user is present to give it (unattended).\n")
    assert not (desk / "Makefile").exists()


def test_a_flag_for_a_tool_that_there_is_not_is_refused_before_anything_is_opened(
    cli_without_home: Cli, home: Path
) -> None:
    done = cli_without_home("chat", "hello", "--yes-to", "write_fil", "--json")

    assert (done.code, done.out, done.error["error"]) == (2, "", "unknown_tool")
    assert done.error["details"] == {"field": "--yes-to", "tool": "write_fil"}
    assert all(name in done.error["message"] for name in CATALOGUE)
    assert not home.exists()


def test_the_tool_of_a_server_may_be_named_before_its_server_is_known(cli: Cli, desk: Path) -> None:
    assert cli("chat", "hello", "--yes-to", "mcp_books_find").code == 0


def test_json_tells_of_the_question_and_goes_on_by_the_same_rule(cli: Cli, desk: Path) -> None:
    allowed = cli("chat", "write a.txt: hi", "--json", "--yes-to", "write_file").lines
    denied = cli("chat", "write b.txt: hi", "--json").lines

    (question,) = [line for line in allowed if line["type"] == "agent:approval_requested"]
    (answer,) = [line for line in allowed if line["type"] == "holdfast:approval.answered"]
    assert (question["toolId"], question["action"]) == ("write_file", "write")
    assert question["question"] == f"{desk}/a.txt (new file)\n+hi"
    assert (answer["decision"], answer["by"]) == ("allowed", "flag")
    assert answer["approvalId"] == question["approvalId"]
    assert [line for line in denied if line["type"] == "agent:approval_requested"] == []
    (result,) = [line for line in denied if line["type"] == "agent:tool_result"]
    assert (result["status"], result["code"]) == ("denied", "rejected")
    assert [each.name for each in sorted(desk.iterdir())] == ["a.txt", "notes.txt"]


def test_a_session_that_is_resumed_in_a_pipe_is_unattended_too(cli: Cli, desk: Path) -> None:
    session = cli("chat", "hello", "--json").lines[0]["sessionId"]

    denied = cli("chat", "--resume", session, stdin="write a.txt: hi\n")
    other = cli("chat-resume", session, "write b.txt: hi", "--yes-to", "write_file")

    assert "denied (rejected)" in denied.out
    assert other.out == "I wrote 3 bytes to b.txt.\n"
    assert not (desk / "a.txt").exists()


@pytest.mark.slow
def test_a_redirected_answer_is_unattended_even_at_a_terminal(home: Path, desk: Path) -> None:
    keyboard, screen = pty.openpty()
    try:
        done = subprocess.run(
            [COMMAND, "chat", "write a.txt: hi"],
            stdin=screen,
            # Nobody would see a question that went into a file.
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            env=environment(home),
        )
    finally:
        os.close(keyboard)
        os.close(screen)

    assert "denied (rejected)" in done.stdout


def test_commands_need_to_be_listed_and_allowed(cli: Cli, home: Path, desk: Path) -> None:
    before = cli("chat", "run cat notes.txt", "--yes-to", "run_command")
    configure(home, '[chat]\nallowed_commands = ["cat notes.txt"]\n')
    asked = cli("chat", "run cat notes.txt")
    done = cli("chat", "run cat notes.txt", "--yes-to", "run_command")
    other = cli("chat", "run cat /etc/passwd", "--yes-to", "run_command")

    assert "[chat].allowed_commands" in before.out
    assert "denied (rejected)" in asked.out
    assert done.out == "It ended with 0.\n\nhold fast\n"
    assert "run_command cat notes.txt: ok, exit code 0\n" in done.err
    assert "denied (command_not_allowed)" in other.out


def test_tools_can_be_left_out_and_none_can_be_added(cli: Cli, desk: Path) -> None:
    fewer = cli("chat", "write a.txt: hi", "--tools", "read_file, find_text", "--json")
    none = cli("chat", "read notes.txt", "--tools", "")
    more = cli("chat", "read notes.txt", "--tools", "read_file,sudo", "--json")

    assert [line for line in fewer.lines if line["type"] == "agent:tool_result"] == []
    assert "I have no tool for that here." in none.out
    assert (more.code, more.out, more.error["error"]) == (2, "", "unknown_tool")


def test_the_file_scope_can_be_narrowed_and_not_widened(cli: Cli, home: Path, desk: Path) -> None:
    outside = desk.parent / "outside.txt"
    outside.write_text("far away\n")

    wider = cli("chat", "hello", "--fs-scope", "full", "--json")
    configure(home, '[chat]\nfs_scope = "full"\n')
    widest = cli("chat", f"read {outside}")
    narrow = cli("chat", f"read {outside}", "--fs-scope", "sandboxed")

    assert (wider.code, wider.error["error"]) == (3, "grant_exceeded")
    assert wider.error["details"]["key"] == "chat.fs_scope"
    assert widest.out == "lines 1 to 1 of 1:\n\nfar away\n"
    assert "denied (outside_scope)" in narrow.out


@pytest.mark.parametrize("flag", [["--tools", "read_file"], ["--fs-scope", "sandboxed"]])
def test_what_a_session_reaches_is_fixed_when_it_is_opened(
    cli: Cli, chatted: str, flag: list[str]
) -> None:
    done = cli("chat", "--resume", chatted, "hello", *flag, "--json")

    assert (done.code, done.error["error"]) == (2, "invalid_input")
    assert flag[0] in done.error["message"]


def test_notices_of_a_session_are_told(cli: Cli, desk: Path) -> None:
    cli("agents", "create", "--name", "Far", "--system-prompt", "Hello {{ctx.nobody}}")

    done = cli("chat", "--agent", "far", "repeat after me: yes")

    assert done.err == "The prompt uses a variable that the session does not have: nobody\n"


def test_nothing_is_asked_of_a_person_who_is_not_there_in_a_real_pipe(
    home: Path, desk: Path
) -> None:
    done = beside(home, "chat", "write a.txt: hi", "--cwd", str(desk), "--json")

    kinds = [json.loads(line)["type"] for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert kinds[-1] == "session:turn_completed"
    assert "agent:approval_requested" not in kinds
    assert os.listdir(desk) == ["notes.txt"]


def test_a_question_that_waits_is_not_waited_for_where_nobody_is(
    cli: Cli, home: Path, tmp_path: Path
) -> None:
    asked = ask(home, tmp_path / "desk")

    refused = cli("chat", "--resume", asked.session_id, "go on", "--json")
    flagged = cli("chat", "--resume", asked.session_id, "--yes-to", "write_file")

    assert (refused.code, refused.out, refused.error["error"]) == (5, "", "approval_waiting")
    assert f"`holdfast approvals answer {asked.id} --allow`" in refused.error["message"]
    assert (flagged.code, flagged.out) == (0, "I wrote 3 bytes to a.txt.\n")
    assert "go on" not in cli("sessions", "messages", asked.session_id).out
