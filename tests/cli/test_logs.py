"""Logs: one event on one line, whoever reads them."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from holdfast.cli.logs import JsonLines, configure
from tests.cli.test_terminal import StandInTerminal

log = logging.getLogger("holdfast.test")


@pytest.fixture(autouse=True)
def root_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_where_no_person_reads_an_event_is_one_json_object() -> None:
    stream = io.StringIO()
    configure("warning", stream)

    log.warning("a %s\nline\x1b[31m \u202e", "forged", extra={"fields": {"path": "a\nb"}})

    (line,) = stream.getvalue().splitlines()
    assert line.isascii()
    assert line.isprintable()
    event = json.loads(line)
    assert event.pop("at").endswith("Z")
    assert event == {
        "level": "warning",
        "logger": "holdfast.test",
        "message": "a forged\nline\x1b[31m \u202e",
        "path": "a\nb",
    }


def test_an_exception_is_in_its_events_line() -> None:
    stream = io.StringIO()
    configure("error", stream)

    try:
        raise ValueError("boom")
    except ValueError:
        log.exception("it broke")

    (line,) = stream.getvalue().splitlines()
    assert "ValueError: boom" in json.loads(line)["exception"]


def test_at_a_terminal_an_event_is_a_line_that_cannot_be_forged() -> None:
    stream = StandInTerminal()
    configure("info", stream)

    log.info("a\nforged \x1b[31m line", extra={"fields": {"owner": "local"}})

    assert stream.getvalue() == "info: a\\u000aforged \\u001b[31m line owner=local\n"


def test_at_a_terminal_a_trace_is_indented_below_its_event() -> None:
    stream = StandInTerminal()
    configure("info", stream)

    try:
        raise ValueError("boom")
    except ValueError:
        log.exception("it broke")

    first, *trace = stream.getvalue().splitlines()
    assert first == "error: it broke"
    assert trace[-1] == "  ValueError: boom"


def test_the_level_decides_and_the_last_word_counts() -> None:
    early, late = io.StringIO(), io.StringIO()
    configure("debug", early)
    configure("error", late)

    log.warning("not heard")
    log.error("heard")

    assert early.getvalue() == ""
    assert json.loads(late.getvalue())["message"] == "heard"
    ours = [each for each in logging.getLogger().handlers if isinstance(each.formatter, JsonLines)]
    assert len(ours) == 1
