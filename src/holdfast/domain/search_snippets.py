"""Snippets: a few words of a text around what was found first, with what was found in brackets."""

import re
from collections.abc import Sequence
from itertools import islice
from typing import Final

from msgspec import Struct

from holdfast.domain.search_terms import Term, Terms, stands_at
from holdfast.domain.search_words import Placed, placed_words

SNIPPET_LONGEST: Final = 300
# Of the text itself, so that brackets and dots have room.
_TEXT_LONGEST: Final = 240
_BEFORE: Final = 80
_SPACE: Final = re.compile(r"\s+")
_CHUNK: Final = 4_096

# From one number to another.
Stretch = tuple[int, int]


class Snippet(Struct, frozen=True):
    """A piece of a text, and which part of its words was searched for."""

    text: str
    score: float


def snippet(text: str, terms: Terms) -> Snippet:
    """Return the piece of a text around the first match; without one, its beginning."""
    words = _around(text, terms)
    found = _found(words, terms.wanted)
    first = words[found[0][0]][1] if found else 0
    start = _start(words, max(0, first - _BEFORE))
    end = start + _TEXT_LONGEST
    while True:
        inside = [place for place, word in enumerate(words) if start <= word[1] and word[2] <= end]
        shown = [each for each in found if each[0] in inside and each[1] in inside]
        told = _told(text, [(words[one][1], words[other][2]) for one, other in shown], (start, end))
        if len(told) <= SNIPPET_LONGEST:
            count = sum(other - one + 1 for one, other in shown)
            return Snippet(told, round(count / max(len(inside), 1), 4))
        end -= max(1, len(told) - SNIPPET_LONGEST)


def _around(text: str, terms: Terms) -> list[Placed]:
    """Return the words around the first match: a long text is not read to its end for it."""
    longest = max((len(term.words) for term in terms.wanted), default=1)
    placed = placed_words(text)
    kept: list[Placed] = []
    while chunk := list(islice(placed, _CHUNK)):
        kept += chunk
        if _found(kept, terms.wanted):
            return [*kept, *islice(placed, _TEXT_LONGEST)]
        # What precedes the match is shown too, and a phrase may begin in one chunk of words and
        # end in the next.
        kept = kept[-(longest + _BEFORE) :]
    return list(islice(placed_words(text), _TEXT_LONGEST))


def _found(words: Sequence[Placed], terms: Sequence[Term]) -> list[Stretch]:
    """Return where terms stand, from which word to which, in their order and apart."""
    plain = [word for word, _, _ in words]
    # By their first words, because a query may have a hundred terms and a text a million words.
    by_word: dict[str, list[Term]] = {}
    beginnings = [term for term in terms if term.is_beginning and len(term.words) == 1]
    for term in terms:
        by_word.setdefault(term.words[0], []).append(term)
    everywhere = sorted(
        {
            (place, place + len(term.words) - 1)
            for place, word in enumerate(plain)
            for term in (*by_word.get(word, ()), *beginnings)
            if stands_at(term, plain, place)
        }
    )
    apart: list[Stretch] = []
    for first, last in everywhere:
        # Terms may share words, and two words may be made of one character.
        if apart and (first <= apart[-1][1] or words[first][1] < words[apart[-1][1]][2]):
            apart[-1] = (apart[-1][0], max(apart[-1][1], last))
        else:
            apart.append((first, last))
    return apart


def _start(words: Sequence[Placed], wanted: int) -> int:
    """Return where the first whole word begins from a place on."""
    if wanted == 0:
        return 0
    return next((start for _, start, _ in words if start >= wanted), wanted)


def _told(text: str, found: Sequence[Stretch], window: Stretch) -> str:
    start, end = window
    pieces = ["…"] if start else []
    at = start
    for first, last in found:
        pieces += [text[at:first], "[", text[first:last], "]"]
        at = last
    pieces += [text[at:end], "…" if end < len(text) else ""]
    return _SPACE.sub(" ", "".join(pieces)).strip()
