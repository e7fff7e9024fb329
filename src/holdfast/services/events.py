"""Events: the log is the stream. Replay, live following and other processes are one code path."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

from msgspec import Struct

from holdfast.domain.errors import Code, Conflict, Invalid, LimitReached, NotFound, Unavailable
from holdfast.domain.events import NAMES, PRUNED, Event, Gap, StepDelta, name_of, sequence_in
from holdfast.domain.ids import Owner, SessionId, SessionKey
from holdfast.domain.queries import Page, require_limit
from holdfast.domain.sessions import Head
from holdfast.ports import Brief, Doorbell, Store, Tx
from holdfast.services.background import Background
from holdfast.services.heads import find_head
from holdfast.services.tails import Item, News, Reader, Tail, end_of, read_items

LIST_MOST: Final = 10_000
LOOK: Final = 1_000
# So many readers read the past of sessions at a time: fewer than the store can serve.
CATCH_UPS: Final = 2
# A page ends here, and its cursor leads on.
PAGE_BYTES: Final = 4 << 20
_DELTA: Final = name_of(StepDelta)


class Events(Background):
    """The news of sessions, for their owner. Use as a context manager: it runs the tails."""

    def __init__(self, store: Store, doorbell: Doorbell) -> None:
        super().__init__()
        self._store = store
        self._doorbell = doorbell
        self._tails: dict[SessionKey, Tail] = {}
        self._pumps: dict[SessionKey, asyncio.Task[None]] = {}
        self._catch_ups = asyncio.Semaphore(CATCH_UPS)

    async def __aexit__(self, *error: Any) -> None:
        for tail in self._tails.values():
            tail.fail(Unavailable(Code.STORE_CLOSED, "The store is closed."))
        await super().__aexit__(*error)

    async def list(
        self,
        owner: Owner,
        session_id: SessionId,
        *,
        after: int = 0,
        limit: int = 1_000,
        types: Collection[str] | None = None,
    ) -> Page[Event | Gap]:
        """Return the news after a cursor, with gaps where numbers were pruned.

        With `types`, which are names of the house, only news of these, and only gaps in which
        there may have been some.
        """
        require_limit(limit, most=LIST_MOST)
        _require_names(types or ())

        async def read(tx: Tx) -> Page[Event | Gap]:
            head = await _required(tx, owner, session_id, after)
            return await _page(tx, head, _Wanted(after=after, limit=limit, types=types))

        return await self._store.read(read)

    async def sequence_of(self, owner: Owner, session_id: SessionId, event_id: str) -> int:
        """Return the number of an event of the session, given its id."""

        async def read(tx: Tx) -> int | None:
            head = await find_head(tx, owner, session_id)
            sequence = sequence_in(event_id, head.session_id) or 0
            if not 1 <= sequence <= head.events:
                return None
            frame = await tx.events.at(head, sequence)
            # Pruned, its number is still good to go on from; there is nothing to compare it with.
            is_meant = frame is None or News(frame).event.id == event_id
            return sequence if is_meant else None

        found = await self._store.read(read)
        if found is None:
            raise NotFound(Code.EVENT_NOT_FOUND, "The session has no such event.")
        return found

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
        async with self.reader(owner, session_id, after=after) as reader:
            while True:
                if not catch_up and reader.is_too_slow:
                    raise _too_slow(reader.cursor)
                yield await reader.read()

    async def require(self, owner: Owner, session_id: SessionId, *, after: int) -> Head:
        """Return where the session stands, or refuse a reader that cannot begin there."""
        return await self._store.read(Brief(lambda tx: _required(tx, owner, session_id, after)))

    @asynccontextmanager
    async def reader(
        self, owner: Owner, session_id: SessionId, *, after: int = 0, head: Head | None = None
    ) -> AsyncGenerator[Reader, None]:
        """Stand at a cursor in the news; whoever reads decides when.

        `head` is what `require` has returned for this cursor, if it was asked just now.
        """
        head = head or await self.require(owner, session_id, after=after)
        tail = self._join(head, after)
        try:
            yield Reader(tail, after, head)
        finally:
            self._leave(head.key, tail)

    def _join(self, head: Head, after: int) -> Tail:
        tail = self._tails.get(head.key)
        # The first reader starts the reading, the last one stops it.
        if tail is None:
            tail = self._tails[head.key] = Tail(
                self._store, self._doorbell, head, after, catch_ups=self._catch_ups
            )
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
            {"head": head.events},
        )
    return head


class _Wanted(Struct, frozen=True, kw_only=True):
    after: int
    limit: int
    types: Collection[str] | None


async def _page(tx: Tx, head: Head, wanted: _Wanted) -> Page[Event | Gap]:
    """Return a page of news; one with types is read on until it is full or nothing is left."""
    if wanted.types is None:
        items = await read_items(tx, head, wanted.after, wanted.limit)
        after = end_of(items[-1]) if items else head.events
        found: list[Event | Gap] = [_shown(item) for item in items]
    elif wanted.types:
        found, after = await _matching(tx, head, wanted, wanted.types)
    else:
        found, after = [], head.events
    return Page(items=tuple(found), next_cursor=str(after) if after < head.events else None)


async def _matching(
    tx: Tx, head: Head, wanted: _Wanted, types: Collection[str]
) -> tuple[list[Event | Gap], int]:
    """Return news of the wanted types, and the last number that was looked at for them."""
    found: list[Event | Gap] = []
    after = wanted.after
    looked_at = size = 0
    # Not further than this at once: where none is found, the caller is told where to go on.
    while after < head.events and looked_at < LIST_MOST:
        for item in await read_items(tx, head, after, LOOK):
            after = end_of(item)
            looked_at += 1
            if _is_wanted(item, types):
                found.append(_shown(item))
                size += len(item.envelope) if isinstance(item, News) else 0
                if len(found) == wanted.limit or size > PAGE_BYTES:
                    return found, after
    return found, after


def _is_wanted(item: Item, types: Collection[str]) -> bool:
    if isinstance(item, News):
        return name_of(item.event.payload) in types
    # Pruned before all others were only pieces of text.
    return item.reason != PRUNED or _DELTA in types


def _require_names(types: Collection[str]) -> None:
    unknown = sorted(set(types) - NAMES)
    if unknown:
        raise Invalid(
            Code.INVALID_FILTER,
            f"There are no events of that type; the types are {', '.join(sorted(NAMES))}.",
            {"types": unknown},
        )


def _shown(item: Item) -> Event | Gap:
    return item.event if isinstance(item, News) else item


def _too_slow(cursor: int) -> LimitReached:
    return LimitReached(
        Code.SLOW_READER,
        f"The reader fell more than 1 MiB behind; follow again from {cursor}.",
        {"resume_after": cursor},
    )
