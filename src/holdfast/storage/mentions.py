"""Who names whom: the ids that entities name, and under each the events of those who name it."""

from collections.abc import Collection
from typing import Final

from msgspec import Struct

from holdfast.domain.ids import Owner
from holdfast.ports.observations import Known
from holdfast.storage.database import Database
from holdfast.storage.event_rows import EventChange
from holdfast.storage.projection_sql import (
    ADD_NAME,
    DROP_MENTION,
    DROP_MENTIONED,
    NAME_KEY,
    NAMES,
    PUT_ALL_MENTIONED,
    PUT_MENTION,
    PUT_MENTIONED,
)

# So many rows an entity may have under the ids that it names; with more it is wide.
WIDE: Final = 4_096


class _Standing(Struct, frozen=True):
    """Which ids an entity names, and whether it is too wide for its events to stand there."""

    keys: frozenset[int]
    is_wide: bool

    @property
    def shown(self) -> frozenset[int]:
        """Return the ids under which its events stand."""
        return frozenset() if self.is_wide else self.keys


async def save_mentions(
    database: Database,
    known: Known,
    names: Collection[str],
    events: EventChange,
    *,
    thorough: bool = False,
) -> bool:
    """Write which ids an entity names, and its events under them; tell whether that differs."""
    found = await database.fetch(NAMES, {"key": known.key})
    keys = {name: key for name, key, _ in found}
    before = _Standing(frozenset(keys.values()), any(is_wide for _, _, is_wide in found))
    for name in names:
        if name not in keys:
            keys[name] = await _kept(database, known.subject.owner, name)
    wanted = frozenset(keys[name] for name in names)
    after = _Standing(wanted, len(wanted) * len(events.stands) > WIDE)
    if after != before:
        await _save_names(database, known.key, before, after)
    staying = before.shown & after.shown
    leaving = [(key, place) for key in before.shown - staying for place in events.stood]
    leaving += [(key, place) for key in staying for place in events.gone]
    for key, (ms, rank, id_) in leaving:
        columns = {"name_key": key, "ms": ms, "rank": rank, "id": id_}
        await database.execute(DROP_MENTIONED, columns)
    is_otherwise = after != before or bool(leaving)
    # Under an id that is new to it, all of its events come to stand at once.
    whole = after.shown if thorough else after.shown - staying
    for key in whole:
        if await database.fetch(PUT_ALL_MENTIONED, {"name_key": key, "key": known.key}):
            is_otherwise = True
    for key in staying - whole:
        for row in events.rows:
            await database.execute(PUT_MENTIONED, {**row.columns(known.key), "name_key": key})
    return is_otherwise


async def _save_names(database: Database, key: int, before: _Standing, after: _Standing) -> None:
    for gone in before.keys - after.keys:
        await database.execute(DROP_MENTION, {"name_key": gone, "key": key})
    for name_key in after.keys:
        columns = {"name_key": name_key, "key": key, "is_wide": int(after.is_wide)}
        await database.execute(PUT_MENTION, columns)


async def _kept(database: Database, owner: Owner, name: str) -> int:
    """Return what an id is kept under, keeping it from now on."""
    asked = {"owner": owner, "name": name}
    rows = await database.fetch(NAME_KEY, asked) or await database.fetch(ADD_NAME, asked)
    return int(rows[0][0])
