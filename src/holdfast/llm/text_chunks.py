"""Text as the built-in models stream it: cut into words, and counted as if a word were a token."""

import re
from collections.abc import Iterator
from typing import Final

from holdfast.domain.costs import Usage
from holdfast.ports import LlmRequest

_WORD: Final = re.compile(r"\S+\s*|\s+")


def split_words(text: str) -> list[str]:
    """Cut the text into words, each with the space behind it; joined they are the text."""
    return _WORD.findall(text)


def split_pieces(text: str, count: int) -> Iterator[str]:
    """Cut the text into so many pieces of nearly equal length, fewer when it is too short."""
    count = min(count, len(text))
    for number in range(count):
        yield text[number * len(text) // count : (number + 1) * len(text) // count]


def count_usage(request: LlmRequest, *, output: str, reasoning: str = "") -> Usage:
    """Return a usage that depends on nothing but the words that went in and came out."""
    asked = len((request.system or "").split())
    thought = len(reasoning.split())
    return Usage(
        input=asked + sum(len(message.text.split()) for message in request.messages),
        output=len(output.split()) + thought,
        reasoning=thought,
    )
