"""Sessions as people know them: short ids where a person looks, and titles beside ids."""

from collections.abc import Callable

import pytest

from holdfast.cli.session_refs import short_ids
from tests.cli.conftest import Cli
from tests.cli.test_output import StandInTerminal, terminal  # noqa: F401 — a fixture

ID = "019b7a00-0000-7000-8000-000000000000"
AT_ONCE = "019b7a00-0000-7000-9000-000000000000"
LATER = "019b7a00-0001-7000-8000-000000000000"


def test_a_program_gets_whole_ids() -> None:
    assert short_ids([ID, LATER]) == {ID: ID, LATER: LATER}


def test_a_person_gets_beginnings_that_differ(
    terminal: Callable[[], StandInTerminal],  # noqa: F811
) -> None:
    terminal()

    assert short_ids([ID, LATER, ID, "-"]) == {ID: ID[:13], LATER: LATER[:13], "-": "-"}
    assert short_ids([ID, AT_ONCE]) == {ID: ID[:23], AT_ONCE: AT_ONCE[:23]}


def test_titles_and_what_was_found_have_room_at_a_terminal(
    cli: Cli,
    terminal: Callable[[], StandInTerminal],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    title = "A title that is long enough to be cut"
    said = f"repeat after me: {'word ' * 6}needle {'word ' * 20}"
    session = cli("chat", said, "--title", title, "--json").lines[0]["sessionId"]
    screen = terminal()
    monkeypatch.setenv("COLUMNS", "100")
    cli("sessions", "list", "--color", "never")
    cli("search", "needle", "--color", "never")

    listed, *found = screen.getvalue().splitlines()[1::2] + screen.getvalue().splitlines()[4:5]
    assert listed.startswith(f"{session[:13]}  ")
    assert title in listed
    assert found
    assert all(each.startswith(session[:13]) and "[needle]" in each for each in found)


def test_a_session_of_this_store_is_told_by_its_title_too(cli: Cli, chatted: str) -> None:
    picture = cli("timeline").out.splitlines()
    table = cli("history", "query").out.splitlines()
    one = cli("history", "query", chatted).out.splitlines()

    assert picture[1].endswith(f"Session {chatted} started · What is 2+3?")
    assert [row.split("\t")[-1] for row in table] == ["TITLE", "What is 2+3?"]
    assert one[1].split(maxsplit=1) == ["title", "What is 2+3?"]
