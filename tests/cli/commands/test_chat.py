"""`holdfast chat` without a person: one question, a pipe, lines of JSON, a session picked up."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.config.models import DEFAULT_MODELS
from tests.cli.commands.test_sessions import leave_a_turn_waiting
from tests.cli.conftest import Cli
from tests.cli.processes import COMMAND, PATIENCE, environment
from tests.cli.test_workspace import git
from tests.marks import demands, each_case

Script = Callable[[str], str]


def test_a_question_is_answered_on_stdout(cli: Cli) -> None:
    ran = cli("chat", "What is (3.5*4)/2?")

    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("(3.5*4)/2 = 7\n")
    assert ran.out.endswith("\n")


def test_the_question_can_come_through_a_pipe(cli: Cli) -> None:
    ran = cli("chat", "-", stdin="What is\n6*7?")

    assert ran.code == 0
    assert cli("sessions", "list", "--json").document["data"][0]["title"] == "What is 6*7?"


@pytest.mark.parametrize("stdin", ["", " \n\t"])
def test_an_empty_pipe_is_refused(cli: Cli, stdin: str) -> None:
    ran = cli("chat", "-", "--json", stdin=stdin)

    assert (ran.code, ran.out, ran.error["error"]) == (2, "", "message_empty")


def test_what_is_not_text_is_refused(cli: Cli) -> None:
    ran = cli("chat", "-", "--json", stdin=b"\xff\xfe")

    assert (ran.code, ran.error["error"]) == (2, "invalid_text")


def test_a_question_that_is_too_long_is_refused(cli: Cli) -> None:
    ran = cli("chat", "-", "--json", stdin="x" * ((1 << 20) + 1))

    assert (ran.code, ran.error["error"]) == (2, "message_too_large")


def test_without_stdin_there_is_nothing_to_read(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("sessions", "list")
    from holdfast.cli.app import run

    monkeypatch.setattr(sys, "stdin", None)

    assert run(["chat", "-"]) == 2
    assert run(["chat"]) == 2


def test_each_line_of_a_pipe_is_a_message(cli: Cli) -> None:
    ran = cli("chat", stdin="My name is Ada\r\n\n  \nwhat is my name?\n/help")

    assert ran.code == 0
    session = cli("sessions", "list", "--json").document["data"][0]["id"]
    messages = cli("sessions", "messages", session, "--json").document["data"]
    said = [each["content"]["text"] for each in messages if each["role"] == "user"]
    assert said == ["My name is Ada", "what is my name?", "/help"]


@demands("S0-006b", "S0-006c")
def test_an_editor_names_its_file_and_its_selection(cli: Cli, script: Script) -> None:
    remark = "active file is src/a.py and selected are lines 2 to 4 of src/b c.py"
    model = script(f"{{match: [{{contains: '{remark}', step: {{text: seen}}}}]}}")
    flags = ["--active-file", "src/a.py", "--selection", "src/b c.py:2-4"]

    ran = cli("chat", "-q", "hello", "--model", model, *flags)
    wrong = cli("chat", "hello", "--json", "--selection", "src/b.py")
    turned = cli("chat", "hello", "--json", "--selection", "src/b.py:4-2")

    assert (ran.code, ran.out) == (0, "seen\n")
    session = cli("sessions", "list", "--json").document["data"]
    assert [each["context"]["active_file"] for each in session] == ["src/a.py"]
    assert session[0]["context"]["selection"] == {
        "file": "src/b c.py",
        "start_line": 2,
        "end_line": 4,
    }
    assert (wrong.code, wrong.error["error"]) == (2, "invalid_input")
    assert (turned.code, turned.error["error"]) == (2, "invalid_context")


def test_files_are_attached_to_a_single_message(
    cli: Cli, script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dot.png").write_bytes(b"\x89PNG\r\n\x1a\n....")
    (tmp_path / "notes.txt").write_text("hold fast")
    shown = "[attached: dot.png, image/png; its content is not shown]"
    rules = [f"{{contains: '{shown}', step: {{text: seen}}}}", "{contains: decorated, step: 1}"]
    model = script(f"{{steps: [{{text: plain}}], match: [{', '.join(rules)}]}}")

    ran = cli("chat", "-q", "Look at @notes.txt", "--attach", "dot.png", "--model", model)
    piped = cli("chat", "-q", "-", "--model", model, stdin="decorated\n@missing.py\n")
    missing = cli("chat", "see @missing.py", "--json", "--model", model)
    absent = cli("chat", "see", "--attach", "missing.png", "--json", "--model", model)

    assert (ran.code, ran.out, piped.out) == (0, "seen\n", "plain\n")
    assert (missing.code, missing.error["error"]) == (2, "invalid_input")
    assert (absent.code, absent.error["error"]) == (2, "invalid_input")
    sessions = cli("sessions", "list", "--json").document["data"]
    assert [each["title"] for each in sessions] == ["decorated @missing.py", "Look at @notes.txt"]
    (user, _) = cli("sessions", "messages", sessions[1]["id"], "--json").document["data"]
    assert user["content"]["text"] == "Look at @notes.txt\n\nnotes.txt:\n```\nhold fast\n```"
    assert [part["type"] for part in user["parts"]] == ["text", "media"]


@demands("S0-303", "S0-303c", "S0-302")
def test_json_is_events_and_nothing_else(cli: Cli) -> None:
    ran = cli("chat", "--json", "--title", "T", stdin="hello\nWhat is 1+1?\n")

    lines = ran.lines
    assert (ran.code, ran.err) == (0, "")
    assert [line["sequenceNumber"] for line in lines] == list(range(1, len(lines) + 1))
    assert lines[0]["type"] == "session:started"
    assert lines[-1]["type"] == "session:turn_completed"
    assert lines[-1]["turn"] == 2
    assert {line["sessionId"] for line in lines} == {lines[0]["sessionId"]}


@pytest.mark.parametrize("flags", [["--json"], []])
@pytest.mark.parametrize(
    ("stdin", "code"),
    [
        ("", "message_empty"),
        (" \n\n\t\n", "message_empty"),
        (b"\xff\xfe\n", "invalid_text"),
        ("a\x00\n", "invalid_text"),
        ("x" * ((1 << 20) + 1), "message_too_large"),
    ],
)
def test_a_pipe_that_says_nothing_leaves_nothing_behind(
    cli_without_home: Cli, home: Path, flags: list[str], stdin: str | bytes, code: str
) -> None:
    ran = cli_without_home("chat", *flags, stdin=stdin)

    assert (ran.code, ran.out) == (2, "")
    assert not flags or ran.error["error"] == code
    assert not home.exists()


@pytest.mark.parametrize("flags", [["--json"], []])
def test_an_empty_stdin_leaves_nothing_behind(home: Path, flags: list[str]) -> None:
    with open(os.devnull) as nothing:
        done = subprocess.run(
            [COMMAND, "chat", *flags],
            stdin=nothing,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            env=environment(home),
        )

    assert (done.returncode, done.stdout) == (2, "")
    assert "stdin is empty; send a message on it." in done.stderr
    assert not home.exists()


def test_json_keeps_what_a_terminal_would_not_show(cli: Cli, script: Script) -> None:
    model = script('[{text: "a\\e[31mb"}]')

    told = cli("chat", "hi", "--model", model, "--json").lines
    shown = cli("chat", "hi", "--model", model)

    assert [line["token"] for line in told if line["type"] == "agent:token"] == ["a\x1b[31mb"]
    assert shown.out == "ab\n"


@pytest.mark.parametrize(
    ("step", "code", "told"),
    [
        ("{error: auth}", 3, "provider_auth"),
        ("{error: rate_limit, repeat: 99}", 6, "provider_rate_limit"),
        ("{error: unavailable, repeat: 99}", 7, "provider_unavailable"),
        ("{error: bad_request}", 2, "invalid_request"),
        ("{error: unknown}", 70, "internal"),
        ("{text: half, error: filtered}", 2, "refusal"),
        ("{error: cancelled}", 130, "Stopped"),
    ],
)
def test_an_unattended_chat_ends_with_the_code_of_its_last_turn(
    cli: Cli, script: Script, step: str, code: int, told: str
) -> None:
    ran = cli("chat", "hi", "--model", script(f"[{step}]"))

    assert ran.code == code
    assert told in ran.err


def test_the_last_turn_counts_not_the_first(cli: Cli, script: Script) -> None:
    model = script("[{error: bad_request}, {text: fine}]")

    assert cli("chat", "--model", model, stdin="one\ntwo\n").code == 0


def test_a_wrong_model_is_refused_before_anything_is_said(cli: Cli) -> None:
    ran = cli("chat", "hi", "--model", "nonsense", "--json")

    assert (ran.code, ran.out, ran.error["error"]) == (2, "", "model_not_found")
    assert cli("sessions", "list", "--json").document["data"] == []


def test_an_unknown_agent_is_not_found(cli: Cli) -> None:
    assert cli("chat", "hi", "--agent", "nobody").code == 4


@pytest.mark.parametrize(
    ("wish", "code"),
    [
        (["--agent", "nobody"], 4),
        (["--agent", "old"], 5),
        (["--model", "nonsense"], 2),
        (["--model", "scripted:nothing.yaml"], 2),
        (["--title", ""], 2),
        (["--var", "a b=c"], 2),
    ],
)
def test_what_is_refused_registers_no_repository(
    cli: Cli, tmp_path: Path, wish: list[str], code: int
) -> None:
    (tmp_path / "tree" / ".git").mkdir(parents=True)
    cli("agents", "create", "--name", "Old")
    cli("agents", "archive", "old")

    ran = cli("chat", "hi", "--repo", str(tmp_path / "tree"), *wish)

    assert (ran.code, ran.out) == (code, "")
    assert cli("repos", "list", "--json").document["data"] == []
    assert cli("sessions", "list", "--json").document["data"] == []
    agents = cli("agents", "list", "--status", "all", "--json").document["data"]
    assert [each["slug"] for each in agents] == ["old"]


def test_a_script_is_found_again_from_every_folder(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "s.yaml").write_text("[{text: one}, {text: two}, {text: three}]")
    monkeypatch.chdir(tmp_path / "a")
    cli("agents", "create", "--name", "Player", "--model", "scripted:s.yaml")

    first = cli("chat", "hi", "--model", "scripted:s.yaml", "--json").lines
    monkeypatch.chdir(tmp_path / "b")
    second = cli("chat", "hi", "--resume", first[0]["sessionId"])
    other = cli("chat", "hi", "--agent", "player")

    assert first[0]["model"] == f"scripted:{tmp_path}/a/s.yaml"
    assert (second.code, second.out) == (0, "two\n")
    assert (other.code, other.out) == (0, "one\n")


@demands("S0-115c", "S0-480")
def test_a_session_has_the_caps_that_are_configured(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_TURN_CAP", "7")
    monkeypatch.setenv("HOLDFAST_CHAT_MAX_COST_MICROCENTS", "1000")
    monkeypatch.setenv("HOLDFAST_CHAT_ON_EXCEED", "fail")
    cli("chat", "hi")

    session = cli("sessions", "list", "--json").document["data"][0]

    assert session["turn_cap"] == 7
    assert session["budget"] == {"microcents": 1000, "on_exceed": "fail"}


def test_a_model_that_was_not_named_is_said_before_it_answers(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    notice = "answers, because OPENAI_API_KEY is set and no model was chosen"

    unnamed = cli("chat", "hi")
    named = cli("chat", "hi", "--model", "offline:holdfast")

    assert f"{DEFAULT_MODELS['OPENAI_API_KEY']} {notice}" in unnamed.err
    assert (named.code, notice in named.err) == (0, False)


@demands("S0-008", "S0-006", "S0-303b", "S0-006d", "S0-007", "S0-012")
def test_the_place_is_detected(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")

    ran = cli("chat", "hi", "--cwd", str(tmp_path), "--var", "a=b=c", "--var", "d=", "--json")
    monkeypatch.chdir(tmp_path)
    here = cli("chat", "hi", "--json").lines[0]["context"]

    assert ran.lines[0]["context"] == {
        "workingDir": str(tmp_path),
        "gitRef": f"main@{commit[:12]}",
        "fsScopeTier": "sandboxed",
        "variables": {"a": "b=c", "d": ""},
    }
    assert here == {**ran.lines[0]["context"], "variables": {}}


def test_a_repository_is_the_place(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "tree" / ".git").mkdir(parents=True)

    first = cli("chat", "hi", "--repo", str(tmp_path / "tree"), "--json").lines[0]

    assert first["context"]["workingDir"] == str(tmp_path / "tree")


@each_case(
    "wrong",
    [
        ["--var", "novalue"],
        ["--var", "=x"],
        ["--var", "a b=c"],
        ["--cwd", "/nowhere"],
        ["--repo", "/", "--cwd", "/"],
        ["--title", ""],
    ],
)
def test_wrong_wishes_are_invalid(cli: Cli, wrong: list[str]) -> None:
    ran = cli("chat", "hi", *wrong, "--json")

    assert (ran.code, ran.out) == (2, "")


def test_a_process_without_a_folder_gives_the_session_its_own(
    cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.cli.chat.session.working_dir", lambda _: None)

    first = cli("chat", "hi", "--json").lines[0]

    assert first["context"]["workingDir"].startswith(str(home / "workspaces"))


def test_a_session_is_picked_up_and_goes_on(cli: Cli, chatted: str) -> None:
    plain = cli("chat", "--resume", chatted, "What did I say first?")
    lines = cli("chat-resume", chatted, "How many messages?", "--json").lines

    assert plain.out == "You said: What is 2+3?\n"
    assert lines[0]["sequenceNumber"] == 16
    assert lines[-1]["turn"] == 3


def test_a_closed_session_is_opened_again_by_picking_it_up(cli: Cli, chatted: str) -> None:
    cli("sessions", "close", chatted)

    lines = cli("chat", "--resume", chatted, "hello", "--json").lines

    assert lines[0]["type"] == "holdfast:session.resumed"
    assert lines[-1]["stopReason"] == "stop"


def test_a_turn_that_waits_is_played_when_its_session_is_picked_up(
    cli: Cli, home: Path, chatted: str
) -> None:
    leave_a_turn_waiting(home, chatted)

    alone = cli("chat", "--resume", chatted)

    assert alone.out == "I have no rule for that. You wrote: still there?\n"
    assert alone.code == 0


def test_the_waiting_turn_comes_before_what_is_said_next(
    cli: Cli, home: Path, chatted: str
) -> None:
    leave_a_turn_waiting(home, chatted)

    lines = cli("chat", "--resume", chatted, "What is 1+1?", "--json").lines

    ends = [line["turn"] for line in lines if line["type"] == "session:turn_completed"]
    assert ends == [2, 3]


def test_what_was_fixed_at_opening_cannot_be_wished_for_again(cli: Cli, chatted: str) -> None:
    ran = cli("chat", "--resume", chatted, "--model", "offline:holdfast", "--title", "T", "--json")

    assert (ran.code, ran.error["error"]) == (2, "invalid_input")
    assert ran.error["message"].startswith("--model, --title cannot be changed")


@pytest.mark.parametrize("words", [["chat", "--resume"], ["chat-resume"]])
@demands("S0-006")
def test_a_session_whose_folder_is_gone_goes_on_in_another_one(
    cli: Cli, tmp_path: Path, words: list[str]
) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    for folder in (before, after):
        folder.mkdir()
    session = cli("chat", "hello", "--cwd", str(before), "--json").lines[0]["sessionId"]
    before.rmdir()

    gone = cli(*words, session, "hi", "--json")
    moved = cli(*words, session, "hi", "--cwd", str(after), "--json")
    messages = cli("sessions", "messages", session).out

    assert (gone.code, gone.out, gone.error["error"]) == (5, "", "workspace_missing")
    assert moved.code == 0
    assert f"The session now works in {after}; before, it worked in {before}." in messages


def test_a_session_keeps_its_agent_as_it_was_and_says_so(cli: Cli) -> None:
    cli("agents", "create", "--name", "Helper", "--system-prompt", "Be kind.")
    session = cli("chat", "hello", "--agent", "helper", "--json").lines[0]["sessionId"]
    before = cli("chat", "--resume", session, "hi")
    cli("agents", "edit", "helper", "--system-prompt", "Be terse.")

    after = cli("chat", "--resume", session, "hi")

    told = "Agent helper has changed; this session uses the version it was opened with."
    assert (told in before.err, told in after.err) == (False, True)


def test_a_session_whose_limits_are_reached_says_so(
    cli: Cli, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_TURN_CAP", "1")
    first = cli("chat", "hi", "--model", script("[{text: hello}]"), "--json").lines

    again = cli("chat", "--resume", first[0]["sessionId"])

    assert again.code == 0
    session = first[0]["sessionId"]
    assert again.err == (
        "The session has reached its limit of 1 turns; raise it with `holdfast sessions update "
        f"{session} --turn-cap N`, or fork the session.\n"
    )


@demands("S0-304", "S0-118b")
@each_case(
    ("variable", "step"),
    [
        ("HOLDFAST_TURN_CAP", "{text: hello, repeat: 9}"),
        ("HOLDFAST_MAX_TOOL_ROUNDS", "{tool_calls: [{name: list_directory}], repeat: 9}"),
    ],
)
def test_both_limits_of_turns_end_one_with_the_same_code(
    cli: Cli, script: Script, monkeypatch: pytest.MonkeyPatch, variable: str, step: str
) -> None:
    monkeypatch.setenv(variable, "1")

    ran = cli("chat", "--json", "--model", script(f"[{step}]"), stdin="one\ntwo\n")

    last = ran.lines[-1]
    assert (last["type"], last["turn"]) == ("session:turn_completed", 2)
    assert (last["stopReason"], last["error"]["code"]) == ("error", "turn_limit")


def test_an_unknown_session_cannot_be_picked_up(cli: Cli) -> None:
    ran = cli("chat-resume", "nothing", "hi", "--json")

    assert (ran.code, ran.out, ran.error["error"]) == (4, "", "session_not_found")


@pytest.mark.parametrize("flags", [["--json"], []])
def test_a_signal_between_two_messages_leaves_and_says_that_all_is_saved(
    cli: Cli, flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.cli.app import run

    session = cli("chat", "hello", "--json").lines[0]["sessionId"]
    reading, writing = os.pipe()
    with os.fdopen(reading) as stdin, os.fdopen(writing, "w") as other:
        monkeypatch.setattr(sys, "stdin", stdin)
        other.write("What is 1+1?\n")
        other.flush()
        monkeypatch.setattr(sys, "stdout", Killing("1+1 = 2"))
        code = run(["chat", "--resume", session, *flags])

    assert code == 130


class Killing(io.StringIO):
    """A stdout that sends its process SIGTERM when it is told something."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self._word = word

    def write(self, text: str) -> int:
        if self._word in text:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().write(text)
