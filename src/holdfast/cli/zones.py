"""`holdfast zones …`: what lies on an agent's desk, and what was cleared from it."""

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.commands import command
from holdfast.cli.opening import opened
from holdfast.cli.output import Printer
from holdfast.cli.zone_archives import (
    ArchivesOptions,
    PurgeOptions,
    archive,
    archives,
    delete,
    purge,
    restore,
)
from holdfast.cli.zone_input import WriteOptions, append, write
from holdfast.cli.zone_options import MS_HELP, OneArchive, OneDesk, archive_ms, shown_time
from holdfast.domain.errors import Code, Invalid

if TYPE_CHECKING:
    from holdfast.cli.house import House


async def show(printer: Printer, wanted: OneDesk) -> None:
    """Show what lies on a desk, and which session sits at it."""
    from holdfast.http.v1.zones_forms import desk_form

    async with opened(printer) as holdfast:
        desk = await holdfast.zones.show(holdfast.owner, wanted.id)
    if printer.is_json:
        printer.document(desk_form(desk))
        return
    printer.record(None, {"zone": desk.zone, "session": desk.session_id})
    rows = [
        (each.name, str(each.size), str(each.lines), shown_time(each.modified_ms))
        for each in desk.files
    ]
    printer.table(("FILE", "BYTES", "LINES", "CHANGED"), rows)
    if not rows:
        printer.remark("Nothing lies there.")


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
    limit: Annotated[
        int | None, typer.Option(metavar="N", help="At most so many lines; usually 200.")
    ] = None
    follow: Annotated[
        bool, typer.Option("--follow", help="Print the output as it grows, until Ctrl-C.")
    ] = False


async def read(printer: Printer, wanted: ReadOptions) -> None:
    """Print the snapshot of a desk or an archive, or the lines of its output."""
    async with opened(printer) as holdfast:
        if wanted.follow:
            await _follow(printer, holdfast, wanted)
        elif wanted.output or wanted.start is not None or wanted.limit is not None:
            await _lines(printer, holdfast, wanted)
        elif wanted.ms is not None:
            await _archive(printer, holdfast, wanted.id, wanted.ms)
        else:
            await _state(printer, holdfast, wanted.id)


async def _follow(printer: Printer, holdfast: "House", wanted: ReadOptions) -> None:
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


async def _lines(printer: Printer, holdfast: "House", wanted: ReadOptions) -> None:
    from holdfast.http.v1.zones_forms import lines_form
    from holdfast.zones.lines import LINES_USUAL, LineQuery

    limit = LINES_USUAL if wanted.limit is None else wanted.limit
    query = LineQuery(start=wanted.start or 0, limit=limit)
    ms = None if wanted.ms is None else archive_ms(wanted.id, wanted.ms)
    page = await holdfast.zones.read_lines(holdfast.owner, wanted.id, query, archive=ms)
    if printer.is_json:
        printer.document(lines_form(page))
        return
    for line in page.lines:
        printer.line(line)
    if page.end < page.total:
        printer.remark(f"There is more: --start {page.end}")


async def _state(printer: Printer, holdfast: "House", id_: str) -> None:
    import msgspec

    from holdfast.http.v1.zones_forms import StateForm

    state = await holdfast.zones.read_state(holdfast.owner, id_)
    form = msgspec.convert(state, StateForm, from_attributes=True)
    printer.done(form, _shown(state.content, "nothing to restore"))


async def _archive(printer: Printer, holdfast: "House", id_: str, ms: str) -> None:
    from holdfast.http.v1.archives_forms import archive_form

    found = await holdfast.zones.read_archive(holdfast.owner, id_, archive_ms(id_, ms))
    printer.done(
        archive_form(found), _shown(found.content, "no snapshot; --output shows the lines")
    )


def _shown(content: str | None, nothing: str) -> str:
    """Return a snapshot as it is printed: with one end of the last line, its own or ours."""
    return nothing if content is None else content.removesuffix("\n")


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

    async with opened(printer) as holdfast:
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


def register(app: typer.Typer) -> None:
    """Put the group into the command line."""
    group = typer.Typer(
        name="zones", help="Look at agents' desks and their archives.", no_args_is_help=True
    )
    command(group, "show", OneDesk)(show)
    command(group, "read", ReadOptions)(read)
    command(group, "write", WriteOptions)(write)
    command(group, "append", OneDesk)(append)
    command(group, "archive", OneDesk)(archive)
    command(group, "archives", ArchivesOptions)(archives)
    command(group, "restore", OneArchive)(restore)
    command(group, "delete", OneArchive)(delete)
    command(group, "replay", ReplayOptions)(replay)
    command(group, "purge", PurgeOptions, only_here=True)(purge)
    app.add_typer(group)
