"""`holdfast zones …`: read and write an agent's zone, and manage its archives."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BufferedReader
from typing import Annotated, Final, cast

import msgspec
import typer

from holdfast.api import Holdfast
from holdfast.cli.command import add_group, command
from holdfast.cli.connect import connect, open_local
from holdfast.cli.options import argument, flag, option
from holdfast.cli.output import Printer, local_time
from holdfast.domain.errors import Code, Invalid
from holdfast.wire.zones import (
    OutputAppendedForm,
    RestoredForm,
    StateForm,
    StateWrittenForm,
    archive_form,
    archived_form,
    archives_form,
    lines_form,
    replay_form,
    zone_form,
)
from holdfast.zones.lines import LINES_USUAL, LineQuery
from holdfast.zones.model import (
    APPEND_LARGEST,
    WRITE_LARGEST,
    OutputAppended,
    archive_not_found,
    archives_before,
    parse_archive_time,
    require_definition_id,
    require_size,
)

app = typer.Typer()
group = add_group(app, "zones")


ZoneArgument = Annotated[
    str, argument("ID", "The agent's id or slug, or any other id of A-Z, a-z, 0-9, _ and -.")
]
_MS: Final = argument("MS", "The time of the archive, as shown by `zones archives`.")


def archive_ms(id_: str, text: str) -> int:
    """Return the time of an archive, parsed from an argument."""
    require_definition_id(id_)
    ms = parse_archive_time(text)
    if ms is None:
        raise archive_not_found()
    return ms


def format_archive_time(ms: int) -> str:
    """Return the time of an archive in local time."""
    try:
        return local_time(datetime.fromtimestamp(ms / 1000, UTC))
    except (OverflowError, OSError, ValueError):
        # An imported archive may have any number as its time.
        return "-"


@command(group, "show")
async def show(printer: Printer, *, id: ZoneArgument) -> None:
    """Show the active zone of an id, and its session."""
    async with connect(printer) as holdfast:
        active = await holdfast.zones.show(holdfast.owner, id)
    if printer.is_json:
        printer.document(zone_form(active))
        return
    facts = {"zone": active.zone, "session": active.session_id, "preview": active.preview or None}
    printer.record(None, facts)
    rows = [
        (each.name, str(each.size), str(each.lines), format_archive_time(each.modified_ms))
        for each in active.files
    ]
    printer.table(("FILE", "BYTES", "LINES", "CHANGED"), rows)
    if not rows:
        printer.remark("The active zone is empty.")


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """What to read of an active zone or an archive."""

    id: ZoneArgument
    ms: Annotated[str | None, _MS] = None
    output: Annotated[bool, flag("Print the output instead of the snapshot.", "--output")] = False
    start: Annotated[int | None, option("N", "The first line, counting from 0.")] = None
    limit: Annotated[int | None, option("N", "At most this many lines; default 200.")] = None
    follow: Annotated[bool, flag("Print new output as it arrives, until Ctrl-C.", "--follow")] = (
        False
    )


@command(group, "read")
async def read(printer: Printer, options: ReadOptions) -> None:
    """Print the snapshot of an active zone or archive, or its output."""
    async with connect(printer) as holdfast:
        if options.follow:
            await _follow(printer, holdfast, options)
        elif options.output or options.start is not None or options.limit is not None:
            await _lines(printer, holdfast, options)
        elif options.ms is not None:
            await _archive(printer, holdfast, options.id, options.ms)
        else:
            await _state(printer, holdfast, options.id)


async def _follow(printer: Printer, holdfast: Holdfast, options: ReadOptions) -> None:
    if options.ms is not None:
        raise Invalid(Code.INVALID_INPUT, "An archive has no new output; leave out --follow.")
    following = holdfast.zones.follow(holdfast.owner, options.id, start=options.start)
    async with aclosing(following) as items:
        async for page in items:
            for number, line in enumerate(page.lines, page.start):
                if printer.is_json:
                    printer.document({"line": number, "text": line})
                else:
                    printer.line(line)
            printer.flush()


async def _lines(printer: Printer, holdfast: Holdfast, options: ReadOptions) -> None:
    limit = LINES_USUAL if options.limit is None else options.limit
    query = LineQuery(start=options.start or 0, limit=limit)
    ms = None if options.ms is None else archive_ms(options.id, options.ms)
    page = await holdfast.zones.read_lines(holdfast.owner, options.id, query, archive=ms)
    if printer.is_json:
        printer.document(lines_form(page))
        return
    for line in page.lines:
        printer.line(line)
    if page.end < page.total:
        printer.remark(f"More results: --start {page.end}")


async def _state(printer: Printer, holdfast: Holdfast, id_: str) -> None:
    state = await holdfast.zones.read_state(holdfast.owner, id_)
    form = msgspec.convert(state, StateForm, from_attributes=True)
    printer.done(form, _printed_content(state.content, "nothing to restore"))


async def _archive(printer: Printer, holdfast: Holdfast, id_: str, ms: str) -> None:
    found = await holdfast.zones.read_archive(holdfast.owner, id_, archive_ms(id_, ms))
    printer.done(
        archive_form(found),
        _printed_content(found.content, "no snapshot; use --output to show the lines"),
    )


def _printed_content(content: str | None, nothing: str) -> str:
    """Return a snapshot for printing, with exactly one newline at the end."""
    return nothing if content is None else content.removesuffix("\n")


@command(group, "write")
async def write(
    printer: Printer,
    *,
    id: ZoneArgument,
    if_modified: Annotated[
        int | None, option("MS", "Only if the current snapshot has this time; 0 means none exists.")
    ] = None,
) -> None:
    """Replace the snapshot of the active zone with stdin."""
    # Before stdin is read: an invalid command must not wait for input.
    require_definition_id(id)
    content = await asyncio.to_thread(_read_stdin, WRITE_LARGEST + 1)
    async with connect(printer) as holdfast:
        done = await holdfast.zones.write_state(
            holdfast.owner, id, content, if_modified_ms=if_modified
        )
    form = msgspec.convert(done, StateWrittenForm, from_attributes=True)
    printer.done(form, f"Wrote {done.bytes_written} bytes to {done.zone}.")


@command(group, "append")
async def append(printer: Printer, *, id: ZoneArgument) -> None:
    """Append the lines of stdin to the output of the active zone.

    Each line is appended as soon as it is read.
    """
    require_definition_id(id)
    offset, size = None, 0
    async with connect(printer) as holdfast:
        async for done in _append_batches(holdfast, id):
            offset = done.offset if offset is None else offset
            size += done.bytes_written
        zone = (await holdfast.zones.show(holdfast.owner, id)).zone
    form = OutputAppendedForm(zone=zone, offset=offset or 0, bytes_written=size)
    printer.done(form, f"Appended {size} bytes to {zone}.")


async def _append_batches(holdfast: Holdfast, id_: str) -> AsyncGenerator[OutputAppended, None]:
    """Append stdin in batches of whatever is available; yield the result of each."""
    held = b""
    while more := await asyncio.to_thread(_read_available):
        held += more
        end = held.rfind(b"\n") + 1
        if end:
            whole, held = held[:end], held[end:]
            yield await holdfast.zones.append_lines(holdfast.owner, id_, (_text(whole),))
        # Refused as soon as it exceeds the limit, because a line may never end.
        require_size(len(held), APPEND_LARGEST, what="A line")
    if held:
        yield await holdfast.zones.append_lines(holdfast.owner, id_, (_text(held),))


def _read_stdin(most: int) -> bytes:
    # Python sets sys.stdin to None if it was closed at the start.
    return sys.stdin.buffer.read(most) if sys.stdin is not None else b""


def _read_available() -> bytes:
    # Returns what is available without waiting for more, so that slow input is appended at once.
    return cast("BufferedReader", sys.stdin.buffer).read1(1 << 20) if sys.stdin is not None else b""


def _text(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise Invalid(Code.INVALID_TEXT, "stdin is not UTF-8 text; convert it first.") from None


@command(group, "archive")
async def archive(printer: Printer, *, id: ZoneArgument) -> None:
    """Move the active zone to a new archive."""
    async with connect(printer) as holdfast:
        done = await holdfast.zones.archive(holdfast.owner, id)
    message = (
        f"Moved the active zone to {done.archive_zoneid}." if done else "The active zone is empty."
    )
    printer.done(archived_form(done), message)


@command(group, "archives")
async def archives(
    printer: Printer,
    *,
    id: ZoneArgument,
    limit: Annotated[int, option("N", "At most this many, up to 100.")] = 20,
    cursor: Annotated[str | None, option("CURSOR", "Continue after this page.")] = None,
) -> None:
    """List the archives of an id, newest first."""
    async with connect(printer) as holdfast:
        found = await holdfast.zones.list_archives(
            holdfast.owner,
            id,
            limit=limit,
            before=archives_before(cursor),
        )
    form = archives_form(found, limit)
    rows = [
        (
            str(each.archived_at_ms),
            format_archive_time(each.archived_at_ms),
            str(each.size),
            each.preview,
        )
        for each in found
    ]
    printer.listing(form.data, form.next_cursor, ("MS", "ARCHIVED", "BYTES", "PREVIEW"), rows)
    if not found and cursor is None:
        printer.remark("No archives; create one with `holdfast zones archive ID`.")


@command(group, "restore")
async def restore(printer: Printer, *, id: ZoneArgument, ms: Annotated[str, _MS]) -> None:
    """Copy an archive to the active zone.

    The current content is archived first, and the archive is kept.
    """
    async with connect(printer) as holdfast:
        done = await holdfast.zones.restore_archive(holdfast.owner, id, archive_ms(id, ms))
    kept = f" The previous content is in {done.displaced}." if done.displaced else ""
    form = msgspec.convert(done, RestoredForm, from_attributes=True)
    printer.done(form, f"Copied {done.restored_from} to the active zone.{kept}")


@command(group, "delete")
async def delete(printer: Printer, *, id: ZoneArgument, ms: Annotated[str, _MS]) -> None:
    """Delete an archive."""
    async with connect(printer) as holdfast:
        is_gone = await holdfast.zones.delete_archive(holdfast.owner, id, archive_ms(id, ms))
    printer.done({"deleted": is_gone}, "Deleted." if is_gone else "There is no such archive.")


@command(group, "replay")
async def replay(
    printer: Printer,
    *,
    id: ZoneArgument,
    window: Annotated[int, option("N", "Lines to show if a snapshot covers the output.")] = 5000,
    page: Annotated[int, option("N", "Lines to show if no snapshot does.")] = 200,
) -> None:
    """Show the newest lines of output, as the web page does."""
    async with connect(printer) as holdfast:
        found = await holdfast.zones.replay(holdfast.owner, id, window=window, page=page)
    if printer.is_json:
        printer.document(replay_form(found))
        return
    for line in found.lines:
        printer.line(line)
    if not found.total and not found.nodes:
        printer.line("nothing to restore")
    torn = ", the last one incomplete" if found.torn else ""
    printer.remark(f"From {found.source}: {len(found.lines)} of {found.total} lines{torn}.")


@command(group, "purge", only_here=True)
async def purge(
    printer: Printer,
    *,
    id: ZoneArgument,
    confirm: Annotated[
        str, option("ID", "Repeat the id to confirm that all its zones are deleted.")
    ] = "",
) -> None:
    """Delete the active zone and all archives of an id permanently."""
    async with open_local(printer) as holdfast:
        gone = await holdfast.zones.purge(holdfast.owner, id, confirm=confirm)
    printer.done({"purged": gone}, f"Deleted {gone} zones.")
