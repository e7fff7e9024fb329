"""The past of a session as text: single rows, or its last turns."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.domain.messages import (
    Compaction,
    Message,
    Notice,
    Part,
    Plan,
    Role,
    Text,
    ToolCall,
    ToolResult,
    Withdrawn,
    describe_withdrawal,
)
from holdfast.domain.text import one_line
from holdfast.domain.turns import TurnRows, group_by_turn

if TYPE_CHECKING:
    from holdfast.api import Holdfast
    from holdfast.domain.sessions import Session


PAGE = 1_000
FIRST_PAGE = 100


def lines_of(message: Message) -> list[str]:
    """Return a row for people: user text after `>`, system messages in brackets."""
    match message.parts:
        case (ToolCall() as call,):
            return [f"[{call.name} {one_line(_compact(call.arguments), longest=200)}]"]
        case (ToolResult() as result,):
            result_text = result.error.message if result.error else _compact(result.result)
            return [f"[{result.name}: {result.status}: {one_line(result_text, longest=200)}]"]
    words = "\n".join(filter(None, map(part_text, message.parts)))
    if not words:
        return []
    if message.role is Role.USER:
        # Indented, so that a line of a message cannot be mistaken for an answer.
        return ["> " + words.replace("\n", "\n  ")]
    return [words] if message.role is Role.ASSISTANT else [f"[{words}]"]


def part_text(part: Part) -> str:
    """Return the text of a part; thoughts, images and calls have none here."""
    match part:
        case Text(text=text) | Notice(text=text) | Compaction(summary=text):
            return text
        case Withdrawn():
            return describe_withdrawal(part)
        case Plan():
            return "\n".join(f"- {step.text} ({step.status})" for step in part.steps)
        case _:
            return ""


def lines_of_turns(past: Sequence[TurnRows]) -> list[str]:
    """Return turns for people, a blank line after each."""
    return [line for turn in past for line in (*_rows(turn), "")]


async def last_turns(holdfast: "Holdfast", session: "Session", most: int | None) -> list[TurnRows]:
    """Return the last turns of a session, or all; rows are read backwards, page by page."""
    rows: list[Message] = []
    before = session.message_count + 1
    # A few turns are usually a few rows, and the first screen should appear quickly.
    limit = PAGE if most is None else FIRST_PAGE
    while before > 1:
        page = await holdfast.messages.list(holdfast.owner, session.id, before=before, limit=limit)
        limit = PAGE
        rows = [*page.items, *rows]
        before = page.items[0].sequence if page.items else 1
        # One more than needed, because the first turn of a page may be incomplete.
        if most is not None and len(group_by_turn(rows)) > most:
            break
    found = group_by_turn(rows)
    return found if most is None else found[-most:]


def _rows(turn: TurnRows) -> list[str]:
    return [line for message in turn.messages for line in lines_of(message)]


def _compact(value: object) -> str:
    import msgspec

    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
