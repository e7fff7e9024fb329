"""`holdfast import …`: what other programs have left behind."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.commands import command
from holdfast.cli.errors import FINDINGS
from holdfast.cli.opening import opened_here
from holdfast.cli.output import Printer
from holdfast.cli.places import named_path


@dataclass(frozen=True, kw_only=True)
class BlockZonesOptions:
    """A folder of another program."""

    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="The folder with its databases.", show_default=False),
    ]
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Tell what would be written, and write nothing.")
    ] = False


async def block_zones(printer: Printer, wanted: BlockZonesOptions) -> int:
    """Bring the zones of blocks to the desks and archives of agents.

    The folder is only read, and what was brought is not brought again. Ends with 1 if something
    could not be read or written; the same command goes on from there.
    """
    from msgspec.structs import asdict

    from holdfast.equipment import bring_in, import_blocks

    folder = named_path(wanted.folder)
    async with opened_here(printer) as holdfast:
        report = await import_blocks(holdfast, folder, dry_run=wanted.dry_run)
        if not wanted.dry_run:
            await bring_in(holdfast)
    stats = asdict(report.stats)
    told = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in stats.items() if count)
    troubles = [asdict(each) for each in report.troubles]
    form = {**stats, "dry_run": wanted.dry_run, "troubles": troubles}
    printer.done(form, f"{told or 'nothing to do'}.".capitalize())
    for each in report.troubles:
        printer.warn(f"{each.oid}: {each.step}: {each.error}")
    return FINDINGS if report.troubles else 0


def register(app: typer.Typer) -> None:
    """Put the group into the command line."""
    group = typer.Typer(
        name="import", help="Bring in what other programs have left.", no_args_is_help=True
    )
    command(group, "block-zones", BlockZonesOptions, only_here=True)(block_zones)
    app.add_typer(group)
