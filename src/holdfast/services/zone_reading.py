"""Reading lines of a file by their numbers: only the parts that hold them are read."""

import sys
from typing import Final

from holdfast.domain.zone_lines import (
    LINES_MOST,
    TEXT_MOST,
    LineQuery,
    LineReader,
    Lines,
    is_document,
    shown,
)
from holdfast.domain.zones import PART_SIZE, ZoneFile, zone_changed
from holdfast.ports import Tx

NO_LINES: Final = Lines(lines=(), start=0, total=0, generation=None, torn=False)


async def read_lines(tx: Tx, file: ZoneFile | None, query: LineQuery) -> Lines:
    """Return counted lines of a file; none of one that is not there."""
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
        lines=tuple(shown(found)),
        start=start,
        total=file.lines,
        generation=file.generation,
        torn=file.tail_open or (file.lines > 0 and not is_document(b"".join(last))),
        tail_open=file.tail_open,
    )


async def lines_between(
    tx: Tx, file: ZoneFile, start: int, end: int, *, room: int = TEXT_MOST
) -> list[bytes]:
    """Return counted lines from one to before another, as many as there is room for."""
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
    """Return the lines from one on up to the last, and the number of the first of them.

    Where there is no room for all of them, the oldest are left out before they are read; the last
    one is given whatever its size.
    """
    number = max(file.parts - room // PART_SIZE, 0)
    if number > await tx.zones.part_before(file, start):
        before, _ = await tx.zones.part(file, number)
        # The line that goes on into this part began in one that is not read.
        whole = before.ended + (before.tail is not None)
        start = max(start, min(whole, file.lines - 1))
    return start, await lines_between(tx, file, start, file.lines, room=sys.maxsize)


async def _last_line(tx: Tx, file: ZoneFile) -> list[bytes]:
    if file.tail_open or not file.lines:
        return []
    return await lines_between(tx, file, file.lines - 1, file.lines)
