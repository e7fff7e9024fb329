"""Ranges of a session's message rows, including those of the sessions it was forked from."""

from typing import Final

from msgspec import Struct

from holdfast.domain.messages import Message
from holdfast.domain.sessions import SessionState
from holdfast.ports.store import Segment, Tx

ALL: Final = -1


class MessageRange(Struct, frozen=True):
    """A range of rows: first and last number, limit, and from which end.

    With `size`, rows are returned up to that many bytes, at least one and possibly fewer than would
    fit: continue after the number of the last row.
    """

    first: int
    last: int
    limit: int = ALL
    newest: bool = False
    size: int | None = None
    # The hash of the row before the first, if that row was just read.
    previous: str | None = None


async def rows_of(tx: Tx, head: SessionState, wanted: MessageRange) -> list[Message]:
    """Return rows of a session, including rows of the sessions it was forked from."""
    if wanted.first > head.inherited:
        own = Segment(head.key, head.session_id, wanted.first, wanted.last)
        return await _span(tx, own, wanted, wanted.limit)
    found: list[Message] = []
    lineage = await tx.sessions.lineage(head.key)
    for part in reversed(lineage) if wanted.newest else lineage:
        first, last = max(part.first, wanted.first), min(part.last, wanted.last)
        left = wanted.limit - len(found) if wanted.limit != ALL else ALL
        if first > last or left == 0 or (found and wanted.size is not None):
            continue
        stretch = Segment(part.key, part.session_id, first, last)
        rows = await _span(tx, stretch, wanted, left)
        found = rows + found if wanted.newest else found + rows
    return found


async def _span(tx: Tx, segment: Segment, wanted: MessageRange, limit: int) -> list[Message]:
    previous = wanted.previous if segment.first == wanted.first else None
    return await tx.messages.span(
        segment, limit=limit, newest=wanted.newest, size=wanted.size, previous=previous
    )
