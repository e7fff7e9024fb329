"""Cache of the rows of sessions whose turns run here, so that each turn reads only new rows.

Entries are validated by the hash chain: a cached history is used only if the stored rows continue
from its last hash.
"""

import sys
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from holdfast.domain.ids import SessionKey
from holdfast.domain.messages import Message, Part, Reasoning, Text, ToolResult
from holdfast.domain.sessions import SessionState
from holdfast.ports.store import Segment, Tx

BYTES_MOST: Final = 32 << 20
# Measured memory overhead of a row beside its text.
_OF_A_ROW: Final = 1 << 10
ALL: Final = -1


class HistoryCache:
    """Caches the most recently used histories, up to a total size."""

    def __init__(self) -> None:
        self._known: OrderedDict[SessionKey, CachedHistory] = OrderedDict()
        self._bytes = 0

    def knows(self, key: SessionKey) -> bool:
        """Return whether the session is cached, so that only its newest rows must be read."""
        return key in self._known

    def forget(self, key: SessionKey) -> None:
        """Evict a session that has ended."""
        self._forget(key)

    async def read(self, tx: Tx, head: SessionState) -> tuple[Message, ...]:
        """Return all rows of the session, inherited ones first."""
        found = self._forget(head.key)
        known = found.rows
        last = len(known)
        # The last cached row is read again: if its hash matches, so do all rows before it.
        rest = tuple(await rows_of(tx, head, MessageRange(max(last, 1), head.messages)))
        if not known or (rest and rest[0].hash == known[-1].hash):
            # Sizes are added up incrementally, because measuring the whole history each turn is
            # slow.
            weight = found.weight - weight_of(known[-1:]) + weight_of(rest)
            history = CachedHistory(known[:-1] + rest, weight)
        else:
            rows = tuple(await rows_of(tx, head, MessageRange(1, head.messages)))
            history = CachedHistory(rows, weight_of(rows))
        self._remember(head.key, history)
        return history.rows

    def _forget(self, key: SessionKey) -> "CachedHistory":
        known = self._known.pop(key, NOTHING)
        self._bytes -= known.weight
        return known

    def _remember(self, key: SessionKey, history: "CachedHistory") -> None:
        self._known[key] = history
        self._bytes += history.weight
        # Limited by bytes, because one session may be as long as a thousand others.
        while self._bytes > BYTES_MOST and len(self._known) > 1:
            _, oldest = self._known.popitem(last=False)
            self._bytes -= oldest.weight


class CachedHistory(Struct, frozen=True):
    """The rows of a session, and their size in memory."""

    rows: tuple[Message, ...] = ()
    weight: int = 0


NOTHING: Final = CachedHistory()


def weight_of(rows: Sequence[Message]) -> int:
    """Return the approximate size of rows in memory, in bytes."""
    return sum(_OF_A_ROW + sum(map(_weight, row.parts)) for row in rows)


def _weight(part: Part) -> int:
    match part:
        case Text(text=text) | Reasoning(text=text) | ToolResult(result=str(text)):
            return sys.getsizeof(text)
        case _:
            return 0


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
