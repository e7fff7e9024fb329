"""The `zone_files` and `zone_parts` tables: files in parts, each part with what was counted before.

Every part but the last is full. The checksum of a part covers what stands beside its content, too.
"""

from typing import Final

from msgspec.structs import replace

from holdfast.domain.ids import Owner, SessionKey
from holdfast.domain.zone_lines import Tally, tallied
from holdfast.domain.zones import FILE_LARGEST, PART_SIZE, ZoneFile, require_size
from holdfast.storage import desks
from holdfast.storage.database import Database, Row, checksum, corrupt, encode, require_sound
from holdfast.storage.zone_sql import (
    ADD,
    BEFORE,
    COPY,
    EMPTY,
    EVERYBODYS,
    GROW,
    NAMES,
    OF_ZONE,
    ONE,
    PART,
    PUT,
    REMOVE,
    SAVE,
)

# So much of the last part is kept in the file's own row, which fits on a page with it.
REST_MOST: Final = 3_500
_GROWING: Final = ("size", "modified_ms", "ended", "tail", "rest", "checksum")
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
        rows = await self._db.fetch(ADD, _columns(owner, file))
        return replace(file, key=rows[0][0])

    async def append(self, owner: Owner, file: ZoneFile, more: bytes, at: int) -> ZoneFile:
        require_size(file.size + len(more), FILE_LARGEST, what="A file of a zone")
        tally = Tally(file.ended, file.tail)
        rest = self._short_rest(file, more)
        tally = await self._lay_down(file, more) if rest is None else tallied(tally, more)
        grown = replace(
            file,
            size=file.size + len(more),
            modified_ms=max(at, file.modified_ms),
            lines=tally.lines,
            ended=tally.ended,
            tail=tally.tail,
            rest=rest or b"",
        )
        columns = _columns(owner, grown)
        await self._db.execute(GROW, {name: columns[name] for name in _GROWING} | {"key": file.key})
        return grown

    def _short_rest(self, file: ZoneFile, more: bytes) -> bytes | None:
        """Return the rest of the last part as it is kept by itself; nothing if it is too long."""
        filled = (file.size - len(file.rest)) % PART_SIZE
        rest = file.rest + more
        # A part begins with bytes of its own, because what was counted before it stands there.
        fits = filled and len(rest) <= REST_MOST and filled + len(rest) <= PART_SIZE
        return rest if fits else None

    async def _lay_down(self, file: ZoneFile, more: bytes) -> Tally:
        """Write bytes to the parts, and the rest with them; return the tally of all."""
        tally = Tally(file.ended, file.tail)
        number, filled = divmod(file.size, PART_SIZE)
        start = 0
        if filled or file.rest:
            number = file.parts - 1
            before, content = await self.part(file, number)
            start = PART_SIZE - len(content)
            await self._put(file, number, before, content + more[:start])
            tally, number = tallied(tally, more[:start]), number + 1
        while start < len(more):
            piece = more[start : start + PART_SIZE]
            await self._put(file, number, tally, piece)
            tally, number, start = tallied(tally, piece), number + 1, start + PART_SIZE
        return tally

    async def empty(self, owner: Owner, file: ZoneFile) -> ZoneFile:
        await self._db.execute(EMPTY, {"file_key": file.key})
        emptied = replace(file, size=0, lines=0, ended=0, tail=None, rest=b"")
        await self.place(owner, emptied)
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
        if not rows:
            raise corrupt(what)
        tally, content = part_of(rows[0], what)
        if number == file.parts - 1:
            content += file.rest
        # A part that proves itself may still be shorter than the file says.
        if len(content) != min(PART_SIZE, file.size - number * PART_SIZE):
            raise corrupt(what)
        return tally, content

    async def place(self, owner: Owner, file: ZoneFile) -> None:
        await self._db.execute(SAVE, {**_columns(owner, file), "key": file.key})

    async def copy(self, owner: Owner, source: ZoneFile, target: ZoneFile) -> ZoneFile:
        counted = replace(
            target,
            size=source.size,
            lines=source.lines,
            ended=source.ended,
            tail=source.tail,
            rest=source.rest,
        )
        copied = await self.add(owner, counted)
        await self._db.execute(COPY, {"source": source.key, "target": copied.key})
        return copied

    async def remove(self, file: ZoneFile) -> None:
        await self._db.execute(REMOVE, {"key": file.key})

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

    async def _put(self, file: ZoneFile, number: int, before: Tally, content: bytes) -> None:
        columns = {
            "file_key": file.key,
            "part": number,
            "ended": before.ended,
            "tail": before.tail,
            "content": content,
            "checksum": _sum(number, before, content),
        }
        await self._db.execute(PUT, columns)


def file_of(row: Row) -> ZoneFile:
    """Return what is kept about a file, or refuse a damaged row."""
    key, _, zone, name, size, created_ms, modified_ms, generation, ended, tail, rest, stored = row
    require_sound(stored, _described(row[1:10]), rest, what=f"{zone} {name}")
    tail = None if tail is None else bytes(tail)
    return ZoneFile(
        key=key,
        zone=zone,
        name=name,
        size=size,
        created_ms=created_ms,
        modified_ms=modified_ms,
        generation=generation,
        lines=Tally(ended, tail).lines,
        ended=ended,
        tail=tail,
        rest=rest,
    )


def part_of(row: Row, what: str) -> tuple[Tally, bytes]:
    """Return a part and the tally before it, or refuse a damaged one."""
    number, ended, tail, stored, content = row
    before = Tally(ended, None if tail is None else bytes(tail))
    if _sum(number, before, content) != stored:
        raise corrupt(what)
    return before, content


def _sum(number: int, before: Tally, content: bytes) -> int:
    return checksum(encode((number, before.ended, before.tail)), content)


def _described(columns: Row) -> bytes:
    return encode(columns)


def _columns(owner: Owner, file: ZoneFile) -> dict[str, object]:
    columns: dict[str, object] = {
        "owner": owner,
        "zone": file.zone,
        "name": file.name,
        "size": file.size,
        "created_ms": file.created_ms,
        "modified_ms": file.modified_ms,
        "generation": file.generation,
        "ended": file.ended,
        "tail": file.tail,
    }
    total = checksum(_described(tuple(columns.values())), file.rest)
    return {**columns, "rest": file.rest, "checksum": total}
