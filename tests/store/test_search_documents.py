"""Documents of the index: numbers that can be read back, and marks that no text holds."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from holdfast.search.documents import (
    HIGHEST,
    LOWEST,
    NUMBERS,
    DocumentOrigin,
    day_beginnings,
    days,
    document_number,
    mark,
    source_of,
    text_words,
)
from holdfast.search.tokenizer import words_of
from tests.marks import each_case

DAYS = st.integers(0, 99_999)


@given(st.integers(1, 1 << 37) | st.integers(-(1 << 37), -1), st.integers(0, NUMBERS - 1))
def test_a_number_says_what_it_stands_for(key: int, number: int) -> None:
    place = document_number(key, number)

    assert source_of(place) == (key, number)
    assert LOWEST <= place <= HIGHEST
    assert (place >= 0) is (key > 0)


@given(DAYS, DAYS, DAYS)
def test_days_are_told_by_what_they_begin_with(first: int, last: int, day: int) -> None:
    found = day_beginnings(first, last)

    is_inside = first <= day <= last
    assert sum(f"·d{day:05}".startswith(each) for each in found) == is_inside
    assert len(found) <= 90


def test_days_are_whole_and_of_utc() -> None:
    at = datetime(2026, 1, 2, 23, 59, tzinfo=UTC)

    assert days(at, at + timedelta(minutes=2)) == (20_455, 20_456)
    assert days(None, None) == (0, 99_999)
    assert days(datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)) == (0, 99_999)


@each_case("kind", ["o", "a", "r", "t", "u"])
def test_a_mark_is_no_word_of_a_text(kind: str) -> None:
    assert mark(kind, "x") not in words_of(mark(kind, "x"))
    assert mark(kind, "x") != mark(kind, "y")


def test_each_word_stands_there_once_and_in_order() -> None:
    words = text_words(DocumentOrigin("ada", "agent", "repo"), 0, "b a b")

    assert words.split() == sorted(
        {"a", "b", mark("o", "ada"), mark("a", "agent"), mark("r", "repo"), "·d00000"}
    )
