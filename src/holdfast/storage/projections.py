"""Tables of what is computed from claims: of what was there, only what has changed is written.

Listings are in `entity_lists`, timelines in `timelines`, and who names whom in `mentions`.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from holdfast.ports.observations import Known, Projection
from holdfast.storage.database import Database, checksum, require_sound
from holdfast.storage.entity_lists import EntityLists
from holdfast.storage.entity_rows import columns_of, is_sound
from holdfast.storage.event_rows import EventChange, change_against, change_from, event_sum
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
    SAVE_IN_PLACE,
    SWEEP,
)
from holdfast.storage.timelines import Timelines

# No sum is that.
_WRONG: Final = -1


class Projections(EntityLists, Timelines):
    """What is computed from claims, in the store."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def save(
        self,
        known: Known,
        projection: Projection,
        body: bytes | None,
        *,
        before: Projection | None = None,
    ) -> None:
        await self._db.execute(_saving(projection, before), columns_of(known, projection))
        await self._save_body(known.key, body)
        if before is None:
            found = await self._db.fetch(EVENT_SUMS, {"key": known.key, "thorough": False})
            change = change_against({row[:3]: row[4] for row in found}, projection.events)
        elif (before.events, before.names) == (projection.events, projection.names):
            return
        else:
            change = change_from(before.events, projection.events)
        await self._save_events(known.key, change)
        await save_mentions(self._db, known, projection.names, change)

    async def mend(self, known: Known, projection: Projection, body: bytes | None) -> bool:
        columns = columns_of(known, projection)
        sums = (columns["checksum"], None if body is None else checksum(body))
        is_otherwise = await self._sums(known.key) != sums
        if is_otherwise:
            await self._db.execute(SAVE, columns)
            await self._save_body(known.key, body)
        found = await self._db.fetch(EVENT_SUMS, {"key": known.key, "thorough": True})
        stood = {row[:3]: _stored(row[4], row[5], partial(event_sum, row)) for row in found}
        change = change_against(stood, projection.events)
        await self._save_events(known.key, change)
        named = await save_mentions(self._db, known, projection.names, change, thorough=True)
        return is_otherwise or named or bool(change.gone or change.rows)

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

    async def _save_body(self, key: int, body: bytes | None) -> None:
        if body is None:
            await self._db.execute(DROP_BODY, {"key": key})
        else:
            columns = {"key": key, "checksum": checksum(body), "body": body}
            await self._db.execute(PUT_BODY, columns)

    async def _save_events(self, key: int, change: EventChange) -> None:
        for ms, rank, id_ in change.gone:
            await self._db.execute(DROP_EVENT, {"key": key, "ms": ms, "rank": rank, "id": id_})
        for row in change.rows:
            await self._db.execute(PUT_EVENT, row.columns(key))


def _saving(projection: Projection, before: Projection | None) -> str:
    """Return the statement that saves an entity; where it stands in lists mostly stays."""
    is_listed_alike = before is not None and (before.is_deleted, before.started) == (
        projection.is_deleted,
        projection.started,
    )
    return SAVE_IN_PLACE if is_listed_alike else SAVE


def _stored(stored: int | None, body: bytes | None, sum_of: Callable[[bytes], int]) -> int | None:
    """Return the sum that is kept of a body; where the body was read, only if it is its own."""
    is_wrong = body is not None and sum_of(body) != stored
    return _WRONG if is_wrong else stored
