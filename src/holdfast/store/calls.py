"""The `calls` table."""

from datetime import datetime
from enum import StrEnum
from functools import partial
from itertools import chain
from typing import Any, Final

import msgspec

from holdfast.domain.approvals import ApprovalState
from holdfast.domain.calls import Call, CallState, Settlement
from holdfast.domain.ids import CallId, SessionId
from holdfast.domain.queries import WorkQuery
from holdfast.domain.sessions import SessionState
from holdfast.domain.time import instant
from holdfast.domain.tools import Effect
from holdfast.store.database import Database, Row, encode, reading_of, require_sound

# Literals, not parameters: the planner uses a partial index only for a constant state.
_STATES: Final = {
    state.value: f"w.state = '{state.value}'" for state in chain[StrEnum](ApprovalState, CallState)
}
# Rare states, each with a partial index over all sessions.
_RARE: Final = frozenset(
    {CallState.UNKNOWN.value, CallState.REQUESTED.value, ApprovalState.WAITING.value}
)


def work_conditions(query: WorkQuery) -> tuple[list[str], dict[str, Any]]:
    """Return the SQL conditions on a table `w` joined with its sessions, and their parameters."""
    is_rare = bool(query.states) and _RARE.issuperset(query.states)
    # The unary plus stops SQLite from using the owner index, which would scan all sessions.
    conditions = ["+s.owner = :owner" if is_rare else "s.owner = :owner"]
    parameters: dict[str, Any] = {"owner": query.owner}
    if query.key is not None:
        conditions.append("w.session_key = :session_key")
        parameters["session_key"] = query.key
    if query.id is not None:
        conditions.append("w.id = :id")
        parameters["id"] = query.id
    if query.agent_id is not None:
        conditions.append("s.agent_id = :agent_id")
        parameters["agent_id"] = query.agent_id
    if query.states:
        conditions.append(f"({' OR '.join(_STATES[each] for each in query.states)})")
    return conditions, parameters


BY_ID = """
-- One call of a session.
SELECT id, turn, sequence, name, arguments, state, effect, idempotency_key, settlement,
       result_sequence, started_at, ended_at, checksum
  FROM calls
 WHERE session_key = :session_key
   AND id = :id
"""
OF_SESSION = """
-- The calls of a session in the order they were intended.
SELECT id, turn, sequence, name, arguments, state, effect, idempotency_key, settlement,
       result_sequence, started_at, ended_at, checksum
  FROM calls
 WHERE session_key = :session_key
 ORDER BY sequence
"""
OF_TURN = """
-- The calls of a turn in the order they were intended.
SELECT id, turn, sequence, name, arguments, state, effect, idempotency_key, settlement,
       result_sequence, started_at, ended_at, checksum
  FROM calls
 WHERE session_key = :session_key
   AND turn = :turn
 ORDER BY sequence
"""
PAGE = """
-- Calls of an owner, session by session.
SELECT w.id, w.turn, w.sequence, w.name, w.arguments, w.state, w.effect, w.idempotency_key,
       w.settlement, w.result_sequence, w.started_at, w.ended_at, w.checksum, s.id
  FROM calls w
  JOIN sessions s ON s.key = w.session_key
 WHERE {conditions}
 ORDER BY s.id, w.sequence
 LIMIT :limit
"""
RETRIED = """
-- The newest call with a key that was settled by a retry.
SELECT id, turn, sequence, name, arguments, state, effect, idempotency_key, settlement,
       result_sequence, started_at, ended_at, checksum
  FROM calls
 WHERE session_key = :session_key
   AND idempotency_key = :idempotency_key
   AND settlement = 'retried'
 ORDER BY sequence DESC
 LIMIT 1
"""


class CallRows:
    """Tool calls in the store."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._call = partial(_call_of, checks=database.checks_rows)

    async def by_id(self, state: SessionState, call_id: CallId) -> Call | None:
        rows = await self._db.fetch(BY_ID, {"session_key": state.key, "id": call_id})
        return self._call(rows[0], state.session_id) if rows else None

    async def of_session(self, state: SessionState) -> list[Call]:
        rows = await self._db.fetch(OF_SESSION, {"session_key": state.key})
        return [self._call(row, state.session_id) for row in rows]

    async def of_turn(self, state: SessionState, turn: int) -> list[Call]:
        rows = await self._db.fetch(OF_TURN, {"session_key": state.key, "turn": turn})
        return [self._call(row, state.session_id) for row in rows]

    async def page(self, query: WorkQuery) -> list[Call]:
        conditions, parameters = work_conditions(query)
        if query.tool is not None:
            conditions.append("w.name = :tool")
            parameters["tool"] = query.tool
        if query.after is not None:
            conditions.append("(s.id, w.sequence) > (:after_id, :after)")
            parameters |= {"after": query.after[0], "after_id": query.after[1]}
        sql = PAGE.format(conditions=" AND ".join(conditions))
        rows = await self._db.fetch(sql, parameters | {"limit": query.limit})
        return [self._call(row[:-1], row[-1]) for row in rows]

    async def retried(self, state: SessionState, idempotency_key: str) -> Call | None:
        parameters = {"session_key": state.key, "idempotency_key": idempotency_key}
        rows = await self._db.fetch(RETRIED, parameters)
        return self._call(rows[0], state.session_id) if rows else None


def _from_column(at: int | None) -> datetime | None:
    return None if at is None else instant(at)


def _call_of(row: Row, session_id: SessionId, *, checks: bool) -> Call:
    *columns, stored = row
    if checks:
        require_sound(stored, encode(columns), what=f"call {columns[0]}")
    call_id, turn, sequence, name, arguments, state, effect, key, settlement, *rest = columns
    result_sequence, started_at, ended_at = rest
    with reading_of(f"call {call_id}"):
        given = _arguments.decode(arguments)
    return Call(
        id=call_id,
        session_id=session_id,
        turn=turn,
        sequence=sequence,
        name=name,
        arguments=given,
        state=CallState(state),
        effect=Effect(effect),
        idempotency_key=key,
        settlement=Settlement(settlement) if settlement else None,
        result_sequence=result_sequence,
        started_at=_from_column(started_at),
        ended_at=_from_column(ended_at),
    )


_arguments = msgspec.json.Decoder(dict[str, Any])
