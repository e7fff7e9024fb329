"""Files of zones inside one transaction: lines, whole files, archives."""

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


async def ensure_file(tx: Tx, owner: Owner, zone: str, name: str, *, stamp: ZoneStamp) -> ZoneFile:
    """Return a file; creates an empty one if it is missing."""
    found = await tx.zones.file(owner, zone, require_file_name(name))
    if found is not None:
        return found
    at, generation = stamp.at, stamp.generation()
    file = ZoneFile(zone=zone, name=name, created_ms=at, modified_ms=at, generation=generation)
    return await tx.zones.add(owner, file)


async def write_file(
    tx: Tx, owner: Owner, zone: str, name: str, content: bytes, *, stamp: ZoneStamp
) -> ZoneFile:
    """Create a file, or replace its whole content."""
    require_size(len(content), WRITE_LARGEST, what="A file written in one call")
    known = await tx.zones.file(owner, zone, name)
    file = known or await ensure_file(tx, owner, zone, name, stamp=stamp)
    # Strictly later, even within one millisecond, so that stale readers are detected.
    later = max(stamp.at, min(file.modified_ms + (known is not None), TIME_LATEST))
    file = replace(file, modified_ms=later, generation=stamp.generation())
    emptied = await tx.zones.empty(owner, file)
    return await tx.zones.append(owner, emptied, content, stamp.at) if content else emptied


async def copy_file(
    tx: Tx,
    owner: Owner,
    file: ZoneFile,
    zone: str,
    *,
    stamp: ZoneStamp,
    modified_ms: int | None = None,
) -> ZoneFile:
    """Copy a file into another zone, which must not have a file of that name."""
    # A new generation, because the two files diverge after an append.
    target = replace(
        file,
        key=0,
        zone=zone,
        generation=stamp.generation(),
        modified_ms=file.modified_ms if modified_ms is None else modified_ms,
    )
    return await tx.zones.copy(owner, file, target)


async def copy_zone(tx: Tx, owner: Owner, source: str, target: str, *, stamp: ZoneStamp) -> None:
    """Copy all files with their times; raises `Conflict` if the target has files."""
    if await tx.zones.is_taken(owner, target):
        raise Conflict(Code.ZONE_EXISTS, "The zone already has files.", {"zone": target})
    for file in await tx.zones.files(owner, source):
        await copy_file(tx, owner, file, target, stamp=stamp)


async def have_same_bytes(tx: Tx, left: ZoneFile, right: ZoneFile) -> bool:
    """Return whether two files hold the same bytes."""
    if left.size != right.size:
        return False
    step = 1 << 20
    for start in range(0, left.size, step):
        first = await tx.zones.read(left, start, start + step)
        if first != await tx.zones.read(right, start, start + step):
            return False
    return True


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
    return await _archive(tx, owner, files, now) if is_filled(files) else None


async def make_room(
    tx: Tx, owner: Owner, zone: str, now: Callable[[], int]
) -> ArchiveResult | None:
    """Empty an active zone before a restore; archives its files if any has content."""
    files = await tx.zones.files(owner, zone)
    if any(file.size for file in files):
        return await _archive(tx, owner, files, now)
    await tx.zones.remove_all(owner, zone)
    return None


async def _archive(
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
