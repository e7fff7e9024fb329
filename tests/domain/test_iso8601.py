"""Timestamps: what is one, which instant it is, and how we spell it."""

from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.time import (
    DAY,
    Moment,
    format_iso8601,
    instant_of,
    milliseconds,
    moment,
    parse_iso8601,
    truncate_to_ms,
)
from tests.domain.strategies import INSTANTS
from tests.marks import each_case

NOON = milliseconds(datetime(2025, 12, 31, 12, tzinfo=UTC))


@each_case(
    ("text", "ms"),
    [
        ("2025-12-31T12:00Z", NOON),
        ("2025-12-31T12:00:00Z", NOON),
        ("2025-12-31T12:00:00.5Z", NOON + 500),
        ("2025-12-31T12:00:00,123456789Z", NOON + 123),
        ("2025-12-31T12:00:00.9999Z", NOON + 999),
        (f"2025-12-31T12:00:00.{'9' * 60_000}Z", NOON + 999),
        ("2025-12-31T13:00:00+01:00", NOON),
        ("2025-12-31T06:30:00-0530", NOON),
        ("2025-12-31T10:00:00-02", NOON),
        ("2026-01-01T00:30:00+12:30", NOON),
        ("0001-01-01T00:00:00Z", -62_135_596_800_000),
        ("9999-12-31T23:59:59.999Z", 253_402_300_799_999),
        ("2024-02-29T00:00:00Z", 1_709_164_800_000),
        ("20251231T120000Z", NOON),
        ("20251231T1200Z", NOON),
        ("2025-12-31T12Z", NOON),
        ("2025-12-31T13+01", NOON),
        ("2025-12-31T12.5Z", NOON + 1_800_000),
        ("2025-12-31T12:00,25Z", NOON + 15_000),
        ("2026-W01-3T12:00Z", NOON),
        ("2026W013T12Z", NOON),
        ("2025-365T12:00Z", NOON),
        ("2025365T12Z", NOON),
        ("2025-12-31T24:00:00Z", NOON + DAY // 2),
        ("2025-12-31T23:59:60Z", NOON + DAY // 2),
        ("2026-01-01T05:29:60.5+05:30", NOON + DAY // 2 + 500),
    ],
)
def test_a_time_with_an_offset_is_an_instant(text: str, ms: int) -> None:
    assert parse_iso8601(text) == Moment(ms=ms)
    assert instant_of(text) == ms


@each_case("text", ["2025-12-31T12:00", "2025-12-31T12:00:00.000"])
def test_a_time_without_an_offset_is_taken_for_utc(text: str) -> None:
    assert parse_iso8601(text) == Moment(ms=NOON, is_assumed=True)


def test_a_date_is_its_midnight_and_means_the_whole_day() -> None:
    found = parse_iso8601("2025-12-31")

    assert found == Moment(ms=NOON - DAY // 2, is_assumed=True, is_date=True)
    assert {parse_iso8601(each) for each in ("20251231", "2026-W01-3", "2025-365")} == {found}
    assert found.last_ms == NOON + DAY // 2 - 1
    assert Moment(ms=5).last_ms == 5


@each_case(
    "text",
    [
        "",
        "yesterday",
        "1735689600",
        "2025",
        "2025-12",
        "2025-12-31 12:00:00Z",
        "2025-12-31t12:00:00Z",
        "2025-12-31T12:00:00z",
        "2025-12-31T12:60:00Z",
        "2025-12-31T12:00:00.Z",
        "2025-12-31T12:00:00+24:00",
        "2025-12-31T12:00:00+01:60",
        "2025-12-31T12:00:00+1",
        "2025-12-31Z",
        "2025-13-01",
        "2025-02-29",
        "2025-00-10",
        "0000-01-01",
        "10000-01-01",
        "2025-1231",
        "202512-31",
        "2025-W53-1",
        "2025-W01-8",
        "2025-W01",
        "2025-000",
        "2025-366",
        "9999-366",
        "2025-12-31T",
        "2025-12-31T12:0000Z",
        "2025-12-31T1200:00Z",
        "2025-12-31T24:00:01Z",
        "2025-12-31T25:00Z",
        "2025-12-31T12:00:60Z",
        "9999-12-31T24:00Z",
        " 2025-12-31",
        "2025-12-31\n",
        "٢٠٢٥-١٢-٣١",
        "0001-01-01T00:00:00+00:01",
        "9999-12-31T23:59:59-00:01",
    ],
)
def test_what_is_no_timestamp_of_ours_is_nothing(text: str) -> None:
    assert parse_iso8601(text) is None


@given(INSTANTS, st.integers(-1439, 1439))
def test_an_instant_is_the_same_in_every_offset(at: datetime, minutes: int) -> None:
    local = at.astimezone(timezone(timedelta(minutes=minutes)))

    assert (
        parse_iso8601(local.isoformat())
        == parse_iso8601(at.isoformat())
        == Moment(ms=milliseconds(at))
    )


@given(INSTANTS)
def test_what_is_spelled_is_read_back(at: datetime) -> None:
    ms = milliseconds(at)

    assert instant_of(format_iso8601(ms)) == ms
    assert (format_iso8601(ms)[-5], len(format_iso8601(ms))) == (".", 24)
    assert truncate_to_ms(at) == moment(ms) == at - timedelta(microseconds=at.microsecond % 1000)


def test_early_years_are_spelled_with_four_digits() -> None:
    assert format_iso8601(-62_135_596_800_000) == "0001-01-01T00:00:00.000Z"
