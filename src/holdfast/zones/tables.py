"""The tables of zones: files in parts, zone bindings and import markers."""

import zlib
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from holdfast.domain.ids import AgentId, Owner, SessionKey
from holdfast.store.database import (
    Database,
    Row,
    checksum,
    corrupt,
    encode,
    require_sound,
    with_row_lock,
)
from holdfast.store.session_rows import columns_of
from holdfast.store.sessions import SessionRows
from holdfast.zones.lines import LineCount, count_lines
from holdfast.zones.model import FILE_LARGEST, PART_SIZE, ZoneFile, require_size

ONE = """
-- A file of a zone.
SELECT key, owner, zone, name, size, created_ms, modified_ms, generation, ended, tail,
       length(rest), rest_checksum, checksum
  FROM zone_files
 WHERE owner = :owner
   AND zone = :zone
   AND name = :name
"""
OF_ZONE = """
-- The files of a zone.
SELECT key, owner, zone, name, size, created_ms, modified_ms, generation, ended, tail,
       length(rest), rest_checksum, checksum
  FROM zone_files
 WHERE owner = :owner
   AND zone = :zone
 ORDER BY name
"""
NAMES = """
-- An owner's zones whose names begin with a text.
SELECT DISTINCT zone
  FROM zone_files
 WHERE owner = :owner
   AND zone >= :prefix
   AND zone < :behind
 ORDER BY zone
"""
ALL_ZONES = """
-- All zones.
SELECT DISTINCT owner, zone
  FROM zone_files
 ORDER BY owner, zone
"""
ADD = """
-- Insert a file.
INSERT INTO zone_files (owner, zone, name, size, created_ms, modified_ms, generation, ended, tail,
                        rest, rest_checksum, checksum)
VALUES (:owner, :zone, :name, :size, :created_ms, :modified_ms, :generation, :ended, :tail,
        :rest, :rest_checksum, :checksum)
RETURNING key
"""
SAVE = """
-- Update a file.
UPDATE zone_files
   SET zone = :zone, name = :name, size = :size, created_ms = :created_ms,
       modified_ms = :modified_ms, generation = :generation, ended = :ended, tail = :tail,
       checksum = :checksum
 WHERE key = :key
"""
GROW = """
-- Update the end of a file without its names, so that no index is written.
UPDATE zone_files
   SET size = :size, modified_ms = :modified_ms, ended = :ended, tail = :tail,
       rest = CAST(rest || :more AS BLOB), rest_checksum = :rest_checksum, checksum = :checksum
 WHERE key = :key
"""
MOVE_REST_TO_PARTS = """
-- Move the last bytes of a file into its parts.
UPDATE zone_files
   SET size = :size, modified_ms = :modified_ms, generation = :generation, ended = :ended,
       tail = :tail, rest = :nothing, rest_checksum = :rest_checksum, checksum = :checksum
 WHERE key = :key
"""
REST = """
-- The last bytes of a file.
SELECT rest
  FROM zone_files
 WHERE key = :key
"""
REMOVE = """
-- Delete a file; its parts are deleted by cascade.
DELETE FROM zone_files
 WHERE key = :key
"""
REMOVE_ALL = """
-- Delete all files of a zone.
DELETE FROM zone_files
 WHERE owner = :owner
   AND zone = :zone
RETURNING key
"""
IS_TAKEN = """
-- Whether a zone has a file.
SELECT 1
  FROM zone_files
 WHERE owner = :owner
   AND zone = :zone
 LIMIT 1
"""
PART = """
-- The pieces of a part.
SELECT part, start, ended, tail, checksum, content
  FROM zone_parts
 WHERE file_key = :file_key
   AND part = :part
 ORDER BY start
"""
PUT = """
-- Insert a part, or its first piece.
INSERT INTO zone_parts (file_key, part, start, ended, tail, checksum, content)
VALUES (:file_key, :part, 0, :ended, :tail, :checksum, :content)
"""
LAY = """
-- Append the last bytes of a file and more as a piece of its last part.
INSERT INTO zone_parts (file_key, part, start, ended, tail, checksum, content)
SELECT key, :part, :start, 0, NULL, :checksum, CAST(rest || :more AS BLOB)
  FROM zone_files
 WHERE key = :file_key
"""
EMPTY = """
-- Delete the content of a file.
DELETE FROM zone_parts
 WHERE file_key = :file_key
"""
BEFORE = """
-- The last part that begins before the end of a number of lines.
SELECT part
  FROM zone_parts
 WHERE file_key = :file_key
   AND start = 0
   AND ended < :line
 ORDER BY ended DESC, part DESC
 LIMIT 1
"""
COPY = """
-- Copy the content of one file to another.
INSERT INTO zone_parts (file_key, part, start, ended, tail, checksum, content)
SELECT :target, part, start, ended, tail, checksum, content
  FROM zone_parts
 WHERE file_key = :source
"""
_NOTHING_BEFORE = LineCount()


def file_of(row: Row) -> ZoneFile:
    """Return the metadata of a file; raises if the row is damaged."""
    key, _, zone, name, size, created_ms, modified_ms, generation, ended, tail, *others = row
    rest, rest_checksum, stored = others
    require_sound(stored, encode(row[1:12]), what=f"{zone} {name}")
    return ZoneFile(
        key=key,
        zone=zone,
        name=name,
        size=size,
        created_ms=created_ms,
        modified_ms=modified_ms,
        generation=generation,
        lines=LineCount(ended, tail).lines,
        ended=ended,
        tail=tail,
        rest=rest,
        rest_checksum=rest_checksum,
    )


def zone_file_columns(owner: Owner, file: ZoneFile) -> dict[str, object]:
    """Return the columns of a file's row, without its trailing bytes."""
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
        "rest_size": file.rest,
        "rest_checksum": file.rest_checksum,
    }
    columns["checksum"] = checksum(encode(tuple(columns.values())))
    columns["key"] = file.key
    return columns


def part_of(rows: Sequence[Row], what: str) -> tuple[LineCount, bytes]:
    """Return a part joined from its pieces and the line count before it; checks integrity."""
    pieces: list[bytes] = []
    first, filled = _NOTHING_BEFORE, 0
    for number, start, ended, tail, stored, content in rows:
        before = LineCount(ended, tail)
        is_next = start == filled
        if not is_next or piece_checksum(zlib.crc32(content), (number, start), before) != stored:
            raise corrupt(what)
        first = first if start else before
        filled += len(content)
        pieces.append(content)
    if not pieces:
        raise corrupt(what)
    return first, b"".join(pieces)


def piece_checksum(
    content: int, position: tuple[int, int], before: LineCount = _NOTHING_BEFORE
) -> int:
    """Return the checksum of a piece from the checksum of its content and its position."""
    # The content comes first, so that its checksum can be extended by appended bytes.
    return zlib.crc32(encode((position, before.ended, before.tail)), content)


def rest_of(rows: Sequence[Row], file: ZoneFile, what: str) -> bytes:
    """Return the trailing bytes of a file; raises if they are damaged."""
    rest: bytes = rows[0][0] if rows else b""
    if (len(rest), zlib.crc32(rest)) != (file.rest, file.rest_checksum):
        raise corrupt(what)
    return rest


SEATED = """
-- The session that is bound to a zone.
SELECT session_key
  FROM desks
 WHERE owner = :owner
   AND zone = :zone
"""
DESK_OF = """
-- The zone that a session is bound to.
SELECT owner, zone
  FROM desks
 WHERE session_key = :session_key
"""
SEAT = """
-- Bind a session to a zone.
INSERT INTO desks (owner, zone, session_key)
VALUES (:owner, :zone, :session_key)
ON CONFLICT (owner, zone) DO UPDATE SET session_key = excluded.session_key
"""
UNSEAT = """
-- Release the zone of a session.
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
-- Move a session to another agent.
UPDATE sessions
   SET agent_id = :agent_id, checksum = :checksum
 WHERE key = :key
"""
IS_MARKED = """
-- Whether an import has run.
SELECT 1
  FROM marks
 WHERE name = :name
"""
MARK = """
-- Record that an import has run.
INSERT INTO marks (name, at)
VALUES (:name, :at)
ON CONFLICT DO NOTHING
"""


# Maximum bytes of the last part in the file's own row, so that both fit on a page.
REST_MOST: Final = 3_500
# Sorts after every zone name that begins with the given prefix.
_LAST: Final = "\U0010ffff"


class ZoneTables:
    """Implements the zone tables in the store."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def file(self, owner: Owner, zone: str, name: str) -> ZoneFile | None:
        rows = await self._db.fetch(
            with_row_lock(self._db, ONE), {"owner": owner, "zone": zone, "name": name}
        )
        return file_of(rows[0]) if rows else None

    async def files(self, owner: Owner, zone: str) -> tuple[ZoneFile, ...]:
        rows = await self._db.fetch(
            with_row_lock(self._db, OF_ZONE), {"owner": owner, "zone": zone}
        )
        return tuple(map(file_of, rows))

    async def names(self, owner: Owner, prefix: str) -> list[str]:
        parameters = {"owner": owner, "prefix": prefix, "behind": prefix + _LAST}
        return [row[0] for row in await self._db.fetch(NAMES, parameters)]

    async def all(self) -> list[tuple[Owner, str]]:
        return [(Owner(owner), zone) for owner, zone in await self._db.fetch(ALL_ZONES)]

    async def add(self, owner: Owner, file: ZoneFile) -> ZoneFile:
        return await self._add(owner, file, b"")

    async def _add(self, owner: Owner, file: ZoneFile, rest: bytes) -> ZoneFile:
        rows = await self._db.fetch(ADD, {**zone_file_columns(owner, file), "rest": rest})
        return replace(file, key=rows[0][0])

    async def append(self, owner: Owner, file: ZoneFile, more: bytes, at: int) -> ZoneFile:
        require_size(file.size + len(more), FILE_LARGEST, what="A file of a zone")
        is_short = _is_short(file, more)
        if is_short:
            tally = count_lines(LineCount(file.ended, file.tail), more)
        else:
            tally = await self._append_to_parts(file, more)
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
        columns = {**zone_file_columns(owner, grown), "more": more, "nothing": b""}
        await self._db.execute(GROW if is_short else MOVE_REST_TO_PARTS, columns)
        return grown

    async def _append_to_parts(self, file: ZoneFile, more: bytes) -> LineCount:
        """Write bytes to the parts, after the trailing bytes; return the new line count."""
        tally = LineCount(file.ended, file.tail)
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
            tally, number = count_lines(tally, piece), number + 1
        while start < len(more):
            piece = more[start : start + PART_SIZE]
            await self._begin(file, number, tally, piece)
            tally, number, start = count_lines(tally, piece), number + 1, start + PART_SIZE
        return tally

    async def empty(self, owner: Owner, file: ZoneFile) -> ZoneFile:
        await self._db.execute(EMPTY, {"file_key": file.key})
        emptied = replace(file, size=0, lines=0, ended=0, tail=None, rest=0, rest_checksum=0)
        await self._db.execute(
            MOVE_REST_TO_PARTS, {**zone_file_columns(owner, emptied), "nothing": b""}
        )
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

    async def part(self, file: ZoneFile, number: int) -> tuple[LineCount, bytes]:
        rows = await self._db.fetch(PART, {"file_key": file.key, "part": number})
        what = f"part {number} of {file.zone} {file.name}"
        tally, content = part_of(rows, what)
        if file.rest and number == file.parts - 1:
            content += await self._rest(file, what)
        # Valid pieces may still be incomplete, so the size is checked as well.
        if len(content) != min(PART_SIZE, file.size - number * PART_SIZE):
            raise corrupt(what)
        return tally, content

    async def _rest(self, file: ZoneFile, what: str) -> bytes:
        return rest_of(await self._db.fetch(REST, {"key": file.key}), file, what)

    async def move(self, owner: Owner, file: ZoneFile) -> None:
        await self._db.execute(SAVE, zone_file_columns(owner, file))

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
        copied = await self._add(owner, counted, rest)
        await self._db.execute(COPY, {"source": source.key, "target": copied.key})
        return copied

    async def remove(self, file: ZoneFile) -> None:
        await self._db.execute(REMOVE, {"key": file.key})

    async def remove_all(self, owner: Owner, zone: str) -> int:
        return len(await self._db.fetch(REMOVE_ALL, {"owner": owner, "zone": zone}))

    async def is_taken(self, owner: Owner, zone: str) -> bool:
        return bool(await self._db.fetch(IS_TAKEN, {"owner": owner, "zone": zone}))

    async def bound_session(self, owner: Owner, zone: str) -> SessionKey | None:
        rows = await self._db.fetch(with_row_lock(self._db, SEATED), {"owner": owner, "zone": zone})
        return SessionKey(rows[0][0]) if rows else None

    async def zone_of_session(self, key: SessionKey) -> tuple[Owner, str] | None:
        rows = await self._db.fetch(DESK_OF, {"session_key": key})
        return (Owner(rows[0][0]), rows[0][1]) if rows else None

    async def bind(self, owner: Owner, zone: str, key: SessionKey) -> None:
        await self._db.execute(SEAT, {"owner": owner, "zone": zone, "session_key": key})

    async def unbind(self, key: SessionKey) -> None:
        await self._db.execute(UNSEAT, {"session_key": key})

    async def repoint(self, owner: Owner, before: str, after: str) -> int:
        """Assign the sessions of one agent to another one; return their number."""
        keys = await self._db.fetch(OF_AGENT, {"owner": owner, "agent_id": before})
        for (key,) in keys:
            state = await SessionRows(self._db).state_by_key(SessionKey(key))
            if state is not None:
                moved = replace(state, agent_id=AgentId(after))
                columns = columns_of(moved, checks=self._db.checks_rows)
                named = {"key": key, "agent_id": after, "checksum": columns["checksum"]}
                await self._db.execute(REPOINT, named)
        return len(keys)

    async def is_marked(self, name: str) -> bool:
        return bool(await self._db.fetch(IS_MARKED, {"name": name}))

    async def mark(self, name: str, at: int) -> None:
        await self._db.execute(MARK, {"name": name, "at": at})

    async def _begin(self, file: ZoneFile, number: int, before: LineCount, content: bytes) -> None:
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
    """Return whether the bytes fit with the trailing bytes in the file's row."""
    rest = file.rest + len(more)
    # The first bytes of a part are always stored in it, because it holds the line count.
    filled = (file.size - file.rest) % PART_SIZE
    return filled > 0 and rest <= REST_MOST and filled + rest <= PART_SIZE
