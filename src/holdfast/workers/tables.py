"""The `workers` table."""

import msgspec

from holdfast.domain.ids import Owner
from holdfast.domain.time import microseconds
from holdfast.store.database import Database, Row, checksum, encode, require_sound, sound
from holdfast.workers.model import Worker

SAVE = """
-- Insert or replace a worker.
INSERT INTO workers (owner, id, until, body, checksum)
VALUES (:owner, :id, :until, :body, :checksum)
ON CONFLICT (owner, id)
DO UPDATE SET until = excluded.until, body = excluded.body, checksum = excluded.checksum
"""
OF = """
-- A worker of an owner.
SELECT body, checksum
  FROM workers
 WHERE owner = :owner
   AND id = :id
"""
LIVE = """
-- The workers of an owner that are not gone.
SELECT body, checksum
  FROM workers
 WHERE owner = :owner
   AND until > :now
 ORDER BY id
"""
EVERY = """
-- The workers of an owner, those included that are gone.
SELECT body, checksum
  FROM workers
 WHERE owner = :owner
 ORDER BY id
"""
REMOVE = """
-- Delete a worker.
DELETE FROM workers
 WHERE owner = :owner
   AND id = :id
"""
FORGET = """
-- Delete the workers of an owner that are gone for long.
DELETE FROM workers
 WHERE owner = :owner
   AND until <= :before
"""

# Created at import because msgspec prepares a type on first use, which is not thread-safe.
_decoder = msgspec.json.Decoder(Worker)


class WorkerRows:
    """Workers in the store."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def save(self, worker: Worker) -> None:
        body = encode(worker)
        until = microseconds(worker.until)
        row = {"owner": worker.owner, "id": worker.id, "until": until, "body": body}
        await self._db.execute(SAVE, row | {"checksum": checksum(body)})

    async def of(self, owner: Owner, worker_id: str) -> Worker | None:
        rows = await self._db.fetch(OF, {"owner": owner, "id": worker_id})
        return _worker_of(rows[0]) if rows else None

    async def live(self, owner: Owner, now: int) -> list[Worker]:
        """Return the workers of an owner that are not gone."""
        return list(sound(await self._db.fetch(LIVE, {"owner": owner, "now": now}), _worker_of))

    async def remove(self, owner: Owner, worker_id: str) -> None:
        await self._db.execute(REMOVE, {"owner": owner, "id": worker_id})

    async def functions(self, owner: Owner) -> frozenset[str]:
        """Return the names of the functions that processes have, or had until they were gone."""
        found = sound(await self._db.fetch(EVERY, {"owner": owner}), _worker_of)
        return frozenset(name for worker in found for name in worker.functions)

    async def forget(self, owner: Owner, before: int) -> None:
        """Delete the workers of an owner that were gone at a time."""
        await self._db.execute(FORGET, {"owner": owner, "before": before})


def _worker_of(row: Row) -> Worker:
    require_sound(row[1], row[0], what="a worker")
    return _decoder.decode(row[0])
