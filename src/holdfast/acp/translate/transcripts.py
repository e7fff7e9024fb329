"""A conversation as one text, for a program that has forgotten it: newest turns, within a limit.

It is written for a model to read; nothing is stored of it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from holdfast.domain.ids import CallId
from holdfast.domain.messages import (
    CLOSING,
    Media,
    Message,
    Notice,
    Part,
    ResultStatus,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from holdfast.domain.turns import Turn, turns

LONGEST: Final = 100_000
RESULT_LONGEST: Final = 2_000
ARGUMENTS_LONGEST: Final = 500
HEADING: Final = (
    "This is the record of an earlier conversation between you and the user, from which to go on. "
    "It is there to be known, not to be done again."
)
_END: Final = "This is the end of the record."
_BETWEEN: Final = "\n\n"
_ROOM: Final = 200


def transcript(history: Iterable[Message], *, turn: int) -> str | None:
    """Return what was said before a turn; nothing if nothing was."""
    earlier = [group for group in turns(history) if group.number < turn]
    told = [_BETWEEN.join(_lines(group)) for group in earlier]
    told = [each for each in told if each]
    if not told:
        return None
    kept = _newest(told, LONGEST - len(HEADING) - len(_END) - _ROOM)
    return _BETWEEN.join((HEADING, *kept, _END))


def _newest(told: Sequence[str], room: int) -> list[str]:
    """Return the newest turns that there is room for, and a mark where others are missing."""
    kept: list[str] = []
    for each in reversed(told):
        if len(each) + len(_BETWEEN) > room:
            break
        room -= len(each) + len(_BETWEEN)
        kept.insert(0, each)
    missing = len(told) - len(kept)
    if not kept:
        # The end of the newest turn, because that is where the conversation goes on.
        kept = [f"[… the beginning of this turn is left out …]\n{told[-1][-room:]}"]
        missing -= 1
    return [f"[… {missing} earlier turns are left out …]", *kept] if missing else kept


def _lines(turn: Turn) -> Iterator[str]:
    results = {
        part.call_id: part
        for row in turn.messages
        for part in row.parts
        if isinstance(part, ToolResult)
    }
    for row in turn.messages:
        if row.role is Role.USER:
            yield f"User: {_said(row.parts)}"
        elif row.role is Role.ASSISTANT and (said := _said(row.parts)):
            yield f"Assistant: {said}"
        else:
            yield from _others(row.parts, results)


def _others(parts: Sequence[Part], results: Mapping[CallId, ToolResult]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, ToolCall):
            arguments = _cut(msgspec.json.encode(part.arguments).decode(), ARGUMENTS_LONGEST)
            yield f"Tool {part.name}: {arguments}\n{_result(results.get(part.id))}"
        elif isinstance(part, Notice) and part.code in CLOSING:
            yield f"({part.text})"


def _said(parts: Sequence[Part]) -> str:
    return "".join(filter(None, map(_words, parts)))


def _words(part: Part) -> str | None:
    if isinstance(part, Text):
        return part.text
    # Named only: what is attached is not in the record, and cannot be sent with it.
    return f"[{part.name or part.mime_type}]" if isinstance(part, Media) else None


def _result(result: ToolResult | None) -> str:
    if result is None:
        return "(no result)"
    shown = result.result
    if result.status is not ResultStatus.OK:
        said = f": {result.error.message}" if result.error else ""
        return _cut(f"({result.status}{said})", RESULT_LONGEST)
    text = shown if isinstance(shown, str) else msgspec.json.encode(shown).decode()
    return _cut(text, RESULT_LONGEST)


def _cut(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    return f"{text[:longest]}[… {len(text) - longest} characters left out …]"
