"""Files of zones inside one transaction: write, append, read, copy, move, delete."""

import sys
from collections.abc import Callable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.errors import Code, Conflict
from holdfast.domain.ids import Owner
from holdfast.ports.store import Tx
from holdfast.zones.lines import (
    LINES_MOST,
    TEXT_MOST,
    LineQuery,
    LineReader,
    Lines,
    display_line,
    is_document,
)
from holdfast.zones.model import (
    APPEND_LARGEST,
    PART_SIZE,
    TIME_LATEST,
    WRITE_LARGEST,
    ArchiveResult,
    ZoneFile,
    agent_archive_zone,
    definition_of,
    is_filled,
    require_file_name,
    require_size,
    zone_changed,
)

NO_LINES: Final = Lines(lines=(), start=0, total=0, generation=None, torn=False)


async def read_lines(tx: Tx, file: ZoneFile | None, query: LineQuery) -> Lines:
    """Return counted lines of a file; a missing file has none."""
    if query.generation is not None and query.generation != (file and file.generation):
        raise zone_changed({"generation": file.generation if file else None})
    if file is None:
        return NO_LINES
    start = min(max(query.start, 0), file.lines)
    end = min(start + min(query.limit, LINES_MOST), file.lines)
    found = await lines_between(tx, file, start, end)
    reaches_last = start + len(found) == file.lines and found
    last = found[-1:] if reaches_last else await _last_line(tx, file)
    return Lines(
        lines=tuple(display_line(found)),
        start=start,
        total=file.lines,
        generation=file.generation,
        torn=file.tail_open or (file.lines > 0 and not is_document(b"".join(last))),
        tail_open=file.tail_open,
    )


async def lines_between(
    tx: Tx, file: ZoneFile, start: int, end: int, *, room: int = TEXT_MOST
) -> list[bytes]:
    """Return counted lines in `[start, end)`, limited to `room` bytes."""
    if start >= end:
        return []
    number = await tx.zones.part_before(file, start)
    before, content = await tx.zones.part(file, number)
    reader = LineReader(before, start, end, room)
    reader.take(content)
    while not reader.is_full and (number := number + 1) < file.parts:
        reader.take((await tx.zones.part(file, number))[1])
    reader.finish()
    return reader.found


async def newest_lines(tx: Tx, file: ZoneFile, start: int, *, room: int) -> tuple[int, list[bytes]]:
    """Return the lines from `start` to the last one, and the number of the first.

    If they exceed `room`, the oldest are skipped without reading them. The last line is always
    returned, whatever its size.
    """
    number = max(file.parts - room // PART_SIZE, 0)
    if number > await tx.zones.part_before(file, start):
        before, _ = await tx.zones.part(file, number)
        # The line that continues into this part began in a part that is not read.
        whole = before.ended + (before.tail is not None)
        start = max(start, min(whole, file.lines - 1))
    return start, await lines_between(tx, file, start, file.lines, room=sys.maxsize)


async def _last_line(tx: Tx, file: ZoneFile) -> list[bytes]:
    if file.tail_open or not file.lines:
        return []
    return await lines_between(tx, file, file.lines - 1, file.lines)


class ZoneStamp(Struct, frozen=True, kw_only=True):
    """Time of a change and the factory of new generations."""

    at: int
    generation: Callable[[], str]


class ZoneFiles:
    """Files of one owner's zones in one transaction."""

    def __init__(self, tx: Tx, owner: Owner, stamp: ZoneStamp) -> None:
        self._table = tx.zones
        self._owner = owner
        self._stamp = stamp

    async def stat(self, zone: str, name: str) -> ZoneFile | None:
        """Return the metadata of a file."""
        return await self._table.file(self._owner, zone, name)

    async def files(self, zone: str) -> tuple[ZoneFile, ...]:
        """Return the files of a zone by name."""
        return await self._table.files(self._owner, zone)

    async def ensure(self, zone: str, name: str) -> ZoneFile:
        """Return a file; creates an empty one if it is missing."""
        found = await self.stat(zone, require_file_name(name))
        return found or await self._table.add(self._owner, self._new(zone, name))

    async def write(self, zone: str, name: str, content: bytes) -> ZoneFile:
        """Create a file, or replace its whole content."""
        require_size(len(content), WRITE_LARGEST, what="A file written in one call")
        at = self._stamp.at
        known = await self.stat(zone, name)
        file = known or await self.ensure(zone, name)
        # Strictly later, even within one millisecond, so that stale readers are detected.
        later = max(at, min(file.modified_ms + (known is not None), TIME_LATEST))
        file = replace(file, modified_ms=later, generation=self._stamp.generation())
        emptied = await self._table.empty(self._owner, file)
        return await self._table.append(self._owner, emptied, content, at) if content else emptied

    async def append(self, zone: str, name: str, more: bytes) -> tuple[int, int]:
        """Append bytes; return their offset and the new size of the file."""
        require_size(len(more), APPEND_LARGEST, what="Data appended in one call")
        if not more:
            found = await self.stat(zone, require_file_name(name))
            size = found.size if found else 0
            return size, size
        file = await self.ensure(zone, name)
        grown = await self.extend(file, more)
        return file.size, grown.size

    async def extend(self, file: ZoneFile, more: bytes) -> ZoneFile:
        """Append bytes to a file read in this transaction."""
        return await self._table.append(self._owner, file, more, self._stamp.at)

    async def read(
        self, zone: str, name: str, start: int = 0, end: int | None = None
    ) -> bytes | None:
        """Return bytes of a file; `None` if it is missing."""
        file = await self.stat(zone, name)
        if file is None:
            return None
        return await self._table.read(file, start, file.size if end is None else end)

    async def copy_zone(self, source: str, target: str) -> None:
        """Copy all files with their times; raises `Conflict` if the target has files."""
        if await self.files(target):
            raise Conflict(Code.ZONE_EXISTS, "The zone already has files.", {"zone": target})
        for file in await self.files(source):
            await self.copy(file, target)

    async def copy(self, file: ZoneFile, zone: str, *, modified_ms: int | None = None) -> ZoneFile:
        """Copy a file into another zone, which must not have a file of that name."""
        # A new generation, because the two files diverge after an append.
        target = replace(
            file,
            key=0,
            zone=zone,
            generation=self._stamp.generation(),
            modified_ms=file.modified_ms if modified_ms is None else modified_ms,
        )
        return await self._table.copy(self._owner, file, target)

    async def move(self, file: ZoneFile, zone: str) -> None:
        """Move a file into another zone, which must not have a file of that name."""
        await self._table.move(self._owner, replace(file, zone=zone))

    async def delete_file(self, zone: str, name: str) -> int:
        """Remove a file; return the number of removed files."""
        file = await self.stat(zone, name)
        if file is not None:
            await self._table.remove(file)
        return int(file is not None)

    async def delete_zone(self, zone: str) -> int:
        """Remove all files of a zone; return the number of removed files."""
        return await self._table.remove_all(self._owner, zone)

    async def list_zones(self, prefix: str) -> list[str]:
        """Return the sorted names of the zones with that prefix."""
        return await self._table.names(self._owner, prefix)

    async def is_same(self, left: ZoneFile, right: ZoneFile) -> bool:
        """Return whether two files hold the same bytes."""
        if left.size != right.size:
            return False
        step = 1 << 20
        for start in range(0, left.size, step):
            first = await self._table.read(left, start, start + step)
            if first != await self._table.read(right, start, start + step):
                return False
        return True

    def _new(self, zone: str, name: str) -> ZoneFile:
        at = self._stamp.at
        generation = self._stamp.generation()
        return ZoneFile(zone=zone, name=name, created_ms=at, modified_ms=at, generation=generation)


async def free_archive(tx: Tx, owner: Owner, definition_id: str, ms: int) -> tuple[str, int]:
    """Return the first unused archive of an agent at or after a timestamp."""
    step = 1
    while await tx.zones.is_taken(owner, agent_archive_zone(definition_id, ms)):
        # An imported archive may have the latest valid timestamp; later ones are not listed.
        step = -1 if ms >= TIME_LATEST else step
        ms += step
    return agent_archive_zone(definition_id, ms), ms


async def clear_active_zone(
    tx: Tx, owner: Owner, zone: str, now: Callable[[], int]
) -> ArchiveResult | None:
    """Move the files of an active zone into a new archive; `None` if it is empty."""
    files = await tx.zones.files(owner, zone)
    return await _archived(tx, owner, files, now) if is_filled(files) else None


async def make_room(
    tx: Tx, owner: Owner, zone: str, now: Callable[[], int]
) -> ArchiveResult | None:
    """Empty an active zone before a restore; archives its files if any has content."""
    files = await tx.zones.files(owner, zone)
    if any(file.size for file in files):
        return await _archived(tx, owner, files, now)
    await tx.zones.remove_all(owner, zone)
    return None


async def _archived(
    tx: Tx, owner: Owner, files: tuple[ZoneFile, ...], now: Callable[[], int]
) -> ArchiveResult:
    definition_id = definition_of(files[0].zone) or ""
    target, ms = await free_archive(tx, owner, definition_id, now())
    for file in files:
        if file.size:
            # Only the file row changes; the parts of a long log are not copied.
            await tx.zones.move(owner, replace(file, zone=target))
        else:
            await tx.zones.remove(file)
    sizes = {file.name: file.size for file in files if file.size}
    return ArchiveResult(archive_zoneid=target, archived_at_ms=ms, files=sizes)
