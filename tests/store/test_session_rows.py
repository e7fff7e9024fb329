"""What is kept of the rows of sessions: the open ones' newest, and none of those that ended."""

from typing import Any

import pytest

from holdfast.domain.sessions import OPEN, SessionState, Status
from holdfast.store.database import Row
from holdfast.store.session_rows import columns_of, forget, head_of, remember
from tests.builders import a_head
from tests.marks import each_case


def row_of(head: SessionState) -> Row:
    """Return a head as the row it is stored in."""
    *changing, checksum = tuple(columns_of(head).values())[1:]
    return head.key, head.session_id, head.owner, head.agent_id, *changing, 0, checksum


def a_stored(**changes: Any) -> SessionState:
    """Return where a session stands, under a key that no other test uses."""
    return a_head(key=-17, **changes)


@pytest.fixture(autouse=True)
def _nothing_known() -> None:
    forget(-17)


@each_case("status", list(Status))
def test_only_the_rows_of_open_sessions_are_remembered(status: Status) -> None:
    row = row_of(a_stored(status=status))

    first, second = head_of(row), head_of(row)

    assert first == second
    assert (first is second) is (status in OPEN)


def test_a_session_that_ends_is_forgotten() -> None:
    head = a_stored(status=Status.IDLE)
    before = head_of(row_of(head))
    ended = a_stored(status=Status.COMPLETED)

    remember(ended, columns_of(ended))

    assert head_of(row_of(head)) is not before


def test_what_is_being_written_to_an_open_session_is_remembered() -> None:
    head_of(row_of(a_stored(status=Status.IDLE)))
    written = a_stored(status=Status.RUNNING)

    remember(written, columns_of(written))

    assert head_of(row_of(written)) is written
