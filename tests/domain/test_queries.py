"""What a listing asks for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.agents import AgentStatus
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import LOCAL_OWNER
from holdfast.domain.queries import (
    LIMIT_MOST,
    AgentQuery,
    MessageQuery,
    Page,
    SessionOrder,
    SessionQuery,
    decode_cursor,
    encode_count,
    require_limit,
)
from tests.marks import each_case


@given(st.integers(), st.integers(1, 10_000))
def test_a_limit_is_taken_as_given_or_refused(limit: int, most: int) -> None:
    if 1 <= limit <= most:
        assert require_limit(limit, most=most) == limit
    else:
        with pytest.raises(Invalid) as refused:
            require_limit(limit, most=most)
        assert refused.value.body() == {
            "error": Code.INVALID_LIMIT,
            "message": f"limit must be 1 to {most}, not {limit}.",
            "details": {"field": "limit"},
        }


def test_a_listing_gives_a_thousand_at_most_unless_told_otherwise() -> None:
    assert require_limit(LIMIT_MOST) == 1_000
    with pytest.raises(Invalid):
        require_limit(LIMIT_MOST + 1)


def test_agents_are_listed_without_the_archived_ones() -> None:
    asked = AgentQuery(owner=LOCAL_OWNER)

    assert (asked.status, asked.limit) == (AgentStatus.ACTIVE, 100)


def test_sessions_are_listed_newest_first_and_all_of_them() -> None:
    asked = SessionQuery(owner=LOCAL_OWNER)

    assert (asked.order, asked.statuses) == (SessionOrder.CREATED_AT, ())
    assert (asked.offset, asked.limit) == (0, 100)


@pytest.mark.parametrize("beyond", [-(1 << 62), 1 << 62])
def test_a_cursor_of_a_time_that_no_calendar_has_is_refused(beyond: int) -> None:
    cursor = encode_count((beyond, "x"), ())

    with pytest.raises(Invalid) as refused:
        decode_cursor(cursor, ())

    assert refused.value.code is Code.INVALID_CURSOR


def test_the_last_page_names_no_next_one() -> None:
    assert Page(items=(1, 2)).next_cursor is None


@each_case("cut", [{"after": -1}, {"before": 0}, {"limit": 0}, {"limit": 10_001}])
def test_messages_are_cut_at_numbers_that_they_can_have(cut: dict[str, int]) -> None:
    with pytest.raises(Invalid):
        MessageQuery(**cut)


def test_all_messages_are_asked_for_unless_told_otherwise() -> None:
    assert MessageQuery() == MessageQuery(after=0, before=None, roles=(), turn=None, limit=10_000)
