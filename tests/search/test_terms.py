"""The query language: nothing that somebody types is an error."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.search.query import Term, Terms, holds, parse_terms
from holdfast.search.tokenizer import words_of
from tests.marks import each_case


def a_word(word: str) -> Term:
    return Term((word,))


@each_case(
    ("query", "terms"),
    [
        ("tide high", Terms((a_word("tide"), a_word("high")))),
        ("tide TIDE", Terms((a_word("tide"),))),
        ('"high tide"', Terms((Term(("high", "tide")),))),
        ("e-mail", Terms((Term(("e", "mail")),))),
        ("tid*", Terms((Term(("tid",), is_beginning=True),))),
        ("t*", Terms((a_word("t"),))),
        ('"high ti"*', Terms((Term(("high", "ti"), is_beginning=True),))),
        ("tide -low", Terms((a_word("tide"),), (a_word("low"),))),
        ('tide -"low tide"', Terms((a_word("tide"),), (Term(("low", "tide")),))),
        ("--limit", Terms((a_word("limit"),))),
        ("-low", Terms((a_word("low"),))),
        ('"half a phrase', Terms((a_word("half"), a_word("a"), a_word("phrase")))),
        ('un"quoted "words', Terms((a_word("un"), Term(("quoted",)), a_word("words")))),
        ("a AND b OR NEAR(c)", parse_terms("a and b or near(c)")),
        ("東京", Terms((Term(("東", "京")),))),
        ('"" * - ( : ^', Terms(())),
        ("   ", Terms(())),
    ],
)
def test_a_query_asks_for(query: str, terms: Terms) -> None:
    assert parse_terms(query) == terms


@each_case(
    ("query", "text", "is_found"),
    [
        ("tide high", "High is the tide.", True),
        ("tide low", "High is the tide.", False),
        ('"high tide"', "The high tide", True),
        ('"high tide"', "The tide is high", False),
        ('"the high"', "high the", False),
        ('"high ti"*', "a high tide", True),
        ('"high ti"*', "a high sea", False),
        ("ti*", "a tide", True),
        ("ti*", "a sea", False),
        ("tide -low", "a low tide", False),
        ("tide -low", "a high tide", True),
        ('tide -"low tide"', "low was the tide", True),
        ('tide -"low tide"', "a low tide", False),
        ("京都", "東京都", True),
        ("都京", "東京都", False),
        ("---", "anything", False),
    ],
)
def test_a_text_holds_what_is_asked_for(query: str, text: str, is_found: bool) -> None:
    assert holds(parse_terms(query), words_of(text)) is is_found


@given(st.text(max_size=60))
def test_every_text_that_has_a_word_is_found_by_itself(text: str) -> None:
    words = words_of(text)

    # A sign in front of a word is a wish; without such signs a text holds all its own words.
    assert holds(parse_terms(text.replace("-", " ").replace("*", " ")), words) is bool(words)
    parse_terms(text)
