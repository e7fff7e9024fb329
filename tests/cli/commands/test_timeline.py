"""`holdfast timeline`: a picture of days for people, and events for programs."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.cli.commands.timeline import lines
from tests.cli.commands.test_history import SESSION, submitted
from tests.cli.conftest import Cli
from tests.cli.test_output import StandInTerminal, terminal  # noqa: F401 — a fixture
from tests.marks import each_case


@pytest.fixture(autouse=True)
def utc() -> Iterator[None]:
    """Be where the pictures were drawn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


PICTURE = """\
2025-12-30
  09:00  ● Session other-1 started
2025-12-31
  11:00  ● Session abc123 started
  11:15  ◆ Checkpoint: spec_complete · abc123
  12:00  ■ Session abc123 ended
"""


def told(cli: Cli) -> None:
    submitted(cli)
    other = {"session_id": "other-1", "started_at": "2025-12-30T09:00:00Z"}
    bare = {"actions": SESSION["actions"], **other}
    cli("history", "submit", stdin=json.dumps(bare))


def test_all_sessions_are_drawn_day_by_day(cli: Cli) -> None:
    told(cli)

    ran = cli("timeline")
    assert (ran.code, ran.out, ran.err) == (0, PICTURE, "")


def test_one_entity_is_drawn_by_any_of_its_names(cli: Cli) -> None:
    told(cli)
    picture = "".join(PICTURE.splitlines(keepends=True)[2:]).replace(" · abc123", "")

    for name in ("abc123", "FU-061", "ent_31ed4722e1f7ffa6ea9a9ed8"):
        assert cli("timeline", name).out == picture


def test_a_picture_is_cut_by_time_kind_and_number(cli: Cli) -> None:
    told(cli)

    late = cli("timeline", "--from", "2025-12-31T11:10:00Z", "--type", "CheckpointReached")
    early = cli("timeline", "--to", "2025-12-30")
    newest = cli("timeline", "--limit", "1")
    first = cli("timeline", "abc123", "--limit", "1")
    cursor = first.err.split()[-1]
    rest = cli("timeline", "abc123", "--limit", "5", "--cursor", cursor)

    assert late.out == "2025-12-31\n  11:15  ◆ Checkpoint: spec_complete\n"
    assert early.out == "2025-12-30\n  09:00  ● Session other-1 started\n"
    assert newest.out.startswith("2025-12-31\n")
    assert "There are older sessions" in newest.err
    assert first.out == "2025-12-31\n  11:00  ● Session abc123 started\n"
    assert rest.out.splitlines()[1:] == [
        "  11:15  ◆ Checkpoint: spec_complete",
        "  12:00  ■ Session abc123 ended",
    ]


def test_programs_read_events(cli: Cli) -> None:
    told(cli)
    one = cli("timeline", "abc123", "--json").document
    every = cli("timeline", "--json").document
    none = cli("timeline", "nobody", "--json").document

    assert [each["event_type"] for each in one["data"]] == [
        "SessionStarted",
        "CheckpointReached",
        "SessionEnded",
    ]
    assert (one["total"], every["total"], every["next_cursor"]) == (3, 4, None)
    assert every["data"][1:] == one["data"]
    assert none == {"data": [], "total": 0, "next_cursor": None}


def test_nothing_is_told_in_words(cli: Cli) -> None:
    ran = cli("timeline")

    assert (ran.code, ran.out, ran.err) == (
        0,
        "",
        "No events.\n",
    )


@each_case(
    "words",
    [
        ("--cursor", "x"),
        ("a", "--cursor", "x"),
        ("--limit", "0"),
        ("a", "--limit", "501"),
        ("--from", "yesterday"),
        ("--from", "2025-01-02", "--to", "2025-01-01"),
        ("--type", "Nothing"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_is_refused(cli: Cli, words: tuple[str, ...]) -> None:
    assert cli("timeline", *words).code == 2


@each_case(
    ("words", "told"),
    [
        (("--from", "notadate"), "--from must be an ISO 8601 date or time, such as"),
        (("--to", "notadate"), "--to must be an ISO 8601 date or time, such as"),
        (("--from", "2025-01-02", "--to", "2025-01-01"), "--to must not be before --from."),
    ],
)
def test_a_wrong_day_is_told_by_the_name_of_its_flag(
    cli: Cli, words: tuple[str, ...], told: str
) -> None:
    error = cli("timeline", *words, "--json").error

    assert error["message"].startswith(told)
    assert (error["details"]["field"], error["details"]["value"]) == words[-2:]


def test_many_sessions_are_read_page_by_page(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.commands.timeline.PAGE", 1)
    told(cli)

    assert cli("timeline").out == PICTURE
    assert cli("timeline", "--limit", "2").err == ""


def test_a_narrow_terminal_cuts_lines_and_hears_of_no_colours(
    cli: Cli,
    terminal: Callable[..., StandInTerminal],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "界" * 40
    submitted(cli, session_id=name, checkpoints=[])
    screen = terminal()
    monkeypatch.setenv("COLUMNS", "30")
    cli("timeline", "--color", "never")
    plain = screen.getvalue()
    screen = terminal()
    cli("timeline", "--color", "always")

    assert plain.splitlines() == [
        "2025-12-31",
        "  11:00  ● Session 界界界界界…",
        "  12:00  ■ Session 界界界界界…",
    ]
    assert "\x1b[1m2025-12-31\x1b[0m" in screen.getvalue()


def test_foreign_text_steers_no_terminal(cli: Cli) -> None:
    name = "\x1b[31mred\nline"
    submitted(cli, checkpoints=[{"name": name, "timestamp": "2025-12-31T11:15:00Z"}])

    assert "  11:15  ◆ Checkpoint: red line\n" in cli("timeline").out


def test_where_characters_are_few_there_are_plain_symbols_and_every_time_is_shown() -> None:
    from holdfast.observations.timeline import EventType, TimelineEvent

    def event(kind: EventType, at: str) -> Any:
        return TimelineEvent(
            id="tle_1",
            timestamp=at,
            event_type=kind,
            description=kind.value,
            entity_id="ent_1",  # type: ignore[arg-type]
            entity_type="release",  # type: ignore[arg-type]
            session_id=None,
            source_field="status",
            provenance=(),
        )

    events = [event(kind, "0001-01-01T00:00:00.000Z") for kind in EventType]
    drawn = [text for text, _ in lines(events, is_plain=True)]

    assert drawn[0] == "0001-01-01"
    assert [line.split()[1] for line in drawn[1:]] == ["*", "+", "#", "o", "^", ">"]
