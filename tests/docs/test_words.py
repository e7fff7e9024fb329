"""Holds that the page of words is what each surface really says."""

import re
from typing import Any, get_args

from hypothesis import given

from holdfast.cli.errors import STOP_CODES
from holdfast.domain.events import Payload, name_of
from holdfast.domain.sessions import Status, StopReason
from holdfast.wire.events import event_forms
from holdfast.wire.repo_sessions import STATUS_WORDS
from holdfast.wire.sessions import status_word
from holdfast.wire.stream_events import STOPS, StreamVocabulary
from tests.builders import a_session, an_event
from tests.docs.blocks import ROOT
from tests.domain.strategies import values_of

PAGE = (ROOT / "docs" / "words.md").read_text("utf-8")


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table below a heading."""
    part = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines[1:]]


def words(cell: str) -> list[str]:
    """Return what a cell sets apart as words."""
    return re.findall(r"`([^`]+)`", cell)


EVENTS = {words(cells[0])[0]: cells for cells in rows("What happened")}


def test_every_event_has_a_row() -> None:
    tags = {kind.__struct_config__.tag for kind in get_args(Payload)}

    assert set(EVENTS) == tags


@given(values_of(Payload))
def test_every_surface_says_an_event_as_its_row_has_it(payload: Any) -> None:
    event = an_event(payload)
    _, http, data, cli = EVENTS[name_of(payload)]

    spoken = event_forms(event)
    line = StreamVocabulary("agent", {}, "model").line(event)

    assert {form.event_type for form in spoken} <= set(words(http))
    named = set(re.findall(r"[a-z_]+", " ".join(words(data))))
    assert {key for form in spoken for key in form.data} - {"truncated"} <= named
    assert line["type"] in words(cli)


def test_every_status_has_its_words() -> None:
    for cells in rows("Where a session stands"):
        status = Status(words(cells[0])[0])

        assert words(cells[1]) == words(cells[2]) == [status.value]
        assert words(cells[3])[0] == status_word(a_session(status=status))
        assert words(cells[4]) == [STATUS_WORDS[status]]
    assert len(rows("Where a session stands")) == len(Status)


def test_every_stop_reason_has_its_words() -> None:
    for cells in rows("How a turn ended"):
        reason = StopReason(words(cells[0])[0])
        word, code = STOPS[reason]

        assert words(cells[1])[0] == word
        if reason is not StopReason.ERROR:
            assert words(cells[1])[1:] == ([code.value] if code else [])
            assert cells[2] == str(STOP_CODES[reason])
    assert len(rows("How a turn ended")) == len(StopReason)
