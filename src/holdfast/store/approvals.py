"""The `approvals` table: approval requests and their answers."""

import msgspec
from msgspec.structs import replace

from holdfast.domain.approvals import Approval
from holdfast.domain.ids import ApprovalId, CallId
from holdfast.domain.queries import WorkQuery
from holdfast.domain.sessions import SessionState
from holdfast.store.calls import work_conditions
from holdfast.store.database import (
    Database,
    Row,
    reading_of,
    require_sound,
    sound,
)

BY_ID = """
-- One approval of a session.
SELECT body, checksum
  FROM approvals
 WHERE id = :id
   AND session_key = :session_key
"""

WAITING = """
-- The unanswered approvals of a session.
SELECT body, checksum
  FROM approvals
 WHERE session_key = :session_key
   AND state = 'waiting'
 ORDER BY id
"""

ABOUT = """
-- The newest approval of the same digest; a denial holds for its call with any digest.
SELECT body, checksum
  FROM approvals
 WHERE session_key = :session_key
   AND (digest = :digest OR (state = 'denied' AND call_id = :call_id))
   AND call_id IS NOT DISTINCT FROM :call_id
 ORDER BY id DESC
 LIMIT 1
"""

IS_REMEMBERED = """
-- Whether an approval covers such calls for the whole session.
SELECT 1
  FROM approvals
 WHERE session_key = :session_key
   AND memory = :memory
   AND state = 'allowed'
 LIMIT 1
"""

PAGE = """
-- Approvals of an owner, oldest first.
SELECT w.body, w.checksum, w.id
  FROM approvals w
  JOIN sessions s ON s.key = w.session_key
 WHERE {conditions}
 ORDER BY w.id
 LIMIT :limit
"""

# Created at import because msgspec prepares a type on first use, which is not thread-safe.
_decoder = msgspec.json.Decoder(Approval)


class ApprovalRows:
    """Approvals in the store."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def by_id(self, state: SessionState, approval_id: ApprovalId) -> Approval | None:
        rows = await self._db.fetch(BY_ID, {"session_key": state.key, "id": approval_id})
        return _approval(rows[0]) if rows else None

    async def page(self, query: WorkQuery) -> list[Approval]:
        found: list[Approval] = []
        while True:
            # Refill after skipping damaged rows: clients take a short page for the last page.
            left = query.limit - len(found)
            conditions, parameters = work_conditions(query)
            if query.after is not None:
                conditions.append("w.id > :after")
                parameters["after"] = query.after[1]
            sql = PAGE.format(conditions=" AND ".join(conditions))
            rows = await self._db.fetch(sql, parameters | {"limit": left})
            found += sound((row[:2] for row in rows), _approval)
            if len(rows) < left or len(found) == query.limit:
                return found
            query = replace(query, after=(0, rows[-1][2]))

    async def waiting(self, state: SessionState) -> list[Approval]:
        rows = await self._db.fetch(WAITING, {"session_key": state.key})
        return [_approval(row) for row in rows]

    async def about(
        self, state: SessionState, digest: str, call_id: CallId | None
    ) -> Approval | None:
        parameters = {"session_key": state.key, "digest": digest, "call_id": call_id}
        rows = await self._db.fetch(ABOUT, parameters)
        return _approval(rows[0]) if rows else None

    async def is_remembered(self, state: SessionState, memory: str) -> bool:
        parameters = {"session_key": state.key, "memory": memory}
        return bool(await self._db.fetch(IS_REMEMBERED, parameters))


def _approval(row: Row) -> Approval:
    body, stored = row
    require_sound(stored, body, what="an approval")
    with reading_of("an approval"):
        return _decoder.decode(body)
