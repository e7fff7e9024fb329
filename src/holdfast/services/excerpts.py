"""Excerpts: what of a record is new to a reader, with what it takes to understand it.

A result is shown together with its call, and the call may be older than what the reader has seen;
a call at the end of a page may have its result behind it. Both are looked up, so that a reader who
polls costs what is new and not what is there.
"""

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.ids import CallId
from holdfast.domain.messages import Message, ToolCall, ToolResult
from holdfast.domain.sessions import Head
from holdfast.ports import Store, Tx
from holdfast.services.batches import BATCH_BYTES, BATCH_ROWS
from holdfast.services.heads import session_not_found
from holdfast.services.histories import Stretch, rows_of


class Excerpt(Struct, frozen=True, kw_only=True):
    """Rows behind a place, older calls whose results are among them, and what has to wait."""

    rows: tuple[Message, ...]
    calls: tuple[Message, ...]
    # Calls among the rows whose results are there, but behind them.
    answered: frozenset[CallId]
    last: int
    is_last: bool


async def excerpt(tx: Tx, head: Head, after: int, limit: int = BATCH_ROWS) -> Excerpt:
    """Return rows behind a number: so many, or as many as a batch may hold."""
    first = min(after, head.messages) + 1
    stretch = Stretch(first, head.messages, limit=min(limit, BATCH_ROWS), size=BATCH_BYTES)
    rows = await rows_of(tx, head, stretch)
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
        last=last,
        is_last=last == head.messages,
    )


async def excerpts(
    store: Store, head: Head, first: Excerpt, limit: int = BATCH_ROWS
) -> AsyncGenerator[Excerpt, None]:
    """Yield an excerpt and those behind it, up to where the session stood then."""
    here = first
    yield here
    while not here.is_last:

        async def read(tx: Tx, after: int = here.last) -> Excerpt:
            # As it is now, but for what came later: a fork may have been detached.
            now = await tx.sessions.head_by_key(head.key)
            if now is None:
                raise session_not_found()
            return await excerpt(tx, replace(now, messages=head.messages), after, limit)

        here = await store.read(read)
        yield here


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
    if known is not None:
        rows = await rows_of(tx, head, Stretch(known.sequence, known.sequence))
        return [row for row in rows if _is_call(row, call_id)]
    # What a fork inherits is known from its rows only.
    last = before - 1
    while last >= 1:
        stretch = Stretch(1, last, limit=BATCH_ROWS, newest=True, size=BATCH_BYTES)
        rows = await rows_of(tx, head, stretch)
        if found := [row for row in rows if _is_call(row, call_id)]:
            return found[-1:]
        last = rows[0].sequence - 1
    return []


async def _has_result(tx: Tx, head: Head, call_id: CallId, last: int) -> bool:
    if last == head.messages:
        return False
    known = await tx.calls.by_id(head, call_id)
    if known is not None:
        return known.result_sequence is not None and known.result_sequence <= head.messages
    while last < head.messages:
        stretch = Stretch(last + 1, head.messages, limit=BATCH_ROWS, size=BATCH_BYTES)
        rows = await rows_of(tx, head, stretch)
        if _is_answered(rows, call_id):
            return True
        last = rows[-1].sequence
    return False


def _is_call(row: Message, call_id: CallId) -> bool:
    return any(isinstance(part, ToolCall) and part.id == call_id for part in row.parts)


def _is_answered(rows: Sequence[Message], call_id: CallId) -> bool:
    results = (part for row in rows for part in row.parts if isinstance(part, ToolResult))
    return any(part.call_id == call_id for part in results)
