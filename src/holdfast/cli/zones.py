"""`holdfast zones …`: what lies on an agent's desk, and what was cleared from it."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.commands import command
from holdfast.cli.opening import opened_here
from holdfast.cli.output import Printer, local_time
from holdfast.domain.errors import Code, Invalid

if TYPE_CHECKING:
    from holdfast.bootstrap import Holdfast
    from holdfast.domain.zones import OutputAppended

ID_HELP = "The agent's id or slug, or any other id of A-Z, a-z, 0-9, _ and -."
MS_HELP = "When it was archived, as `zones archives` shows it."


@dataclass(frozen=True, kw_only=True)
class OneDesk:
    """A desk by the id it belongs to."""

    id: Annotated[str, typer.Argument(metavar="ID", help=ID_HELP, show_default=False)]


@dataclass(frozen=True, kw_only=True)
class OneArchive(OneDesk):
    """An archive by its time."""

    ms: Annotated[str, typer.Argument(metavar="MS", help=MS_HELP, show_default=False)]


async def show(printer: Printer, wanted: OneDesk) -> None:
    """Show what lies on a desk, and which session sits at it."""
    from holdfast.http.v1.zones_forms import desk_form

    async with opened_here(printer) as holdfast:
        desk = await holdfast.zones.show(holdfast.owner, wanted.id)
    if printer.is_json:
        printer.document(desk_form(desk))
        return
    printer.record(None, {"zone": desk.zone, "session": desk.session_id})
    rows = [
        (each.name, str(each.size), str(each.lines), _time(each.modified_ms)) for each in desk.files
    ]
    printer.table(("FILE", "BYTES", "LINES", "CHANGED"), rows)


@dataclass(frozen=True, kw_only=True)
class ReadOptions(OneDesk):
    """What to read of a desk or an archive."""

    ms: Annotated[str | None, typer.Argument(metavar="MS", help=MS_HELP)] = None
    output: Annotated[
        bool, typer.Option("--output", help="The lines of the output, not the snapshot.")
    ] = False
    start: Annotated[
        int | None, typer.Option(metavar="N", help="The first line, counted from 0.")
    ] = None
    limit: Annotated[int, typer.Option(metavar="N", help="At most so many lines.")] = 200
    follow: Annotated[
        bool, typer.Option("--follow", help="Print the output as it grows, until Ctrl-C.")
    ] = False


async def read(printer: Printer, wanted: ReadOptions) -> None:
    """Print the snapshot of a desk or an archive, or the lines of its output."""
    async with opened_here(printer) as holdfast:
        if wanted.follow:
            await _follow(printer, holdfast, wanted)
        elif wanted.output or wanted.start is not None:
            await _lines(printer, holdfast, wanted)
        elif wanted.ms is not None:
            await _archive(printer, holdfast, wanted.id, wanted.ms)
        else:
            await _state(printer, holdfast, wanted.id)


async def _follow(printer: Printer, holdfast: "Holdfast", wanted: ReadOptions) -> None:
    if wanted.ms is not None:
        raise Invalid(Code.INVALID_INPUT, "An archive does not grow; leave out --follow.")
    following = holdfast.zones.follow(holdfast.owner, wanted.id, start=wanted.start)
    async with aclosing(following) as news:
        async for page in news:
            for number, line in enumerate(page.lines, page.start):
                if printer.is_json:
                    printer.document({"line": number, "text": line})
                else:
                    printer.line(line)
            printer.flush()


async def _lines(printer: Printer, holdfast: "Holdfast", wanted: ReadOptions) -> None:
    from holdfast.domain.zone_lines import LineQuery
    from holdfast.http.v1.zones_forms import lines_form

    query = LineQuery(start=wanted.start or 0, limit=wanted.limit)
    archive = None if wanted.ms is None else _ms(wanted.id, wanted.ms)
    page = await holdfast.zones.read_lines(holdfast.owner, wanted.id, query, archive=archive)
    if printer.is_json:
        printer.document(lines_form(page))
        return
    for line in page.lines:
        printer.line(line)
    if page.end < page.total:
        printer.remark(f"There is more: --start {page.end}")


async def _state(printer: Printer, holdfast: "Holdfast", id_: str) -> None:
    import msgspec

    from holdfast.http.v1.zones_forms import StateForm

    state = await holdfast.zones.read_state(holdfast.owner, id_)
    form = msgspec.convert(state, StateForm, from_attributes=True)
    printer.done(form, "nothing to restore" if state.content is None else state.content)


async def _archive(printer: Printer, holdfast: "Holdfast", id_: str, ms: str) -> None:
    from holdfast.http.v1.zones_forms import archive_form

    archive = await holdfast.zones.read_archive(holdfast.owner, id_, _ms(id_, ms))
    printer.done(archive_form(archive), archive.content or "")


@dataclass(frozen=True, kw_only=True)
class WriteOptions(OneDesk):
    """A snapshot from stdin."""

    if_modified: Annotated[
        int | None,
        typer.Option(metavar="MS", help="Only over the snapshot of this time; 0 is none."),
    ] = None


async def write(printer: Printer, wanted: WriteOptions) -> None:
    """Replace the snapshot of a desk with what comes on stdin."""
    import msgspec

    from holdfast.domain.zones import WRITE_LARGEST, require_definition_id
    from holdfast.http.v1.zones_forms import StateWrittenForm

    # Before anything is read: a command that cannot be right waits for nobody.
    require_definition_id(wanted.id)
    content = await asyncio.to_thread(_stdin, WRITE_LARGEST + 1)
    async with opened_here(printer) as holdfast:
        done = await holdfast.zones.write_state(
            holdfast.owner, wanted.id, content, if_modified_ms=wanted.if_modified
        )
    form = msgspec.convert(done, StateWrittenForm, from_attributes=True)
    printer.done(form, f"{done.bytes_written} bytes lie in {done.zone}.")


async def append(printer: Printer, wanted: OneDesk) -> None:
    """Append the lines of stdin to the output of a desk, as they come."""
    from holdfast.domain.zones import require_definition_id
    from holdfast.http.v1.zones_forms import OutputAppendedForm

    require_definition_id(wanted.id)
    async with opened_here(printer) as holdfast:
        batches = [done async for done in _appended(holdfast, wanted.id)]
        zone = (await holdfast.zones.show(holdfast.owner, wanted.id)).zone
    size = sum(done.bytes_written for done in batches)
    offset = batches[0].offset if batches else 0
    form = OutputAppendedForm(zone=zone, offset=offset, bytes_written=size)
    printer.done(form, f"{size} bytes were appended to {zone}.")


async def _appended(holdfast: "Holdfast", id_: str) -> AsyncGenerator["OutputAppended", None]:
    """Append what comes, a batch for whatever is there at a time; yield what became of each."""
    held = b""
    while more := await asyncio.to_thread(_some_of_stdin):
        held += more
        end = held.rfind(b"\n") + 1
        if end:
            whole, held = held[:end], held[end:]
            yield await holdfast.zones.append_lines(holdfast.owner, id_, (_text(whole),))
    if held:
        yield await holdfast.zones.append_lines(holdfast.owner, id_, (_text(held),))


async def archive(printer: Printer, wanted: OneDesk) -> None:
    """Clear a desk into a new archive."""
    from holdfast.http.v1.zones_forms import archived_form

    async with opened_here(printer) as holdfast:
        done = await holdfast.zones.archive(holdfast.owner, wanted.id)
    told = f"The desk is cleared into {done.archive_zoneid}." if done else "Nothing lies there."
    printer.done(archived_form(done), told)


@dataclass(frozen=True, kw_only=True)
class ArchivesOptions(OneDesk):
    """Which archives."""

    limit: Annotated[
        int, typer.Option(metavar="N", help="At most so many, never more than 100.")
    ] = 20


async def archives(printer: Printer, wanted: ArchivesOptions) -> None:
    """List the archives of an id, newest first."""
    from holdfast.http.v1.zones_forms import archives_form

    async with opened_here(printer) as holdfast:
        found = await holdfast.zones.list_archives(holdfast.owner, wanted.id, limit=wanted.limit)
    if printer.is_json:
        printer.document(archives_form(found))
        return
    rows = [
        (str(each.archived_at_ms), _time(each.archived_at_ms), str(each.size), each.preview)
        for each in found
    ]
    printer.table(("MS", "ARCHIVED", "BYTES", "PREVIEW"), rows)
    if not found:
        printer.remark("No archives; `holdfast zones archive ID` makes one of a desk.")


async def restore(printer: Printer, wanted: OneArchive) -> None:
    """Copy an archive to the desk.

    What lies there is archived first, and the archive stays.
    """
    import msgspec

    from holdfast.http.v1.zones_forms import RestoredForm

    async with opened_here(printer) as holdfast:
        done = await holdfast.zones.restore_archive(
            holdfast.owner, wanted.id, _ms(wanted.id, wanted.ms)
        )
    kept = f" What lay there is in {done.displaced}." if done.displaced else ""
    form = msgspec.convert(done, RestoredForm, from_attributes=True)
    printer.done(form, f"{done.restored_from} lies on the desk again.{kept}")


async def delete(printer: Printer, wanted: OneArchive) -> None:
    """Remove an archive."""
    ms = _ms(wanted.id, wanted.ms)
    async with opened_here(printer) as holdfast:
        is_gone = await holdfast.zones.delete_archive(holdfast.owner, wanted.id, ms)
    printer.done({"deleted": is_gone}, "It is removed." if is_gone else "There was none.")


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(OneDesk):
    """How much is shown."""

    window: Annotated[
        int, typer.Option(metavar="N", help="Lines, where a snapshot has seen some.")
    ] = 5000
    page: Annotated[int, typer.Option(metavar="N", help="Lines, where none has.")] = 200


async def replay(printer: Printer, wanted: ReplayOptions) -> None:
    """Show what a page would show of a desk: the newest lines of its output."""
    from holdfast.http.v1.zones_forms import replay_form

    async with opened_here(printer) as holdfast:
        found = await holdfast.zones.replay(
            holdfast.owner, wanted.id, window=wanted.window, page=wanted.page
        )
    if printer.is_json:
        printer.document(replay_form(found))
        return
    for line in found.lines:
        printer.line(line)
    if not found.total and not found.nodes:
        printer.line("nothing to restore")
    torn = ", the last one torn" if found.torn else ""
    printer.remark(f"From {found.source}: {len(found.lines)} of {found.total} lines{torn}.")


@dataclass(frozen=True, kw_only=True)
class PurgeOptions(OneDesk):
    """The same id twice."""

    confirm: Annotated[
        str, typer.Option(metavar="ID", help="The id again: all of it goes for good.")
    ] = ""


async def purge(printer: Printer, wanted: PurgeOptions) -> None:
    """Remove the desk and all archives of an id for good."""
    async with opened_here(printer) as holdfast:
        gone = await holdfast.zones.purge(holdfast.owner, wanted.id, confirm=wanted.confirm)
    printer.done({"purged": gone}, f"{gone} zones are removed.")


def _ms(id_: str, text: str) -> int:
    from holdfast.domain.zones import archive_not_found, parsed_time, require_definition_id

    require_definition_id(id_)
    ms = parsed_time(text)
    if ms is None:
        raise archive_not_found()
    return ms


def _time(ms: int) -> str:
    try:
        return local_time(datetime.fromtimestamp(ms / 1000, UTC))
    except (OverflowError, OSError, ValueError):
        # An importer may have brought any number.
        return "-"


def _stdin(most: int) -> bytes:
    # Python has no stdin where whoever started it closed it.
    return sys.stdin.buffer.read(most) if sys.stdin is not None else b""


def _some_of_stdin() -> bytes:
    return sys.stdin.buffer.read1(1 << 20) if sys.stdin is not None else b""  # type: ignore[attr-defined]


def _text(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise Invalid(Code.INVALID_TEXT, "stdin is not UTF-8 text; convert it first.") from None


def register(app: typer.Typer) -> None:
    """Put the group into the command line."""
    group = typer.Typer(
        name="zones", help="Look at agents' desks and their archives.", no_args_is_help=True
    )
    command(group, "show", OneDesk, only_here=True)(show)
    command(group, "read", ReadOptions, only_here=True)(read)
    command(group, "write", WriteOptions, only_here=True)(write)
    command(group, "append", OneDesk, only_here=True)(append)
    command(group, "archive", OneDesk, only_here=True)(archive)
    command(group, "archives", ArchivesOptions, only_here=True)(archives)
    command(group, "restore", OneArchive, only_here=True)(restore)
    command(group, "delete", OneArchive, only_here=True)(delete)
    command(group, "replay", ReplayOptions, only_here=True)(replay)
    command(group, "purge", PurgeOptions, only_here=True)(purge)
    app.add_typer(group)
