"""The `sessions` table, frozen session data beside it, and tombstones of deleted sessions."""

import re
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

import msgspec

from holdfast.domain.errors import Code, Internal
from holdfast.domain.ids import Owner, SessionId, SessionKey, is_uuid
from holdfast.domain.leases import EVER
from holdfast.domain.queries import SessionOrder, SessionQuery
from holdfast.domain.sessions import Session, SessionState, is_paused
from holdfast.domain.time import instant, microseconds
from holdfast.ports.store import Segment
from holdfast.search.documents import NOTE
from holdfast.search.index import note_removal
from holdfast.store.database import Database, Row, row_key, sound, with_row_lock
from holdfast.store.session_rows import (
    STATE_COLUMNS,
    columns_of,
    opening_of,
    session_of,
    state_of,
)
from holdfast.store.waits import WaitRows

_HEAD: Final = """
s.key, s.id, s.owner, s.agent_id, s.title, s.status, s.last_stop, s.reason, s.turn, s.settled,
       s.messages, s.events, s.began, s.chain, s.holder, s.until, s.epoch, s.tokens_in,
       s.tokens_out, s.microcents, s.requests, s.updated_at, s.started_at, s.finished_at,
       s.forked_at, s.checksum
""".strip()
HEAD_NAMES: Final = tuple(name.strip().removeprefix("s.") for name in _HEAD.split(","))
_SESSION: Final = f"""
{_HEAD},
       s.repo_id, p.id, s.created_at, o.body, o.checksum, g.body, g.checksum, c.body, c.checksum,
       (SELECT count(*) FROM children WHERE parent_key = s.key)
  FROM sessions s
  JOIN openings o ON o.session_key = s.key
  LEFT JOIN sessions p ON p.key = s.forked_key
  LEFT JOIN programs g ON g.session_key = s.key
  LEFT JOIN children c ON c.session_key = s.key
""".strip()  # noqa: S608 — the columns are a constant of this file
ADD = """
-- Insert a session. Keys are never reused; a fork stores the session and the row that it was forked
-- at.
INSERT INTO sessions (key, id, owner, agent_id, repo_id, forked_key, forked_at, title, status,
                      last_stop, reason, turn, settled, messages, events, began, chain, holder,
                      until, epoch, tokens_in, tokens_out, microcents, requests, created_at,
                      updated_at, started_at, finished_at, checksum)
VALUES ((SELECT coalesce(max(used.key), 0) + 1
           FROM (SELECT max(key) AS key FROM sessions
                  UNION ALL
                 SELECT max(key) FROM tombstones) used),
        :id, :owner, :agent_id, :repo_id,
        (SELECT key FROM sessions WHERE owner = :owner AND id = :forked_id), :forked_at, :title,
        :status, :last_stop, :reason, :turn, :settled, :messages, :events, :began, :chain, :holder,
        :until, :epoch, :tokens_in, :tokens_out, :microcents, :requests, :created_at, :updated_at,
        :started_at, :finished_at, :checksum)
RETURNING key
"""
ADD_OPENING = """
-- Insert the settings of a session, which are frozen when it opens.
INSERT INTO openings (session_key, digest, body, checksum)
VALUES (:session_key, :digest, :body, :checksum)
"""
BY_ROW = """
-- Number of an owner's sessions, counted in the table.
SELECT count(*)
  FROM sessions NOT INDEXED
 WHERE owner = :owner
"""
BY_INDEX = """
-- Number of an owner's sessions, counted in the index that listings use.
SELECT count(*)
  FROM sessions INDEXED BY sessions_by_time
 WHERE owner = :owner
"""
DIGEST = """
-- Digest of the request that opened a session.
SELECT o.digest
  FROM openings o
  JOIN sessions s ON s.key = o.session_key
 WHERE s.owner = :owner
   AND s.id = :id
"""
STATE = f"""
-- The state of a session.
SELECT {_HEAD}
  FROM sessions s
 WHERE s.owner = :owner
   AND s.id = :id
"""  # noqa: S608 — the columns are a constant of this file
STATE_BY_KEY = f"""
-- The state of a session of any owner.
SELECT {_HEAD}
  FROM sessions s
 WHERE s.key = :key
"""  # noqa: S608 — the columns are a constant of this file
BEGINNING = """
-- Sessions whose ids start with a prefix; ids contain no letter after f.
SELECT id
  FROM sessions
 WHERE owner = :owner
   AND id >= :text
   AND id < :text || 'g'
 ORDER BY id
 LIMIT :limit
"""
GET = f"""
-- One session with its settings and its agent process.
SELECT {_SESSION}
 WHERE s.owner = :owner
   AND s.id = :id
"""
GET_BY_KEY = f"""
-- The same for any owner.
SELECT {_SESSION}
 WHERE s.key = :key
"""
PATCH = """
-- Update the settings that an owner may change; the title is in the session row.
UPDATE openings
   SET body = :body, checksum = :checksum
 WHERE session_key = :key
"""
LINEAGE = """
-- A session and the sessions it was forked from, youngest first.
WITH RECURSIVE line (key, id, messages, forked_key, forked_at, depth) AS (
    SELECT key, id, messages, forked_key, forked_at, 0
      FROM sessions
     WHERE key = :key
     UNION ALL
    SELECT s.key, s.id, s.messages, s.forked_key, s.forked_at, line.depth + 1
      FROM sessions s
      JOIN line ON s.key = line.forked_key
)
SELECT key, id, messages, forked_at
  FROM line
 ORDER BY depth
"""
FORKS = f"""
-- Forks of a session.
SELECT {_HEAD}
  FROM sessions s
 WHERE s.forked_key = :key
 ORDER BY s.created_at, s.id
"""  # noqa: S608 — the columns are a constant of this file
CHILDREN = f"""
-- The sessions that this one has opened, oldest first.
SELECT {_HEAD}
  FROM children c
  JOIN sessions s ON s.key = c.session_key
 WHERE c.parent_key = :key
 ORDER BY c.session_key
"""  # noqa: S608 — the columns are a constant of this file
EXTEND = """
-- Extend all leases of a process, except those of paused turns.
UPDATE sessions
   SET until = :until
 WHERE holder = :holder
   AND until >= 0
RETURNING key
"""
UNSETTLED = f"""
-- Sessions in which a turn is open or waits.
SELECT {_HEAD}
  FROM sessions s
 WHERE s.turn > s.settled
   AND s.status IN ('pending', 'running', 'idle')
   AND s.until >= :least
 ORDER BY s.key
"""  # noqa: S608 — the columns are a constant of this file
RUNNING = f"""
-- An owner's sessions with a lease, whose process may have ended.
SELECT {_HEAD}
  FROM sessions s
 WHERE s.turn > s.settled
   AND s.status = 'running'
   AND s.until >= 0
   AND s.owner = :owner
"""  # noqa: S608 — the columns are a constant of this file
SLOTS = """
-- Open sessions of ACP agents, which always have a repository.
SELECT count(*)
  FROM sessions s
  JOIN openings o ON o.session_key = s.key
 WHERE s.repo_id IS NOT NULL
   AND s.status IN ('pending', 'running', 'idle')
   AND CASE WHEN json_valid(CAST(o.body AS TEXT))
            THEN json_extract(CAST(o.body AS TEXT), '$.agent.runtime.type') END = 'acp'
"""
IDLE = f"""
-- Open sessions with a repository that have been idle for some time.
SELECT {_HEAD}
  FROM sessions s
 WHERE s.repo_id IS NOT NULL
   AND s.status IN ('pending', 'running', 'idle')
   AND s.updated_at < :before
 ORDER BY s.key
"""  # noqa: S608 — the columns are a constant of this file
INHERIT = """
-- Copy rows of an ancestor into its fork; the hash chain does not cover the session of a row.
INSERT INTO messages (key, id, turn, role, parts, model_id, created_at, hash, event, event_checksum)
SELECT :start + sequence, id, turn, role, parts, model_id, created_at, hash, 0, 0
  FROM messages
 WHERE key BETWEEN :first AND :last
"""
INHERIT_MEDIA = """
-- Copy the references to the media of an ancestor to its fork.
INSERT INTO media_uses (session_key, hash, mime_type)
SELECT :session_key, hash, mime_type
  FROM media_uses
 WHERE session_key = :ancestor
    ON CONFLICT DO NOTHING
"""
DETACH = """
-- Detach a fork from its parent.
UPDATE sessions
   SET forked_key = NULL, forked_at = NULL
 WHERE key = :key
"""
REMOVE = """
-- Delete a session; its rows are deleted by cascade.
DELETE FROM sessions
 WHERE key = :key
"""
BURY = """
-- Insert the tombstone of a session: its owner's id and its key are never used again.
INSERT INTO tombstones (key, id, owner, deleted_at)
VALUES (:key, :id, :owner, :deleted_at)
"""
IS_BURIED = """
-- Whether a tombstone has this id.
SELECT 1
  FROM tombstones
 WHERE owner = :owner
   AND id = :id
"""
# Column names come from this table and never from a caller, which prevents SQL injection.
_ORDER: Final = {
    SessionOrder.CREATED_AT: "s.created_at",
    SessionOrder.UPDATED_AT: "s.updated_at",
}


def page_sql(query: SessionQuery) -> tuple[str, dict[str, Any]]:
    """Return the statement for a page: column names come from tables, values are bound."""
    conditions, parameters = _conditions(query)
    column = _ORDER[query.order]
    if query.before is not None:
        conditions.append(f"({column}, s.id) < (:before_at, :before_id)")
        parameters |= {"before_at": microseconds(query.before[0]), "before_id": query.before[1]}
    parameters |= {"limit": query.limit, "offset": query.offset}
    sql = (
        f"-- A page of sessions.\nSELECT {_SESSION}\n WHERE {' AND '.join(conditions)}\n"
        f" ORDER BY {column} DESC, s.id DESC\n LIMIT :limit OFFSET :offset"
    )
    return sql, parameters


def count_sql(query: SessionQuery) -> tuple[str, dict[str, Any]]:
    """Return the statement that counts all matches of a query."""
    conditions, parameters = _conditions(query)
    joined = "JOIN openings o ON o.session_key = s.key" if query.tags else ""
    sql = (
        "-- How many sessions match.\n"
        f"SELECT count(*) FROM sessions s {joined} WHERE {' AND '.join(conditions)}"
    )
    return sql, parameters


def _conditions(query: SessionQuery) -> tuple[list[str], dict[str, Any]]:
    conditions = ["s.owner = :owner"]
    parameters: dict[str, Any] = {"owner": query.owner}
    if query.agent_id is not None:
        conditions.append("s.agent_id = :agent_id")
        parameters["agent_id"] = query.agent_id
    if query.repo_id is not None:
        conditions.append("s.repo_id = :repo_id")
        parameters["repo_id"] = query.repo_id
    if query.is_bound:
        conditions.append("s.repo_id IS NOT NULL")
    if query.forked_from is not None:
        conditions.append(
            "s.forked_key = (SELECT key FROM sessions WHERE owner = :owner AND id = :forked_from)"
        )
        parameters["forked_from"] = query.forked_from
    if query.parent is not None:
        conditions.append(
            "s.key IN (SELECT session_key FROM children WHERE parent_key = "
            "(SELECT key FROM sessions WHERE owner = :owner AND id = :parent))"
        )
        parameters["parent"] = query.parent
    if query.text is not None:
        conditions.append("instr(casefold(s.title), casefold(:text)) > 0")
        parameters["text"] = query.text
    for number, status in enumerate(query.statuses):
        parameters[f"status_{number}"] = status.value
    if query.statuses:
        names = ", ".join(f":status_{number}" for number in range(len(query.statuses)))
        conditions.append(f"{_STATUS} IN ({names})")
    if query.statuses or query.status_filters:
        parameters["abandoned"] = msgspec.json.encode(query.abandoned).decode()
    if query.status_filters:
        conditions.append(_status_condition(query, parameters))
    for number, tag in enumerate(query.tags):
        wanted = f":tag_{number}"
        tags = "json_each(CAST(o.body AS TEXT), '$.tags')"
        conditions.append(f"EXISTS (SELECT 1 FROM {tags} WHERE value = {wanted})")  # noqa: S608
        parameters[f"tag_{number}"] = tag
    return conditions, parameters


def _status_condition(query: SessionQuery, parameters: dict[str, Any]) -> str:
    """Return the condition that any status filter matches; adds its values to `parameters`."""
    clauses = []
    for number, wanted in enumerate(query.status_filters):
        names = f":filter_{number}"
        parameters[f"filter_{number}"] = wanted.status.value
        ended = _WAITING[wanted.is_waiting] + _ENDED[wanted.has_failed]
        clauses.append("(" + ended + f"{_STATUS} IN ({names}))")
    return f"({' OR '.join(clauses)})"


# The status as clients see it.
_STATUS: Final = (
    "CASE WHEN s.key IN (SELECT value FROM json_each(:abandoned)) THEN 'idle' ELSE s.status END"
)
# The stop reasons are `FAILED_STOPS`; a session without a completed turn has not failed.
_ENDED: Final = {
    None: "",
    True: "coalesce(s.last_stop, '') IN ('budget', 'error', 'turn_limit') AND ",
    False: "coalesce(s.last_stop, '') NOT IN ('budget', 'error', 'turn_limit') AND ",
}
_WAITING: Final = {None: "", True: "s.turn > s.settled AND ", False: "s.turn <= s.settled AND "}
_BEGINNING: Final = re.compile(r"[0-9a-f-]{1,36}")
_UPDATED_AT: Final = 21


class SessionRows:
    """Sessions in the store."""

    def __init__(self, database: Database, *, trusts_indexes: bool = True) -> None:
        """Compare indexes with their rows before use unless `trusts_indexes` is set."""
        self._db = database
        self._trusts_indexes = trusts_indexes
        self._waits = WaitRows(database)
        self._state = partial(state_of, checks=database.checks_rows)
        self._session = partial(session_of, checks=database.checks_rows)

    async def add(self, session: Session, state: SessionState, digest: bytes) -> SessionState:
        parent = session.forked_from
        row = columns_of(state, checks=self._db.checks_rows) | {
            "id": session.id,
            "owner": session.owner,
            "agent_id": session.agent_id,
            "repo_id": session.repo_id,
            "forked_id": parent.session_id if parent else None,
            "forked_at": parent.sequence if parent else None,
            "created_at": microseconds(session.created_at),
        }
        (key,) = (await self._db.fetch(ADD, row))[0]
        if state.title is not None:
            await self._db.execute(NOTE, {"key": key, "first": 0, "last": 0})
        opening = {"session_key": key, "digest": digest, **opening_of(session)}
        await self._db.execute(ADD_OPENING, opening)
        return msgspec.structs.replace(state, key=key)

    async def digest(self, owner: Owner, session_id: SessionId) -> bytes | None:
        rows = await self._db.fetch(DIGEST, {"owner": owner, "id": session_id})
        return rows[0][0] if rows else None

    async def state(self, owner: Owner, session_id: SessionId) -> SessionState | None:
        # Return early, because not every invalid id can be bound as a parameter.
        if not is_uuid(session_id):
            return None
        rows = await self._db.fetch(
            with_row_lock(self._db, STATE), {"owner": owner, "id": session_id}
        )
        return self._state(rows[0]) if rows else None

    async def state_by_key(self, key: SessionKey) -> SessionState | None:
        rows = await self._db.fetch(with_row_lock(self._db, STATE_BY_KEY), {"key": key})
        return self._state(rows[0]) if rows else None

    async def get(self, owner: Owner, session_id: SessionId) -> tuple[Session, SessionState] | None:
        if not is_uuid(session_id):
            return None
        rows = await self._db.fetch(GET, {"owner": owner, "id": session_id})
        return await self._whole(rows[0]) if rows else None

    async def get_by_key(self, key: SessionKey) -> tuple[Session, SessionState] | None:
        rows = await self._db.fetch(GET_BY_KEY, {"key": key})
        return await self._whole(rows[0]) if rows else None

    async def _whole(self, row: Row) -> tuple[Session, SessionState]:
        return (await self._with_waits([self._session(row)]))[0]

    async def _with_waits(
        self, found: list[tuple[Session, SessionState]]
    ) -> list[tuple[Session, SessionState]]:
        """Add what the paused ones wait for; few are paused at any time."""
        return [
            (msgspec.structs.replace(session, waiting=await self._waits.of(state.key)), state)
            if is_paused(state)
            else (session, state)
            for session, state in found
        ]

    async def patch(self, key: SessionKey, session: Session) -> None:
        await self._db.execute(PATCH, {"key": key, **opening_of(session)})

    async def page(self, query: SessionQuery) -> list[tuple[Session, SessionState]]:
        found: list[tuple[Session, SessionState]] = []
        rows: list[Row] = []
        if not self._trusts_indexes:
            await self._require_index(query.owner)
        while True:
            # Refill after skipping damaged rows: clients take a short page for the last page.
            left = query.limit - len(found)
            wanted = msgspec.structs.replace(query, limit=left)
            sql, parameters = page_sql(_behind(wanted, rows[-1]) if rows else wanted)
            rows = await self._db.fetch(sql, parameters)
            _require_order([_place(row, query.order) for row in rows])
            found += sound(rows, self._session)
            if len(rows) < left or len(found) == query.limit:
                return await self._with_waits(found)

    async def _require_index(self, owner: Owner) -> None:
        """Raise if the index lacks a session, because listings would silently omit it."""
        of_owner = {"owner": owner}
        by_row = await self._db.fetch(BY_ROW, of_owner)
        if by_row != await self._db.fetch(BY_INDEX, of_owner):
            raise _damaged_index()

    async def beginning(self, owner: Owner, text: str, limit: int) -> tuple[SessionId, ...]:
        # Return early, because not every invalid prefix can be bound as a parameter.
        if not _BEGINNING.fullmatch(text):
            return ()
        if not self._trusts_indexes:
            await self._require_index(owner)
        parameters = {"owner": owner, "text": text, "limit": limit}
        return tuple(row[0] for row in await self._db.fetch(BEGINNING, parameters))

    async def count(self, query: SessionQuery) -> int:
        sql, parameters = count_sql(query)
        return int((await self._db.fetch(sql, parameters))[0][0])

    async def lineage(self, key: SessionKey) -> tuple[Segment, ...]:
        segments = await self._all_segments(key)
        return tuple(part for part in segments if part.first <= part.last)

    async def _all_segments(self, key: SessionKey) -> tuple[Segment, ...]:
        return _segments(await self._db.fetch(LINEAGE, {"key": key}))

    async def forks(self, key: SessionKey) -> list[SessionState]:
        return [self._state(row) for row in await self._db.fetch(FORKS, {"key": key})]

    async def children(self, key: SessionKey) -> list[SessionState]:
        return list(sound(await self._db.fetch(CHILDREN, {"key": key}), self._state))

    async def extend(self, holder: str, until: int) -> set[SessionKey]:
        rows = await self._db.fetch(EXTEND, {"holder": holder, "until": until})
        return {row[0] for row in rows}

    async def running(self, owner: Owner) -> list[SessionState]:
        """Return the owner's sessions whose turn is stored as running and is not paused."""
        return list(sound(await self._db.fetch(RUNNING, {"owner": owner}), self._state))

    async def unsettled(self, due: int = EVER) -> list[SessionState]:
        """Return sessions with an open or waiting turn; a paused one if it expires by `due`."""
        # `until` of a paused turn is the negative time at which its question expires.
        return list(sound(await self._db.fetch(UNSETTLED, {"least": -due}), self._state))

    async def idle(self, before: datetime) -> list[SessionState]:
        rows = await self._db.fetch(IDLE, {"before": microseconds(before)})
        return list(sound(rows, self._state))

    async def slots(self) -> int:
        # Serializes openings, because the rows to count are not there yet.
        await self._db.lock("slots")
        return int((await self._db.fetch(SLOTS))[0][0])

    async def detach(self, key: SessionKey) -> None:
        *ancestors, _ = await self._all_segments(key)
        for part in ancestors:
            first, last = row_key(part.key, part.first), row_key(part.key, part.last)
            inherited = {"start": row_key(key, 0), "first": first, "last": last}
            await self._db.execute(INHERIT, inherited)
            await self._db.execute(NOTE, {"key": key, "first": part.first, "last": part.last})
            held = {"session_key": key, "ancestor": part.key}
            await self._db.execute(INHERIT_MEDIA, held)
        await self._db.execute(DETACH, {"key": key})

    async def remove(self, state: SessionState, at: datetime) -> None:
        # Delete first: the cascade removes the rows, then the tombstone reserves the id.
        grave = {"key": state.key, "id": state.session_id, "owner": state.owner}
        await note_removal(self._db, state)
        await self._db.execute(REMOVE, {"key": state.key})
        self._db.touch(state.key)
        await self._db.execute(BURY, grave | {"deleted_at": microseconds(at)})

    async def is_buried(self, owner: Owner, session_id: SessionId) -> bool:
        return bool(await self._db.fetch(IS_BURIED, {"owner": owner, "id": session_id}))


def _behind(query: SessionQuery, last: Row) -> SessionQuery:
    """Return the query for the rows after `last`."""
    at, session_id = _place(last, query.order)
    return msgspec.structs.replace(query, before=(instant(at), session_id), offset=0)


def _place(row: Row, order: SessionOrder) -> tuple[int, str]:
    """Return the sort key of a row in a listing."""
    by_creation = order is SessionOrder.CREATED_AT
    return row[STATE_COLUMNS + 2] if by_creation else row[_UPDATED_AT], row[1]


def _require_order(places: list[tuple[int, str]]) -> None:
    """Raise if a page is out of order, because then its index does not match the rows."""
    if places != sorted(set(places), reverse=True):
        raise _damaged_index()


def _damaged_index() -> Internal:
    return Internal(
        Code.CORRUPT_STORE,
        "An index of the store is damaged; run `holdfast doctor`, or restore a backup.",
    )


def _segments(rows: Sequence[Row]) -> tuple[Segment, ...]:
    """Limit each ancestor's rows to those before the fork, oldest ancestor first."""
    segments: list[Segment] = []
    last = None
    for key, session_id, messages, forked_at in rows:
        end = messages if last is None else last
        segments.append(Segment(key, session_id, (forked_at or 0) + 1, end))
        # A fork of a fork may start before the first row that its parent wrote.
        last = forked_at if last is None or forked_at is None else min(last, forked_at)
    return tuple(reversed(segments))
