"""Routes of zones and their archives; files can be read by byte range."""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec

from holdfast.domain.errors import Code, Invalid
from holdfast.http.bodies import Pieces, respond_in_pieces
from holdfast.http.responses import Response, StreamResponse, matches_etag
from holdfast.http.routing import NoQuery, RouteRequest, Routes
from holdfast.wire.errors import as_query_errors
from holdfast.wire.zones import (
    ActiveZoneForm,
    ArchivedForm,
    ArchiveForm,
    ArchiveList,
    ArchivesQuery,
    DeletedForm,
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
    lines_form,
    replay_form,
    zone_form,
)
from holdfast.zones.lines import LineQuery
from holdfast.zones.model import (
    ZoneFile,
    archive_not_found,
    archives_before,
    parse_archive_time,
    require_definition_id,
)

# Maximum size of one response.
ANSWER_LARGEST: Final = 64 << 20
PIECE: Final = 1 << 20
_RANGE: Final = re.compile(r"bytes=(?:(\d{1,18})-(\d{1,18})?|-(\d{1,18}))")
Read = Callable[[int, int], Awaitable[bytes]]


async def file_response(
    request: RouteRequest[Any, Any], file: ZoneFile, read: Read
) -> Response | StreamResponse:
    """Return a file, honouring `Range` and conditional headers."""
    headers = request.headers
    # 32 hex digits that change with every write: an append changes the size.
    tag = f'"{file.generation}{file.size:016x}"'
    response_headers = {"etag": tag}
    if matches_etag(headers.get("if-none-match", ""), tag):
        return Response(status=304, headers=response_headers)
    response_headers["content-disposition"] = f'attachment; filename="{file.name}"'
    response_headers["x-content-type-options"] = "nosniff"
    span = _requested_range(headers, tag, file.size)
    if span is None:
        start, end = _whole_range(file)
    else:
        start, end = span
        response_headers["content-range"] = f"bytes {start}-{end - 1}/{file.size}"
    like = Response(
        status=200 if span is None else 206,
        headers=response_headers,
        media_type="application/octet-stream",
    )
    return await respond_in_pieces(request, _pieces(read, start, end), like)


async def _pieces(read: Read, start: int, end: int) -> Pieces:
    for first in range(start, end, PIECE):
        yield await read(first, min(first + PIECE, end))


def _whole_range(file: ZoneFile) -> tuple[int, int]:
    if file.size > ANSWER_LARGEST:
        raise Invalid(
            Code.TOO_LARGE,
            f"The file has {file.size} bytes; request ranges of at most {ANSWER_LARGEST} bytes.",
            {"limit": ANSWER_LARGEST, "size": file.size},
        )
    return 0, file.size


def _requested_range(headers: Mapping[str, str], tag: str, size: int) -> tuple[int, int] | None:
    """Return the requested range, cut to the file; None for the whole file."""
    found = _RANGE.fullmatch(headers.get("range", "").replace(" ", ""))
    # With a stale `If-Range`, the range refers to an older version of the file.
    if found is None or headers.get("if-range", tag) != tag:
        return None
    first, last, suffix = found.groups()
    start = max(size - int(suffix), 0) if first is None else int(first)
    end = size if last is None else min(int(last) + 1, size)
    if start >= end:
        raise Invalid(
            Code.RANGE_NOT_SATISFIABLE,
            f"The file has {size} bytes; request a range within them.",
            {"size": size},
        )
    return start, min(end, start + ANSWER_LARGEST)


ZONE: Final = "/v1/zones/{definition_id}"
ARCHIVE: Final = f"{ZONE}/archives/{{ms}}"
routes: Final = Routes()
# The output and the files of a zone and of an archive are read in the same way.
_OUTPUT: Final[dict[str, Any]] = {
    "kind": LinesForm,
    "is_large": True,
    "errors": (Code.ZONE_CHANGED,),
}
_FILE: Final[dict[str, Any]] = {
    "kind": {200: bytes, 206: bytes, 304: None},
    "is_large": True,
    "response_headers": {
        200: ("content-disposition", "etag"),
        206: ("content-disposition", "content-range", "etag"),
        304: ("etag",),
    },
    "media_type": "application/octet-stream",
    "errors": (
        Code.PATH_NOT_FOUND,
        Code.RANGE_NOT_SATISFIABLE,
        Code.TOO_LARGE,
        Code.ZONE_CHANGED,
    ),
}


@routes.get(ZONE, "zones.show", ActiveZoneForm, is_large=True)
async def show_zone(request: RouteRequest[NoQuery, None]) -> Response:
    """Return an active zone."""
    return Response(
        content=zone_form(await request.holdfast.zones.show(request.owner, _id(request)))
    )


@routes.get(f"{ZONE}/state", "zones.state", StateForm, is_large=True)
async def read_state(request: RouteRequest[NoQuery, None]) -> Response:
    """Return the snapshot of an active zone; null if it has none."""
    state = await request.holdfast.zones.read_state(request.owner, _id(request))
    return Response(content=msgspec.convert(state, StateForm, from_attributes=True))


@routes.add(
    "PUT",
    f"{ZONE}/state",
    "zones.write_state",
    StateWrittenForm,
    errors=(Code.TOO_LARGE, Code.ZONE_CHANGED),
    example={"content": '{"schemaVersion":2}', "if_modified_ms": 0},
)
async def write_state(request: RouteRequest[NoQuery, StatePut]) -> Response:
    """Replace the snapshot of an active zone."""
    written = await request.holdfast.zones.write_state(
        request.owner,
        _id(request),
        request.body.content,
        if_modified_ms=request.body.if_modified_ms,
    )
    return Response(content=msgspec.convert(written, StateWrittenForm, from_attributes=True))


@routes.post(
    f"{ZONE}/output",
    "zones.append_output",
    OutputAppendedForm,
    errors=(Code.TOO_LARGE,),
    example={"line": '{"type":"user","text":"hello"}'},
)
async def append_output(request: RouteRequest[NoQuery, OutputPost]) -> Response:
    """Append a line to the output of an active zone."""
    done = await request.holdfast.zones.append_output(
        request.owner, _id(request), request.body.line
    )
    return Response(content=msgspec.convert(done, OutputAppendedForm, from_attributes=True))


@routes.get(f"{ZONE}/output", "zones.output", **_OUTPUT)
async def read_output(request: RouteRequest[LinesQuery, None]) -> Response:
    """Return output lines by number; blank lines are not counted."""
    wanted = msgspec.convert(request.query, LineQuery, from_attributes=True)
    lines = await request.holdfast.zones.read_lines(
        request.owner, _id(request), wanted, archive=_ms_or_none(request)
    )
    return Response(content=lines_form(lines))


@routes.get(f"{ZONE}/replay", "zones.replay", ReplayForm, is_large=True)
async def replay(request: RouteRequest[ReplayQuery, None]) -> Response:
    """Return the initial view of an active zone: its snapshot, and its newest output lines."""
    query = request.query
    found = await request.holdfast.zones.replay(
        request.owner, _id(request), window=query.window, page=query.page
    )
    return Response(content=replay_form(found))


@routes.get(f"{ZONE}/files/{{name}}", "zones.file", **_FILE)
async def read_file(request: RouteRequest[NoQuery, None]) -> Response | StreamResponse:
    """Return the bytes of a file, or one byte range."""
    zones = request.holdfast.zones
    file = await zones.read_file(
        request.owner, _id(request), request.path["name"], archive=_ms_or_none(request)
    )

    async def read(start: int, end: int) -> bytes:
        return await zones.read_bytes(request.owner, file, start, end)

    return await file_response(request, file, read)


@routes.post(f"{ZONE}/archive", "zones.archive", ArchivedForm)
async def archive_zone(request: RouteRequest[NoQuery, None]) -> Response:
    """Move an active zone to a new archive; no effect on an empty zone."""
    return Response(
        content=archived_form(await request.holdfast.zones.archive(request.owner, _id(request)))
    )


@routes.get(f"{ZONE}/archives", "zones.archives", ArchiveList, is_large=True)
async def list_archives(request: RouteRequest[ArchivesQuery, None]) -> Response:
    """List the archives of an agent, newest first."""
    limit = request.query.limit
    with as_query_errors():
        before = archives_before(request.query.cursor)
        found = await request.holdfast.zones.list_archives(
            request.owner, _id(request), limit=limit, before=before
        )
    return Response(content=archives_form(found, limit))


@routes.get(ARCHIVE, "zones.archives.read", ArchiveForm, is_large=True)
async def read_archive(request: RouteRequest[NoQuery, None]) -> Response:
    """Return an archive."""
    found = await request.holdfast.zones.read_archive(request.owner, _id(request), _ms(request))
    return Response(content=archive_form(found))


routes.get(f"{ARCHIVE}/output", "zones.archives.output", **_OUTPUT)(read_output)
routes.get(f"{ARCHIVE}/files/{{name}}", "zones.archives.file", **_FILE)(read_file)


@routes.post(
    f"{ARCHIVE}/restore", "zones.archives.restore", RestoredForm, errors=(Code.TURN_RUNNING,)
)
async def restore_archive(request: RouteRequest[NoQuery, None]) -> Response:
    """Copy an archive to the active zone, whose content is archived first."""
    done = await request.holdfast.zones.restore_archive(request.owner, _id(request), _ms(request))
    return Response(content=msgspec.convert(done, RestoredForm, from_attributes=True))


@routes.add("DELETE", ARCHIVE, "zones.archives.delete", DeletedForm)
async def delete_archive(request: RouteRequest[NoQuery, None]) -> Response:
    """Delete an archive."""
    is_gone = await request.holdfast.zones.delete_archive(request.owner, _id(request), _ms(request))
    return Response(content=DeletedForm(deleted=is_gone))


def _id(request: RouteRequest[Any, Any]) -> str:
    return request.path["definition_id"]


def _ms(request: RouteRequest[Any, Any]) -> int:
    ms = parse_archive_time(request.path["ms"])
    if ms is None:
        # If both ids are invalid, the definition id is reported first, as everywhere.
        require_definition_id(_id(request))
        raise archive_not_found()
    return ms


def _ms_or_none(request: RouteRequest[Any, Any]) -> int | None:
    return _ms(request) if "ms" in request.path else None
