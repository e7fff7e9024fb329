"""Tails: the newest news of a session, kept once per process for all its readers.

A tail hears what this process has written, and reads the log when somebody else wrote or a word
was missed; readers are cursors into it, never queues. A reader that is behind reads the log itself.
"""

import asyncio
import logging
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.errors import Code, HoldfastError, Internal
from holdfast.domain.events import Event, Gap
from holdfast.domain.ids import SessionKey
from holdfast.domain.sessions import Head
from holdfast.ports import Brief, Doorbell, Frame, Store, Told, Tx
from holdfast.services.heads import session_not_found

log = logging.getLogger(__name__)

TAIL_BYTES: Final = 1 << 20
# What one reader takes at a time, because a slow one keeps it for as long as it likes.
GULP_BYTES: Final = 128 << 10
PAGE_MOST: Final = 1_000
PAGE_FIRST: Final = 50
# What is read in well under a millisecond and does not hold up the others.
BRIEF_MOST: Final = 100

_decoder = msgspec.json.Decoder(Event)
_encode = msgspec.json.Encoder().encode


class News:
    """One event as readers share it: decoded at most once, by the first who wants it decoded.

    Once it has grown cold nothing is kept but the event itself: its readers are further by then.
    """

    __slots__ = ("_event", "_forms", "envelope", "sequence")

    def __init__(self, frame: Frame, event: Event | None = None) -> None:
        self.sequence = frame.sequence
        self.envelope = frame.envelope
        self._event = event
        # What surfaces have made of it, so that a hundred readers cost one encoding.
        self._forms: dict[str, bytes] | None = {}

    @property
    def event(self) -> Event:
        """Return the event."""
        if self._event is not None:
            return self._event
        event = _decoder.decode(self.envelope)
        if self._forms is not None:
            self._event = event
        return event

    def form(self, name: str, make: "Callable[[News], bytes]") -> bytes:
        """Return what a surface makes of it; made once, while many want it."""
        if self._forms is None:
            return make(self)
        made = self._forms.get(name)
        if made is None:
            made = self._forms[name] = make(self)
        return made

    def cool(self) -> None:
        """Forget everything that can be made again."""
        self._event = self._forms = None


Item = News | Gap
# Reads a page of the log after a cursor, and where the session stands.
PageOf = Callable[[int, int], Awaitable[tuple[list[Item], Head]]]


class Batch(Struct, frozen=True):
    """So many items up to one, as readers share them: a hundred of them cost one joining."""

    last: Item
    count: int
    made: bytes


class Tail:
    """The newest news of one session."""

    def __init__(
        self,
        store: Store,
        doorbell: Doorbell,
        head: Head,
        after: int,
        *,
        catch_ups: asyncio.Semaphore,
    ) -> None:
        """The tail begins where its first reader is, or where the log ends if that is far away.

        `catch_ups` bounds how many readers of all tails read at once what was written before.
        """
        self._store = store
        self._catch_ups = catch_ups
        self._doorbell = doorbell
        self._key = head.key
        self._session_id = head.session_id
        self._items: list[Item] = []
        self._ends: list[int] = []
        # What all up to an item weigh, so that a gulp is found without weighing.
        self._totals: list[int] = []
        self._size = 0
        self._cold = 0
        self._arrived = asyncio.Event()
        self._failure: HoldfastError | None = None
        is_near = head.events - after <= BRIEF_MOST
        self.base = self.last = after if is_near else head.events
        # Where the session stood when the newest of these was written, or later.
        self.head = head
        self.readers = 0
        self.batches: dict[Any, Batch] = {}

    async def pump(self) -> None:
        """Keep the tail at the end of the log, until cancelled or the session is gone."""
        try:
            told: Told | None = None
            while True:
                # Taken before reading, so that a ring in between is not lost.
                bell = self._doorbell.listen(self._key)
                if told is None:
                    await self._catch_up(self._past)
                elif not self._has_heard(told):
                    await self._catch_up(self._page)
                told = await bell.rung()
        except HoldfastError as error:
            self.fail(error)
        except Exception:
            # Told to this session's readers only: the other sessions' tails go on.
            self.fail(Internal(Code.INTERNAL, "The session's news cannot be read; see the log."))
            log.exception("the tail of session %s broke", self._session_id)

    def _has_heard(self, told: Told) -> bool:
        """Take what was written just now; `False` where others have written before it."""
        news = told.news
        if news and news[0].sequence == self.last + 1:
            self.head = told.head
            self._extend([News(Frame(event.sequence, _encode(event)), event) for event in news])
        return not news or news[-1].sequence <= self.last

    async def _catch_up(self, page: PageOf) -> None:
        is_behind = True
        while is_behind:
            items, self.head = await page(self.last, BRIEF_MOST)
            if items:
                self._extend(items)
            is_behind = bool(items) and self.last < self.head.events

    async def _page(self, cursor: int, limit: int) -> tuple[list[Item], Head]:
        return await read_page(self._store, self._key, cursor, limit)

    async def _past(self, cursor: int, limit: int) -> tuple[list[Item], Head]:
        """Read a page when it is one's turn; first come, first served, and page by page.

        After a restart all readers want their past at once, and others want to read as well.
        """
        async with self._catch_ups:
            return await self._page(cursor, limit)

    def fail(self, error: HoldfastError) -> None:
        """Let every reader that has read all there is fail with this error."""
        self._failure = error
        self._announce()

    async def after(self, cursor: int, limit: int) -> tuple[list[Item], Head]:
        """Return what follows a cursor, waiting for it, and where the session stood thereafter.

        A reader behind the tail reads the log.
        """
        while cursor >= self.last:
            if self._failure is not None:
                raise self._failure
            await self._arrived.wait()
        if cursor < self.base:
            return await self._past(cursor, limit)
        return clipped(self._gulp(bisect_right(self._ends, cursor)), cursor), self.head

    def _gulp(self, start: int) -> list[Item]:
        before = self._totals[start] - _weight(self._items[start])
        end = bisect_left(self._totals, before + GULP_BYTES, start)
        return self._items[start : end + 1]

    def _extend(self, items: list[Item]) -> None:
        total = self._totals[-1] if self._totals else 0
        for item in items:
            self._items.append(item)
            self.last = end_of(item)
            self._ends.append(self.last)
            total += _weight(item)
            self._totals.append(total)
            self._size += _weight(item)
        self._trim()
        self._cool()
        self._announce()

    def _trim(self) -> None:
        """Forget the oldest news beyond the bound; those who still need it have the log."""
        dropped = 0
        while self._size > TAIL_BYTES and dropped < len(self._items) - 1:
            self._size -= _weight(self._items[dropped])
            self.base = self._ends[dropped]
            dropped += 1
        if dropped:
            del self._items[:dropped]
            del self._ends[:dropped]
            del self._totals[:dropped]
            self._cold = max(0, self._cold - dropped)

    def _cool(self) -> None:
        """Keep only the news themselves, but for the newest: most readers are at the end."""
        edge = self._totals[-1] - GULP_BYTES
        while self._totals[self._cold] < edge:
            item = self._items[self._cold]
            if isinstance(item, News):
                item.cool()
            self._cold += 1

    def _announce(self) -> None:
        self._arrived.set()
        self._arrived = asyncio.Event()


class Reader:
    """One reader's place in a tail, and where the session stood when it last read."""

    def __init__(self, tail: Tail, cursor: int, head: Head) -> None:
        self._tail = tail
        # Small at first, because a reader waits for the first page and not for the last.
        self._limit = PAGE_FIRST
        self._was_live = False
        self.cursor = cursor
        self.head = head

    def batch(self, words: Any, items: list[Item]) -> bytes | None:
        """Return what another reader of this tail has made of just these items, in some words."""
        batch = self._tail.batches.get(words)
        is_same = batch is not None and batch.last is items[-1] and batch.count == len(items)
        return batch.made if batch is not None and is_same else None

    def share(self, words: Any, batch: Batch) -> None:
        """Let other readers have what was made of the items that came last."""
        self._tail.batches[words] = batch

    @property
    def is_too_slow(self) -> bool:
        """Tell whether a reader that was at the end has fallen behind all that is kept."""
        return self._was_live and self.cursor < self._tail.base

    @property
    def is_live(self) -> bool:
        """Tell whether the reader has read all there is."""
        return self.cursor >= self._tail.last

    @property
    def is_settled(self) -> bool:
        """Tell whether all was read up to a moment in which no turn ran or waited."""
        return self.cursor >= self.head.events and self.head.turn <= self.head.settled

    async def read(self) -> list[Item]:
        """Return what comes next, waiting for it; within 1 MiB, and the list is the reader's."""
        items, head = await self._tail.after(self.cursor, self._limit)
        # A tail may not have noticed yet what another process wrote before this reader came.
        if head.events >= self.head.events:
            self.head = head
        self.cursor = end_of(items[-1])
        self._limit = min(2 * self._limit, PAGE_MOST)
        self._was_live = self._was_live or self.cursor >= self._tail.last
        return items


async def read_page(
    store: Store, key: SessionKey, after: int, limit: int
) -> tuple[list[Item], Head]:
    """Return the log's next page after a cursor, every number covered, and where it stands."""

    async def read(tx: Tx) -> tuple[list[Item], Head]:
        head = await tx.sessions.head_by_key(key)
        if head is None:
            raise session_not_found()
        return await read_items(tx, head, after, limit), head

    return await store.read(Brief(read) if limit <= BRIEF_MOST else read)


async def read_items(tx: Tx, head: Head, after: int, limit: int) -> list[Item]:
    """Return the events after a cursor; a gap stands for what is missing, and says why."""
    if head.events <= after:
        return []
    frames = await tx.events.after(head, after, limit=limit)
    items = covered(frames, after, head.events)
    last = end_of(items[-1])
    # A page ends early where it is large, or where nothing is left behind it.
    is_early = last < head.events and len(frames) < limit
    if is_early and not await tx.events.after(head, last, limit=1):
        items.append(Gap(from_sequence=last + 1, to_sequence=head.events))
    for place, item in enumerate(items):
        if isinstance(item, Gap):
            reason = await tx.events.missing(head, item.from_sequence, item.to_sequence)
            items[place] = replace(item, reason=reason)
    return items


def covered(frames: list[Frame], after: int, last: int) -> list[Item]:
    """Return the news with a gap wherever numbers are missing: each one is accounted for."""
    items: list[Item] = []
    for frame in frames:
        if frame.sequence > after + 1:
            items.append(Gap(from_sequence=after + 1, to_sequence=frame.sequence - 1))
        items.append(News(frame))
        after = frame.sequence
    if not frames and last > after:
        items.append(Gap(from_sequence=after + 1, to_sequence=last))
    return items


def clipped(items: list[Item], cursor: int) -> list[Item]:
    """Return the items with a gap that begins before the cursor cut off there.

    A reader may have read, from another tail, some of what was pruned before this one read it.
    """
    match items:
        case [Gap() as gap, *rest] if gap.from_sequence <= cursor:
            return [replace(gap, from_sequence=cursor + 1), *rest]
        case _:
            return items


def end_of(item: Item) -> int:
    """Return the last number an item accounts for."""
    return item.to_sequence if isinstance(item, Gap) else item.sequence


def _weight(item: Item) -> int:
    return 0 if isinstance(item, Gap) else len(item.envelope)
