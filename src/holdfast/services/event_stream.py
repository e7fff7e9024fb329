"""Event streams: one buffer per session, shared by all readers of this process.

Replaying stored events and following live ones use the same code path.
"""

import asyncio
import logging
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Container,
    Coroutine,
    Sequence,
)
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.errors import (
    Code,
    Conflict,
    HoldfastError,
    Internal,
    Invalid,
    NotFound,
    Unavailable,
)
from holdfast.domain.events import (
    PRUNED,
    Event,
    Gap,
    StepDelta,
    name_of,
    require_names,
    sequence_in,
)
from holdfast.domain.ids import Owner, SessionId, SessionKey
from holdfast.domain.queries import Page, require_limit
from holdfast.domain.sessions import SessionState
from holdfast.ports.store import Brief, Store, Tx
from holdfast.ports.system import Doorbell, Frame, Item, Notification, end_of
from holdfast.services.background_tasks import Background
from holdfast.services.journal import find_session_state, session_not_found

log = logging.getLogger(__name__)
BUFFER_BYTES: Final = 1 << 20
# Limit of one read, because a slow reader holds the returned list for as long as it needs.
GULP_BYTES: Final = 128 << 10
PAGE_MOST: Final = 1_000
PAGE_FIRST: Final = 50
_UNREADABLE: Final = Internal(Code.INTERNAL, "The session's events cannot be read; see the log.")
# Buffers without readers that are kept, and the size of each.
KEPT_MOST: Final = 128
KEPT_BYTES: Final = 64 << 10
# A page of this size is read in well under a millisecond and does not delay other readers.
BRIEF_MOST: Final = 100


class EventBatch(Struct, frozen=True):
    """Consecutive items up to `last`, joined into bytes once for all readers of the buffer."""

    last: Item
    count: int
    made: bytes


class EventBuffer:
    """The newest events of one session, appended as they are committed."""

    def __init__(
        self,
        store: Store,
        state: SessionState,
        after: int,
        *,
        start: Callable[[Coroutine[Any, Any, None]], object],
        catch_ups: asyncio.Semaphore,
    ) -> None:
        """Start at the first reader's cursor, or at the end of the log if that is far away.

        `start` runs a task; `catch_ups` limits how many readers of all buffers read older events at
        the same time.
        """
        self._store = store
        self._start = start
        self._catch_ups = catch_ups
        self._key = state.key
        self._session_id = state.session_id
        self._items: list[Item] = []
        self._ends: list[int] = []
        # Cumulative size up to each item, so that a slice of GULP_BYTES is found by bisection.
        self._totals: list[int] = []
        self._size = 0
        self._cold = 0
        self._waiters: list[asyncio.Future[None]] = []
        self._is_reading = False
        self._is_behind = False
        self._failure: HoldfastError | None = None
        self.base = self.last = after if state.events - after <= BRIEF_MOST else state.events
        # The session state when the newest buffered event was written, or later.
        self.state = state
        self.readers = 0
        # The version of the store up to which the buffer includes what other processes wrote.
        self.version: tuple[int, int] | None = None
        self.batches: dict[Callable[[Frame], bytes], EventBatch] = {}

    def notify(self, tell: Callable[[], Notification] | None) -> None:
        """Append what a commit wrote; read the log if events before it may be missing."""
        try:
            if tell is None or not self.append(tell):
                self.catch_up()
        except HoldfastError as error:
            self.fail(error)
        except Exception:
            log.exception("following session %s failed", self._session_id)
            self.fail(_UNREADABLE)

    @property
    def is_current(self) -> bool:
        """Return whether the buffer includes everything that this process has written."""
        is_whole = self.last == self.state.events and self._failure is None
        return is_whole and not self._is_reading and not self._is_behind

    @property
    def may_be_kept(self) -> bool:
        """Return whether the buffer is worth keeping without a reader."""
        return self._size <= KEPT_BYTES and self.is_current

    def append(self, tell: Callable[[], Notification]) -> bool:
        """Append the events of a notification; return `False` if earlier events are missing."""
        if self._is_reading:
            return False
        notification = tell()
        frames = notification.frames
        if frames and frames[0].sequence == self.last + 1:
            self.state = notification.state
            self.extend(frames)
        return not frames or frames[-1].sequence <= self.last

    def catch_up(self) -> None:
        """Read what is missing from the log, in a task."""
        self._is_behind = True
        if not self._is_reading:
            self._is_reading = True
            self._start(self._read_on())

    async def _read_on(self) -> None:
        # Before its first events, the buffer is one of many that may start at the same time.
        page = self._page if self._items else self._past
        try:
            while self._is_behind:
                # Reset before reading, so that a commit in between is not missed.
                self._is_behind = False
                items, self.state = await page(self.last, BRIEF_MOST)
                if items:
                    self.extend(items)
                    self._is_behind |= self.last < self.state.events
        except HoldfastError as error:
            self.fail(error)
        except Exception:
            log.exception("following session %s failed", self._session_id)
            self.fail(_UNREADABLE)
        finally:
            self._is_reading = False

    async def _page(self, cursor: int, limit: int) -> tuple[list[Item], SessionState]:
        return await read_page(self._store, self._key, cursor, limit)

    async def _past(self, cursor: int, limit: int) -> tuple[list[Item], SessionState]:
        """Read a page under the `catch_ups` semaphore: first come, first served, page by page.

        After a restart all readers replay at once, and other reads of the store must not starve.
        """
        async with self._catch_ups:
            return await self._page(cursor, limit)

    def fail(self, error: HoldfastError) -> None:
        """Make every reader that has reached the end of the buffer raise this error."""
        self._failure = error
        self._announce()

    async def after(self, cursor: int, limit: int) -> tuple[list[Item], SessionState]:
        """Return the items after a cursor and the session state; waits until there is one.

        A reader behind the start of the buffer reads the log.
        """
        while cursor >= self.last:
            if self._failure is not None:
                raise self._failure
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        if cursor < self.base:
            return await self._past(cursor, limit)
        start = bisect_right(self._ends, cursor)
        end = len(self._items)
        if self._size > GULP_BYTES:
            before = self._totals[start] - _weight(self._items[start])
            end = bisect_left(self._totals, before + GULP_BYTES, start) + 1
        items = self._items[start:end]
        return items if isinstance(items[0], Frame) else clipped(items, cursor), self.state

    def extend(self, items: Sequence[Item]) -> None:
        """Append the next items and wake the readers."""
        total = before = self._totals[-1] if self._totals else 0
        for item in items:
            if isinstance(item, Frame):
                total += len(item.envelope)
                self._ends.append(item.sequence)
            else:
                self._ends.append(item.to_sequence)
            self._totals.append(total)
        self._items += items
        self._size += total - before
        self.last = self._ends[-1]
        if self._size > BUFFER_BYTES:
            self._trim()
        if self._size > GULP_BYTES:
            self._cool()
        if self._waiters:
            self._announce()

    def _trim(self) -> None:
        """Drop the oldest events beyond BUFFER_BYTES; slower readers read them from the log."""
        dropped = 0
        while self._size > BUFFER_BYTES and dropped < len(self._items) - 1:
            self._size -= _weight(self._items[dropped])
            self.base = self._ends[dropped]
            dropped += 1
        if dropped:
            del self._items[:dropped]
            del self._ends[:dropped]
            del self._totals[:dropped]
            self._cold = max(0, self._cold - dropped)

    def _cool(self) -> None:
        """Drop the caches of all but the newest events, because most readers are at the end."""
        edge = self._totals[-1] - GULP_BYTES
        while self._totals[self._cold] < edge:
            item = self._items[self._cold]
            if isinstance(item, Frame):
                item.cool()
            self._cold += 1

    def _announce(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            # A reader that was cancelled has left its future behind.
            if not waiter.done():
                waiter.set_result(None)


class StreamReader:
    """One reader's cursor in a buffer, and the session state at its last read."""

    def __init__(self, buffer: EventBuffer, cursor: int, state: SessionState) -> None:
        self._buffer = buffer
        # Small at first, because the latency of the first page matters most.
        self._limit = PAGE_FIRST
        self._was_live = False
        self.cursor = cursor
        self.state = state

    def batch(self, format_event: Callable[[Frame], bytes], items: list[Item]) -> bytes | None:
        """Return the bytes that another reader made of exactly these items, if cached."""
        batch = self._buffer.batches.get(format_event)
        is_same = batch is not None and batch.last is items[-1] and batch.count == len(items)
        return batch.made if batch is not None and is_same else None

    def share(self, format_event: Callable[[Frame], bytes], batch: EventBatch) -> None:
        """Cache the bytes made of the newest items for other readers of this buffer."""
        self._buffer.batches[format_event] = batch

    @property
    def is_too_slow(self) -> bool:
        """Return whether a reader that was live has fallen behind the start of the buffer."""
        return self._was_live and self.cursor < self._buffer.base

    @property
    def is_live(self) -> bool:
        """Return whether the reader has read all buffered events."""
        return self.cursor >= self._buffer.last

    @property
    def is_settled(self) -> bool:
        """Return whether the reader has read everything up to a state without open turns."""
        return self.cursor >= self.state.events and self.state.turn <= self.state.settled

    async def read(self) -> list[Item]:
        """Return the next items, at most 1 MiB, waiting for them; the caller owns the list."""
        items, state = await self._buffer.after(self.cursor, self._limit)
        # The buffer may not have seen events that another process wrote before this reader joined.
        if state.events >= self.state.events:
            self.state = state
        self.cursor = end_of(items[-1])
        self._limit = min(2 * self._limit, PAGE_MOST)
        self._was_live = self._was_live or self.cursor >= self._buffer.last
        return items


async def read_page(
    store: Store, key: SessionKey, after: int, limit: int
) -> tuple[list[Item], SessionState]:
    """Return the next page of the log after a cursor without missing numbers, and the state."""

    async def read(tx: Tx) -> tuple[list[Item], SessionState]:
        state = await tx.sessions.state_by_key(key)
        if state is None:
            raise session_not_found()
        return await tx.events.items(state, after, limit), state

    return await store.read(Brief(read) if limit <= BRIEF_MOST else read)


def clipped(items: list[Item], cursor: int) -> list[Item]:
    """Return the items with a gap that begins before the cursor cut off at the cursor.

    The reader may have read some of the events from another buffer before they were pruned.
    """
    match items:
        case [Gap() as gap, *rest] if gap.from_sequence <= cursor:
            return [replace(gap, from_sequence=cursor + 1), *rest]
        case _:
            return items


def _weight(item: Item) -> int:
    return 0 if isinstance(item, Gap) else len(item.envelope)


LIST_MOST: Final = 10_000
LOOK: Final = 1_000
# How many readers replay stored events at the same time: fewer than the store can serve.
CATCH_UPS: Final = 2
# Size limit of a page; its cursor continues after it.
PAGE_BYTES: Final = 4 << 20
_DELTA: Final = name_of(StepDelta)


class Events(Background):
    """Event streams of an owner's sessions. A context manager, because it fills the buffers."""

    def __init__(self, store: Store, doorbell: Doorbell) -> None:
        super().__init__()
        self._store = store
        self._doorbell = doorbell
        self._buffers: dict[SessionKey, EventBuffer] = {}
        # Buffers that no reader has entered, the one left last at the end.
        self._kept: OrderedDict[SessionKey, EventBuffer] = OrderedDict()
        self._keys: dict[tuple[Owner, SessionId], SessionKey] = {}
        self._catch_ups = asyncio.Semaphore(CATCH_UPS)

    async def __aexit__(self, *error: Any) -> None:
        for buffer in self._buffers.values():
            buffer.fail(Unavailable(Code.STORE_CLOSED, "The store is closed."))
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
        """Return the events after a cursor, with gaps where numbers were pruned.

        `types` are event type names. With them, only events of these types are returned, and only
        gaps that may have contained such events.
        """
        require_limit(limit, most=LIST_MOST)
        require_names(types or ())

        async def read(tx: Tx) -> Page[Event | Gap]:
            state = await _state_at(tx, owner, session_id, after)
            if types:
                found, last = await _matching(tx, state, after, limit=limit, types=types)
            else:
                items = [] if types is not None else await tx.events.items(state, after, limit)
                found, last = list(map(_event, items)), end_of(items[-1]) if items else state.events
            return Page(items=tuple(found), next_cursor=str(last) if last < state.events else None)

        return await self._store.read(read)

    async def sequence_of(self, owner: Owner, session_id: SessionId, event_id: str) -> int:
        """Return the number of an event of the session, given its id."""

        async def read(tx: Tx) -> int | None:
            state = await find_session_state(tx, owner, session_id)
            sequence = sequence_in(event_id, state.session_id) or 0
            if not 1 <= sequence <= state.events:
                return None
            frame = await tx.events.at(state, sequence)
            # A pruned event has no stored id to compare with, but its number is still a valid
            # cursor.
            is_meant = frame is None or frame.event.id == event_id
            return sequence if is_meant else None

        found = await self._store.read(read)
        if found is None:
            raise NotFound(Code.EVENT_NOT_FOUND, "The session has no such event.")
        return found

    async def follow(
        self,
        owner: Owner,
        session_id: SessionId,
        *,
        after: int = 0,
        until_settled: bool = False,
    ) -> AsyncGenerator[Event | Gap, None]:
        """Yield every event after the cursor, then wait for more; never skips.

        With `until_settled` it ends when everything is read and no turn runs or waits.
        """
        buffer, state = await self._enter(owner, session_id, after)
        reader = StreamReader(buffer, after, state)
        try:
            while not (until_settled and reader.is_settled):
                for item in await reader.read():
                    yield item.event if isinstance(item, Frame) else item
        finally:
            self._leave(state.key, buffer)

    async def require(self, owner: Owner, session_id: SessionId, *, after: int) -> SessionState:
        """Return the session state, or refuse a cursor at which no reader can begin."""
        if (buffer := self._current(owner, session_id, after)) is not None:
            return buffer.state
        return await self._store.read(Brief(lambda tx: _state_at(tx, owner, session_id, after)))

    @asynccontextmanager
    async def reader(
        self,
        owner: Owner,
        session_id: SessionId,
        *,
        after: int = 0,
        state: SessionState | None = None,
    ) -> AsyncGenerator[StreamReader, None]:
        """Open a reader at a cursor; the caller decides when to read.

        `state` is the result of a recent `require` for this cursor.
        """
        buffer, current = await self._enter(owner, session_id, after, state)
        try:
            yield StreamReader(buffer, after, current)
        finally:
            self._leave(current.key, buffer)

    async def _enter(
        self, owner: Owner, session_id: SessionId, after: int, state: SessionState | None = None
    ) -> tuple[EventBuffer, SessionState]:
        """Return the buffer of a session for one more reader, which must leave it."""
        buffer = self._current(owner, session_id, after)
        if buffer is None:
            buffer, state = await self._read_buffer(owner, session_id, after, state)
        key = buffer.state.key
        if not buffer.readers:
            self._kept.pop(key, None)
            self._doorbell.follow(key, buffer.notify)
        buffer.readers += 1
        return buffer, state or buffer.state

    def _current(self, owner: Owner, session_id: SessionId, after: int) -> EventBuffer | None:
        """Return the buffer of a session if a reader at the cursor needs nothing from the store."""
        buffer = self._buffers.get(self._keys.get((owner, session_id), SessionKey(0)))
        if buffer is None or not buffer.is_current or not 0 <= after <= buffer.last:
            return None
        version = self._store.version_now()
        return buffer if version is not None and version == buffer.version else None

    async def _read_buffer(
        self, owner: Owner, session_id: SessionId, after: int, state: SessionState | None
    ) -> tuple[EventBuffer, SessionState]:
        """Return the buffer of a session and its state, which is read unless it is given."""
        rings, version = self._doorbell.rings, self._store.version_now()
        # Other processes may have removed events, too.
        self._forget(self._keys.get((owner, session_id), SessionKey(0)))
        is_old = state is not None
        current, items = (
            (state, ())
            if state is not None
            else await self._store.read(
                Brief(lambda tx: _first_page(tx, owner, session_id, after, self._buffers))
            )
        )
        buffer = self._buffers.get(current.key)
        if buffer is None:
            buffer = self._join(current, after, items)
            # The session may have been written between the read and the subscription (race).
            if is_old or buffer.last < current.events or self._doorbell.rings != rings:
                buffer.catch_up()
        if not is_old and buffer.last >= current.events:
            buffer.version = version
        return buffer, current

    def _join(self, state: SessionState, after: int, items: Sequence[Item]) -> EventBuffer:
        buffer = EventBuffer(self._store, state, after, start=self.start, catch_ups=self._catch_ups)
        if self._is_over:
            raise Unavailable(Code.STORE_CLOSED, "The store is closed.")
        self._buffers[state.key] = buffer
        self._keys[state.owner, state.session_id] = state.key
        self._doorbell.follow(state.key, buffer.notify)
        if items:
            buffer.extend(items)
        return buffer

    def _leave(self, key: SessionKey, buffer: EventBuffer) -> None:
        buffer.readers -= 1
        if buffer.readers or self._buffers.get(key) is not buffer:
            return
        # Kept, because the next reader of a session that is written here usually follows soon.
        self._kept[key] = buffer
        self._doorbell.follow(key, partial(self._notify_kept, buffer))
        if buffer.version is None or not buffer.may_be_kept:
            self._forget(key)
        elif len(self._kept) > KEPT_MOST:
            self._forget(next(iter(self._kept)))

    def _notify_kept(self, buffer: EventBuffer, tell: Callable[[], Notification] | None) -> None:
        """Append what a commit wrote to a buffer without readers, which is never worth a read."""
        if tell is None or not buffer.append(tell) or not buffer.may_be_kept:
            self._forget(buffer.state.key)

    def _forget(self, key: SessionKey) -> None:
        """Drop a buffer without readers."""
        buffer = self._kept.pop(key, None)
        if buffer is not None:
            del self._buffers[key]
            del self._keys[buffer.state.owner, buffer.state.session_id]
            self._doorbell.follow(key, None)

    def forget(self) -> None:
        """Drop all buffers without readers, because events were removed from the store."""
        for key in list(self._kept):
            self._forget(key)


async def _first_page(
    tx: Tx, owner: Owner, session_id: SessionId, after: int, buffered: Container[SessionKey]
) -> tuple[SessionState, Sequence[Item]]:
    """Return the session state, and the items that a new buffer begins with."""
    state = await _state_at(tx, owner, session_id, after)
    if state.events - after > BRIEF_MOST or state.key in buffered:
        return state, ()
    return state, await tx.events.items(state, after, BRIEF_MOST)


async def _state_at(tx: Tx, owner: Owner, session_id: SessionId, after: int) -> SessionState:
    """Return the session state for a cursor; a cursor past the end is refused, not ignored."""
    state = await find_session_state(tx, owner, session_id)
    if after < 0:
        raise Invalid(Code.INVALID_CURSOR, "A cursor must be the number of an event, or 0.")
    if after > state.events:
        raise Conflict(
            Code.CURSOR_AHEAD,
            f"The session has events up to {state.events}, but the cursor is {after}.",
            {"head": state.events},
        )
    return state


async def _matching(
    tx: Tx, state: SessionState, after: int, *, limit: int, types: Collection[str]
) -> tuple[list[Event | Gap], int]:
    """Return events of the given types, and the last sequence number that was checked.

    Reads on until the page is full or the log ends.
    """
    found: list[Event | Gap] = []
    looked_at = size = 0
    # Bounded scan: without a match within LIST_MOST items the caller continues at the cursor.
    while after < state.events and looked_at < LIST_MOST:
        for item in await tx.events.items(state, after, LOOK):
            after = end_of(item)
            looked_at += 1
            if _is_wanted(item, types):
                found.append(_event(item))
                size += len(item.envelope) if isinstance(item, Frame) else 0
                if len(found) == limit or size > PAGE_BYTES:
                    return found, after
    return found, after


def _is_wanted(item: Item, types: Collection[str]) -> bool:
    if isinstance(item, Frame):
        return name_of(item.event.payload) in types
    # Only deltas are pruned early, so such a gap contains no other type.
    return item.reason != PRUNED or _DELTA in types


def _event(item: Item) -> Event | Gap:
    return item.event if isinstance(item, Frame) else item
