"""The full-text index; it follows writes in the background."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.canonical_json import decode_exact
from holdfast.domain.errors import HoldfastError
from holdfast.domain.sessions import SessionState
from holdfast.ports.store import Tx
from holdfast.search.documents import (
    ADD,
    ALL_ROWS,
    CLAIMED,
    CLAIMS,
    DONE,
    FORGET_TAIL,
    FORGET_TITLE,
    HAS_SECURE_DELETE,
    KEEP_TITLE,
    MOVE,
    NOTE_REMOVED,
    NUMBERS,
    ORIGIN,
    ORIGINS,
    REMOVE,
    ROWS,
    SET_SECURE_DELETE,
    SIZES,
    TAIL,
    TAIL_OF,
    TAKE_REMOVED,
    TITLE,
    DocumentOrigin,
    document_number,
    message_words,
    text_words,
)
from holdfast.search.query import Backlog
from holdfast.search.tokenizer import text_of_value
from holdfast.store.database import Database, Parameters, Row, encode, with_row_lock

log = logging.getLogger(__name__)
_LAST: Final = NUMBERS - 1
_MILLISECOND: Final = 1_000
_PAGE: Final = 1_000
# Maximum bytes of messages per batch: tokenizing more could exceed a connection timeout.
_BYTES_MOST: Final = 1 << 20
# A document's number within its key and its words; `None` if the row is unreadable.
Document = tuple[int, str | None]


class SessionMeta(Struct, frozen=True):
    """Metadata of a session for the index."""

    origin: DocumentOrigin
    title: str | None
    created_at: int


class IndexRange(Struct, frozen=True):
    """Range of a session's messages to index now, and the last one to index later."""

    key: int
    first: int
    end: int
    last: int

    @property
    def further(self) -> int | None:
        """Return the number to continue with; `None` if the range is complete."""
        return self.end + 1 if self.end < self.last else None


class IndexBatch(Struct):
    """Documents of a range, the number to continue with, and the last one to be read at all."""

    documents: list[Document]
    further: int | None = None
    last: int = 0

    def first(self, count: int) -> tuple[list[Document], int | None]:
        """Return at most `count` documents, and the number to continue with."""
        if len(self.documents) > count:
            return self.documents[:count], self.documents[count][0]
        return self.documents, self.further


async def catch_up(database: Database, limit: int) -> int:
    """Index up to `limit` documents of the backlog; return their number."""
    done, is_all = 0, False
    while done < limit and not is_all:
        found, is_all = await _index_all(database, limit - done)
        done += found
    return done


async def _index_all(database: Database, limit: int) -> tuple[int, bool]:
    """Index documents; return their number and whether everything up to `limit` was read."""
    added: list[tuple[int, str]] = []
    moved: list[Parameters] = []
    ended: list[Parameters] = []
    # Ranges without an end, which are complete unless the session has more messages by now.
    unbounded: dict[tuple[int, int], int] = {}
    done = 0
    tail = await database.fetch(with_row_lock(database, TAIL, skip=True), {"limit": limit})
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
            # One more than the limit, to detect whether the range is complete.
            end = _LAST if last is None else last
            part = IndexBatch(await _claims(database, -key, first, end, limit=room + 1))
        found, further = part.first(room)
        here = {"key": key, "first": first}
        if further is not None:
            moved.append({**here, "next": further})
        elif key > 0 and first > 0 and last is None and database.for_update:
            unbounded[key, first] = part.last
        else:
            ended.append(here)
        # Ranges of removed sessions count as well, because each costs a lookup.
        done += max(len(found), 1)
        added += [
            (document_number(key, number), words) for number, words in found if words is not None
        ]
    # Sorted, because FTS flushes its buffer whenever a row id is not increasing.
    await database.execute(ADD, {"documents": encode(sorted(added)).decode()})
    # Last, because every writer of a session that is locked here waits.
    complete = await _complete(database, unbounded)
    for (key, first), through in unbounded.items():
        here = {"key": key, "first": first}
        if (key, first) in complete:
            ended.append(here)
        else:
            moved.append({**here, "next": through + 1})
    await database.execute_many(MOVE, moved)
    await database.execute_many(DONE, ended)
    return done, is_all


async def _complete(database: Database, ranges: dict[tuple[int, int], int]) -> set[tuple[int, int]]:
    """Lock sessions that are not being written; return those ranges that have no later message.

    A range that is only moved misses nothing, so a later batch may remove it.
    """
    newest = await _newest(ORIGINS, database, ranges)
    is_written = any(newest.get(key, 0) > through for (key, _), through in ranges.items())
    idle = [each for each, through in ranges.items() if through < each[1] or not is_written]
    newest = await _newest(with_row_lock(database, ORIGINS), database, idle)
    return {each for each in idle if newest.get(each[0], 0) <= ranges[each]}


async def _newest(
    sql: str, database: Database, ranges: Collection[tuple[int, int]]
) -> dict[int, int]:
    """Return the number of the last message of each session."""
    if not ranges:
        return {}
    parameters = {"keys": encode(sorted({key for key, _ in ranges})).decode()}
    return {key: last for key, last, *_ in await database.fetch(sql, parameters)}


async def _all_messages(
    database: Database, tail: list[Row], limit: int
) -> tuple[dict[tuple[int, int], IndexBatch], bool]:
    """Return the documents of message ranges by key and start, and whether all were read.

    Bounded by number and bytes; the remaining messages are read in a later batch.
    """
    ranges = [(key, first, last) for key, first, last in tail if key > 0 and first > 0]
    if not ranges:
        return {}, True
    keys = encode([key for key, _, _ in ranges]).decode()
    sessions = {key: rest for key, *rest in await database.fetch(ORIGINS, {"keys": keys})}
    wanted = []
    for key, first, last in ranges:
        # Sequences have no gaps, so the number of messages is known without reading.
        newest = sessions[key][0] if key in sessions else 0
        whole = newest if last is None else min(newest, last)
        end = min(whole, first + limit - 1)
        limit -= max(end - first + 1, 0)
        wanted.append(IndexRange(key, first, end, whole))
    fitting = await _fit(database, wanted)
    found = {(each.key, each.first): IndexBatch([], each.further, each.last) for each in fitting}
    rows: dict[int, list[Row]] = {}
    for position, *row in await database.fetch(ALL_ROWS, _range_parameters(fitting)):
        rows.setdefault(position, []).append(tuple(row))
    for position, some in rows.items():
        each = fitting[position]
        _, *origin = sessions[each.key]
        documents = _messages(DocumentOrigin(*origin), some)
        found[each.key, each.first].documents.extend(documents)
    return found, fitting == wanted


async def _fit(database: Database, ranges: list[IndexRange]) -> list[IndexRange]:
    """Return the ranges that fit into the byte limit; the last one may be cut."""
    total = 0
    for position, number, size in await database.fetch(SIZES, _range_parameters(ranges)):
        total += size
        # The first message is always included, or indexing would never get past a large one.
        if _BYTES_MOST < total != size:
            each = ranges[position]
            cut = replace(each, end=number - 1)
            return ranges[:position] + ([cut] if number > each.first else [])
    return ranges


def _range_parameters(ranges: list[IndexRange]) -> Parameters:
    return {"stretches": encode([(each.key, each.first, each.end) for each in ranges]).decode()}


async def note_removal(database: Database, state: SessionState) -> None:
    """Record the words to remove from the index for a session about to be deleted."""
    key = state.key
    # Locked, because the index may be taking up a range without a lock on the session.
    lacking = [
        range(first, (_LAST if last is None else last) + 1)
        for first, last in await database.fetch(with_row_lock(database, TAIL_OF), {"key": key})
    ]
    meta = await session_meta(database, key)
    if meta is not None:
        parameters = {"key": key, "first": state.inherited + 1, "last": _LAST, "limit": _PAGE}
        while rows := await database.fetch(ROWS, parameters):
            parameters["first"] = rows[-1][0] + 1
            for number, words in _messages(meta.origin, rows):
                if words is not None and not any(number in each for each in lacking):
                    await _note_removed(database, document_number(key, number), words)
        for (title,) in await database.fetch(TITLE, {"key": key}):
            words = text_words(meta.origin, meta.created_at, title)
            await _note_removed(database, document_number(key, 0), words)
    await database.execute(FORGET_TAIL, {"key": key})
    await database.execute(FORGET_TITLE, {"key": key})


async def _note_removed(database: Database, document: int, words: str) -> None:
    await database.execute(NOTE_REMOVED, {"document": document, "words": words})


async def remove_documents(database: Database, limit: int) -> int:
    """Remove the words of deleted documents from the index; return the number of documents."""
    removed = await database.fetch(TAKE_REMOVED, {"limit": limit})
    for document, words in sorted(removed):
        await _remove(database, document, words)
    return len(removed)


async def _remove(database: Database, document: int, words: str) -> None:
    # Enabled on the first deletion, because older SQLite versions cannot read such an index.
    if not await database.fetch(HAS_SECURE_DELETE):
        await database.execute(SET_SECURE_DELETE)
    await database.execute(REMOVE, {"document": document, "words": words})


async def session_meta(database: Database, key: int) -> SessionMeta | None:
    """Return the origin, title and creation time of a session."""
    for owner, agent_id, repo_id, title, created_at in await database.fetch(
        with_row_lock(database, ORIGIN), {"key": key}
    ):
        return SessionMeta(DocumentOrigin(owner, agent_id, repo_id), title, created_at)
    return None


async def _title(database: Database, key: int) -> list[Document]:
    """Return a session's title as a document; removes the previous title from the index."""
    meta = await session_meta(database, key)
    if meta is None:
        return [(0, None)]
    for (before,) in await database.fetch(TITLE, {"key": key}):
        words = text_words(meta.origin, meta.created_at, before)
        await _remove(database, document_number(key, 0), words)
    if meta.title is None:
        await database.execute(FORGET_TITLE, {"key": key})
        return [(0, None)]
    await database.execute(KEEP_TITLE, {"key": key, "title": meta.title})
    return [(0, text_words(meta.origin, meta.created_at, meta.title))]


async def _claims(
    database: Database, key: int, first: int, last: int, *, limit: int
) -> list[Document]:
    """Return claims about an entity as documents."""
    if database.for_update:
        # First, because rows that another transaction adds meanwhile must be found.
        await database.fetch(with_row_lock(database, CLAIMED), {"key": key})
    parameters = {"key": key, "first": first, "last": last, "limit": limit}
    return [
        (number, text_words(DocumentOrigin(owner), at * _MILLISECOND, claim_text(content)))
        for number, owner, at, content in await database.fetch(CLAIMS, parameters)
    ]


def _messages(origin: DocumentOrigin, rows: list[Row]) -> Iterator[Document]:
    for number, role, at, parts in rows:
        try:
            yield number, message_words(origin, (role, at, parts))
        except (msgspec.MsgspecError, RecursionError, TypeError) as error:
            # A damaged row is never shown, so it is not indexed; `holdfast doctor` reports it.
            log.error("a damaged row was left out of the search index: %s", type(error).__name__)
            yield number, None


def claim_text(content: bytes) -> str:
    """Return the text of a stored claim; empty if it is damaged."""
    try:
        return text_of_value(decode_exact(content))
    except (ValueError, RecursionError):
        return ""


# Number of commits between two checks; a check costs as much as a small read.
EVERY: Final = 1_024
# Backlog that a search may scan itself, which takes a few milliseconds.
WAITING_MOST: Final = Backlog(1_024, 1 << 20)
# Smaller batches, because removal is slower: it searches for each word.
REMOVE_BATCH: Final = 32
REMOVE_SECONDS: Final = 1.0
Asked = Callable[[Callable[[Tx], Any]], Awaitable[Any]]


class IndexUpkeep:
    """Updates the index in the background after a number of commits."""

    def __init__(self, read: Asked, write: Asked) -> None:
        self._read = read
        self._write = write
        # Check after the first commit, because a short-lived process may make only a few.
        self._left = 1
        self._task: asyncio.Task[None] | None = None

    def count(self) -> None:
        """Count a commit; starts a background update when it is due."""
        self._left -= 1
        if self._left > 0 or (self._task is not None and not self._task.done()):
            return
        self._left = EVERY
        # Background work: running out of memory only delays it and must not fail the commit.
        with suppress(MemoryError):
            self._task = asyncio.get_running_loop().create_task(self._keep_up())

    async def remove_deleted(self) -> bool:
        """Remove words of deleted documents from the index; `False` if some remain.

        Limited to one second, because the caller is waiting.
        """
        deadline = time.monotonic() + REMOVE_SECONDS
        try:
            while await self._write(lambda tx: tx.search.remove_documents(REMOVE_BATCH)):
                if time.monotonic() > deadline:
                    return False
        except HoldfastError as error:
            log.warning("removed text is still in the search index: %s", error)
            return False
        return True

    async def close(self) -> None:
        """Wait for the background task, if it runs on this event loop."""
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
                log.debug("the search index is catching up")
        except (HoldfastError, MemoryError) as error:
            log.warning("the search index is behind: %s", error)
