"""The words of a text, as they are searched: without case, accents and forms of the same letter.

Scripts that put no space between words give a word for each character; what stands together is
then found by looking at the text (decision 0029).
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Final

# A longer one is no word, and is found by its beginning.
WORD_LONGEST: Final = 64
# Thai, Lao, Burmese, Khmer, kana, Han and Hangul.
_SINGLE: Final = (
    "\u0e01-\u0e4e\u0e81-\u0ecd\u1000-\u103f\u1780-\u17d3\u3041-\u3096\u30a1-\u30fa\u3400-\u4dbf"
    "\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff"
)
# What joins the letter before it: accents, and the vowels and joints of Indian scripts.
_JOINED: Final = "\u0300-\u036f\u0483-\u0487\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670"
_INDIAN: Final = "\u0900-\u0963\u0966-\u0dff"
_ASCII_WORD: Final = re.compile("[a-z0-9]+")
# The letters in a time of ISO 8601, which would join the day to the hour and stick to its end.
_TIME: Final = re.compile(
    r"([0-9])(?:(?<=-[0-9]{2})[Tt](?=[0-9]{2}:)"
    r"|(?:(?<=:[0-9]{2})|(?<=\.[0-9]{3})|(?<=\.[0-9]{6}))[Zz](?![0-9A-Za-z]))"
)
_ACCENTS: Final = re.compile(f"[{_JOINED}]")

# A word, and where it stands in the text.
Placed = tuple[str, int, int]


@cache
def _word() -> re.Pattern[str]:
    # Made by whoever meets more than ASCII: with it, to import us would take 3 ms longer.
    return re.compile(f"[{_SINGLE}]|(?:(?![{_SINGLE}])(?:[^\\W_]|[{_JOINED}{_INDIAN}]))+")


def words_of(text: str) -> list[str]:
    """Return the words of a text in their order."""
    text = _apart(text)
    if text.isascii():
        return [word[:WORD_LONGEST] for word in _ASCII_WORD.findall(text.lower())]
    return [word for found in _word().findall(text) for word in _folded(found)]


def placed_words(text: str) -> Iterator[Placed]:
    """Yield the words of a text in their order, each with where it begins and ends."""
    for found in _word().finditer(_apart(text)):
        for word in _folded(found[0]):
            yield word, found.start(), found.end()


def _apart(text: str) -> str:
    """Return a text in which days, hours and zones stand apart; nothing changes its place."""
    return _TIME.sub(r"\1 ", text) if ":" in text else text


@lru_cache(maxsize=8_192)
def _folded(found: str) -> tuple[str, ...]:
    """Return what is searched of a piece of text; a ligature or a sign may hold several words."""
    if found.isascii():
        return (found.lower()[:WORD_LONGEST],)
    plain = _ACCENTS.sub("", unicodedata.normalize("NFKD", found.casefold()))
    again = unicodedata.normalize("NFKC", plain).casefold()
    return tuple(word[:WORD_LONGEST] for word in _word().findall(again))
