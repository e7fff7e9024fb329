"""The `desks` table, who sits where; and the `marks` table, what was done once and for all."""

from msgspec.structs import replace

from holdfast.domain.ids import AgentId, Owner, SessionKey
from holdfast.storage.database import Database
from holdfast.storage.session_rows import columns_of
from holdfast.storage.sessions import Sessions

SEATED = """
-- The session at a desk.
SELECT session_key
  FROM desks
 WHERE owner = :owner
   AND zone = :zone
"""

DESK_OF = """
-- The desk of a session.
SELECT owner, zone
  FROM desks
 WHERE session_key = :session_key
"""

SEAT = """
-- A session takes a desk.
INSERT INTO desks (owner, zone, session_key)
VALUES (:owner, :zone, :session_key)
ON CONFLICT (owner, zone) DO UPDATE SET session_key = excluded.session_key
"""

UNSEAT = """
-- A session leaves its desk.
DELETE FROM desks
 WHERE session_key = :session_key
"""

OF_AGENT = """
-- The sessions of an agent.
SELECT key
  FROM sessions
 WHERE owner = :owner
   AND agent_id = :agent_id
 ORDER BY key
"""

REPOINT = """
-- A session is one of another agent from now on.
UPDATE sessions
   SET agent_id = :agent_id, checksum = :checksum
 WHERE key = :key
"""

IS_MARKED = """
-- Whether something was done.
SELECT 1
  FROM marks
 WHERE name = :name
"""

MARK = """
-- Something was done.
INSERT INTO marks (name, at)
VALUES (:name, :at)
ON CONFLICT DO NOTHING
"""


async def seated(database: Database, owner: Owner, zone: str) -> SessionKey | None:
    """Return the session that sits at a desk."""
    rows = await database.fetch(SEATED, {"owner": owner, "zone": zone})
    return SessionKey(rows[0][0]) if rows else None


async def desk_of(database: Database, key: SessionKey) -> tuple[Owner, str] | None:
    """Return the desk that a session sits at."""
    rows = await database.fetch(DESK_OF, {"session_key": key})
    return (Owner(rows[0][0]), rows[0][1]) if rows else None


async def seat(database: Database, owner: Owner, zone: str, key: SessionKey) -> None:
    """Seat a session at a desk, in the place of whoever sat there."""
    await database.execute(SEAT, {"owner": owner, "zone": zone, "session_key": key})


async def unseat(database: Database, key: SessionKey) -> None:
    """Let a session leave its desk."""
    await database.execute(UNSEAT, {"session_key": key})


async def repoint(database: Database, owner: Owner, before: str, after: str) -> int:
    """File the sessions of one agent under another one; return how many."""
    keys = await database.fetch(OF_AGENT, {"owner": owner, "agent_id": before})
    for (key,) in keys:
        head = await Sessions(database).head_by_key(SessionKey(key))
        if head is not None:
            columns = columns_of(replace(head, agent_id=AgentId(after)))
            named = {"key": key, "agent_id": after, "checksum": columns["checksum"]}
            await database.execute(REPOINT, named)
    return len(keys)


async def is_marked(database: Database, name: str) -> bool:
    """Tell whether work of that name was done."""
    return bool(await database.fetch(IS_MARKED, {"name": name}))


async def mark(database: Database, name: str, at: int) -> None:
    """Remember that work of that name is done."""
    await database.execute(MARK, {"name": name, "at": at})
