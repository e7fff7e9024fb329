"""The `zone_files` and `zone_parts` tables: files in parts, each part with what was counted before.

Every part but the last is full. To append never takes reading: a few bytes are put behind others in
the file's own row, and once they are many they become a piece of the last part, as they are.
"""

import zlib
from typing import Final

from msgspec.structs import replace

from holdfast.domain.ids import Owner, SessionKey
from holdfast.domain.zone_lines import Tally, tallied
from holdfast.domain.zones import FILE_LARGEST, PART_SIZE, ZoneFile, require_size
from holdfast.storage import desks
from holdfast.storage.database import Database, corrupt
from holdfast.storage.zone_rows import columns_of, file_of, part_of, piece_checksum, rest_of
from holdfast.storage.zone_sql import (
    ADD,
    BEFORE,
    COPY,
    EMPTY,
    EVERYBODYS,
    GROW,
    IS_TAKEN,
    LAY,
    NAMES,
    OF_ZONE,
    ONE,
    PART,
    PUT,
    REMOVE,
    REMOVE_ALL,
    REST,
    SAVE,
    SETTLE,
)

# So much of the last part is kept in the file's own row, which fits on a page with it.
REST_MOST: Final = 3_500
# Behind every name that a zone can have and that begins with the text before it.
_LAST: Final = "\U0010ffff"


class Zones:
    """Files of zones in the store."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def file(self, owner: Owner, zone: str, name: str) -> ZoneFile | None:
        rows = await self._db.fetch(ONE, {"owner": owner, "zone": zone, "name": name})
        return file_of(rows[0]) if rows else None

    async def files(self, owner: Owner, zone: str) -> tuple[ZoneFile, ...]:
        rows = await self._db.fetch(OF_ZONE, {"owner": owner, "zone": zone})
        return tuple(map(file_of, rows))

    async def names(self, owner: Owner, prefix: str) -> list[str]:
        asked = {"owner": owner, "prefix": prefix, "behind": prefix + _LAST}
        return [row[0] for row in await self._db.fetch(NAMES, asked)]

    async def everybodys(self) -> list[tuple[Owner, str]]:
        return [(Owner(owner), zone) for owner, zone in await self._db.fetch(EVERYBODYS)]

    async def add(self, owner: Owner, file: ZoneFile) -> ZoneFile:
        return await self._added(owner, file, b"")

    async def _added(self, owner: Owner, file: ZoneFile, rest: bytes) -> ZoneFile:
        rows = await self._db.fetch(ADD, {**columns_of(owner, file), "rest": rest})
        return replace(file, key=rows[0][0])

    async def append(self, owner: Owner, file: ZoneFile, more: bytes, at: int) -> ZoneFile:
        require_size(file.size + len(more), FILE_LARGEST, what="A file of a zone")
        is_short = _is_short(file, more)
        if is_short:
            tally = tallied(Tally(file.ended, file.tail), more)
        else:
            tally = await self._lay_down(file, more)
        grown = replace(
            file,
            size=file.size + len(more),
            modified_ms=max(at, file.modified_ms),
            lines=tally.lines,
            ended=tally.ended,
            tail=tally.tail,
            rest=file.rest + len(more) if is_short else 0,
            rest_checksum=zlib.crc32(more, file.rest_checksum) if is_short else 0,
        )
        columns = {**columns_of(owner, grown), "more": more, "nothing": b""}
        await self._db.execute(GROW if is_short else SETTLE, columns)
        return grown

    async def _lay_down(self, file: ZoneFile, more: bytes) -> Tally:
        """Write bytes to the parts, behind those that were kept apart; return the tally of all."""
        tally = Tally(file.ended, file.tail)
        number, filled = divmod(file.size - file.rest, PART_SIZE)
        start = 0
        if filled:
            start = PART_SIZE - filled - file.rest
            piece = more[:start]
            total = zlib.crc32(piece, file.rest_checksum)
            columns = {
                "file_key": file.key,
                "part": number,
                "start": filled,
                "checksum": piece_checksum(total, (number, filled)),
                "more": piece,
            }
            await self._db.execute(LAY, columns)
            tally, number = tallied(tally, piece), number + 1
        while start < len(more):
            piece = more[start : start + PART_SIZE]
            await self._begin(file, number, tally, piece)
            tally, number, start = tallied(tally, piece), number + 1, start + PART_SIZE
        return tally

    async def empty(self, owner: Owner, file: ZoneFile) -> ZoneFile:
        await self._db.execute(EMPTY, {"file_key": file.key})
        emptied = replace(file, size=0, lines=0, ended=0, tail=None, rest=0, rest_checksum=0)
        await self._db.execute(SETTLE, {**columns_of(owner, emptied), "nothing": b""})
        return emptied

    async def read(self, file: ZoneFile, start: int, end: int) -> bytes:
        first, last = max(start, 0), min(end, file.size)
        if first >= last:
            return b""
        begin = first // PART_SIZE
        numbers = range(begin, (last - 1) // PART_SIZE + 1)
        whole = b"".join([(await self.part(file, number))[1] for number in numbers])
        return whole[first - begin * PART_SIZE : last - begin * PART_SIZE]

    async def part_before(self, file: ZoneFile, line: int) -> int:
        rows = await self._db.fetch(BEFORE, {"file_key": file.key, "line": line})
        return rows[0][0] if rows else 0

    async def part(self, file: ZoneFile, number: int) -> tuple[Tally, bytes]:
        rows = await self._db.fetch(PART, {"file_key": file.key, "part": number})
        what = f"part {number} of {file.zone} {file.name}"
        tally, content = part_of(rows, what)
        if file.rest and number == file.parts - 1:
            content += await self._rest(file, what)
        # Pieces that prove themselves may still be fewer than the file says.
        if len(content) != min(PART_SIZE, file.size - number * PART_SIZE):
            raise corrupt(what)
        return tally, content

    async def _rest(self, file: ZoneFile, what: str) -> bytes:
        return rest_of(await self._db.fetch(REST, {"key": file.key}), file, what)

    async def place(self, owner: Owner, file: ZoneFile) -> None:
        await self._db.execute(SAVE, columns_of(owner, file))

    async def copy(self, owner: Owner, source: ZoneFile, target: ZoneFile) -> ZoneFile:
        counted = replace(
            target,
            size=source.size,
            lines=source.lines,
            ended=source.ended,
            tail=source.tail,
            rest=source.rest,
            rest_checksum=source.rest_checksum,
        )
        rest = await self._rest(source, f"{source.zone} {source.name}")
        copied = await self._added(owner, counted, rest)
        await self._db.execute(COPY, {"source": source.key, "target": copied.key})
        return copied

    async def remove(self, file: ZoneFile) -> None:
        await self._db.execute(REMOVE, {"key": file.key})

    async def remove_all(self, owner: Owner, zone: str) -> int:
        return len(await self._db.fetch(REMOVE_ALL, {"owner": owner, "zone": zone}))

    async def is_taken(self, owner: Owner, zone: str) -> bool:
        return bool(await self._db.fetch(IS_TAKEN, {"owner": owner, "zone": zone}))

    async def seated(self, owner: Owner, zone: str) -> SessionKey | None:
        return await desks.seated(self._db, owner, zone)

    async def desk_of(self, key: SessionKey) -> tuple[Owner, str] | None:
        return await desks.desk_of(self._db, key)

    async def seat(self, owner: Owner, zone: str, key: SessionKey) -> None:
        await desks.seat(self._db, owner, zone, key)

    async def unseat(self, key: SessionKey) -> None:
        await desks.unseat(self._db, key)

    async def repoint(self, owner: Owner, before: str, after: str) -> int:
        return await desks.repoint(self._db, owner, before, after)

    async def is_marked(self, name: str) -> bool:
        return await desks.is_marked(self._db, name)

    async def mark(self, name: str, at: int) -> None:
        await desks.mark(self._db, name, at)

    async def _begin(self, file: ZoneFile, number: int, before: Tally, content: bytes) -> None:
        columns = {
            "file_key": file.key,
            "part": number,
            "ended": before.ended,
            "tail": before.tail,
            "checksum": piece_checksum(zlib.crc32(content), (number, 0), before),
            "content": content,
        }
        await self._db.execute(PUT, columns)


def _is_short(file: ZoneFile, more: bytes) -> bool:
    """Tell whether bytes are kept apart for now, with those that are already."""
    rest = file.rest + len(more)
    # A part begins with bytes of its own, because what was counted before it stands there.
    filled = (file.size - file.rest) % PART_SIZE
    return filled > 0 and rest <= REST_MOST and filled + rest <= PART_SIZE
