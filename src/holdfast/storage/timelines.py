"""Timelines in the store: events of one entity, and of all who name an id."""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.domain.ids import Owner
from holdfast.domain.timelines import TimelineEvent
from holdfast.ports.observations import EventWish, Known
from holdfast.storage.database import Database
from holdfast.storage.entity_rows import known_of
from holdfast.storage.event_rows import TYPES, event_of, kept_place
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
        found = {}
        for name_key in name_keys:
            asked = {"owner": owner, "name_key": name_key}
            for row in await self._db.fetch(HOSTED_APART, asked):
                found[row[0]] = known_of(row)
            for row in await self._db.fetch(WIDE_APART, {"name_key": name_key}):
                found[row[0]] = known_of(row)
        if len(name_keys) > 1:
            asked = {"name_keys": _listed(name_keys)}
            for row in await self._db.fetch(SEVERAL_APART, asked):
                found[row[0]] = known_of(row)
        return list(found.values())

    async def mentioned_by(self, key: int, name_keys: Sequence[int]) -> list[int]:
        asked = {"key": key, "name_keys": _listed(name_keys)}
        return [row[0] for row in await self._db.fetch(MENTIONED_BY, asked)]

    async def events(self, key: int, wish: EventWish) -> list[TimelineEvent]:
        conditions, asked = _conditions(wish)
        sql = EVENTS.format(conditions=conditions)
        rows = await self._db.fetch(sql, {**asked, "key": key, "limit": wish.limit})
        return [event_of(row, f"an event of entity {key}") for row in rows]

    async def count_events(self, key: int, wish: EventWish) -> int:
        conditions, asked = _conditions(wish)
        rows = await self._db.fetch(
            COUNT_EVENTS.format(conditions=conditions), {**asked, "key": key}
        )
        return int(rows[0][0])

    async def mentioned(self, name_key: int, wish: EventWish) -> list[TimelineEvent]:
        conditions, asked = _conditions(wish)
        sql = MENTIONED.format(conditions=conditions)
        rows = await self._db.fetch(sql, {**asked, "name_key": name_key, "limit": wish.limit})
        return [event_of(row[:-1], f"an event of entity {row[-1]}") for row in rows]

    async def count_mentioned(self, name_key: int, wish: EventWish) -> int:
        conditions, asked = _conditions(wish)
        sql = COUNT_MENTIONED.format(conditions=conditions)
        rows = await self._db.fetch(sql, {**asked, "name_key": name_key})
        return int(rows[0][0])


def _conditions(wish: EventWish) -> tuple[str, dict[str, Any]]:
    """Return what is asked of an event; names come from here and values are bound."""
    conditions, asked = ["1"], dict[str, Any]()
    if wish.window.start is not None:
        conditions.append("t.ms >= :start")
        asked["start"] = wish.window.start
    if wish.window.end is not None:
        conditions.append("t.ms <= :end")
        asked["end"] = wish.window.end
    if wish.after is not None:
        conditions.append("(t.ms, t.rank, t.id) > (:ms, :rank, :id)")
        asked |= dict(zip(("ms", "rank", "id"), kept_place(wish.after), strict=True))
    if wish.types:
        conditions.append("t.type IN (SELECT value FROM json_each(:types))")
        asked["types"] = _listed([TYPES[each] for each in wish.types])
    if wish.apart:
        conditions.append("t.entity_key NOT IN (SELECT value FROM json_each(:apart))")
        asked["apart"] = _listed(wish.apart)
    return " AND ".join(conditions), asked


def _listed(numbers: Sequence[int]) -> str:
    return msgspec.json.encode(numbers).decode()
