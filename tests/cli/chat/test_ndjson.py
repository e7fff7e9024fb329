"""`--input ndjson`: programs that say several things, also while turns run."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.chat.stdin import InputMessage, parse_input_message
from holdfast.domain.errors import Invalid
from holdfast.domain.sessions import OnBusy
from tests.cli.conftest import Cli
from tests.cli.processes import running
from tests.marks import each_case

Script = Callable[[str], str]
# What was left unanswered comes with the next message, so the later word is looked for first.
FAST_AND_SLOW = (
    "match:\n"
    "- {contains: fast, step: {text: here I am}}\n"
    "- {contains: slow, step: {text: never, delay_ms: 600000}}\n"
)


def told(lines: list[Any], word: str) -> list[Any]:
    """Return the lines of a word."""
    return [line for line in lines if line["type"] == word]


def test_each_object_is_a_message_under_its_own_id(cli: Cli) -> None:
    said = '{"text": "What is 2+3?", "id": "01890a5d-ac96-774b-bcce-b302099a8057"}\n'
    done = cli("chat", "--json", "--input", "ndjson", stdin=f"{said}\n")

    (asked, *_) = told(done.lines, "holdfast:message.appended")
    assert (done.code, done.err) == (0, "")
    assert asked["messageId"] == "01890a5d-ac96-774b-bcce-b302099a8057"
    answer = "".join(each["token"] for each in told(done.lines, "agent:token"))
    assert answer.startswith("2+3 = 5\n")
    assert done.lines[-1]["type"] == "session:turn_completed"


@each_case(
    ("line", "problem"),
    [
        ("What is 2+3?", "Line 1 of stdin is not {text, id?, on_busy?} as JSON: "),
        ('{"text": "hi", "txet": 1}', "Object contains unknown field `txet`"),
        ('{"text": ""}', "empty"),
        ('{"text": "hi", "on_busy": "wait"}', "Invalid enum value 'wait'"),
    ],
)
def test_what_is_no_such_object_is_refused_with_its_line(cli: Cli, line: str, problem: str) -> None:
    done = cli("chat", "--json", "--input", "ndjson", stdin=line)

    assert (done.code, [each["type"] for each in done.lines]) == (2, ["session:started"])
    assert problem in done.error["message"]


def test_a_session_in_which_nothing_could_be_said_is_not_kept(cli: Cli) -> None:
    alone = cli("chat", "--json", "--input", "ndjson", stdin="garbage\n")
    none = cli("sessions", "list", "--json").document["data"]
    behind = cli("chat", "--json", "--input", "ndjson", stdin='{"text": "hi"}\ngarbage\n')
    kept = cli("sessions", "list", "--json").document["data"]

    assert (alone.code, none) == (2, [])
    assert (behind.code, [each["title"] for each in kept]) == (2, ["hi"])


def test_a_prompt_is_not_said_beside_it(cli: Cli) -> None:
    done = cli("chat", "hello", "--input", "ndjson", "--json")

    assert (done.code, done.out) == (2, "")


@pytest.mark.slow
def test_what_is_said_in_a_turn_is_refused_or_stops_it_as_it_says_itself(
    home: Path, script: Script
) -> None:
    model = script(FAST_AND_SLOW)
    with running(home, "chat", "--json", "--input", "ndjson", "--model", model) as process:
        say(process, text="slow")
        until(process, "holdfast:step.started")
        say(process, text="me too", on_busy="reject")
        assert process.stderr is not None
        refused = json.loads(process.stderr.readline())
        say(process, text="fast", on_busy="interrupt")
        assert process.stdin is not None
        out, _ = process.communicate()

    ends = told([json.loads(line) for line in out.splitlines()], "session:turn_completed")
    assert refused["error"] == "turn_running"
    assert [each["stopReason"] for each in ends] == ["aborted", "stop"]
    assert process.returncode == 0


def test_lines_are_told_apart_by_their_number() -> None:
    said = parse_input_message('{"text": "hi", "on_busy": "interrupt"}', 1)

    assert said == InputMessage(text="hi", on_busy=OnBusy.INTERRUPT)
    with pytest.raises(Invalid, match="Line 7 of stdin"):
        parse_input_message("hi", 7)


def say(process: subprocess.Popen[str], **said: str) -> None:
    """Write an object on the process's stdin."""
    assert process.stdin is not None
    process.stdin.write(json.dumps(said) + "\n")
    process.stdin.flush()


def until(process: subprocess.Popen[str], word: str) -> None:
    """Read until a word was told."""
    assert process.stdout is not None
    for line in process.stdout:
        if json.loads(line)["type"] == word:
            return
    raise AssertionError(f"{word} was never told")
