"""Excerpts: what of a record is new to a reader, with what it takes to understand it.

A result is shown together with its call, and the call may be older than what the reader has seen;
a call at the end of a page may have its result behind it. Both are looked up, so that a reader who
polls costs what is new and not what is there.
"""

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from holdfast.domain.ids import CallId
from holdfast.domain.messages import Message, ToolCall, ToolResult
from holdfast.domain.sessions import Head
from holdfast.ports import Tx
from holdfast.services.histories import ALL, Stretch, rows_of


class Excerpt(Struct, frozen=True, kw_only=True):
    """Rows behind a place, older calls whose results are among them, and what has to wait."""

    rows: tuple[Message, ...]
    calls: tuple[Message, ...]
    # Calls among the rows whose results are there, but behind them.
    answered: frozenset[CallId]
    is_last: bool


async def excerpt(tx: Tx, head: Head, after: int, limit: int = ALL) -> Excerpt:
    """Return so many rows behind a number, or all of them."""
    first = min(after, head.messages) + 1
    rows = await rows_of(tx, head, Stretch(first, head.messages, limit=limit))
    last = rows[-1].sequence if rows else head.messages
    called = {part.id for row in rows for part in row.parts if isinstance(part, ToolCall)}
    given = {part.call_id for row in rows for part in row.parts if isinstance(part, ToolResult)}
    return Excerpt(
        rows=tuple(rows),
        calls=tuple(
            [row for each in sorted(given - called) for row in await _call(tx, head, each, first)]
        ),
        answered=frozenset(
            [each for each in called - given if await _has_result(tx, head, each, last)]
        ),
        is_last=last == head.messages,
    )


async def number_at(tx: Tx, head: Head, at: datetime) -> int:
    """Return the number of the last row that is not later than an instant; 0 if all are.

    Times rise with the numbers, so that the stretch the row is in can be halved.
    """
    low, high = 0, head.messages
    # A reader who polls is mostly at the end, so the end is asked first.
    middle = high
    while low < high:
        (row,) = await rows_of(tx, head, Stretch(middle, middle))
        if row.created_at <= at:
            low = middle
        else:
            high = middle - 1
        middle = (low + high + 1) // 2
    return low


async def _call(tx: Tx, head: Head, call_id: CallId, before: int) -> list[Message]:
    known = await tx.calls.by_id(head, call_id)
    # What a fork inherits is told by its rows only.
    stretch = Stretch(1, before - 1) if known is None else Stretch(known.sequence, known.sequence)
    return [row for row in await rows_of(tx, head, stretch) if _is_call(row, call_id)][-1:]


async def _has_result(tx: Tx, head: Head, call_id: CallId, last: int) -> bool:
    if last == head.messages:
        return False
    known = await tx.calls.by_id(head, call_id)
    if known is not None:
        return known.result_sequence is not None
    return _is_answered(await rows_of(tx, head, Stretch(last + 1, head.messages)), call_id)


def _is_call(row: Message, call_id: CallId) -> bool:
    return any(isinstance(part, ToolCall) and part.id == call_id for part in row.parts)


def _is_answered(rows: Sequence[Message], call_id: CallId) -> bool:
    results = (part for row in rows for part in row.parts if isinstance(part, ToolResult))
    return any(part.call_id == call_id for part in results)
