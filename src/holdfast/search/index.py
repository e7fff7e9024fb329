"""The full-text index; it follows writes in the background."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.canonical_json import decode_exact
from holdfast.domain.errors import HoldfastError
from holdfast.domain.sessions import SessionState
from holdfast.ports import Tx
from holdfast.ports.search import Backlog
from holdfast.search.documents import (
    ADD,
    ALL_ROWS,
    BE_THOROUGH,
    CLAIMS,
    DIG,
    DONE,
    FORGET_TAIL,
    FORGET_TITLE,
    GRAVES,
    IS_THOROUGH,
    KEEP_TITLE,
    MOVE,
    NUMBERS,
    ORIGIN,
    ORIGINS,
    ROWS,
    SIZES,
    TAIL,
    TAIL_OF,
    TAKE_OUT,
    TITLE,
    DocumentOrigin,
    message_words,
    place_of,
    text_words,
)
from holdfast.search.tokenizer import text_of_value
from holdfast.store.database import Database, Parameters, Row, encode

log = logging.getLogger(__name__)
_LAST: Final = NUMBERS - 1
_MILLISECOND: Final = 1_000
_PAGE: Final = 1_000
# Of messages at a time: while the words of more are found a database may take us for gone.
_BYTES_MOST: Final = 1 << 20
# A document's number within its key, and its words; none where nothing can be read.
Document = tuple[int, str | None]


class SessionMeta(Struct, frozen=True):
    """A session as the index needs to know it."""

    origin: DocumentOrigin
    title: str | None
    created_at: int


class IndexRange(Struct, frozen=True):
    """Messages of a session that are put into the index now, of those that have to be."""

    key: int
    first: int
    end: int
    last: int

    @property
    def further(self) -> int | None:
        """Return the number to go on with if that is not all of them."""
        return self.end + 1 if self.end < self.last else None


class IndexBatch(Struct):
    """Documents of a stretch, and the number to go on with if that is not all of it."""

    documents: list[Document]
    further: int | None = None

    def first(self, count: int) -> tuple[list[Document], int | None]:
        """Return so many of the documents at most, and the number to go on with."""
        if len(self.documents) > count:
            return self.documents[:count], self.documents[count][0]
        return self.documents, self.further


async def catch_up(database: Database, limit: int) -> int:
    """Put up to `limit` documents of the tail into the index; return how many."""
    done, is_all = 0, False
    while done < limit and not is_all:
        found, is_all = await _caught_up(database, limit - done)
        done += found
    return done


async def _caught_up(database: Database, limit: int) -> tuple[int, bool]:
    """Put documents into the index; return how many, and whether those are all up to `limit`."""
    added: list[tuple[int, str]] = []
    ended: list[Parameters] = []
    done = 0
    tail = await database.fetch(TAIL, {"limit": limit})
    said, is_all = await _all_messages(database, tail, limit)
    for key, first, last in tail:
        room = limit - done
        if room <= 0:
            break
        if key > 0 and first == 0:
            part = IndexBatch(await _title(database, key))
        elif key > 0:
            if (key, first) not in said:
                break
            part = said[key, first]
        else:
            # One more, to know whether that is all.
            stretch = (first, _LAST if last is None else last)
            part = IndexBatch(await _documents(database, key, stretch, room + 1))
        found, further = part.first(room)
        here = {"key": key, "first": first}
        if further is None:
            ended.append(here)
        else:
            await database.execute(MOVE, {**here, "next": further})
        # What is left of a session that is gone counts as well: it takes a look.
        done += max(len(found), 1)
        added += [(place_of(key, number), words) for number, words in found if words is not None]
    # All of a kind after one another: a database that is asked over a wire takes them together.
    for each in ended:
        await database.execute(DONE, each)
    # In their order, because the index writes itself down whenever a number is not the next one.
    for document, words in sorted(added):
        await database.execute(ADD, {"document": document, "words": words})
    return done, is_all


async def _all_messages(
    database: Database, tail: list[Row], limit: int
) -> tuple[dict[tuple[int, int], IndexBatch], bool]:
    """Return the documents of stretches of messages, by where each begins, and whether it is all.

    So many together, and no more than some bytes of them: what is not there comes later.
    """
    stretches = [(key, first, last) for key, first, last in tail if key > 0 and first > 0]
    if not stretches:
        return {}, True
    keys = encode([key for key, _, _ in stretches]).decode()
    sessions = {key: rest for key, *rest in await database.fetch(ORIGINS, {"keys": keys})}
    wanted = []
    for key, first, last in stretches:
        # Numbers are dense, so it is known beforehand how many there are.
        newest = sessions[key][0] if key in sessions else 0
        whole = newest if last is None else min(newest, last)
        end = min(whole, first + limit - 1)
        limit -= max(end - first + 1, 0)
        wanted.append(IndexRange(key, first, end, whole))
    fitting = await _fitting(database, wanted)
    found = {(each.key, each.first): IndexBatch([], each.further) for each in fitting}
    for place, *row in await database.fetch(ALL_ROWS, _asked(fitting)):
        each = fitting[place]
        _, *origin = sessions[each.key]
        documents = _messages(DocumentOrigin(*origin), [tuple(row)])
        found[each.key, each.first].documents.extend(documents)
    return found, fitting == wanted


async def _fitting(database: Database, wanted: list[IndexRange]) -> list[IndexRange]:
    """Return as many stretches as have so many bytes together; the last of them may be cut."""
    total = 0
    for place, number, size in await database.fetch(SIZES, _asked(wanted)):
        total += size
        # However large the first one is, it has to come some time.
        if _BYTES_MOST < total != size:
            each = wanted[place]
            cut = replace(each, end=number - 1)
            return wanted[:place] + ([cut] if number > each.first else [])
    return wanted


def _asked(stretches: list[IndexRange]) -> Parameters:
    return {"stretches": encode([(each.key, each.first, each.end) for each in stretches]).decode()}


async def note_removal(database: Database, head: SessionState) -> None:
    """Write down which words the index has to forget of a session that is about to be removed."""
    key = head.key
    lacking = [
        range(first, (_LAST if last is None else last) + 1)
        for first, last in await database.fetch(TAIL_OF, {"key": key})
    ]
    first = head.inherited + 1
    while found := await _documents(database, key, (first, _LAST), _PAGE):
        first = found[-1][0] + 1
        for number, words in found:
            if words is not None and not any(number in each for each in lacking):
                await database.execute(DIG, {"document": place_of(key, number), "words": words})
    standing = await session_meta(database, key)
    for (title,) in await database.fetch(TITLE, {"key": key}):
        if standing is not None:
            words = text_words(standing.origin, standing.created_at, title)
            await database.execute(DIG, {"document": place_of(key, 0), "words": words})
    await database.execute(FORGET_TAIL, {"key": key})
    await database.execute(FORGET_TITLE, {"key": key})


async def remove_documents(database: Database, limit: int) -> int:
    """Take the words of removed documents out of the index; return of how many documents."""
    graves = await database.fetch(GRAVES, {"limit": limit})
    for document, words in sorted(graves):
        await _take_out(database, document, words)
    return len(graves)


async def _take_out(database: Database, document: int, words: str) -> None:
    # Not when the index is made, because older libraries read the store and do not know this.
    if not await database.fetch(IS_THOROUGH):
        await database.execute(BE_THOROUGH)
    await database.execute(TAKE_OUT, {"document": document, "words": words})


async def session_meta(database: Database, key: int) -> SessionMeta | None:
    """Return whose session it is, and what it is called."""
    for owner, agent_id, repo_id, title, created_at in await database.fetch(ORIGIN, {"key": key}):
        return SessionMeta(DocumentOrigin(owner, agent_id, repo_id), title, created_at)
    return None


async def _title(database: Database, key: int) -> list[Document]:
    """Return the title of a session as a document, and take out the one it had before."""
    standing = await session_meta(database, key)
    if standing is None:
        return [(0, None)]
    for (before,) in await database.fetch(TITLE, {"key": key}):
        words = text_words(standing.origin, standing.created_at, before)
        await _take_out(database, place_of(key, 0), words)
    if standing.title is None:
        await database.execute(FORGET_TITLE, {"key": key})
        return [(0, None)]
    await database.execute(KEEP_TITLE, {"key": key, "title": standing.title})
    return [(0, text_words(standing.origin, standing.created_at, standing.title))]


async def _documents(
    database: Database, key: int, stretch: tuple[int, int], limit: int
) -> list[Document]:
    first, last = stretch
    asked = {"key": abs(key), "first": first, "last": last, "limit": limit}
    if key < 0:
        return [
            (number, text_words(DocumentOrigin(owner), at * _MILLISECOND, _said(content)))
            for number, owner, at, content in await database.fetch(CLAIMS, asked)
        ]
    standing = await session_meta(database, key)
    rows = await database.fetch(ROWS, asked)
    return [] if standing is None else list(_messages(standing.origin, rows))


def _messages(origin: DocumentOrigin, rows: list[Row]) -> Iterator[Document]:
    for number, role, at, parts in rows:
        try:
            yield number, message_words(origin, (role, at, parts))
        except (msgspec.MsgspecError, RecursionError, TypeError) as error:
            # A damaged row is not shown, so it need not be found; `holdfast doctor` names it.
            log.error("a damaged row was left out of the index: %s", type(error).__name__)
            yield number, None


def _said(content: bytes) -> str:
    try:
        return text_of_value(decode_exact(content))
    except (ValueError, RecursionError):
        return ""


# Commits between two looks; each look takes as long as a small read.
EVERY: Final = 64
# So much may wait: whoever searches reads it through, which takes some milliseconds.
WAITING_MOST: Final = Backlog(256, 1 << 20)
# Removed ones are slower, because each of their words is looked for.
BURIED_TOGETHER: Final = 32
BURIAL_SECONDS: Final = 1.0
Asked = Callable[[Callable[[Tx], Any]], Awaitable[Any]]


class IndexUpkeep:
    """Has the index catch up after some commits, while others go on writing."""

    def __init__(self, read: Asked, write: Asked) -> None:
        self._read = read
        self._write = write
        # The first commit of a process counts as many: it may be one of few.
        self._left = 1
        self._task: asyncio.Task[None] | None = None

    def count(self) -> None:
        """Notice a commit."""
        self._left -= 1
        if self._left > 0 or (self._task is not None and not self._task.done()):
            return
        self._left = EVERY
        # Nobody asked for this, so nobody is told that it has to wait for memory.
        with suppress(MemoryError):
            self._task = asyncio.get_running_loop().create_task(self._keep_up())

    async def has_forgotten(self) -> bool:
        """Take words of removed documents out of the index; `False` when some are left for later.

        For a second at most, because somebody waits.
        """
        deadline = time.monotonic() + BURIAL_SECONDS
        try:
            while await self._write(lambda tx: tx.search.bury(BURIED_TOGETHER)):
                if time.monotonic() > deadline:
                    return False
        except HoldfastError as error:
            log.warning("the index has not forgotten what was removed: %s", error)
            return False
        return True

    async def close(self) -> None:
        """Wait for what was begun on this loop."""
        task = self._task
        if task is not None and task.get_loop() is asyncio.get_running_loop():
            await asyncio.wait((task,))

    async def _keep_up(self) -> None:
        try:
            waiting: Backlog = await self._read(lambda tx: tx.search.backlog())
            if waiting.documents < WAITING_MOST.documents and waiting.size < WAITING_MOST.size:
                return
            together = waiting.together
            while await self._write(lambda tx: tx.search.catch_up(together)) >= together:
                log.debug("the index catches up")
        except (HoldfastError, MemoryError) as error:
            log.warning("the index is behind what was written: %s", error)
