"""Tokenizer of search: the searchable text of a record, and its words without case and accents."""

import re
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any, Final

from holdfast.domain.messages import (
    Media,
    Notice,
    Output,
    Part,
    Plan,
    Reasoning,
    Step,
    Text,
    ToolCall,
    ToolResult,
    Withdrawn,
)

# Longer words are truncated and found by their prefix.
WORD_LONGEST: Final = 64
# Scripts where each character is a word: Thai, Lao, Burmese, Khmer, kana, Han and Hangul.
_SINGLE: Final = (
    "\u0e01-\u0e4e\u0e81-\u0ecd\u1000-\u103f\u1780-\u17d3\u3041-\u3096\u30a1-\u30fa\u3400-\u4dbf"
    "\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff"
)
# Combining characters: accents, and the vowel signs and joiners of Indian scripts.
_JOINED: Final = "\u0300-\u036f\u0483-\u0487\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670"
_INDIAN: Final = "\u0900-\u0963\u0966-\u0dff"
_ASCII_WORD: Final = re.compile("[a-z0-9]+")
# The `T` and `Z` of an ISO 8601 time, which would join the date and the hour into one word.
_TIME: Final = re.compile(
    r"([0-9])(?:(?<=-[0-9]{2})[Tt](?=[0-9]{2}:)"
    r"|(?:(?<=:[0-9]{2})|(?<=\.[0-9]{3})|(?<=\.[0-9]{6}))[Zz](?![0-9A-Za-z]))"
)
_ACCENTS: Final = re.compile(f"[{_JOINED}]")
# A search for words keeps the interpreter lock; longer texts are searched in chunks of this
# length, so that requests are answered in between.
_CHUNK_SIZE: Final = 1 << 14
# A word with its start and end in the text.
Placed = tuple[str, int, int]


@cache
def _word() -> re.Pattern[str]:
    # Compiled on first use, because compiling it on import would cost 3 ms. Possessive, because
    # otherwise the way back is stored for each character: 114 MB for a word of a million.
    return re.compile(f"[{_SINGLE}]|(?:[^\\W_{_SINGLE}]|[{_JOINED}{_INDIAN}])++")


def words_of(text: str) -> list[str]:
    """Return the words of a text in order."""
    if len(text) <= _CHUNK_SIZE:
        return _words_in(text)
    return [word for chunk in _chunks(text) for word in _words_in(chunk)]


def _words_in(text: str) -> list[str]:
    text = _apart(text)
    if text.isascii():
        return [word[:WORD_LONGEST] for word in _ASCII_WORD.findall(text.lower())]
    return [word for found in _word().findall(text) for word in _normalize(found)]


def _chunks(text: str) -> Iterator[str]:
    """Yield a text in chunks that end at a space, so that no word is cut."""
    start = 0
    while start < len(text):
        cut = text.rfind(" ", start, start + _CHUNK_SIZE)
        end = cut + 1 or text.find(" ", start) + 1 or len(text)
        yield text[start:end]
        start = end


def locate_words(text: str) -> Iterator[Placed]:
    """Yield the words of a text in order, each with its start and end."""
    for found in _word().finditer(_apart(text)):
        for word in _normalize(found[0]):
            yield word, found.start(), found.end()


def _apart(text: str) -> str:
    """Return a text with the parts of ISO 8601 times separated; offsets are unchanged."""
    return _TIME.sub(r"\1 ", text) if ":" in text else text


def _normalize(text: str) -> tuple[str, ...]:
    """Return the normalised words of a match; a ligature or symbol may expand to several."""
    # Longer ones are not kept: they would fill the memory of the process.
    return _kept_folded(text) if len(text) <= WORD_LONGEST else _fold(text)


def _fold(text: str) -> tuple[str, ...]:
    if text.isascii():
        return (text.lower()[:WORD_LONGEST],)
    plain = _ACCENTS.sub("", unicodedata.normalize("NFKD", text.casefold()))
    again = unicodedata.normalize("NFKC", plain).casefold()
    return tuple(word[:WORD_LONGEST] for word in _word().findall(again))


_kept_folded = lru_cache(maxsize=8_192)(_fold)


def text_of(parts: tuple[Part, ...]) -> str:
    """Return the searchable text of a message."""
    # As most messages are.
    if len(parts) == 1 and isinstance(part := parts[0], Text):
        return part.text
    return "\n".join(piece for part in parts for piece in _pieces(part))


def tool_of(parts: tuple[Part, ...]) -> str | None:
    """Return the tool of a call or a result."""
    first = parts[0] if parts else None
    return first.name if isinstance(first, ToolCall | ToolResult) else None


def text_of_value(value: Any) -> str:
    """Return the searchable text of a JSON value."""
    return "\n".join(_values(value))


def _pieces(part: Part) -> Iterator[str]:
    match part:
        case Text() | Reasoning() | Notice():
            yield part.text
        case Media():
            yield part.name or ""
        case ToolCall():
            yield part.name
            yield part.title or ""
            yield from _values(part.arguments)
            yield from (each.path for each in part.locations)
        case ToolResult():
            yield part.name
            yield from _values(part.result)
            if part.error is not None:
                yield part.error.code
                yield part.error.message
        case Output():
            # The adjacent text contains the value.
            return
        case Plan():
            yield from (step.text for step in part.steps)
        case Step():
            yield part.name
            yield from _values(part.result)
        case Withdrawn():
            yield part.reason
        case _:
            yield part.summary


def _values(value: Any) -> Iterator[str]:
    """Yield the texts and numbers of a value at any depth, without recursion."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case str(text):
                yield text
            case bool() | None:
                pass
            case int() | float() as number:
                yield str(number)
            case dict() as inner:
                waiting.extend(reversed(inner.values()))
            case inner:
                # The only other JSON type is a list.
                waiting.extend(reversed(inner))
