"""Files by their bytes: whole, or one range of them, or told to be as the caller has them."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from holdfast.domain.errors import Code, Invalid
from holdfast.http.answers import Answer, Stream
from holdfast.http.bodies import Pieces, in_pieces
from holdfast.http.table import Asked
from holdfast.zones.model import ZoneFile

# What one answer holds at most.
ANSWER_LARGEST: Final = 64 << 20
PIECE: Final = 1 << 20

_RANGE: Final = re.compile(r"bytes=(?:(\d{1,18})-(\d{1,18})?|-(\d{1,18}))")

Read = Callable[[int, int], Awaitable[bytes]]


async def file_answer(asked: Asked[Any, Any], file: ZoneFile, read: Read) -> Answer | Stream:
    """Return a file as its caller wants it."""
    headers = asked.headers
    # Thirty-two digits that change with every byte: what is appended makes the file larger.
    tag = f'"{file.generation}{file.size:016x}"'
    told = {"etag": tag}
    if _is_named(headers.get("if-none-match", ""), tag):
        return Answer(status=304, headers=told)
    told["content-disposition"] = f'attachment; filename="{file.name}"'
    told["x-content-type-options"] = "nosniff"
    span = _span(headers, tag, file.size)
    if span is None:
        start, end = _whole(file)
    else:
        start, end = span
        told["content-range"] = f"bytes {start}-{end - 1}/{file.size}"
    like = Answer(
        status=200 if span is None else 206,
        headers=told,
        media_type="application/octet-stream",
    )
    return await in_pieces(asked, _pieces(read, start, end), like)


async def _pieces(read: Read, start: int, end: int) -> Pieces:
    for first in range(start, end, PIECE):
        yield await read(first, min(first + PIECE, end))


def _whole(file: ZoneFile) -> tuple[int, int]:
    if file.size > ANSWER_LARGEST:
        raise Invalid(
            Code.TOO_LARGE,
            f"The file has {file.size} bytes; ask for ranges of at most {ANSWER_LARGEST}.",
            {"limit": ANSWER_LARGEST, "size": file.size},
        )
    return 0, file.size


def _span(headers: Mapping[str, str], tag: str, size: int) -> tuple[int, int] | None:
    """Return the range that is asked for, cut to the file; nothing where all of it is."""
    found = _RANGE.fullmatch(headers.get("range", "").replace(" ", ""))
    # A range of what the caller had before is of no use with what is there now.
    if found is None or headers.get("if-range", tag) != tag:
        return None
    first, last, suffix = found.groups()
    start = max(size - int(suffix), 0) if first is None else int(first)
    end = size if last is None else min(int(last) + 1, size)
    if start >= end:
        raise Invalid(
            Code.RANGE_NOT_SATISFIABLE,
            f"The file has {size} bytes; ask for some of these.",
            {"size": size},
        )
    return start, min(end, start + ANSWER_LARGEST)


def _is_named(header: str, tag: str) -> bool:
    given = (each.strip().removeprefix("W/").replace('-gzip"', '"') for each in header.split(","))
    return any(each in {"*", tag} for each in given)
