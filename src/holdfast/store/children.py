"""The `children` table: which session was opened by which other one."""

from collections.abc import Iterable

from holdfast.domain.ids import Owner, SessionId, SessionKey
from holdfast.domain.sessions import OPEN, ParentLink
from holdfast.store.database import Database, checksum, encode

ADD = """
-- A session that another one has opened.
INSERT INTO children (session_key, parent_key, call_id, body, checksum)
VALUES (:session_key, :parent_key, :call_id, :body, :checksum)
"""
PARENT = """
-- The session that has opened this one.
SELECT parent_key
  FROM children
 WHERE session_key = :session_key
"""
DETACH = """
-- The children of a session are sessions of their own from now on.
DELETE FROM children
 WHERE parent_key = :parent_key
"""
COST_BELOW = """
-- What all sessions below a session have cost.
WITH RECURSIVE below (key) AS (
    SELECT session_key
      FROM children
     WHERE parent_key = :key
     UNION ALL
    SELECT c.session_key
      FROM children c
      JOIN below b ON c.parent_key = b.key
)
SELECT coalesce(sum(s.microcents), 0)
  FROM below b
  JOIN sessions s ON s.key = b.key
"""
STATE = """
-- How far a session has come.
SELECT settled, status
  FROM sessions
 WHERE owner = :owner
   AND id = :id
"""
OVERDUE = """
-- Sessions whose turn waits for a child that has ended: its first turn, all of it, or its rows.
SELECT DISTINCT w.session_key
  FROM waits w
  JOIN sessions s ON s.key = w.session_key
  JOIN calls a ON a.session_key = s.key
  LEFT JOIN children c ON c.parent_key = s.key AND c.call_id = a.id
  LEFT JOIN sessions k ON k.key = c.session_key
 WHERE w.reason = 'child'
   AND s.until < 0
   AND s.status = 'running'
   AND a.turn = s.settled + 1
   AND a.state = 'started'
   AND a.name = 'invoke_agent'
   AND (k.key IS NULL OR k.settled > 0 OR k.status NOT IN ('pending', 'running', 'idle'))
 ORDER BY w.session_key
"""


class ChildRows:
    """Children in the store."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def add(self, key: SessionKey, parent: SessionKey, link: ParentLink) -> None:
        body = encode(link)
        row = {"session_key": key, "parent_key": parent, "call_id": link.call_id, "body": body}
        await self._db.execute(ADD, row | {"checksum": checksum(body)})

    async def parent(self, key: SessionKey) -> SessionKey | None:
        rows = await self._db.fetch(PARENT, {"session_key": key})
        return SessionKey(rows[0][0]) if rows else None

    async def cost_below(self, key: SessionKey) -> int:
        """Return what all sessions below a session have cost, in micro-cents."""
        return int((await self._db.fetch(COST_BELOW, {"key": key}))[0][0])

    async def detach(self, key: SessionKey) -> None:
        await self._db.execute(DETACH, {"parent_key": key})

    async def have_ended(self, owner: Owner, ids: Iterable[SessionId]) -> bool:
        """Return whether the first turn of one of these sessions has ended, or the session."""
        for each in ids:
            rows = await self._db.fetch(STATE, {"owner": owner, "id": each})
            if not rows or rows[0][0] or rows[0][1] not in OPEN:
                return True
        return False

    async def overdue(self) -> list[SessionKey]:
        """Return the sessions that wait for a child which has ended."""
        return [SessionKey(row[0]) for row in await self._db.fetch(OVERDUE)]
