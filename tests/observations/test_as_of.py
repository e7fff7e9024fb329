"""Horizons: how far back somebody looks."""

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.domain.errors import Invalid
from holdfast.observations.as_of import EVERYTHING, AsOf, parse_as_of


def test_a_day_is_meant_to_its_end_and_a_time_to_its_millisecond() -> None:
    found = parse_as_of("2025-12-31", "2025-12-31T12:00:00.5+01:00")

    assert found == AsOf(
        at=datetime(2025, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        at_ingested=datetime(2025, 12, 31, 11, 0, 0, 500_999, tzinfo=UTC),
    )


def test_without_a_wish_everything_is_seen() -> None:
    assert parse_as_of() == EVERYTHING


def test_both_bounds_hold_and_include_their_moment() -> None:
    early, late = datetime(2025, 1, 1, tzinfo=UTC), datetime(2025, 1, 2, tzinfo=UTC)

    assert EVERYTHING.shows(late, late)
    assert AsOf(at=early).shows(early, late)
    assert not AsOf(at=early).shows(late, early)
    assert AsOf(at_ingested=early).shows(late, early)
    assert not AsOf(at=late, at_ingested=early).shows(early, late)


@pytest.mark.parametrize(
    ("at", "at_ingested", "fields"),
    [("x", None, ["at"]), (None, 5, ["at_ingested"]), ("24:00", "", ["at", "at_ingested"])],
)
def test_what_is_no_date_is_refused(at: Any, at_ingested: Any, fields: list[str]) -> None:
    with pytest.raises(Invalid) as refused:
        parse_as_of(at, at_ingested)

    assert [each["field"] for each in refused.value.details["issues"]] == fields
