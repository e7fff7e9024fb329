"""Printing for people and for programs."""

import io
import os
import sys
from collections.abc import Callable

import pytest

from holdfast.cli.options import Color, GlobalOptions
from holdfast.cli.output import Printer, local_time, money, price
from tests.builders import AT
from tests.cli.conftest import Cli
from tests.cli.test_terminal import StandInTerminal

ID = "019b7a00-0000-7000-8000-000000000000"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[], StandInTerminal]:
    """Put a person before both streams, when called: before, the streams are the runner's."""

    def put() -> StandInTerminal:
        stream = StandInTerminal()
        monkeypatch.setattr(sys, "stdout", stream)
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "60")
        monkeypatch.delenv("NO_COLOR", raising=False)
        return stream

    return put


def test_at_a_terminal_a_table_is_drawn_and_ids_stay_whole(
    terminal: Callable[[], StandInTerminal],
) -> None:
    stream = terminal()
    rows = [(ID, "[red]one[/red] \x1b[31m" + "long " * 20)]

    Printer(GlobalOptions(color=Color.NEVER)).table(("ID", "TITLE"), rows)

    heading, row = stream.getvalue().splitlines()
    assert heading.split() == ["ID", "TITLE"]
    assert row.startswith(f"{ID}  [red]one[/red]")
    assert "\x1b" not in row
    assert row.rstrip().endswith("…")


def test_an_empty_table_has_no_heading(terminal: Callable[[], StandInTerminal]) -> None:
    stream = terminal()
    Printer(GlobalOptions()).table(("ID",), [])

    assert stream.getvalue() == ""


def test_colours_can_be_had_and_refused(terminal: Callable[[], StandInTerminal]) -> None:
    stream = terminal()
    Printer(GlobalOptions(color=Color.ALWAYS)).table(("ID",), [("1",)])
    colored = stream.getvalue()
    Printer(GlobalOptions(color=Color.NEVER)).table(("ID",), [("1",)])

    assert "\x1b[1m" in colored
    assert "\x1b" not in stream.getvalue()[len(colored) :]


def test_remarks_are_dim_and_can_be_silenced(terminal: Callable[[], StandInTerminal]) -> None:
    stream = terminal()
    Printer(GlobalOptions()).remark("by the way")
    Printer(GlobalOptions(quiet=True)).remark("not said")
    Printer(GlobalOptions(json=True)).remark("not said either")
    Printer(GlobalOptions(quiet=True, color=Color.NEVER)).warn("said all the same\x1b[2J")

    assert stream.getvalue() == "\x1b[2mby the way\x1b[0m\nsaid all the same\n"


def test_remarks_are_broken_between_words(
    terminal: Callable[[], StandInTerminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = terminal()
    monkeypatch.setenv("COLUMNS", "20")
    Printer(GlobalOptions(color=Color.NEVER)).remark(f"More results: --cursor {ID}\n\nand this")

    assert stream.getvalue() == f"More results:\n--cursor\n{ID}\n\nand this\n"


def test_a_record_leaves_out_what_is_not_set(capsys: pytest.CaptureFixture[str]) -> None:
    Printer(GlobalOptions()).record({"a": None}, {"name": "Ada", "title": None, "n": 1})
    Printer(GlobalOptions(json=True)).record({"a": None}, {"name": "Ada"})

    assert capsys.readouterr().out == 'name   Ada\nn      1\n{"a":null}\n'


def test_money_is_in_dollars_or_unknown() -> None:
    assert money(12_345_678, priced=True) == "$0.1235"
    assert money(0, priced=False) == "unknown"


def test_a_price_is_a_word() -> None:
    assert price(0, priced=True) == "free"
    assert price(12_345_678, priced=True) == "$0.1235"
    assert price(0, priced=False) == "unknown (unpriced)"
    assert price(12_345_678, priced=False) == "$0.1235 and unknown (unpriced)"
    assert price(12_345_678, priced=False, estimated=True) == "at most $0.1235 (estimate)"


def test_a_line_has_a_style_where_there_are_colours(
    terminal: Callable[[], StandInTerminal],
) -> None:
    stream = terminal()
    Printer(GlobalOptions()).line("one\x1b[2J", style="32")
    Printer(GlobalOptions(color=Color.NEVER)).line("two", style="32")

    assert stream.getvalue() == "\x1b[32mone\x1b[0m\ntwo\n"


def test_times_are_local() -> None:
    assert local_time(AT) == AT.astimezone().strftime("%Y-%m-%d %H:%M")
    assert local_time(None) == "-"


def test_a_reader_that_leaves_is_no_error(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    class Left(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    cli("chat", "hello")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Left())
        ran = cli("sessions", "list", "--json")

    assert (ran.code, ran.err) == (0, "")


def test_a_hushed_printer_writes_to_nowhere(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream, os.fdopen(reading):
        monkeypatch.setattr(sys, "stdout", stream)
        Printer(GlobalOptions()).discard_output()
        os.close(os.dup(reading))
        Printer(GlobalOptions()).line("nobody reads this")
        Printer(GlobalOptions()).flush()

    assert capfd.readouterr().out == ""


def test_streams_that_were_closed_at_the_start_are_no_error(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        patch.setattr(sys, "stderr", None)
        ran = cli("sessions", "list")
        sys.stdout.close()
        sys.stderr.close()

    assert ran.code == 0
