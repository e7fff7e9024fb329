"""Reads a session's rows in batches of bounded size, so that memory use stays bounded.

Each batch is read in its own snapshot. Rows never change, so batches up to a fixed number are
equivalent to one snapshot. Formatting of the rows happens elsewhere.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from holdfast.domain.ids import (
    LOCAL_OWNER,
    MessageId,
    Owner,
    SessionId,
    SessionKey,
    is_uuid,
    session_as_owner,
)
from holdfast.domain.messages import Message, Role
from holdfast.domain.queries import MessageQuery
from holdfast.domain.sessions import SessionState
from holdfast.domain.turns import Endings
from holdfast.ports.store import Store, Tx
from holdfast.services.journal import find_session_state, session_not_found
from holdfast.services.live_session import MessageRange, read_messages

T = TypeVar("T")

# Size limit of a page of large items; its cursor continues after it.
LIST_BYTES: Final = 4 << 20
READ_AT_ONCE: Final = 50
encode: Final = msgspec.json.Encoder().encode

# SQLite reads some rows whole to find one, so smaller batches would spend most time on that.
BATCH_BYTES: Final = 2 << 20
BATCH_ROWS: Final = 500
# For a caller that holds all of them anyway; each batch changes the thread twice.
PAGE_ROWS: Final = 10_000


async def find_listed(tx: Tx, owner: Owner, session_id: SessionId | None) -> SessionKey | None:
    """Return the session that a listing is narrowed to; refuses its id in place of the owner."""
    if session_id is not None:
        return (await find_session_state(tx, owner, session_id)).key
    if is_uuid(owner) and await tx.sessions.state(LOCAL_OWNER, SessionId(owner)) is not None:
        raise session_as_owner()
    return None


class MessageBatch(Struct, frozen=True):
    """Rows in order of their numbers, and the ids of those texts that were cut off."""

    rows: tuple[Message, ...]
    interrupted: frozenset[MessageId] = frozenset()


async def read_batches(
    store: Store,
    state: SessionState,
    first: int = 1,
    last: int | None = None,
    *,
    most: int = BATCH_ROWS,
) -> AsyncGenerator[MessageBatch, None]:
    """Yield the rows of a session in a range of numbers, at most `most` at a time."""
    end = state.messages if last is None else min(last, state.messages)
    endings, ahead = Endings(), first - 1
    previous: bytes | None = None
    while first <= end:
        stretch = MessageRange(first, end, limit=most, size=BATCH_BYTES, previous=previous)
        rows = await _read(store, state.key, stretch)
        previous = rows[-1].chain
        # A user's rows end nothing, and are most of some sessions.
        others = [row for row in rows if row.role is not Role.USER]
        endings.add(row for row in others if row.sequence > ahead)
        first = rows[-1].sequence + 1
        ahead = max(ahead, first - 1)
        # The end of a turn is written after its texts, so read ahead and retain only the endings.
        while ahead < state.messages and endings.is_undecided(others):
            rest = MessageRange(ahead + 1, state.messages, limit=BATCH_ROWS, size=BATCH_BYTES)
            more = await _read(store, state.key, rest)
            endings.add(more)
            ahead = more[-1].sequence
        yield MessageBatch(tuple(rows), endings.interrupted(others))


class Scan:
    """The messages that match a query, in batches; used once."""

    def __init__(self, store: Store, state: SessionState, query: MessageQuery) -> None:
        self._store = store
        self._head = state
        self._query = query
        # The number to continue after; set after the last batch.
        self.next_cursor: str | None = None

    async def batches(self, at_once: int | None = None) -> AsyncGenerator[MessageBatch, None]:
        """Yield the matching rows, ascending; with `before`, the last ones before it."""
        query, state = self._query, self._head
        last = state.messages if query.before is None else min(query.before - 1, state.messages)
        # Clamped, because the number may be arbitrarily large.
        first = min(query.after, state.messages) + 1
        if query.before is not None:
            first = await self._first_of_last(first, last)
        left, sequence = query.limit, 0
        most = at_once or BATCH_ROWS
        most = most if query.is_choosy else min(query.limit + 1, most)
        async with aclosing(read_batches(self._store, state, first, last, most=most)) as batches:
            async for batch in batches:
                found = batch.rows
                if query.is_choosy:
                    found = tuple(row for row in found if query.wants(row))
                shown = found[:left]
                if shown:
                    left, sequence = left - len(shown), shown[-1].sequence
                    yield MessageBatch(shown, batch.interrupted)
                if len(found) > len(shown):
                    self.next_cursor = str(sequence)
                    return

    async def _first_of_last(self, first: int, last: int) -> int:
        """Return the number of the first of the last `limit` rows that match."""
        query = self._query
        if not query.is_choosy:
            return max(first, last - query.limit + 1)
        left, found = query.limit, last + 1
        while first <= last and left > 0:
            stretch = MessageRange(first, last, limit=BATCH_ROWS, newest=True, size=BATCH_BYTES)
            rows = await _read(self._store, self._head.key, stretch)
            matching = [row.sequence for row in rows if query.wants(row)][-left:]
            found = matching[0] if matching else found
            left, last = left - len(matching), rows[0].sequence - 1
        return found


async def _read(store: Store, key: SessionKey, stretch: MessageRange) -> list[Message]:
    async def read(tx: Tx) -> list[Message]:
        # The current state, because the session may be deleted or a fork detached meanwhile.
        state = await tx.sessions.state_by_key(key)
        if state is None:
            raise session_not_found()
        return await read_messages(tx, state, stretch)

    return await store.read(read)


async def fill_page(
    read: Callable[[T | None, int], Awaitable[list[T]]], limit: int
) -> tuple[tuple[T, ...], bool]:
    """Return items up to a limit or a size, and whether there are more.

    `read` returns the items after a given one, or the first ones. It is called with small limits,
    because the size of an item is known only after reading it.
    """
    found: list[T] = []
    size = 0
    while True:
        wanted = min(limit + 1 - len(found), READ_AT_ONCE)
        more = await read(found[-1] if found else None, wanted)
        for item in more:
            if len(found) == limit or size > LIST_BYTES:
                return tuple(found), True
            found.append(item)
            size += len(encode(item))
        if len(more) < wanted:
            return tuple(found), False
