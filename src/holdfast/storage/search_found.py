"""Documents that the index names, read and proven: it may be behind, damaged, or too generous."""

import hashlib
from typing import Final

from holdfast.domain.canonical import reading
from holdfast.domain.entity_types import EntityType
from holdfast.domain.ids import SessionId, SessionKey
from holdfast.domain.observations import observation_id
from holdfast.domain.search_terms import holds
from holdfast.domain.search_texts import text_of, text_of_value, tool_of
from holdfast.domain.search_words import words_of
from holdfast.domain.sessions import Head, title_of
from holdfast.domain.times import instant, microseconds
from holdfast.domain.timestamps import moment
from holdfast.ports import Segment
from holdfast.ports.search import Found, SearchWish
from holdfast.storage.database import Database, Row, checksum, corrupt, encode
from holdfast.storage.messages import Messages
from holdfast.storage.observations import Observations
from holdfast.storage.search_documents import source_of
from holdfast.storage.search_index import standing_of
from holdfast.storage.search_sql import CLAIM, SAID_FIRST
from holdfast.storage.sessions import Sessions

_TITLE: Final = 0


class Finder:
    """Reads documents for one search."""

    def __init__(self, database: Database, wish: SearchWish) -> None:
        self._db = database
        self._wish = wish
        self._heads: dict[int, Head | None] = {}
        self._since = None if wish.since is None else microseconds(wish.since)
        self._until = None if wish.until is None else microseconds(wish.until)

    async def found(self, place: int) -> Found | None:
        """Return the document of a place, if it is what is asked for."""
        key, number = source_of(place)
        if key < 0:
            found = await self._claim(place, -key, number)
        else:
            head = await self._head(key)
            # Of somebody else, or gone: the index is asked in words, and answers in numbers.
            if head is None or not await self._is_asked_for(head):
                return None
            if number == _TITLE:
                found = await self._title(place, head)
            else:
                found = await self._message(place, head, number)
        return found if found is not None and self._is_wanted(found) else None

    async def _head(self, key: int) -> Head | None:
        if key not in self._heads:
            self._heads[key] = await Sessions(self._db).head_by_key(SessionKey(key))
        return self._heads[key]

    async def _is_asked_for(self, head: Head) -> bool:
        """Tell whether a session is of the owner, the agent and the repository that are meant."""
        wish = self._wish
        if head.owner != wish.owner or wish.agent_id not in {None, head.agent_id}:
            return False
        if wish.repo_id is None:
            return True
        standing = await standing_of(self._db, head.key)
        return standing is not None and standing.origin.repo_id == wish.repo_id

    async def _message(self, place: int, head: Head, number: int) -> Found | None:
        if not head.inherited < number <= head.messages:
            return None
        segment = Segment(head.key, head.session_id, number, number)
        message = (await Messages(self._db).span(segment, limit=1))[0]
        wish = self._wish
        if wish.role not in {None, message.role}:
            return None
        if wish.tool is not None and tool_of(message.parts) != wish.tool:
            return None
        return Found(
            place=place,
            text=text_of(message.parts),
            created_at=message.created_at,
            # For who asks for a fork, what it inherits is its own.
            session_id=wish.session_id or head.session_id,
            agent_id=head.agent_id,
            message=message,
        )

    async def _title(self, place: int, head: Head) -> Found | None:
        standing = await standing_of(self._db, head.key)
        if standing is None or head.title is None or not self._has_only_words():
            return None
        # Most titles are what was said first, which is found itself.
        if head.title == await self._said_first(head):
            return None
        return Found(
            place=place,
            text=head.title,
            created_at=instant(standing.created_at),
            session_id=head.session_id,
            agent_id=head.agent_id,
        )

    async def _said_first(self, head: Head) -> str | None:
        """Return the title that a session, or the one it was forked from, got from a message."""
        for part in await Sessions(self._db).lineage(head.key):
            asked = {"key": part.key, "first": part.first, "last": part.last}
            for (number,) in await self._db.fetch(SAID_FIRST, asked):
                segment = Segment(part.key, part.session_id, number, number)
                return title_of((await Messages(self._db).span(segment, limit=1))[0].text)
        return None

    async def _claim(self, place: int, key: int, ordinal: int) -> Found | None:
        known = await Observations(self._db).by_key(key)
        if known is None or known.is_deleted or known.subject.owner != self._wish.owner:
            return None
        if not self._has_only_words() or self._wish.agent_id or self._wish.repo_id:
            return None
        rows = await self._db.fetch(CLAIM, {"key": key, "ordinal": ordinal})
        if not rows or not _is_sound(rows[0]):
            raise corrupt(f"observation {ordinal} of {known.entity_id}")
        content_hash, content = rows[0][7], rows[0][9]
        is_session = known.subject.entity_type is EntityType.AGENT_SESSION
        return Found(
            place=place,
            text=text_of_value(reading(content)),
            created_at=moment(rows[0][5]),
            session_id=SessionId(known.subject.key) if is_session else None,
            observation_id=observation_id(known.subject, ordinal, content_hash.hex()),
        )

    def _has_only_words(self) -> bool:
        """Tell whether nothing is asked for that only messages have."""
        return self._wish.role is None and self._wish.tool is None

    def _is_wanted(self, found: Found) -> bool:
        at = microseconds(found.created_at)
        if self._since is not None and at < self._since:
            return False
        if self._until is not None and at >= self._until:
            return False
        return holds(self._wish.terms, words_of(found.text))


def _is_sound(row: Row) -> bool:
    *head, stored, content = row
    is_whole = hashlib.sha256(content).digest() == head[-1]
    return bool(is_whole and checksum(encode(head)) == stored)
