"""Look up documents in the index and verify each against its source row."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final

import msgspec

from holdfast.domain.errors import Internal
from holdfast.domain.ids import SessionId, SessionKey
from holdfast.domain.messages import decode_parts
from holdfast.domain.sessions import SessionState, title_of
from holdfast.domain.time import instant, microseconds
from holdfast.observations.model import EntityType
from holdfast.observations.tables import ObservationTables
from holdfast.ports.store import Segment
from holdfast.search.documents import (
    BACKLOG,
    CLAIMS,
    EMPTY,
    FIRST_USER_MESSAGE,
    HIGHEST,
    LOWEST,
    MATCHING,
    NAMED,
    NUMBERS,
    OWN_TAIL,
    ROWS,
    SUM,
    document_number,
    expression,
    source_of,
)
from holdfast.search.index import catch_up, claim_text, remove_documents, session_meta
from holdfast.search.query import Backlog, FoundDocument, SearchBatch, SearchRequest, holds
from holdfast.search.tokenizer import text_of, text_of_value, tool_of, words_of
from holdfast.store.database import Database, log
from holdfast.store.messages import MessageRows
from holdfast.store.sessions import SessionRows

_TITLE: Final = 0


class Finder:
    """Loads and verifies documents for one search."""

    def __init__(self, database: Database, request: SearchRequest) -> None:
        self._db = database
        self._request = request
        self._states: dict[int, SessionState | None] = {}
        # How many characters were checked so far.
        self.checked = 0
        self._since = None if request.since is None else microseconds(request.since)
        self._until = None if request.until is None else microseconds(request.until)

    async def find(self, position: int) -> FoundDocument | None:
        """Return the document with this number, if it matches the request."""
        key, number = source_of(position)
        if key < 0:
            found = await self._claim(position, -key, number)
        else:
            state = await self._state(key)
            # Access check: the index only returns numbers; the session may be foreign or deleted.
            if state is None or not await self._is_in_scope(state):
                return None
            if number == _TITLE:
                found = await self._title(position, state)
            else:
                found = await self._message(position, state, number)
        return found if found is not None and self._is_in_period(found) else None

    async def _state(self, key: int) -> SessionState | None:
        if key not in self._states:
            self._states[key] = await SessionRows(self._db).state_by_key(SessionKey(key))
        return self._states[key]

    async def _is_in_scope(self, state: SessionState) -> bool:
        """Return whether a session has the requested owner, agent and repository."""
        request = self._request
        if state.owner != request.owner or request.agent_id not in {None, state.agent_id}:
            return False
        if request.repo_id is None:
            return True
        meta = await session_meta(self._db, state.key)
        return meta is not None and meta.origin.repo_id == request.repo_id

    async def _message(
        self, position: int, state: SessionState, number: int
    ) -> FoundDocument | None:
        if not state.inherited < number <= state.messages:
            return None
        segment = Segment(state.key, state.session_id, number, number)
        message = (await MessageRows(self._db).span(segment, limit=1))[0]
        request = self._request
        if request.role not in {None, message.role}:
            return None
        if request.tool is not None and tool_of(message.parts) != request.tool:
            return None
        return FoundDocument(
            position=position,
            text=text_of(message.parts),
            created_at=message.created_at,
            # A search within a fork reports inherited messages as those of the fork.
            session_id=request.session_id or state.session_id,
            agent_id=state.agent_id,
            message=message,
        )

    async def _title(self, position: int, state: SessionState) -> FoundDocument | None:
        meta = await session_meta(self._db, state.key)
        if meta is None or state.title is None or not self._has_only_words():
            return None
        # Most titles are derived from the first message, which is found itself.
        if state.title == await self._title_from_messages(state):
            return None
        return FoundDocument(
            position=position,
            text=state.title,
            created_at=instant(meta.created_at),
            session_id=state.session_id,
            agent_id=state.agent_id,
        )

    async def _title_from_messages(self, state: SessionState) -> str | None:
        """Return the title derived from the first user message of a session or its fork parent."""
        for part in await SessionRows(self._db).lineage(state.key):
            parameters = {"key": part.key, "first": part.first, "last": part.last}
            for (number,) in await self._db.fetch(FIRST_USER_MESSAGE, parameters):
                segment = Segment(part.key, part.session_id, number, number)
                return title_of((await MessageRows(self._db).span(segment, limit=1))[0].text)
        return None

    async def _claim(self, position: int, key: int, ordinal: int) -> FoundDocument | None:
        observations = ObservationTables(self._db)
        known = await observations.by_key(key)
        if known is None or known.is_deleted or known.subject.owner != self._request.owner:
            return None
        if not self._has_only_words() or self._request.agent_id or self._request.repo_id:
            return None
        (claim,) = await observations.since(known, ordinal, ordinal)
        is_session = known.subject.entity_type is EntityType.AGENT_SESSION
        return FoundDocument(
            position=position,
            text=text_of_value(claim.fields),
            created_at=claim.created_at,
            session_id=SessionId(known.subject.key) if is_session else None,
            observation_id=claim.id,
        )

    def _has_only_words(self) -> bool:
        """Return whether the request has no filter that applies only to messages."""
        return self._request.role is None and self._request.tool is None

    def _is_in_period(self, document: FoundDocument) -> bool:
        self.checked += len(document.text)
        at = microseconds(document.created_at)
        if self._since is not None and at < self._since:
            return False
        if self._until is not None and at >= self._until:
            return False
        return holds(self._request.terms, words_of(document.text))


_LAST: Final = NUMBERS - 1
# Maximum number of documents checked for one page; the next page continues.
CANDIDATES_MOST: Final = 1_000
# Characters that the texts of one page may have, and those checked for it may have; one text more
# is read. A few long messages would otherwise fill the memory of the process.
FOUND_MOST: Final = 4 << 20
CHECKED_MOST: Final = 32 << 20
_CHUNK: Final = 64
# First and last document number, inclusive.
Span = tuple[int, int]


class SearchTables:
    """The index, its backlog, and what is to be removed from it."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def find(self, request: SearchRequest) -> SearchBatch:
        if not request.terms.wanted:
            return SearchBatch(found=())
        finder = Finder(self._db, request)
        spans = await self._spans(request)
        tail = await self._unindexed(request, spans)
        found: list[FoundDocument] = []
        behind = None
        looks = size = 0
        async with aclosing(self._candidates(request, spans, tail)) as places:
            async for position in places:
                if looks == CANDIDATES_MOST or len(found) == request.limit:
                    break
                if size >= FOUND_MOST or finder.checked >= CHECKED_MOST:
                    break
                looks += 1
                behind = position
                if (one := await _find_verified(finder, position)) is not None:
                    found.append(one)
                    size += len(one.text)
            else:
                behind = None
        return SearchBatch(found=tuple(found), behind=behind)

    async def backlog(self) -> Backlog:
        return Backlog(*(await self._db.fetch(BACKLOG))[0])

    async def catch_up(self, limit: int) -> int:
        return await catch_up(self._db, limit)

    async def remove_documents(self, limit: int) -> int:
        return await remove_documents(self._db, limit)

    async def sum(self) -> tuple[int, int]:
        count, total = (await self._db.fetch(SUM))[0]
        return count, total

    async def empty(self) -> Backlog:
        for sql in EMPTY:
            await self._db.execute(sql)
        return await self.backlog()

    async def _spans(self, request: SearchRequest) -> list[Span]:
        """Return the ranges of document numbers to search, highest first."""
        top = HIGHEST if request.before is None else request.before - 1
        if request.session_id is None:
            return [(LOWEST, top)] if top >= LOWEST else []
        spans = []
        sessions = SessionRows(self._db)
        state = await sessions.state(request.owner, request.session_id)
        if state is not None:
            # A fork includes the messages it inherits, but only its own title.
            spans = [
                (document_number(part.key, part.first), document_number(part.key, part.last))
                for part in await sessions.lineage(state.key)
            ]
            spans.append((document_number(state.key, 0), document_number(state.key, 0)))
        for (key,) in await self._db.fetch(
            NAMED, {"owner": request.owner, "name": request.session_id}
        ):
            spans.append((document_number(-key, 0), document_number(-key, _LAST)))
        spans.sort(reverse=True)
        return [(low, min(high, top)) for low, high in spans if low <= top]

    async def _candidates(
        self, request: SearchRequest, spans: Sequence[Span], tail: "UnindexedMessages"
    ) -> AsyncGenerator[int, None]:
        """Yield candidate document numbers, highest first, without duplicates."""
        waiting = sorted(tail.matching)
        parameters = {"expression": expression(request), "limit": _CHUNK}
        for low, high in spans:
            top = high
            while rows := await self._db.fetch(MATCHING, {**parameters, "low": low, "high": top}):
                for (position,) in rows:
                    while waiting and waiting[-1] > position:
                        yield waiting.pop()
                    if not tail.has(position):
                        yield position
                top = rows[-1][0] - 1
                if len(rows) < _CHUNK:
                    break
        while waiting:
            yield waiting.pop()

    async def _unindexed(
        self, request: SearchRequest, spans: Sequence[Span]
    ) -> "UnindexedMessages":
        """Read the documents that are not indexed yet."""
        tail = UnindexedMessages()
        for key, first, last in await self._db.fetch(OWN_TAIL, {"owner": request.owner}):
            end = _LAST if last is None else last
            tail.spans.append((document_number(key, first), document_number(key, end)))
            for low, high in spans:
                start = max(document_number(key, first), low)
                stop = min(document_number(key, end), high)
                if start <= stop:
                    numbers = (source_of(start)[1], source_of(stop)[1])
                    tail.matching += await self._scan(request, key, numbers)
        return tail

    async def _scan(self, request: SearchRequest, key: int, numbers: Span) -> list[int]:
        """Return the documents in an unindexed range that match the terms."""
        first, last = numbers
        parameters = {"key": abs(key), "first": first, "last": last, "limit": -1}
        if key < 0:
            rows = await self._db.fetch(CLAIMS, parameters)
            texts: list[tuple[int, str | None]] = [(row[0], claim_text(row[-1])) for row in rows]
        else:
            rows = await self._db.fetch(ROWS, parameters)
            texts = [(row[0], _text_of_row(row[-1], request)) for row in rows]
            meta = await session_meta(self._db, key) if first == 0 else None
            if meta is not None and meta.title is not None:
                texts.append((0, meta.title))
        return [
            document_number(key, number)
            for number, text in texts
            if text is not None and holds(request.terms, words_of(text))
        ]


class UnindexedMessages:
    """Ranges that are not indexed yet, and their matching documents."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.matching: list[int] = []

    def has(self, position: int) -> bool:
        """Return whether a document is in the backlog; its index entry is outdated."""
        return any(low <= position <= high for low, high in self.spans)


async def _find_verified(finder: Finder, position: int) -> FoundDocument | None:
    try:
        return await finder.find(position)
    except Internal as error:
        # One damaged record must not hide the others; `holdfast doctor` reports it.
        log.error("%s", error.message)
        return None


def _text_of_row(parts: bytes, request: SearchRequest) -> str | None:
    """Return the text of a stored row; `None` if it cannot match."""
    # Fast path: ASCII words occur verbatim in the bytes, so most rows need no decoding.
    if parts.isascii():
        small = parts.lower()
        if not all(term.words[0].encode() in small for term in request.terms.wanted):
            return None
    try:
        return text_of(decode_parts(parts))
    except (msgspec.MsgspecError, RecursionError):
        return None
