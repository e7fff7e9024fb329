"""Words as they are searched: the same word however it is written."""

import random
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from holdfast.search.tokenizer import WORD_LONGEST, locate_words, words_of
from tests.marks import each_case


@each_case(
    ("text", "words"),
    [
        ("Hello, brave new WORLD!", ["hello", "brave", "new", "world"]),
        ("snake_case kebab-case", ["snake", "case", "kebab", "case"]),
        ("Résumé re\u0301sume\u0301 RÉSUMÉ", ["resume"] * 3),
        ("Straße STRASSE", ["strasse"] * 2),
        ("ﬁne ｆｕｌｌ", ["fine", "full"]),
        ("東京に", ["東", "京", "に"]),
        ("서울에서", ["서", "울", "에", "서"]),
        ("ｶﾀｶﾅ", ["カ", "タ", "カ", "ナ"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("İstanbul", ["istanbul"]),
        ("½ cup", ["1", "2", "cup"]),
        ("2025-12-31T11:00:00Z", ["2025", "12", "31", "11", "00", "00"]),
        ("at 2025-12-31t11:05:00.678z.", ["at", "2025", "12", "31", "11", "05", "00", "678"]),
        ("né 2025-12-31T11:00:00.123456Z", ["ne", "2025", "12", "31", "11", "00", "00", "123456"]),
        ("31t11 A-12T34 1:30zoo", ["31t11", "a", "12t34", "1", "30zoo"]),
        ("… --- ", []),
        ("", []),
        ("x" * 100, ["x" * WORD_LONGEST]),
        ("é" * 100, ["e" * WORD_LONGEST]),
    ],
)
def test_a_text_has_these_words(text: str, words: list[str]) -> None:
    assert words_of(text) == words


@given(st.text())
def test_the_words_are_the_same_with_and_without_their_places(text: str) -> None:
    placed = list(locate_words(text))

    assert [word for word, _, _ in placed] == words_of(text)
    assert all(words_of(text[start:end]).count(word) for word, start, end in placed)


@given(st.text())
def test_searching_for_a_word_finds_it(text: str) -> None:
    for word in words_of(text):
        assert words_of(word) == [word]
        # What the index takes for one word: neither ASCII signs nor spaces are in it.
        assert not any(sign.isascii() and not sign.isalnum() for sign in word)


@each_case("gap", [" ", "", "\n"])
def test_a_long_text_has_the_words_of_its_stretches(gap: str) -> None:
    pieces = ["tide", "Été", "3:04", "潮", "x" * 40_000, "e\u0301"] * 40
    random.Random(1).shuffle(pieces)
    text = gap.join(pieces)

    assert words_of(text) == [word for word, _, _ in locate_words(text)]


def test_words_of_a_million_characters_leave_no_memory_behind() -> None:
    tracemalloc.start()
    try:
        for mark in "abcdefgh":
            (word,) = {word for word, _, _ in locate_words(mark * 1_000_000)}
            assert word == mark * WORD_LONGEST
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert kept < 1 << 20
    assert most < 8 << 20
