"""Snippets: short, around the first match, and plain text."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.search.query import parse_terms
from holdfast.search.service import SNIPPET_LONGEST, Snippet, snippet


def shown(text: str, query: str) -> str:
    return snippet(text, parse_terms(query)).text


def test_what_was_found_stands_in_brackets() -> None:
    assert snippet("The tide is high.", parse_terms("HIGH tide")) == Snippet(
        "The [tide] is [high].", 0.5
    )
    assert shown("Low is the high tide.", '"high tide"') == "Low is the [high tide]."
    assert shown("a brave new world", '"brave new" "new world"') == "a [brave new world]"
    assert shown("私は東京に住む", "東京") == "私は[東京]に住む"
    assert shown("Ein Résumé", "resum*") == "Ein [Résumé]"
    assert shown("1½ 2", "1 2") == "[1½] [2]"


def test_white_space_is_one_space() -> None:
    assert shown("The\n\n  tide\tis", "tide") == "The [tide] is"


def test_a_long_text_is_cut_around_the_first_match() -> None:
    text = "word " * 5_000 + "a tide " + "other " * 5_000

    found = snippet(text, parse_terms("tide"))

    assert found.text.startswith("…word word")
    assert found.text.endswith("…")
    assert " a [tide] other " in found.text
    assert 200 < len(found.text) <= SNIPPET_LONGEST
    assert 0 < found.score < 0.1


def test_a_phrase_is_found_wherever_it_is_cut() -> None:
    for before in range(4_090, 4_100):
        assert "[high tide]" in shown("word " * before + "high tide", '"high tide"')


def test_many_matches_leave_room_for_their_brackets() -> None:
    found = snippet("a " * 1_000, parse_terms("a"))

    assert len(found.text) <= SNIPPET_LONGEST
    assert found.score == 1.0
    assert found.text.startswith("[a] [a]")


def test_a_text_without_a_match_shows_its_beginning() -> None:
    assert snippet("The tide is high.", parse_terms("low")) == Snippet("The tide is high.", 0.0)
    assert snippet("", parse_terms("low")) == Snippet("", 0.0)
    assert snippet("…", parse_terms("…")) == Snippet("…", 0.0)


@given(st.text(max_size=400), st.text(min_size=1, max_size=20))
def test_a_snippet_is_never_too_long(text: str, query: str) -> None:
    found = snippet(text, parse_terms(query))

    assert len(found.text) <= SNIPPET_LONGEST
    assert 0 <= found.score <= 1


def test_one_endless_word_is_cut() -> None:
    found = shown("x" * 1_000, "x" * 1_000)

    assert len(found) <= SNIPPET_LONGEST
