"""Text chunks of the built-in models: split into words, with one token counted per word."""

import re
from collections.abc import Iterator
from typing import Final

from holdfast.domain.costs import Usage
from holdfast.ports.llm import LlmRequest

_WORD: Final = re.compile(r"\S+\s*|\s+")


def split_words(text: str) -> list[str]:
    """Split a text into words with their trailing whitespace; joined they equal the text."""
    return _WORD.findall(text)


def split_pieces(text: str, count: int) -> Iterator[str]:
    """Split a text into pieces of nearly equal length; fewer if it is too short."""
    count = min(count, len(text))
    for number in range(count):
        yield text[number * len(text) // count : (number + 1) * len(text) // count]


def count_usage(request: LlmRequest, *, output: str, reasoning: str = "") -> Usage:
    """Return a deterministic usage: the number of input and output words."""
    asked = len((request.system or "").split())
    thought = len(reasoning.split())
    return Usage(
        input=asked + sum(len(message.text.split()) for message in request.messages),
        output=len(output.split()) + thought,
        reasoning=thought,
    )
