"""Tables of what is computed from claims: of what was there, only what has changed is written.

Listings are in `entity_lists`, timelines in `timelines`, and who names whom in `mentions`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from holdfast.ports.observations import Known, Projection
from holdfast.storage.database import Database, checksum, require_sound
from holdfast.storage.entity_lists import EntityLists
from holdfast.storage.entity_rows import columns_of, is_sound
from holdfast.storage.event_rows import EventRow, event_sum, row_of
from holdfast.storage.mentions import save_mentions
from holdfast.storage.observation_sql import BY_KEY
from holdfast.storage.projection_sql import (
    BODY,
    DROP_BODY,
    DROP_EVENT,
    EVENT_SUMS,
    PUT_BODY,
    PUT_EVENT,
    RELINK,
    SAVE,
    SWEEP,
)
from holdfast.storage.timelines import Timelines

# No sum is that.
_WRONG: Final = -1


class Projections(EntityLists, Timelines):
    """What is computed from claims, in the store."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def save(self, known: Known, projection: Projection, *, thorough: bool = False) -> bool:
        rows = {row.place: row for row in map(row_of, projection.events)}
        found = await self._db.fetch(EVENT_SUMS, {"key": known.key, "thorough": thorough})
        before = {row[:3]: _stored(row[4], row[5], partial(event_sum, row)) for row in found}
        # With each claim both become others, so nobody has to look.
        sums = await self._sums(known.key) if thorough else (_WRONG, _WRONG)
        differs = [
            await self._save_entity(columns_of(known, projection), projection.body, sums),
            await self._save_events(known.key, before, rows),
            await save_mentions(
                self._db, known, projection.names, (set(before), rows), thorough=thorough
            ),
        ]
        return any(differs)

    async def sweep(self) -> int:
        return len(await self._db.fetch(SWEEP)) + len(await self._db.fetch(RELINK))

    async def body(self, known: Known) -> bytes | None:
        rows = await self._db.fetch(BODY, {"key": known.key})
        if not rows:
            return None
        body, stored = rows[0]
        require_sound(stored, body, what=f"the snapshot of {known.entity_id}")
        return bytes(body)

    async def _sums(self, key: int) -> tuple[int, int | None]:
        """Return the sums of an entity and its snapshot, as far as they are their own."""
        (row,) = await self._db.fetch(BY_KEY, {"key": key})
        bodies = await self._db.fetch(BODY, {"key": key})
        body, stored = bodies[0] if bodies else (None, None)
        return row[2] if is_sound(row) else _WRONG, _stored(stored, body, checksum)

    async def _save_entity(
        self, columns: dict[str, Any], body: bytes | None, sums: tuple[int, int | None]
    ) -> bool:
        key = {"key": columns["key"]}
        entity_sum, body_sum = sums
        if entity_sum != columns["checksum"]:
            await self._db.execute(SAVE, columns)
        total = None if body is None else checksum(body)
        if body is not None and total != body_sum:
            await self._db.execute(PUT_BODY, {**key, "checksum": total, "body": body})
        if body is None and body_sum is not None:
            await self._db.execute(DROP_BODY, key)
        return sums != (columns["checksum"], total)

    async def _save_events(
        self, key: int, before: dict[Any, int | None], rows: dict[Any, EventRow]
    ) -> bool:
        gone = before.keys() - rows.keys()
        for ms, rank, id_ in gone:
            await self._db.execute(DROP_EVENT, {"key": key, "ms": ms, "rank": rank, "id": id_})
        changed = [row for place, row in rows.items() if before.get(place) != row.checksum]
        for row in changed:
            await self._db.execute(PUT_EVENT, row.columns(key))
        return bool(gone or changed)


def _stored(stored: int | None, body: bytes | None, sum_of: Callable[[bytes], int]) -> int | None:
    """Return the sum that is kept of a body; where the body was read, only if it is its own."""
    is_wrong = body is not None and sum_of(body) != stored
    return _WRONG if is_wrong else stored
