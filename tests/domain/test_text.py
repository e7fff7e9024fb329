"""What text may be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.text import is_encodable, require_tags, require_text, storable
from tests.marks import each_case

ANY_TEXT = st.text(alphabet=st.characters(), max_size=12)


def refusal(text: str) -> dict[str, object]:
    with pytest.raises(Invalid) as refused:
        require_text(text, field="title", shortest=1, longest=3)
    return refused.value.body()


@each_case("text", ["a", "abc", "日本語", "👩‍🚀", "\n", "\u202e", "\ufeff"])
def test_any_unicode_text_within_the_limit_is_taken_unchanged(text: str) -> None:
    assert require_text(text, field="title", shortest=1, longest=3) == text


def test_text_may_be_empty_where_no_least_length_is_asked() -> None:
    assert require_text("", field="title", longest=0) == ""


@each_case("text", ["", "abcd"])
def test_text_outside_its_limits_is_refused_with_its_length(text: str) -> None:
    assert refusal(text) == {
        "error": Code.INVALID_TEXT,
        "message": f"title must have 1 to 3 characters, not {len(text)}.",
        "details": {"field": "title", "length": len(text)},
    }


def test_a_nul_character_is_refused() -> None:
    assert refusal("a\x00b") == {
        "error": Code.INVALID_TEXT,
        "message": "title must not contain a NUL character.",
        "details": {"field": "title"},
    }


@each_case("text", ["\ud800", "a\udfff", "\udc00\ud800"])
def test_a_lone_surrogate_is_refused(text: str) -> None:
    assert refusal(text) == {
        "error": Code.INVALID_TEXT,
        "message": "title must not contain a lone surrogate.",
        "details": {"field": "title"},
    }


@given(ANY_TEXT)
def test_text_is_taken_unchanged_or_refused_without_being_repeated(text: str) -> None:
    marked = f"marker-{text}-marker"
    if len(marked) <= 24 and "\x00" not in text and is_encodable(text):
        assert require_text(marked, field="title", longest=24) == marked
    else:
        with pytest.raises(Invalid) as refused:
            require_text(marked, field="title", longest=24)
        assert "marker-" not in str(refused.value.body())


@given(ANY_TEXT)
def test_text_is_encodable_exactly_when_it_survives_utf_8(text: str) -> None:
    survives = text.encode("utf-8", "replace").decode() == text

    assert is_encodable(text) == survives


def test_repeated_tags_count_once_and_keep_their_order() -> None:
    assert require_tags(("b", "a", "b", "c", "a")) == ("b", "a", "c")


def test_fifty_tags_are_enough() -> None:
    tags = tuple(str(number) for number in range(51))

    assert require_tags(tags[:50] * 2) == tags[:50]
    with pytest.raises(Invalid) as refused:
        require_tags(tags)
    assert refused.value.body() == {
        "error": Code.INVALID_TEXT,
        "message": "There may be at most 50 tags.",
        "details": {"field": "tags"},
    }


def test_a_tag_may_be_as_long_as_a_line() -> None:
    assert require_tags(("x", "y" * 64)) == ("x", "y" * 64)


@each_case("tag", ["", "x" * 65, "a\x00", "\ud800"])
def test_a_tag_is_text_of_1_to_64_characters(tag: str) -> None:
    with pytest.raises(Invalid) as refused:
        require_tags(("good", tag))

    assert refused.value.code == Code.INVALID_TEXT
    assert refused.value.details["field"] == "tags"


@each_case(
    ("text", "stored"),
    [
        ("plain", "plain"),
        ("größer 🦀", "größer 🦀"),
        ("a\x00b", "a\ufffdb"),
        ("\ud83e\udd80", "🦀"),
        ("\ud83e", "\ufffd"),
        ("a\udd80b", "a\ufffdb"),
    ],
)
def test_text_from_outside_is_mended_until_a_row_can_hold_it(text: str, stored: str) -> None:
    assert storable(text) == stored
