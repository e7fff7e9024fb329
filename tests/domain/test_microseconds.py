"""Instants as whole microseconds."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.time import instant, microseconds
from tests.domain.strategies import INSTANTS
from tests.marks import each_case


@each_case(
    ("at", "stamp"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=UTC), 1_000_001),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), -1),
        (datetime(2026, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC), 1_767_323_045_678_901),
    ],
)
def test_an_instant_is_microseconds_since_1970(at: datetime, stamp: int) -> None:
    assert microseconds(at) == stamp
    assert instant(stamp) == at


@given(INSTANTS)
def test_no_instant_loses_a_microsecond(at: datetime) -> None:
    assert instant(microseconds(at)) == at


@given(INSTANTS, st.integers(-12, 12))
def test_an_instant_is_the_same_number_in_every_time_zone(at: datetime, hours: int) -> None:
    # Away from the ends of the calendar, where another zone would have no date.
    at = at.replace(year=min(max(at.year, 2), 9998))
    elsewhere = at.astimezone(timezone(timedelta(hours=hours)))

    assert microseconds(elsewhere) == microseconds(at)
    assert instant(microseconds(elsewhere)).tzinfo is UTC


def test_a_time_without_a_zone_is_no_instant() -> None:
    with pytest.raises(TypeError):
        microseconds(datetime(2026, 1, 2))
