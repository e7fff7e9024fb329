"""What is searched of a thing: the text that people would look for, without keys and handles."""

from collections.abc import Iterator
from typing import Any

from holdfast.domain.messages import (
    Media,
    Notice,
    Part,
    Plan,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)


def text_of(parts: tuple[Part, ...]) -> str:
    """Return the text of a row of the record."""
    return "\n".join(piece for part in parts for piece in _pieces(part))


def tool_of(parts: tuple[Part, ...]) -> str | None:
    """Return the tool that a row calls, or has the result of."""
    first = parts[0] if parts else None
    return first.name if isinstance(first, ToolCall | ToolResult) else None


def text_of_value(value: Any) -> str:
    """Return the text of a value made of JSON."""
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
        case Plan():
            yield from (step.text for step in part.steps)
        case _:
            yield part.summary


def _values(value: Any) -> Iterator[str]:
    """Yield the texts and numbers of a value, however deep, without recursion."""
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
                # Nothing else is made of JSON.
                waiting.extend(reversed(inner))
