"""The `sessions` table, the openings beside it, and the tombstones after it."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from holdfast.domain.agents import Agent
from holdfast.domain.approvals import ApprovalMode
from holdfast.domain.contexts import SessionContext
from holdfast.domain.costs import Usage
from holdfast.domain.errors import Code, Internal
from holdfast.domain.ids import AgentId, ModelId, Owner, RepoId, SessionId, SessionKey, is_uuid
from holdfast.domain.queries import SessionOrder, SessionQuery
from holdfast.domain.sessions import Budget, ForkPoint, Head, Session, Status, StopReason
from holdfast.domain.times import instant, microseconds
from holdfast.domain.tools import Grant, ToolSpec
from holdfast.ports import Segment
from holdfast.storage.database import Database, Row, checksum, corrupt, encode, require_sound, sound
from holdfast.storage.session_sql import (
    ADD,
    ADD_OPENING,
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
    UNSETTLED,
    count_sql,
    page_sql,
)


class Opening(Struct, frozen=True, kw_only=True):
    """What a session keeps beside its row: frozen at open, but for what its owner may change."""

    agent: Agent
    tags: tuple[str, ...]
    model_id: ModelId | None
    context: SessionContext
    grant: Grant
    tools: tuple[ToolSpec, ...]
    approval: ApprovalMode
    turn_cap: int
    budget: Budget | None
    metadata: dict[str, Any]


_decoder = msgspec.json.Decoder(Opening)
_HEAD_COLUMNS: Final = 26
_UPDATED_AT: Final = 21


class Sessions:
    """Sessions in the store."""

    def __init__(self, database: Database, *, trusts_indexes: bool = True) -> None:
        """Where pages do not prove themselves, an index is compared with its rows first."""
        self._db = database
        self._trusts_indexes = trusts_indexes

    async def add(self, session: Session, head: Head, digest: bytes) -> Head:
        parent = session.forked_from
        row = _columns(head) | {
            "id": session.id,
            "owner": session.owner,
            "agent_id": session.agent_id,
            "repo_id": session.repo_id,
            "forked_id": parent.session_id if parent else None,
            "forked_at": parent.sequence if parent else None,
            "created_at": microseconds(session.created_at),
        }
        (key,) = (await self._db.fetch(ADD, row))[0]
        opening = {"session_key": key, "digest": digest, **_opening(session)}
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
        return _head(rows[0]) if rows else None

    async def head_by_key(self, key: SessionKey) -> Head | None:
        rows = await self._db.fetch(HEAD_BY_KEY, {"key": key})
        return _head(rows[0]) if rows else None

    async def save(self, head: Head) -> None:
        await self._db.execute(SAVE, _columns(head))

    async def get(self, owner: Owner, session_id: SessionId) -> tuple[Session, Head] | None:
        if not is_uuid(session_id):
            return None
        rows = await self._db.fetch(GET, {"owner": owner, "id": session_id})
        return _session(rows[0]) if rows else None

    async def get_by_key(self, key: SessionKey) -> tuple[Session, Head] | None:
        rows = await self._db.fetch(GET_BY_KEY, {"key": key})
        return _session(rows[0]) if rows else None

    async def patch(self, key: SessionKey, session: Session) -> None:
        await self._db.execute(PATCH, {"key": key, **_opening(session)})

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
            found += sound(rows, _session)
            if len(rows) < left or len(found) == query.limit:
                return found

    async def _require_index(self, owner: Owner) -> None:
        """Refuse an index that lacks a session: a listing would hide it without a word."""
        of_owner = {"owner": owner}
        by_row = await self._db.fetch(BY_ROW, of_owner)
        if by_row != await self._db.fetch(BY_INDEX, of_owner):
            raise _damaged_index()

    async def count(self, query: SessionQuery) -> int:
        sql, parameters = count_sql(query)
        return int((await self._db.fetch(sql, parameters))[0][0])

    async def lineage(self, key: SessionKey) -> tuple[Segment, ...]:
        segments = await self._all_segments(key)
        return tuple(part for part in segments if part.first <= part.last)

    async def _all_segments(self, key: SessionKey) -> tuple[Segment, ...]:
        return _segments(await self._db.fetch(LINEAGE, {"key": key}))

    async def forks(self, key: SessionKey) -> list[Head]:
        return [_head(row) for row in await self._db.fetch(FORKS, {"key": key})]

    async def extend(self, holder: str, until: int) -> set[SessionKey]:
        rows = await self._db.fetch(EXTEND, {"holder": holder, "until": until})
        return {row[0] for row in rows}

    async def unsettled(self) -> list[Head]:
        return list(sound(await self._db.fetch(UNSETTLED), _head))

    async def idle(self, before: datetime) -> list[Head]:
        rows = await self._db.fetch(IDLE, {"before": microseconds(before)})
        return list(sound(rows, _head))

    async def detach(self, key: SessionKey) -> None:
        *ancestors, _ = await self._all_segments(key)
        for part in ancestors:
            stretch = {"ancestor": part.key, "first": part.first, "last": part.last}
            await self._db.execute(INHERIT, {"session_key": key, **stretch})
            held = {"session_key": key, "ancestor": part.key}
            await self._db.execute(INHERIT_MEDIA, held)
        await self._db.execute(DETACH, {"key": key})

    async def remove(self, head: Head, at: datetime) -> None:
        # Gone before it is buried: the cascade takes the rows, the tombstone keeps the id.
        grave = {"key": head.key, "id": head.session_id, "owner": head.owner}
        await self._db.execute(REMOVE, {"key": head.key})
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
    return row[_HEAD_COLUMNS + 2] if by_creation else row[_UPDATED_AT], row[1]


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


def _columns(head: Head) -> dict[str, Any]:
    columns = {
        "key": head.key,
        "title": head.title,
        "status": head.status.value,
        "last_stop": head.last_stop.value if head.last_stop else None,
        "reason": head.reason,
        "turn": head.turn,
        "settled": head.settled,
        "messages": head.messages,
        "events": head.events,
        "began": head.began,
        "chain": head.chain,
        "holder": head.holder,
        "until": head.until,
        "epoch": head.epoch,
        "tokens_in": head.tokens_in,
        "tokens_out": head.tokens_out,
        "microcents": head.microcents,
        "requests": head.requests,
        "updated_at": microseconds(head.updated_at),
        "started_at": microseconds(head.started_at) if head.started_at else None,
        "finished_at": microseconds(head.finished_at) if head.finished_at else None,
    }
    names = (head.session_id, head.owner, head.agent_id)
    columns["checksum"] = _sum(names + tuple(columns[name] for name in _SUMMED))
    return columns


# Left out: the key, which a new row does not have yet, and what other statements change alone.
_SUMMED: Final = (
    "title",
    "status",
    "last_stop",
    "reason",
    "turn",
    "settled",
    "messages",
    "events",
    "began",
    "chain",
    "holder",
    "epoch",
    "tokens_in",
    "tokens_out",
    "microcents",
    "requests",
    "updated_at",
    "started_at",
    "finished_at",
)


def _sum(values: Row) -> int:
    return checksum(encode(values))


_STATUS: Final = {status.value: status for status in Status}
_STOP: Final = {stop.value: stop for stop in StopReason}


def _head(row: Row) -> Head:
    if _sum(row[1:15] + row[16:24]) != row[25]:
        raise corrupt(f"session {row[1]}")
    return Head(
        key=row[0],
        session_id=row[1],
        owner=Owner(row[2]),
        agent_id=AgentId(row[3]),
        title=row[4],
        status=_STATUS[row[5]],
        last_stop=_STOP[row[6]] if row[6] else None,
        reason=row[7],
        turn=row[8],
        settled=row[9],
        messages=row[10],
        events=row[11],
        began=row[12],
        chain=row[13],
        holder=row[14],
        until=row[15],
        epoch=row[16],
        tokens_in=row[17],
        tokens_out=row[18],
        microcents=row[19],
        requests=row[20],
        updated_at=instant(row[21]),
        started_at=instant(row[22]) if row[22] is not None else None,
        finished_at=instant(row[23]) if row[23] is not None else None,
        inherited=row[24] or 0,
    )


def _opening(session: Session) -> dict[str, Any]:
    body = encode(
        Opening(
            agent=session.agent,
            tags=session.tags,
            model_id=session.model_id,
            context=session.context,
            grant=session.grant,
            tools=session.tools,
            approval=session.approval,
            turn_cap=session.turn_cap,
            budget=session.budget,
            metadata=session.metadata,
        )
    )
    # With the time of its opening, which stands in the row that other sums do not cover.
    return {"body": body, "checksum": checksum(microseconds(session.created_at), body)}


def _session(row: Row) -> tuple[Session, Head]:
    head = _head(row[:_HEAD_COLUMNS])
    repo_id, forked_id, created_at, body, stored = row[_HEAD_COLUMNS:]
    require_sound(stored, created_at, body, what=f"session {head.session_id}")
    try:
        opening = _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise corrupt(f"session {head.session_id}") from error
    parent = ForkPoint(session_id=forked_id, sequence=head.inherited) if forked_id else None
    return _joined(head, opening, RepoId(repo_id) if repo_id else None, parent, created_at), head


def _joined(
    head: Head, opening: Opening, repo_id: RepoId | None, parent: ForkPoint | None, created_at: int
) -> Session:
    frozen = {name: getattr(opening, name) for name in Opening.__struct_fields__}
    return Session(
        id=head.session_id,
        owner=head.owner,
        agent_id=head.agent_id,
        repo_id=repo_id,
        title=head.title,
        status=head.status,
        last_stop=head.last_stop,
        reason=head.reason,
        turn=head.turn,
        settled=head.settled,
        forked_from=parent,
        usage=Usage(input=head.tokens_in, output=head.tokens_out),
        microcents=head.microcents,
        message_count=head.messages,
        last_event=head.events,
        created_at=instant(created_at),
        updated_at=head.updated_at,
        started_at=head.started_at,
        finished_at=head.finished_at,
        **frozen,
    )
