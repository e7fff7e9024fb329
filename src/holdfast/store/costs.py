"""The `costs` table: the ledger, with one entry per request sent to a provider."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Final

from holdfast.domain.costs import CostEntry, CostGroup, CostQuery, CostSum, Usage
from holdfast.domain.ids import SessionId, SessionKey
from holdfast.domain.sessions import SessionState
from holdfast.domain.time import instant, microseconds
from holdfast.store.database import (
    Database,
    Row,
    encode,
    format_id,
    require_sound,
)

OF_TURN = """
-- Ledger entries of a turn.
SELECT request_id, turn, model_id, input, output, cache_read, cache_write, reasoning, microcents,
       priced, at, checksum
  FROM costs
 WHERE session_key = :session_key
   AND turn = :turn
 ORDER BY at, request_id
"""

OF_SESSION = """
-- Ledger entries of a session.
SELECT request_id, turn, model_id, input, output, cache_read, cache_write, reasoning, microcents,
       priced, at, checksum
  FROM costs
 WHERE session_key = :session_key
 ORDER BY at, request_id
"""

NEWEST = """
-- The last entry of the session's newest turn; requests outside a turn have none.
SELECT request_id, turn, model_id, input, output, cache_read, cache_write, reasoning, microcents,
       priced, at, checksum
  FROM costs
 WHERE session_key = :session_key
   AND turn = (SELECT max(turn) FROM costs WHERE session_key = :session_key)
   AND turn > 0
 ORDER BY at DESC, request_id DESC
 LIMIT 1
"""

ENGAGED = """
-- Number of turns with a model request.
SELECT count(DISTINCT turn)
  FROM costs
 WHERE session_key = :session_key
   AND turn > 0
"""

OF_OWNER = """
-- A page of the ledger of all of an owner's sessions.
SELECT c.request_id, c.turn, c.model_id, c.input, c.output, c.cache_read, c.cache_write,
       c.reasoning, c.microcents, c.priced, c.at, c.checksum,
       s.id, s.agent_id, c.session_key
  FROM costs c
  JOIN sessions s ON s.key = c.session_key
 WHERE s.owner = :owner
   AND (CAST(:agent_id AS TEXT) IS NULL OR s.agent_id = :agent_id)
   AND (CAST(:since AS BIGINT) IS NULL OR c.at >= :since)
   AND (CAST(:until AS BIGINT) IS NULL OR c.at < :until)
   AND (c.session_key, c.turn, c.request_id) > (:after_key, :after_turn, :after_id)
 ORDER BY c.session_key, c.turn, c.request_id
 LIMIT :limit
"""

OF_ONE = """
-- A page of the ledger of one session of an owner.
SELECT c.request_id, c.turn, c.model_id, c.input, c.output, c.cache_read, c.cache_write,
       c.reasoning, c.microcents, c.priced, c.at, c.checksum,
       s.id, s.agent_id, c.session_key
  FROM sessions s
  JOIN costs c ON c.session_key = s.key
 WHERE s.owner = :owner
   AND s.id = :session_id
   AND (CAST(:agent_id AS TEXT) IS NULL OR s.agent_id = :agent_id)
   AND (CAST(:since AS BIGINT) IS NULL OR c.at >= :since)
   AND (CAST(:until AS BIGINT) IS NULL OR c.at < :until)
   AND (c.session_key, c.turn, c.request_id) > (:after_key, :after_turn, :after_id)
 ORDER BY c.session_key, c.turn, c.request_id
 LIMIT :limit
"""

OF_SOME = """
-- The ledger of the sessions with these keys.
SELECT c.request_id, c.turn, c.model_id, c.input, c.output, c.cache_read, c.cache_write,
       c.reasoning, c.microcents, c.priced, c.at, c.checksum,
       c.session_key
  FROM json_each(:keys) k
  JOIN costs c ON c.session_key = k.value
"""

# Page size: every row is verified, and a ledger may be larger than memory.
PAGE: Final = 10_000
_ENTRY_COLUMNS: Final = 12
# Sorts before every entry, because session keys start at 1.
_START: Final = (0, 0, b"")


class CostRows:
    """Cost ledger in the store."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._entry = partial(_entry_of, checks=database.checks_rows)

    async def of_turn(self, state: SessionState, turn: int) -> list[CostEntry]:
        rows = await self._db.fetch(OF_TURN, {"session_key": state.key, "turn": turn})
        return [self._entry(row, state.session_id) for row in rows]

    async def newest(self, state: SessionState) -> CostEntry | None:
        rows = await self._db.fetch(NEWEST, {"session_key": state.key})
        return self._entry(rows[0], state.session_id) if rows else None

    async def engaged(self, state: SessionState) -> int:
        rows = await self._db.fetch(ENGAGED, {"session_key": state.key})
        return int(rows[0][0])

    async def of_session(self, state: SessionState) -> list[CostEntry]:
        rows = await self._db.fetch(OF_SESSION, {"session_key": state.key})
        return [self._entry(row, state.session_id) for row in rows]

    async def sums(self, query: CostQuery) -> list[CostSum]:
        key_of = _KEYS[query.group_by]
        found: dict[str, CostSum] = {}
        rows = await self._page(query, _START)
        while rows:
            for row in rows:
                entry = self._entry(row[:_ENTRY_COLUMNS], row[_ENTRY_COLUMNS])
                key = key_of(entry, row[_ENTRY_COLUMNS + 1])
                found[key] = found.get(key, CostSum(key=key)) + entry
            last = rows[-1]
            is_more = len(rows) == PAGE
            rows = await self._page(query, (last[-1], last[1], last[0])) if is_more else []
        return [found[key] for key in sorted(found)]

    async def totals(self, keys: Collection[SessionKey]) -> dict[SessionKey, CostSum]:
        found: dict[SessionKey, CostSum] = {}
        for row in await self._db.fetch(OF_SOME, {"keys": encode(list(keys)).decode()}):
            key = row[_ENTRY_COLUMNS]
            # The session id is not selected, because callers of this method pass keys.
            entry = self._entry(row[:_ENTRY_COLUMNS], SessionId(""))
            found[key] = found.get(key, CostSum(key=str(key))) + entry
        return found

    async def _page(self, query: CostQuery, after: Row) -> list[Row]:
        key, turn, request_id = after
        parameters = {
            "owner": query.owner,
            "session_id": query.session_id,
            "agent_id": query.agent_id,
            "since": microseconds(query.since) if query.since else None,
            "until": microseconds(query.until) if query.until else None,
            "after_key": key,
            "after_turn": turn,
            "after_id": request_id,
            "limit": PAGE,
        }
        return await self._db.fetch(OF_ONE if query.session_id else OF_OWNER, parameters)


# Group key of an entry, computed from the entry and the agent id of its session.
_KEYS: Final[Mapping[CostGroup, Callable[[CostEntry, str], str]]] = {
    CostGroup.MODEL: lambda entry, _: entry.model_id,
    CostGroup.AGENT: lambda _, agent_id: agent_id,
    CostGroup.SESSION: lambda entry, _: entry.session_id,
    CostGroup.DAY: lambda entry, _: entry.at.date().isoformat(),
}


def _entry_of(row: Row, session_id: SessionId, *, checks: bool) -> CostEntry:
    id_, turn, model_id, *used, microcents, priced, at, stored = row
    request_id = format_id(id_)
    if checks:
        require_sound(stored, encode(row[:-1]), what=f"cost entry {request_id}")
    input_, output, cache_read, cache_write, reasoning = used
    return CostEntry(
        request_id=request_id,
        session_id=session_id,
        turn=turn,
        model_id=format_id(model_id),
        usage=Usage(
            input=input_,
            output=output,
            cache_read=cache_read,
            cache_write=cache_write,
            reasoning=reasoning,
        ),
        microcents=microcents,
        priced=bool(priced),
        at=instant(at),
    )
