"""The rows of sessions whose turns run here, so that a long history is not read anew each turn.

Nothing is believed because it is remembered: a remembered history counts only while the chain of
the stored rows after it leads on from its last hash.
"""

from collections import OrderedDict
from typing import Final

from msgspec import Struct

from holdfast.domain.ids import SessionKey
from holdfast.domain.messages import Message
from holdfast.domain.sessions import Head
from holdfast.ports import Segment, Tx

ROWS_MOST: Final = 100_000
ALL: Final = -1


class Histories:
    """Remembers the newest histories, up to a number of rows in all."""

    def __init__(self) -> None:
        self._known: OrderedDict[SessionKey, tuple[Message, ...]] = OrderedDict()
        self._rows = 0

    def knows(self, key: SessionKey) -> bool:
        """Tell whether only the newest rows of a session have to be read."""
        return key in self._known

    async def read(self, tx: Tx, head: Head) -> tuple[Message, ...]:
        """Return all rows of the session, inherited ones first."""
        known = self._forget(head.key)
        last = len(known)
        # Read again from the last remembered row on: where it is the stored one, so is all before.
        rest = tuple(await rows_of(tx, head, Stretch(max(last, 1), head.messages)))
        if not known or (rest and rest[0].hash == known[-1].hash):
            history = known[:-1] + rest
        else:
            history = tuple(await rows_of(tx, head, Stretch(1, head.messages)))
        self._remember(head.key, history)
        return history

    def _forget(self, key: SessionKey) -> tuple[Message, ...]:
        known = self._known.pop(key, ())
        self._rows -= len(known)
        return known

    def _remember(self, key: SessionKey, history: tuple[Message, ...]) -> None:
        self._known[key] = history
        self._rows += len(history)
        # By rows and not by sessions, because it is rows that take the memory.
        while self._rows > ROWS_MOST and len(self._known) > 1:
            _, oldest = self._known.popitem(last=False)
            self._rows -= len(oldest)


class Stretch(Struct, frozen=True):
    """Which rows of a session: from one number to another, so many, from which end."""

    first: int
    last: int
    limit: int = ALL
    newest: bool = False


async def rows_of(tx: Tx, head: Head, wanted: Stretch) -> list[Message]:
    """Return rows of a session, reading through the sessions it was forked from."""
    if wanted.first > head.inherited:
        own = Segment(head.key, head.session_id, wanted.first, wanted.last)
        return await tx.messages.span(own, limit=wanted.limit, newest=wanted.newest)
    found: list[Message] = []
    lineage = await tx.sessions.lineage(head.key)
    for part in reversed(lineage) if wanted.newest else lineage:
        first, last = max(part.first, wanted.first), min(part.last, wanted.last)
        left = wanted.limit - len(found) if wanted.limit != ALL else ALL
        if first > last or left == 0:
            continue
        stretch = Segment(part.key, part.session_id, first, last)
        rows = await tx.messages.span(stretch, limit=left, newest=wanted.newest)
        found = rows + found if wanted.newest else found + rows
    return found
