"""Rows of zones: files and pieces of their parts, each with a checksum of all that it says."""

import zlib
from collections.abc import Sequence

from holdfast.domain.ids import Owner
from holdfast.domain.zone_lines import Tally
from holdfast.domain.zones import ZoneFile
from holdfast.storage.database import Row, checksum, corrupt, encode, require_sound

_NOTHING_BEFORE = Tally()


def file_of(row: Row) -> ZoneFile:
    """Return what is kept about a file, or refuse a damaged row."""
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
        lines=Tally(ended, tail).lines,
        ended=ended,
        tail=tail,
        rest=rest,
        rest_checksum=rest_checksum,
    )


def columns_of(owner: Owner, file: ZoneFile) -> dict[str, object]:
    """Return the columns of a file's row, all but its last bytes themselves."""
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


def part_of(rows: Sequence[Row], what: str) -> tuple[Tally, bytes]:
    """Return the pieces of a part as one and the tally before it, or refuse damaged ones."""
    pieces: list[bytes] = []
    first, filled = _NOTHING_BEFORE, 0
    for number, start, ended, tail, stored, content in rows:
        before = Tally(ended, tail)
        is_next = start == filled
        if not is_next or piece_checksum(zlib.crc32(content), (number, start), before) != stored:
            raise corrupt(what)
        first = first if start else before
        filled += len(content)
        pieces.append(content)
    if not pieces:
        raise corrupt(what)
    return first, b"".join(pieces)


def piece_checksum(content: int, place: tuple[int, int], before: Tally = _NOTHING_BEFORE) -> int:
    """Return the checksum of a piece, given that of its content, its part and where it starts."""
    # The content first: so the sum of bytes that are there grows with those that come.
    return zlib.crc32(encode((place, before.ended, before.tail)), content)


def rest_of(rows: Sequence[Row], file: ZoneFile, what: str) -> bytes:
    """Return the last bytes of a file, or refuse damaged ones."""
    rest: bytes = rows[0][0] if rows else b""
    if (len(rest), zlib.crc32(rest)) != (file.rest, file.rest_checksum):
        raise corrupt(what)
    return rest
