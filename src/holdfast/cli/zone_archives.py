"""`holdfast zones archive|archives|restore|delete|purge`: what was cleared from a desk."""

from dataclasses import dataclass
from typing import Annotated

import typer

from holdfast.cli.opening import opened, opened_here
from holdfast.cli.output import Printer
from holdfast.cli.zone_options import OneArchive, OneDesk, archive_ms, shown_time


async def archive(printer: Printer, wanted: OneDesk) -> None:
    """Clear a desk into a new archive."""
    from holdfast.http.v1.archives_forms import archived_form

    async with opened(printer) as holdfast:
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
    from holdfast.http.v1.archives_forms import archives_form

    async with opened(printer) as holdfast:
        found = await holdfast.zones.list_archives(holdfast.owner, wanted.id, limit=wanted.limit)
    if printer.is_json:
        printer.document(archives_form(found))
        return
    rows = [
        (str(each.archived_at_ms), shown_time(each.archived_at_ms), str(each.size), each.preview)
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

    from holdfast.http.v1.archives_forms import RestoredForm

    async with opened(printer) as holdfast:
        done = await holdfast.zones.restore_archive(
            holdfast.owner, wanted.id, archive_ms(wanted.id, wanted.ms)
        )
    kept = f" What lay there is in {done.displaced}." if done.displaced else ""
    form = msgspec.convert(done, RestoredForm, from_attributes=True)
    printer.done(form, f"{done.restored_from} lies on the desk again.{kept}")


async def delete(printer: Printer, wanted: OneArchive) -> None:
    """Remove an archive."""
    ms = archive_ms(wanted.id, wanted.ms)
    async with opened(printer) as holdfast:
        is_gone = await holdfast.zones.delete_archive(holdfast.owner, wanted.id, ms)
    printer.done({"deleted": is_gone}, "It is removed." if is_gone else "There was none.")


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
