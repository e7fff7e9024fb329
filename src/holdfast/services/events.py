"""Events: the log is the stream. Replay, live following and other processes are one code path."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final

from holdfast.domain.errors import Code, Conflict, Invalid, LimitReached, Unavailable
from holdfast.domain.events import Event, Gap
from holdfast.domain.ids import Owner, SessionId, SessionKey
from holdfast.domain.queries import Page, require_limit
from holdfast.domain.sessions import Head
from holdfast.ports import Doorbell, Store, Tx
from holdfast.services.background import Background
from holdfast.services.heads import find_head
from holdfast.services.tails import PAGE_MOST, Item, News, Tail, end_of, read_items

LIST_MOST: Final = 10_000
PAGE_FIRST: Final = 50


class Events(Background):
    """The news of sessions, for their owner. Use as a context manager: it runs the tails."""

    def __init__(self, store: Store, doorbell: Doorbell) -> None:
        super().__init__()
        self._store = store
        self._doorbell = doorbell
        self._tails: dict[SessionKey, Tail] = {}
        self._pumps: dict[SessionKey, asyncio.Task[None]] = {}

    async def __aexit__(self, *error: Any) -> None:
        for tail in self._tails.values():
            tail.fail(Unavailable(Code.STORE_CLOSED, "The store is closed."))
        await super().__aexit__(*error)

    async def list(
        self, owner: Owner, session_id: SessionId, *, after: int = 0, limit: int = 1_000
    ) -> Page[Event | Gap]:
        """Return the news after a cursor, with gaps where numbers were pruned."""
        require_limit(limit, most=LIST_MOST)

        async def read(tx: Tx) -> tuple[Sequence[Item], int]:
            head = await _required(tx, owner, session_id, after)
            return await read_items(tx, head, after, limit), head.events

        items, last = await self._store.read(read)
        more = bool(items) and end_of(items[-1]) < last
        return Page(
            items=tuple(_shown(item) for item in items),
            next_cursor=str(end_of(items[-1])) if more else None,
        )

    async def follow(
        self, owner: Owner, session_id: SessionId, *, after: int = 0
    ) -> AsyncGenerator[Event | Gap, None]:
        """Yield all news after the cursor, then wait for more; never skips, never ends."""
        async with aclosing(self.batches(owner, session_id, after=after)) as batches:
            async for items in batches:
                for item in items:
                    yield _shown(item)

    async def batches(
        self, owner: Owner, session_id: SessionId, *, after: int = 0, catch_up: bool = True
    ) -> AsyncGenerator[Sequence[Item], None]:
        """Yield news as it comes, several at a time, each batch within 1 MiB.

        With `catch_up=False` a reader that was at the end of the log and fell more than 1 MiB
        behind is not served from the log again: it is told where to resume.
        """
        head = await self._store.read(lambda tx: _required(tx, owner, session_id, after))
        tail = self._join(head)
        cursor = after
        # Small at first, because a reader waits for the first page and not for the last.
        limit = PAGE_FIRST
        was_live = False
        try:
            while True:
                if was_live and not catch_up and cursor < tail.base:
                    raise _too_slow(cursor)
                items = await tail.after(cursor, limit)
                yield items
                cursor = end_of(items[-1])
                limit = min(2 * limit, PAGE_MOST)
                was_live = was_live or cursor >= tail.last
        finally:
            self._leave(head.key, tail)

    def _join(self, head: Head) -> Tail:
        tail = self._tails.get(head.key)
        # The first reader starts the reading, the last one stops it.
        if tail is None:
            tail = self._tails[head.key] = Tail(self._store, self._doorbell, head)
            self._pumps[head.key] = self.start(tail.pump())
        tail.readers += 1
        return tail

    def _leave(self, key: SessionKey, tail: Tail) -> None:
        tail.readers -= 1
        # The last one out stops the reading: a session nobody follows costs nothing.
        if tail.readers == 0 and self._tails.get(key) is tail:
            del self._tails[key]
            self._pumps.pop(key).cancel()


async def _required(tx: Tx, owner: Owner, session_id: SessionId, after: int) -> Head:
    """Return the head for a reader's cursor; a cursor from the future is never met with silence."""
    head = await find_head(tx, owner, session_id)
    if after < 0:
        raise Invalid(Code.INVALID_CURSOR, "A cursor is the number of an event, or 0.")
    if after > head.events:
        raise Conflict(
            Code.CURSOR_AHEAD,
            f"The session has events up to {head.events}; the cursor says {after}.",
            {"last": head.events},
        )
    return head


def _shown(item: Item) -> Event | Gap:
    return item.event if isinstance(item, News) else item


def _too_slow(cursor: int) -> LimitReached:
    return LimitReached(
        Code.SLOW_READER,
        f"The reader fell more than 1 MiB behind; follow again from {cursor}.",
        {"resume_after": cursor},
    )
