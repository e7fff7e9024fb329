"""`holdfast zones …`: desks and archives at a terminal and in pipes."""

import json
import signal
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.processes import PATIENCE, beside, running
from tests.marks import each_case
from tests.zones.test_model import REFUSED

pytestmark = pytest.mark.slow

LINE = '{"role":"user","text":"hi"}'
COMMANDS = (
    *(("show",), ("read",), ("write",), ("append",), ("archive",), ("archives",)),
    *(("restore", "1"), ("delete", "1"), ("replay",), ("purge",)),
)


def test_a_fresh_desk_has_nothing_to_restore(cli: Cli) -> None:
    plain = cli("zones", "read", "a")

    assert (plain.code, plain.out) == (0, "nothing to restore\n")
    assert cli("zones", "replay", "a").out == "nothing to restore\n"
    assert cli("zones", "read", "a", "--json").document == {
        "zone": "agent:a:current",
        "content": None,
        "modified_ms": None,
    }
    assert cli("zones", "archive", "a").out == "The active zone is empty.\n"
    assert cli("zones", "archives", "a").out == ""


def test_a_desk_goes_through_its_life(cli: Cli) -> None:
    written = cli("zones", "write", "a", "--json", stdin="größe").document
    appended = cli("zones", "append", "a", "--json", stdin=f"{LINE}\n{{}}").document
    shown = cli("zones", "show", "a")
    archived = cli("zones", "archive", "a", "--json").document
    ms = str(archived["archived_at_ms"])
    listed = cli("zones", "archives", "a", "--json").document["data"]
    table = cli("zones", "archives", "a")
    read = cli("zones", "read", "a", ms)
    lines = cli("zones", "read", "a", ms, "--output")
    restored = cli("zones", "restore", "a", ms)
    again = cli("zones", "restore", "a", ms, "--json").document
    deleted = [cli("zones", "delete", "a", ms).out for _ in range(2)]

    assert written["bytes_written"] == 7
    assert appended == {
        "zone": "agent:a:current",
        "offset": 0,
        "bytes_written": len(LINE) + 4,
    }
    assert "agent:a:current" in shown.out
    assert "output.state.json\t7\t1" in shown.out
    assert archived["files"] == {"output": len(LINE) + 4, "output.state.json": 7}
    assert [each["lines"] for each in listed] == [2]
    assert table.out.splitlines()[1].startswith(f"{ms}\t")
    assert (read.out, lines.out) == ("größe\n", f"{LINE}\n{{}}\n")
    assert restored.out == f"Copied agent:a:archive:{ms} to the active zone.\n"
    assert again["displaced"] not in (None, archived["archive_zoneid"])
    assert deleted == ["Deleted.\n", "There is no such archive.\n"]
    assert cli("zones", "read", "a").out == "größe\n"


def test_a_desk_shows_the_first_prompt(cli: Cli) -> None:
    cli("zones", "append", "a", stdin='{"role":"user","text":"hi\\u001b[2J there"}')

    assert "preview  hi" in cli("zones", "show", "a").out
    assert "\x1b" not in cli("zones", "show", "a").out
    assert cli("zones", "show", "a", "--json").document["preview"] == "hi\x1b[2J there"


def test_a_snapshot_that_is_printed_and_written_again_is_the_same(cli: Cli) -> None:
    cli("zones", "write", "a", stdin="{}\n")

    for _ in range(2):
        cli("zones", "write", "a", stdin=cli("zones", "read", "a").out)

    assert cli("zones", "read", "a", "--json").document["content"] == "{}\n"


def test_an_archive_without_a_snapshot_says_where_to_look(cli: Cli) -> None:
    cli("zones", "append", "a", stdin="line\n")
    ms = str(cli("zones", "archive", "a", "--json").document["archived_at_ms"])

    assert cli("zones", "read", "a", ms).out == "no snapshot; use --output to show the lines\n"
    assert cli("zones", "read", "a", ms, "--limit", "1").out == "line\n"
    assert cli("zones", "show", "a").err == "The active zone is empty.\n"


def test_a_line_without_an_end_is_refused_before_all_of_it_is_read(cli: Cli) -> None:
    told = cli("zones", "append", "a", "--json", stdin="x" * (18 << 20))

    assert (told.code, told.error["error"]) == (2, "too_large")
    assert told.error["details"]["size"] < 18 << 20
    assert cli("zones", "show", "a", "--json").document["files"] == []


def test_lines_are_read_by_number_and_replayed(cli: Cli) -> None:
    cli("zones", "append", "a", stdin="".join(f"{number}\n" for number in range(9)))

    page = cli("zones", "read", "a", "--start", "2", "--limit", "3")
    document = cli("zones", "read", "a", "--output", "--limit", "1", "--json").document
    replay = cli("zones", "replay", "a", "--page", "2")

    assert (page.out, page.err) == ("2\n3\n4\n", "More results: --start 5\n")
    assert (document["lines"], document["total"], document["torn"]) == (["0"], 9, False)
    assert (replay.out, replay.err) == ("7\n8\n", "From tail: 2 of 9 lines.\n")
    assert cli("zones", "replay", "a", "--json").document["source"] == "tail"


@each_case("command", COMMANDS, ids=lambda command: command[0])
def test_a_bad_id_is_refused_in_the_same_words(cli: Cli, command: tuple[str, ...]) -> None:
    for text in REFUSED:
        # What no command line can carry is refused before any command runs.
        if "\x00" in text or text == "\ud800":
            continue
        name, *rest = command
        ran = cli("zones", name, "--json", "--", text, *rest)

        assert ran.code == 2
        assert ran.error["error"] == "invalid_definition_id"
        assert ran.error["message"] == (
            f"INVALID_DEFINITION_ID: expected [A-Za-z0-9_-]+, got {json.dumps(text)}"
        )


def test_what_is_not_there_and_what_was_changed_have_codes_of_their_own(cli: Cli) -> None:
    cli("zones", "write", "a", stdin="1")

    assert cli("zones", "read", "a", "7").code == 4
    assert cli("zones", "restore", "a", "07").code == 4
    assert cli("zones", "delete", "a", "x").code == 4
    assert cli("zones", "write", "a", "--if-modified", "0", stdin="2").code == 5
    assert cli("zones", "append", "a", stdin=b"\xff\n").code == 2
    assert cli("zones", "archives", "a", "--limit", "-1").code == 2
    assert cli("zones", "read", "a", "7", "--follow").code == 2
    assert "window must be 1 to 10000" in cli("zones", "replay", "a", "--window", "0").err


def test_everything_of_an_id_goes_when_it_is_said_twice(cli: Cli) -> None:
    cli("zones", "write", "a", stdin="1")
    cli("zones", "archive", "a")
    cli("zones", "write", "a", stdin="2")

    assert cli("zones", "purge", "a").code == 2
    assert cli("zones", "purge", "a", "--confirm", "b").code == 2
    assert cli("zones", "purge", "a", "--confirm", "a").out == "Deleted 2 zones.\n"
    assert cli("zones", "purge", "a", "--confirm", "a", "--json").document == {"purged": 0}


def test_an_empty_stdin_appends_nothing(cli: Cli) -> None:
    assert cli("zones", "append", "a", "--json").document["bytes_written"] == 0
    assert cli("zones", "show", "a", "--json").document["files"] == []


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        ((), ["old\n", "new\n"]),
        (("--json",), ['{"line":0,"text":"old"}\n', '{"line":1,"text":"new"}\n']),
    ],
)
def test_the_output_is_followed_until_ctrl_c(
    home: Path, flags: tuple[str, ...], shown: list[str]
) -> None:
    beside(home, "zones", "append", "a", stdin="old\n")
    with running(home, "zones", "read", "a", "--follow", "--start", "0", *flags) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        beside(home, "zones", "append", "a", stdin="new\n")
        second = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        code = process.wait(timeout=PATIENCE)

    assert [first, second] == shown
    assert code == 130
