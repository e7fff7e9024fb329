"""Routes of zones and their archives; files can be read by byte range."""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.tokens import Scope
from holdfast.http.bodies import Pieces, in_pieces
from holdfast.http.responses import Answer, Stream
from holdfast.http.routing import Asked, NoQuery, Route
from holdfast.wire.errors import query_judged
from holdfast.wire.zones import (
    ArchivedForm,
    ArchiveForm,
    ArchiveList,
    ArchivesQuery,
    DeletedForm,
    DeskForm,
    LinesForm,
    LinesQuery,
    OutputAppendedForm,
    OutputPost,
    ReplayForm,
    ReplayQuery,
    RestoredForm,
    StateForm,
    StatePut,
    StateWrittenForm,
    archive_form,
    archived_form,
    archives_form,
    desk_form,
    lines_form,
    replay_form,
)
from holdfast.zones.lines import LineQuery
from holdfast.zones.model import (
    ZoneFile,
    archive_not_found,
    parse_archive_time,
    require_definition_id,
)

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


DESK: Final = "/v1/zones/{definition_id}"
ARCHIVE: Final = f"{DESK}/archives/{{ms}}"


async def show_desk(asked: Asked[NoQuery, None]) -> Answer:
    """Return what lies on a desk."""
    return Answer(content=desk_form(await asked.house.zones.show(asked.owner, _id(asked))))


async def read_state(asked: Asked[NoQuery, None]) -> Answer:
    """Return the snapshot of a desk."""
    state = await asked.house.zones.read_state(asked.owner, _id(asked))
    return Answer(content=msgspec.convert(state, StateForm, from_attributes=True))


async def write_state(asked: Asked[NoQuery, StatePut]) -> Answer:
    """Replace the snapshot of a desk."""
    written = await asked.house.zones.write_state(
        asked.owner, _id(asked), asked.body.content, if_modified_ms=asked.body.if_modified_ms
    )
    return Answer(content=msgspec.convert(written, StateWrittenForm, from_attributes=True))


async def append_output(asked: Asked[NoQuery, OutputPost]) -> Answer:
    """Append a line to the output of a desk."""
    done = await asked.house.zones.append_output(asked.owner, _id(asked), asked.body.line)
    return Answer(content=msgspec.convert(done, OutputAppendedForm, from_attributes=True))


async def read_output(asked: Asked[LinesQuery, None]) -> Answer:
    """Return lines of a desk's output, or of an archive's."""
    wanted = msgspec.convert(asked.query, LineQuery, from_attributes=True)
    lines = await asked.house.zones.read_lines(
        asked.owner, _id(asked), wanted, archive=_ms_or_none(asked)
    )
    return Answer(content=lines_form(lines))


async def replay(asked: Asked[ReplayQuery, None]) -> Answer:
    """Return what to show of a desk at once."""
    query = asked.query
    found = await asked.house.zones.replay(
        asked.owner, _id(asked), window=query.window, page=query.page
    )
    return Answer(content=replay_form(found))


async def read_file(asked: Asked[NoQuery, None]) -> Answer | Stream:
    """Return the bytes of a file, or a range of them."""
    zones = asked.house.zones
    file = await zones.read_file(
        asked.owner, _id(asked), asked.path["name"], archive=_ms_or_none(asked)
    )

    async def read(start: int, end: int) -> bytes:
        return await zones.read_bytes(asked.owner, file, start, end)

    return await file_answer(asked, file, read)


async def archive_desk(asked: Asked[NoQuery, None]) -> Answer:
    """Clear a desk into a new archive."""
    return Answer(content=archived_form(await asked.house.zones.archive(asked.owner, _id(asked))))


async def list_archives(asked: Asked[ArchivesQuery, None]) -> Answer:
    """List the archives of an agent."""
    with query_judged():
        found = await asked.house.zones.list_archives(
            asked.owner, _id(asked), limit=asked.query.limit
        )
    return Answer(content=archives_form(found))


async def read_archive(asked: Asked[NoQuery, None]) -> Answer:
    """Return an archive."""
    found = await asked.house.zones.read_archive(asked.owner, _id(asked), _ms(asked))
    return Answer(content=archive_form(found))


async def restore_archive(asked: Asked[NoQuery, None]) -> Answer:
    """Copy an archive to the desk."""
    done = await asked.house.zones.restore_archive(asked.owner, _id(asked), _ms(asked))
    return Answer(content=msgspec.convert(done, RestoredForm, from_attributes=True))


async def delete_archive(asked: Asked[NoQuery, None]) -> Answer:
    """Remove an archive."""
    is_gone = await asked.house.zones.delete_archive(asked.owner, _id(asked), _ms(asked))
    return Answer(content=DeletedForm(deleted=is_gone))


def _id(asked: Asked[Any, Any]) -> str:
    return asked.path["definition_id"]


def _ms(asked: Asked[Any, Any]) -> int:
    ms = parse_archive_time(asked.path["ms"])
    if ms is None:
        # Judged by the service where both are wrong: the id is told first, as everywhere.
        require_definition_id(_id(asked))
        raise archive_not_found()
    return ms


def _ms_or_none(asked: Asked[Any, Any]) -> int | None:
    return _ms(asked) if "ms" in asked.path else None


def _read(path: str, name: str, summary: str, act: Any, **rest: Any) -> Route:
    refuses = (*rest.pop("refuses", ()), Code.INVALID_DEFINITION_ID)
    return Route(
        method="GET",
        path=DESK + path,
        name=f"zones.{name}",
        summary=summary,
        act=act,
        needs=Scope.READ,
        refuses=refuses,
        **rest,
    )


def _change(path: str, name: str, summary: str, act: Any, **rest: Any) -> Route:
    method = rest.pop("method", "POST")
    return replace(_read(path, name, summary, act, **rest), method=method, needs=Scope.WRITE)


def _in_archive(route: Route) -> Route:
    return replace(
        route,
        path=route.path.replace(DESK, ARCHIVE),
        name=route.name.replace("zones.", "zones.archives."),
        refuses=(Code.ARCHIVE_NOT_FOUND, *route.refuses),
    )


_OUTPUT: Final = _read(
    "/output",
    "output",
    "Return lines of an output by their numbers; blank ones do not count.",
    read_output,
    query=LinesQuery,
    gives={200: LinesForm},
    refuses=(Code.ZONE_CHANGED,),
)
_FILE: Final = _read(
    "/files/{name}",
    "file",
    "Return the bytes of a file, or one range of them.",
    read_file,
    gives={200: bytes, 206: bytes, 304: None},
    tells={
        200: ("content-disposition", "etag"),
        206: ("content-disposition", "content-range", "etag"),
        304: ("etag",),
    },
    media_type="application/octet-stream",
    refuses=(
        Code.PATH_NOT_FOUND,
        Code.RANGE_NOT_SATISFIABLE,
        Code.TOO_LARGE,
        Code.ZONE_CHANGED,
    ),
)
ROUTES: Final[tuple[Route, ...]] = (
    _read("", "show", "Return what lies on a desk.", show_desk, gives={200: DeskForm}),
    _read(
        "/state",
        "state",
        "Return the snapshot of a desk; without one there is nothing to restore.",
        read_state,
        gives={200: StateForm},
    ),
    _change(
        "/state",
        "write_state",
        "Replace the snapshot of a desk.",
        write_state,
        method="PUT",
        body=StatePut,
        gives={200: StateWrittenForm},
        refuses=(Code.TOO_LARGE, Code.ZONE_CHANGED),
        examples={"body": {"content": '{"schemaVersion":2}', "if_modified_ms": 0}},
    ),
    _change(
        "/output",
        "append_output",
        "Append a line to the output of a desk.",
        append_output,
        body=OutputPost,
        gives={200: OutputAppendedForm},
        refuses=(Code.TOO_LARGE,),
        examples={"body": {"line": '{"type":"user","text":"hello"}'}},
    ),
    _OUTPUT,
    _read(
        "/replay",
        "replay",
        "Return what to show of a desk at once: its snapshot, and the newest lines of its output.",
        replay,
        query=ReplayQuery,
        gives={200: ReplayForm},
    ),
    _FILE,
    _change(
        "/archive",
        "archive",
        "Clear a desk into a new archive; one with nothing on it is left.",
        archive_desk,
        gives={200: ArchivedForm},
    ),
    _read(
        "/archives",
        "archives",
        "List the archives of an agent, newest first.",
        list_archives,
        query=ArchivesQuery,
        gives={200: ArchiveList},
    ),
    _in_archive(_read("", "read", "Return an archive.", read_archive, gives={200: ArchiveForm})),
    _in_archive(_OUTPUT),
    _in_archive(_FILE),
    _in_archive(
        _change(
            "/restore",
            "restore",
            "Copy an archive to the desk; what lies there is archived first.",
            restore_archive,
            gives={200: RestoredForm},
            refuses=(Code.TURN_RUNNING,),
        )
    ),
    _in_archive(
        _change(
            "",
            "delete",
            "Remove an archive.",
            delete_archive,
            method="DELETE",
            gives={200: DeletedForm},
        )
    ),
)
