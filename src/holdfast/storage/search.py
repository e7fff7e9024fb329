"""Search in the store: the index names documents, and each is proven before it is shown.

What is not in the index yet is read through, so that whatever was acknowledged is found.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

import msgspec

from holdfast.domain.canonical import reading
from holdfast.domain.errors import Internal
from holdfast.domain.messages import decode_parts
from holdfast.domain.search_terms import holds
from holdfast.domain.search_texts import text_of, text_of_value
from holdfast.domain.search_words import words_of
from holdfast.ports.search import Backlog, Found, Harvest, SearchWish
from holdfast.storage.database import Database, log
from holdfast.storage.search_documents import HIGHEST, LOWEST, NUMBERS, place_of, source_of
from holdfast.storage.search_found import Finder
from holdfast.storage.search_index import bury, catch_up, standing_of
from holdfast.storage.search_sql import (
    BACKLOG,
    CLAIMS,
    EMPTY,
    MATCHING,
    NAMED,
    OWN_TAIL,
    ROWS,
    SUM,
    expression,
)
from holdfast.storage.sessions import Sessions

_LAST: Final = NUMBERS - 1
# Documents that are looked at for one page; then the page ends, and the next one goes on.
LOOKS_MOST: Final = 1_000
_CHUNK: Final = 64

# From one place to another, both included.
Span = tuple[int, int]


class Search:
    """Documents by their words."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def find(self, wish: SearchWish) -> Harvest:
        if not wish.terms.wanted:
            return Harvest(found=())
        finder = Finder(self._db, wish)
        spans = await self._spans(wish)
        tail = await self._tail(wish, spans)
        found: list[Found] = []
        behind = None
        looks = 0
        async with aclosing(self._places(wish, spans, tail)) as places:
            async for place in places:
                if looks == LOOKS_MOST or len(found) == wish.limit:
                    break
                looks += 1
                behind = place
                if (one := await _proven(finder, place)) is not None:
                    found.append(one)
            else:
                behind = None
        return Harvest(found=tuple(found), behind=behind)

    async def backlog(self) -> Backlog:
        return Backlog(*(await self._db.fetch(BACKLOG))[0])

    async def catch_up(self, limit: int) -> int:
        return await catch_up(self._db, limit)

    async def bury(self, limit: int) -> int:
        return await bury(self._db, limit)

    async def sum(self) -> tuple[int, int]:
        count, total = (await self._db.fetch(SUM))[0]
        return count, total

    async def empty(self) -> Backlog:
        for sql in EMPTY:
            await self._db.execute(sql)
        return await self.backlog()

    async def _spans(self, wish: SearchWish) -> list[Span]:
        """Return where documents may stand, the highest first."""
        top = HIGHEST if wish.before is None else wish.before - 1
        if wish.session_id is None:
            return [(LOWEST, top)] if top >= LOWEST else []
        spans = []
        sessions = Sessions(self._db)
        head = await sessions.head(wish.owner, wish.session_id)
        if head is not None:
            # What a fork inherits is its own for who asks for it; its title is.
            spans = [
                (place_of(part.key, part.first), place_of(part.key, part.last))
                for part in await sessions.lineage(head.key)
            ]
            spans.append((place_of(head.key, 0), place_of(head.key, 0)))
        for (key,) in await self._db.fetch(NAMED, {"owner": wish.owner, "name": wish.session_id}):
            spans.append((place_of(-key, 0), place_of(-key, _LAST)))
        spans.sort(reverse=True)
        return [(low, min(high, top)) for low, high in spans if low <= top]

    async def _places(
        self, wish: SearchWish, spans: Sequence[Span], tail: "Tail"
    ) -> AsyncGenerator[int, None]:
        """Yield the places that may be meant, the highest first, each once."""
        waiting = sorted(tail.matching)
        asked = {"expression": expression(wish), "limit": _CHUNK}
        for low, high in spans:
            top = high
            while rows := await self._db.fetch(MATCHING, {**asked, "low": low, "high": top}):
                for (place,) in rows:
                    while waiting and waiting[-1] > place:
                        yield waiting.pop()
                    if not tail.has(place):
                        yield place
                top = rows[-1][0] - 1
                if len(rows) < _CHUNK:
                    break
        while waiting:
            yield waiting.pop()

    async def _tail(self, wish: SearchWish, spans: Sequence[Span]) -> "Tail":
        """Read what is not in the index yet."""
        tail = Tail()
        for key, first, last in await self._db.fetch(OWN_TAIL, {"owner": wish.owner}):
            end = _LAST if last is None else last
            tail.spans.append((place_of(key, first), place_of(key, end)))
            for low, high in spans:
                start = max(place_of(key, first), low)
                stop = min(place_of(key, end), high)
                if start <= stop:
                    numbers = (source_of(start)[1], source_of(stop)[1])
                    tail.matching += await self._matching(wish, key, numbers)
        return tail

    async def _matching(self, wish: SearchWish, key: int, numbers: Span) -> list[int]:
        """Return the places in a stretch of the tail whose text holds what is asked for."""
        first, last = numbers
        asked = {"key": abs(key), "first": first, "last": last, "limit": -1}
        if key < 0:
            rows = await self._db.fetch(CLAIMS, asked)
            texts = [(row[0], _claimed(row[-1])) for row in rows]
        else:
            rows = await self._db.fetch(ROWS, asked)
            texts = [(row[0], _said(row[-1], wish)) for row in rows]
            standing = await standing_of(self._db, key) if first == 0 else None
            if standing is not None and standing.title is not None:
                texts.append((0, standing.title))
        return [
            place_of(key, number)
            for number, text in texts
            if text is not None and holds(wish.terms, words_of(text))
        ]


class Tail:
    """What is not in the index yet: where it stands, and what of it matches."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.matching: list[int] = []

    def has(self, place: int) -> bool:
        """Tell whether a document is in the tail; what the index says of it is outdated."""
        return any(low <= place <= high for low, high in self.spans)


async def _proven(finder: Finder, place: int) -> Found | None:
    try:
        return await finder.found(place)
    except Internal as error:
        # One bad record never hides its neighbours; `holdfast doctor` names it.
        log.error("%s", error.message)
        return None


def _said(parts: bytes, wish: SearchWish) -> str | None:
    """Return the text of a stored row; nothing where it cannot hold what is asked for."""
    # Letters of ASCII stand in the bytes as they are: most rows need not be decoded.
    if parts.isascii():
        small = parts.lower()
        if not all(term.words[0].encode() in small for term in wish.terms.wanted):
            return None
    try:
        return text_of(decode_parts(parts))
    except (msgspec.MsgspecError, RecursionError):
        return None


def _claimed(content: bytes) -> str | None:
    try:
        return text_of_value(reading(content))
    except (ValueError, RecursionError):
        return None
