"""The `forgotten` table, and what it vouches for: news that went for its age, turn by turn.

Only whole turns go, from the first on, so that what is left begins where a turn begins.
"""

from collections.abc import Sequence
from datetime import datetime

from holdfast.domain.ids import SessionKey
from holdfast.domain.sessions import Head
from holdfast.domain.times import microseconds
from holdfast.storage.database import Database, checksum, corrupt

OUTDATED = """
-- Sessions whose first news are old, and where the last of their old turns ended.
SELECT s.key, (SELECT max(e.sequence)
                 FROM events e
                WHERE e.session_key = s.key
                  AND e.stays = 1
                  AND e.name = 'turn.ended'
                  AND e.turn <= s.settled
                  AND e.at < :before)
  FROM sessions s
 WHERE s.key > :after
   AND (SELECT e.at
          FROM events e
         WHERE e.session_key = s.key
           AND e.stays = 1
         ORDER BY e.sequence
         LIMIT 1) < :before
 ORDER BY s.key
 LIMIT :limit
"""

MARK = """
-- How far a log is forgotten; never less far than before.
INSERT INTO forgotten (session_key, through, checksum)
VALUES (:session_key, :through, :checksum)
    ON CONFLICT (session_key) DO UPDATE
   SET through = excluded.through, checksum = excluded.checksum
 WHERE excluded.through > forgotten.through
"""

REMOVE = """
-- The oldest news up to a number, a few at a time; messages are news of their own and stay.
DELETE FROM events
 WHERE (session_key, stays, sequence) IN (
       SELECT session_key, stays, sequence
         FROM events
        WHERE session_key = :session_key
          AND sequence <= :through
        ORDER BY stays, sequence
        LIMIT :limit)
RETURNING 1
"""

THROUGH = """
-- How far a log is forgotten.
SELECT through, checksum
  FROM forgotten
 WHERE session_key = :session_key
"""


async def outdated(
    database: Database, before: datetime, after: SessionKey, limit: int
) -> Sequence[tuple[SessionKey, int | None]]:
    """Return sessions with old news, in the order of their keys, and through what they may go."""
    asked = {"before": microseconds(before), "after": after, "limit": limit}
    return [(SessionKey(key), through) for key, through in await database.fetch(OUTDATED, asked)]


async def forget(database: Database, key: SessionKey, through: int, limit: int) -> int:
    """Remove some of a session's news up to a number; return how many."""
    mark = {"session_key": key, "through": through, "checksum": _sum(key, through)}
    await database.execute(MARK, mark)
    asked = {"session_key": key, "through": through, "limit": limit}
    return len(await database.fetch(REMOVE, asked))


async def forgotten_through(database: Database, head: Head) -> int:
    """Return up to which number a log may lack anything; 0 if it is whole."""
    rows = await database.fetch(THROUGH, {"session_key": head.key})
    if not rows:
        return 0
    through, stored = rows[0]
    if _sum(head.key, through) != stored:
        raise corrupt(f"what session {head.session_id} has forgotten")
    return int(through)


def _sum(key: int, through: int) -> int:
    return checksum(f"{key}|{through}")
