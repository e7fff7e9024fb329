"""Logs: one event on one line, whoever reads them."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from holdfast.cli.logs import (
    FIELD_LONGEST,
    FIELDS_MOST,
    MESSAGE_LONGEST,
    TRACE_LONGEST,
    JsonFormatter,
    configure,
    scrub_with,
)
from holdfast.domain.secrets import MASK, Scrubber, Secret
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


def test_the_id_of_a_token_is_shown_and_a_token_is_not() -> None:
    stream = io.StringIO()
    configure("warning", stream)
    fields = {"token_id": "0192-x", "token": "abc", "secret_id": "def"}

    log.warning("request", extra={"fields": fields})

    event = json.loads(stream.getvalue())
    assert event["token_id"] == "0192-x"
    assert event["token"] == event["secret_id"] == MASK


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
    ours = [
        each for each in logging.getLogger().handlers if isinstance(each.formatter, JsonFormatter)
    ]
    assert len(ours) == 1


def test_headers_of_responses_are_logged_at_no_level() -> None:
    stream = io.StringIO()
    configure("debug", stream)

    for name in ("httpcore2.http11", "httpx2"):
        logging.getLogger(name).debug("headers: set-cookie: s3cr3t-value")

    assert stream.getvalue() == ""


class Unprintable:
    """A value that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("s3cr3t-value")


def test_secrets_and_credentials_are_in_no_part_of_an_event() -> None:
    stream = io.StringIO()
    known = Scrubber([("openai:default", Secret("s3cr3t-value"))])
    configure("info", stream, lambda: known)
    fields = {"s3cr3t-value": "x s3cr3t-value", "api_key": "short", "n": 7, "url": "a://u:p@h"}

    try:
        raise ValueError("s3cr3t-value in ghp_abcdefghij0123456789")
    except ValueError:
        log.exception("Bearer %s", "ab12cd34ef", extra={"fields": fields})

    event = json.loads(stream.getvalue())
    assert event["message"] == "Bearer [masked]"
    assert event["exception"].endswith("ValueError: [secret:openai:default] in [masked]")
    assert {name: event[name] for name in event if name not in ("at", "level", "logger")} == {
        "message": event["message"],
        "exception": event["exception"],
        "[secret:openai:default]": "x [secret:openai:default]",
        "api_key": "[masked]",
        "n": 7,
        "url": "a://[masked]@h",
    }


def test_the_keys_of_the_environment_are_known_without_a_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "s3cr3t-value")
    stream = io.StringIO()
    configure("info", stream)

    log.warning("a s3cr3t-value")

    assert json.loads(stream.getvalue())["message"] == "a [secret:OPENAI_API_KEY]"


def test_secrets_that_become_known_later_are_known_to_the_logs() -> None:
    stream = io.StringIO()
    configure("info", stream, Scrubber)
    known = [Scrubber()]
    scrub_with(lambda: known[0])
    log.warning("a s3cr3t-value")
    known[0] = Scrubber([("later", Secret("s3cr3t-value"))])
    log.warning("a s3cr3t-value")

    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == [
        "a s3cr3t-value",
        "a [secret:later]",
    ]


def test_arguments_that_do_not_fit_cost_neither_the_event_nor_a_secret(
    capsys: pytest.CaptureFixture[str],
) -> None:
    stream = io.StringIO()
    configure("info", stream, Scrubber)
    # The test runner's own handlers would take offence.
    logging.getLogger().handlers[:-1] = []

    log.warning("%d apples", "s3cr3t-value")
    log.warning("%s", Unprintable())
    log.warning(Unprintable())
    log.warning("fields", extra={"fields": {"a": Unprintable(), "b": float("nan"), "c": 10**5000}})
    log.warning("no fields", extra={"fields": "s3cr3t-value"})

    events = [json.loads(line) for line in stream.getvalue().splitlines()]
    for event in events:
        del event["at"], event["level"], event["logger"]
    assert events == [
        {"message": "%d apples (arguments do not match the format)"},
        {"message": "%s (arguments do not match the format)"},
        {
            "message": "a Unprintable that cannot be printed (arguments do not match the format)",
        },
        {
            "message": "fields",
            "a": "a Unprintable that cannot be printed",
            "b": "nan",
            "c": "a int that cannot be printed",
        },
        {"message": "no fields"},
    ]
    assert capsys.readouterr() == ("", "")


def test_numbers_are_logged_as_numbers() -> None:
    stream = io.StringIO()
    configure("info", stream, Scrubber)
    fields = {"nothing": None, "yes": True, "count": 7, "share": 0.5, "list": [1, 2]}

    log.warning("numbers", extra={"fields": fields})

    event = json.loads(stream.getvalue())
    assert {name: event[name] for name in fields} == fields | {"list": "[1, 2]"}


def test_a_field_cannot_pass_for_what_the_event_says_of_itself() -> None:
    stream = io.StringIO()
    configure("info", stream, Scrubber)
    forged = dict.fromkeys(("at", "level", "logger", "message"), "forged")

    log.warning("true", extra={"fields": forged})

    event = json.loads(stream.getvalue())
    assert "forged" not in event.values()
    assert (event["level"], event["message"]) == ("warning", "true")


def test_what_is_long_is_cut_and_told_so() -> None:
    stream = io.StringIO()
    configure("info", stream, Scrubber)
    fields = {f"n{number}": "y" * 5_000 for number in range(100)}

    try:
        raise ValueError("first" + "z" * 100_000 + "last")
    except ValueError:
        log.exception("x" * 1_000_000, extra={"fields": fields})

    event = json.loads(stream.getvalue())
    assert event["message"] == "x" * MESSAGE_LONGEST + "… (1000000)"
    assert event["n0"] == "y" * FIELD_LONGEST + "… (5000)"
    assert [name for name in event if name.startswith("n")] == [
        f"n{number}" for number in range(FIELDS_MOST)
    ]
    assert (event["exception"][:2], event["exception"][-4:]) == ("…z", "last")
    assert len(event["exception"]) == TRACE_LONGEST + 1


def test_a_secret_at_the_edge_of_what_is_kept_is_not_cut_in_two() -> None:
    stream = io.StringIO()
    known = Scrubber([("key", Secret("s3cr3t-value"))])
    configure("info", stream, lambda: known)

    log.warning("x" * (MESSAGE_LONGEST - 6) + "s3cr3t-value" + "y" * 50)

    assert "s3cr" not in stream.getvalue()


def test_an_event_without_memory_is_lost_and_nothing_else_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Starved(io.StringIO):
        def write(self, text: str) -> int:
            raise MemoryError

    # Also the place where the library tells that an event could not be written.
    monkeypatch.setattr("sys.stderr", Starved())
    configure("info")
    log.error("nobody reads this")

    configure("info", stream := io.StringIO())
    log.error("this is read")

    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == [
        "this is read"
    ]
