"""`holdfast sessions export`: a session as a file, or on the standard output."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

NOBODY = "019b7a00-0000-7000-8000-000000000000"


def test_a_session_is_written_out_to_be_read(cli: Cli, chatted: str) -> None:
    ran = cli("sessions", "export", chatted[:23])

    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("# ")
    assert "## 1. User" in ran.out
    assert "What is 2+3?" in ran.out


def test_with_json_every_line_is_a_message(cli: Cli, chatted: str) -> None:
    lines = cli("sessions", "export", chatted, "--json").lines

    listed = cli("sessions", "messages", chatted, "--json").document["data"]
    assert lines == listed
    assert cli("sessions", "export", chatted, "--format", "jsonl").lines == lines
    assert cli("sessions", "export", chatted, "--through", "1", "--json").lines == lines[:1]
    assert cli("sessions", "export", chatted, "--through", "99", "--json").lines == lines


def test_a_file_is_written_and_not_replaced_unasked(cli: Cli, chatted: str, tmp_path: Path) -> None:
    file = tmp_path / "talk.md"

    first = cli("sessions", "export", chatted, "--out", str(file), "--json", "--format", "markdown")
    again = cli("sessions", "export", chatted, "--out", str(file), "--json")
    forced = cli("sessions", "export", chatted, "--out", str(file), "--force")

    assert first.document == {
        "session_id": chatted,
        "format": "markdown",
        "file": str(file),
        "bytes": file.stat().st_size,
    }
    assert (again.code, again.error["error"]) == (5, "file_exists")
    assert (forced.code, forced.out) == (0, f"Session {chatted} is written to {file}.\n")
    assert file.read_text() == cli("sessions", "export", chatted).out
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_place_that_cannot_be_written_is_refused(cli: Cli, chatted: str, tmp_path: Path) -> None:
    ran = cli("sessions", "export", chatted, "--out", str(tmp_path / "no" / "where"), "--json")

    assert (ran.code, ran.error["error"]) == (2, "invalid_input")
    assert "No such file" in ran.error["message"]


@pytest.mark.parametrize("through", ["0", "-3"])
def test_what_is_no_number_of_a_message_is_refused(cli: Cli, chatted: str, through: str) -> None:
    ran = cli("sessions", "export", chatted, "--through", through, "--json")

    assert (ran.code, ran.error["error"]) == (2, "invalid_input")


def test_a_session_that_is_not_there_is_not_found(cli: Cli) -> None:
    ran = cli("sessions", "export", NOBODY, "--json")

    assert (ran.out, ran.error["error"]) == ("", "session_not_found")


def test_a_terminal_gets_no_codes(
    cli: Cli, script: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(script)
    model = script(json.dumps([{"text": "a\x1b[31mb"}]))
    session = str(cli("chat", "hello", "--model", model, "--json").lines[0]["sessionId"])
    assert "\x1b[31m" in cli("sessions", "export", session).out
    monkeypatch.setattr("holdfast.cli.session_export.is_terminal", lambda _: True)

    shown = cli("sessions", "export", session).out

    assert "\x1b" not in shown
    assert "## 1. User" in shown
