"""The `sessions` table, the openings beside it, and the tombstones after it."""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from holdfast.domain.errors import Code, Internal
from holdfast.domain.ids import Owner, SessionId, SessionKey, is_uuid
from holdfast.domain.queries import SessionOrder, SessionQuery
from holdfast.domain.sessions import Head, Session
from holdfast.domain.times import instant, microseconds
from holdfast.ports import Segment
from holdfast.storage.database import Database, Row, sound
from holdfast.storage.search_index import note_removal
from holdfast.storage.search_sql import NOTE, NOTE_TITLE
from holdfast.storage.session_rows import (
    HEAD_COLUMNS,
    columns_of,
    forget,
    head_of,
    opening_of,
    remember,
    session_of,
)
from holdfast.storage.session_sql import (
    ADD,
    ADD_OPENING,
    BEGINNING,
    BURY,
    BY_INDEX,
    BY_ROW,
    DETACH,
    DIGEST,
    EXTEND,
    FORKS,
    GET,
    GET_BY_KEY,
    HEAD,
    HEAD_BY_KEY,
    IDLE,
    INHERIT,
    INHERIT_MEDIA,
    IS_BURIED,
    LINEAGE,
    PATCH,
    REMOVE,
    SAVE,
    SLOTS,
    UNSETTLED,
    count_sql,
    page_sql,
)

_BEGINNING: Final = re.compile(r"[0-9a-f-]{1,36}")
_UPDATED_AT: Final = 21
_TITLES_MOST: Final = 4_096
_UNREAD: Final = object()


class Sessions:
    """Sessions in the store."""

    def __init__(self, database: Database, *, trusts_indexes: bool = True) -> None:
        """Where pages do not prove themselves, an index is compared with its rows first."""
        self._db = database
        self._trusts_indexes = trusts_indexes
        # As they were last read here: whoever saves a session has read it in the transaction.
        self._titles: dict[int, str | None] = {}

    async def add(self, session: Session, head: Head, digest: bytes) -> Head:
        parent = session.forked_from
        row = columns_of(head) | {
            "id": session.id,
            "owner": session.owner,
            "agent_id": session.agent_id,
            "repo_id": session.repo_id,
            "forked_id": parent.session_id if parent else None,
            "forked_at": parent.sequence if parent else None,
            "created_at": microseconds(session.created_at),
        }
        (key,) = (await self._db.fetch(ADD, row))[0]
        if head.title is not None:
            await self._db.execute(NOTE, {"key": key, "first": 0, "last": 0})
        opening = {"session_key": key, "digest": digest, **opening_of(session)}
        await self._db.execute(ADD_OPENING, opening)
        return msgspec.structs.replace(head, key=key)

    async def digest(self, owner: Owner, session_id: SessionId) -> bytes | None:
        rows = await self._db.fetch(DIGEST, {"owner": owner, "id": session_id})
        return rows[0][0] if rows else None

    async def head(self, owner: Owner, session_id: SessionId) -> Head | None:
        # What is no id names nothing; and not every text that is no id can be bound.
        if not is_uuid(session_id):
            return None
        rows = await self._db.fetch(HEAD, {"owner": owner, "id": session_id})
        return self._read(rows[0]) if rows else None

    async def head_by_key(self, key: SessionKey) -> Head | None:
        rows = await self._db.fetch(HEAD_BY_KEY, {"key": key})
        return self._read(rows[0]) if rows else None

    def _read(self, row: Row) -> Head:
        head = head_of(row)
        if len(self._titles) >= _TITLES_MOST:
            self._titles.clear()
        self._titles[head.key] = head.title
        return head

    async def save(self, head: Head) -> None:
        columns = columns_of(head)
        # Almost always it is the title that the session was just read with.
        if self._titles.get(head.key, _UNREAD) != head.title:
            await self._db.execute(NOTE_TITLE, {"key": head.key, "title": head.title})
        await self._db.execute(SAVE, columns)
        remember(head, columns)

    async def get(self, owner: Owner, session_id: SessionId) -> tuple[Session, Head] | None:
        if not is_uuid(session_id):
            return None
        rows = await self._db.fetch(GET, {"owner": owner, "id": session_id})
        return session_of(rows[0]) if rows else None

    async def get_by_key(self, key: SessionKey) -> tuple[Session, Head] | None:
        rows = await self._db.fetch(GET_BY_KEY, {"key": key})
        return session_of(rows[0]) if rows else None

    async def patch(self, key: SessionKey, session: Session) -> None:
        await self._db.execute(PATCH, {"key": key, **opening_of(session)})

    async def page(self, query: SessionQuery) -> list[tuple[Session, Head]]:
        found: list[tuple[Session, Head]] = []
        rows: list[Row] = []
        if not self._trusts_indexes:
            await self._require_index(query.owner)
        while True:
            # Filled up where damaged rows were passed over: a short page would look like the last.
            left = query.limit - len(found)
            wanted = msgspec.structs.replace(query, limit=left)
            sql, parameters = page_sql(_behind(wanted, rows[-1]) if rows else wanted)
            rows = await self._db.fetch(sql, parameters)
            _require_order([_place(row, query.order) for row in rows])
            found += sound(rows, session_of)
            if len(rows) < left or len(found) == query.limit:
                return found

    async def _require_index(self, owner: Owner) -> None:
        """Refuse an index that lacks a session: a listing would hide it without a word."""
        of_owner = {"owner": owner}
        by_row = await self._db.fetch(BY_ROW, of_owner)
        if by_row != await self._db.fetch(BY_INDEX, of_owner):
            raise _damaged_index()

    async def beginning(self, owner: Owner, text: str, limit: int) -> tuple[SessionId, ...]:
        # What no id begins with names nothing; and not every such text can be bound.
        if not _BEGINNING.fullmatch(text):
            return ()
        if not self._trusts_indexes:
            await self._require_index(owner)
        asked = {"owner": owner, "text": text, "limit": limit}
        return tuple(row[0] for row in await self._db.fetch(BEGINNING, asked))

    async def count(self, query: SessionQuery) -> int:
        sql, parameters = count_sql(query)
        return int((await self._db.fetch(sql, parameters))[0][0])

    async def lineage(self, key: SessionKey) -> tuple[Segment, ...]:
        segments = await self._all_segments(key)
        return tuple(part for part in segments if part.first <= part.last)

    async def _all_segments(self, key: SessionKey) -> tuple[Segment, ...]:
        return _segments(await self._db.fetch(LINEAGE, {"key": key}))

    async def forks(self, key: SessionKey) -> list[Head]:
        return [head_of(row) for row in await self._db.fetch(FORKS, {"key": key})]

    async def extend(self, holder: str, until: int) -> set[SessionKey]:
        rows = await self._db.fetch(EXTEND, {"holder": holder, "until": until})
        return {row[0] for row in rows}

    async def unsettled(self) -> list[Head]:
        return list(sound(await self._db.fetch(UNSETTLED), head_of))

    async def idle(self, before: datetime) -> list[Head]:
        rows = await self._db.fetch(IDLE, {"before": microseconds(before)})
        return list(sound(rows, head_of))

    async def slots(self) -> int:
        return int((await self._db.fetch(SLOTS))[0][0])

    async def detach(self, key: SessionKey) -> None:
        *ancestors, _ = await self._all_segments(key)
        for part in ancestors:
            stretch = {"ancestor": part.key, "first": part.first, "last": part.last}
            await self._db.execute(INHERIT, {"session_key": key, **stretch})
            await self._db.execute(NOTE, {"key": key, "first": part.first, "last": part.last})
            held = {"session_key": key, "ancestor": part.key}
            await self._db.execute(INHERIT_MEDIA, held)
        await self._db.execute(DETACH, {"key": key})

    async def remove(self, head: Head, at: datetime) -> None:
        # Gone before it is buried: the cascade takes the rows, the tombstone keeps the id.
        grave = {"key": head.key, "id": head.session_id, "owner": head.owner}
        await note_removal(self._db, head)
        await self._db.execute(REMOVE, {"key": head.key})
        forget(head.key)
        await self._db.execute(BURY, grave | {"deleted_at": microseconds(at)})

    async def is_buried(self, owner: Owner, session_id: SessionId) -> bool:
        return bool(await self._db.fetch(IS_BURIED, {"owner": owner, "id": session_id}))


def _behind(query: SessionQuery, last: Row) -> SessionQuery:
    """Return the query for what comes after a row that it found."""
    at, session_id = _place(last, query.order)
    return msgspec.structs.replace(query, before=(instant(at), session_id), offset=0)


def _place(row: Row, order: SessionOrder) -> tuple[int, str]:
    """Return where a listing in that order has the row."""
    by_creation = order is SessionOrder.CREATED_AT
    return row[HEAD_COLUMNS + 2] if by_creation else row[_UPDATED_AT], row[1]


def _require_order(places: list[tuple[int, str]]) -> None:
    """Refuse a page that is not in its order: the index that gave it is not the rows' own."""
    if places != sorted(set(places), reverse=True):
        raise _damaged_index()


def _damaged_index() -> Internal:
    return Internal(
        Code.CORRUPT_STORE,
        "An index of the store is damaged; run `holdfast doctor`, or restore a backup.",
    )


def _segments(rows: Sequence[Row]) -> tuple[Segment, ...]:
    """Cut each ancestor's rows where its descendant leaves it, oldest ancestor first."""
    segments: list[Segment] = []
    last = None
    for key, session_id, messages, forked_at in rows:
        end = messages if last is None else last
        segments.append(Segment(key, session_id, (forked_at or 0) + 1, end))
        # A fork of a fork may leave before its parent's own rows begin.
        last = forked_at if last is None or forked_at is None else min(last, forked_at)
    return tuple(reversed(segments))
