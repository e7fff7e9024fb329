"""Timelines in the store: events of one entity, and of all who name an id."""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.domain.ids import Owner
from holdfast.domain.timelines import TimelineEvent
from holdfast.ports.observations import EventWish, Known
from holdfast.storage.database import Database, Parameters, Row, sound
from holdfast.storage.entity_rows import known_of
from holdfast.storage.event_rows import TYPES, Place, event_of, kept_place
from holdfast.storage.projection_sql import (
    COUNT_EVENTS,
    COUNT_MENTIONED,
    EVENTS,
    HOSTED_APART,
    MENTIONED,
    MENTIONED_BY,
    NAME_KEY,
    SEVERAL_APART,
    WIDE_APART,
)


class Timelines:
    """Events, by who they happened to and by who is named there."""

    _db: Database

    async def name_key(self, owner: Owner, name: str) -> int | None:
        rows = await self._db.fetch(NAME_KEY, {"owner": owner, "name": name})
        return rows[0][0] if rows else None

    async def apart(self, owner: Owner, name_keys: Sequence[int]) -> list[Known]:
        rows: list[Row] = []
        for name_key in name_keys:
            asked = {"owner": owner, "name_key": name_key}
            rows += await self._db.fetch(HOSTED_APART, asked)
            rows += await self._db.fetch(WIDE_APART, {"name_key": name_key})
        if len(name_keys) > 1:
            rows += await self._db.fetch(SEVERAL_APART, {"name_keys": _listed(name_keys)})
        return list({known.key: known for known in sound(rows, known_of)}.values())

    async def mentioned_by(self, key: int, name_keys: Sequence[int]) -> list[int]:
        asked = {"key": key, "name_keys": _listed(name_keys)}
        return [row[0] for row in await self._db.fetch(MENTIONED_BY, asked)]

    async def events(self, key: int, wish: EventWish) -> list[TimelineEvent]:
        return await self._sound(EVENTS, {"key": key}, wish)

    async def count_events(self, key: int, wish: EventWish) -> int:
        conditions, asked = _conditions(wish)
        rows = await self._db.fetch(
            COUNT_EVENTS.format(conditions=conditions), {**asked, "key": key}
        )
        return int(rows[0][0])

    async def mentioned(self, name_key: int, wish: EventWish) -> list[TimelineEvent]:
        return await self._sound(MENTIONED, {"name_key": name_key}, wish)

    async def _sound(self, sql: str, whose: Parameters, wish: EventWish) -> list[TimelineEvent]:
        """Return events as they were kept; for each that is damaged one more is looked at."""
        found: list[TimelineEvent] = []
        after = None if wish.after is None else kept_place(wish.after)
        while left := wish.limit - len(found):
            conditions, asked = _conditions(wish, after)
            parameters = {**asked, **whose, "limit": left}
            rows = await self._db.fetch(sql.format(conditions=conditions), parameters)
            found += sound(rows, lambda row: event_of(row[:-1], f"an event of entity {row[-1]}"))
            if len(rows) < left:
                break
            after = rows[-1][:3]
        return found

    async def count_mentioned(self, name_key: int, wish: EventWish) -> int:
        conditions, asked = _conditions(wish)
        sql = COUNT_MENTIONED.format(conditions=conditions)
        rows = await self._db.fetch(sql, {**asked, "name_key": name_key})
        return int(rows[0][0])


def _conditions(wish: EventWish, after: Place | None = None) -> tuple[str, dict[str, Any]]:
    """Return what is asked of an event; names come from here and values are bound."""
    conditions, asked = ["TRUE"], dict[str, Any]()
    if wish.window.start is not None:
        conditions.append("t.ms >= :start")
        asked["start"] = wish.window.start
    if wish.window.end is not None:
        conditions.append("t.ms <= :end")
        asked["end"] = wish.window.end
    if after is not None:
        conditions.append("(t.ms, t.rank, t.id) > (:ms, :rank, :id)")
        asked |= dict(zip(("ms", "rank", "id"), after, strict=True))
    if wish.types:
        conditions.append("t.type IN (SELECT value FROM json_each(:types))")
        asked["types"] = _listed([TYPES[each] for each in wish.types])
    if wish.apart:
        conditions.append("t.entity_key NOT IN (SELECT value FROM json_each(:apart))")
        asked["apart"] = _listed(wish.apart)
    return " AND ".join(conditions), asked


def _listed(numbers: Sequence[int]) -> str:
    return msgspec.json.encode(numbers).decode()
