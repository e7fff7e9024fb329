"""The rows of sessions whose turns run here, so that a long history is not read anew each turn.

Nothing is believed because it is remembered: a remembered history counts only while the chain of
the stored rows after it leads on from its last hash.
"""

import sys
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from holdfast.domain.ids import SessionKey
from holdfast.domain.messages import Message, Part, Reasoning, Text, ToolResult
from holdfast.domain.sessions import SessionState
from holdfast.ports import Segment, Tx

BYTES_MOST: Final = 32 << 20
# What a row takes beside its text, as it was measured.
_OF_A_ROW: Final = 1 << 10
ALL: Final = -1


class HistoryCache:
    """Remembers the newest histories, up to what they weigh in all."""

    def __init__(self) -> None:
        self._known: OrderedDict[SessionKey, CachedHistory] = OrderedDict()
        self._bytes = 0

    def knows(self, key: SessionKey) -> bool:
        """Tell whether only the newest rows of a session have to be read."""
        return key in self._known

    def forget(self, key: SessionKey) -> None:
        """Remember a session no longer: it has ended."""
        self._forget(key)

    async def read(self, tx: Tx, head: SessionState) -> tuple[Message, ...]:
        """Return all rows of the session, inherited ones first."""
        found = self._forget(head.key)
        known = found.rows
        last = len(known)
        # Read again from the last remembered row on: where it is the stored one, so is all before.
        rest = tuple(await rows_of(tx, head, MessageRange(max(last, 1), head.messages)))
        if not known or (rest and rest[0].hash == known[-1].hash):
            # Weighed once: what was known is not weighed again with every turn.
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
        # Not by sessions or rows: one may be as long as a thousand others.
        while self._bytes > BYTES_MOST and len(self._known) > 1:
            _, oldest = self._known.popitem(last=False)
            self._bytes -= oldest.weight


class CachedHistory(Struct, frozen=True):
    """The rows of a session, and what they weigh."""

    rows: tuple[Message, ...] = ()
    weight: int = 0


NOTHING: Final = CachedHistory()


def weight_of(rows: Sequence[Message]) -> int:
    """Return about how many bytes of memory rows take."""
    return sum(_OF_A_ROW + sum(map(_weight, row.parts)) for row in rows)


def _weight(part: Part) -> int:
    match part:
        case Text(text=text) | Reasoning(text=text) | ToolResult(result=str(text)):
            return sys.getsizeof(text)
        case _:
            return 0


class MessageRange(Struct, frozen=True):
    """Which rows of a session: from one number to another, so many, from which end.

    With a `size`, rows are returned up to so many bytes, at least one, and possibly fewer than
    would fit: the number of the last row says where to go on.
    """

    first: int
    last: int
    limit: int = ALL
    newest: bool = False
    size: int | None = None
    # The hash of the row before the first, where that row was read just now.
    previous: str | None = None


async def rows_of(tx: Tx, head: SessionState, wanted: MessageRange) -> list[Message]:
    """Return rows of a session, reading through the sessions it was forked from."""
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
