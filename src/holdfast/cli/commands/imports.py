"""`holdfast import …`: import data of other programs."""

from pathlib import Path
from typing import Annotated, Final

import typer
from msgspec.structs import asdict

from holdfast.cli.command import add_group, command
from holdfast.cli.connect import open_local
from holdfast.cli.errors import FINDINGS
from holdfast.cli.options import argument, flag
from holdfast.cli.output import Printer
from holdfast.cli.workspace import absolute_path
from holdfast.importers.cursor_memory import CursorMemory, MemoryReport
from holdfast.importers.cursor_memory_files import MemoryFolder

app = typer.Typer()
group = add_group(app, "import")


PROGRESS: Final = 1_000


@command(group, "cursor-memory", only_here=True)
async def cursor_memory(
    printer: Printer,
    *,
    folder: Annotated[Path, argument("DIR", "The folder that contains sessions/.")],
    dry_run: Annotated[
        bool, flag("Show what would be written, and write nothing.", "--dry-run")
    ] = False,
    repair: Annotated[
        bool, flag("Fill in missing values: an action, or the time of the file.", "--repair")
    ] = False,
) -> int:
    """Import the memories of another program into the history.

    The folder is only read, and nothing is imported twice. Exits with 1 if a file could not be
    imported or fails verification; all other files are imported.
    """
    memories = MemoryFolder(absolute_path(folder))

    def progress(done: int, total: int) -> None:
        if done % PROGRESS == 0:
            printer.remark(f"{done} of {total} files.")

    async with open_local(printer) as holdfast:
        importer = CursorMemory(
            holdfast.store,
            holdfast.observations,
            holdfast.owner,
            memories,
            dry_run=dry_run,
            repair=repair,
        )
        report = await importer.migrate(progress=progress)
    if printer.is_json:
        printer.document(report)
    else:
        _print_memory_report(printer, report)
    return 0 if report.is_whole else FINDINGS


def _print_memory_report(printer: Printer, report: MemoryReport) -> None:
    names = ("files", "imported", "unchanged", "repaired", "failed", "warnings")
    summary = ", ".join(f"{name} {getattr(report, name)}" for name in names)
    printer.line(f"{summary}.".capitalize())
    for repair in report.repairs:
        printer.line(f"{repair.file}: {repair.field} from {repair.rule}")
    for warned in report.warned:
        printer.warn(f"{warned.file}: warning: {warned.message}")
    for skip in report.skipped:
        printer.warn(f"{skip.file}: {skip.reason}")
    for failure in report.failures:
        what = failure.details.get("message", failure.error)
        printer.warn(f"{failure.file}: {what}")
    verified = report.verified
    if verified.entities_found != verified.entities_expected:
        printer.warn(
            f"Verified {verified.entities_found} of {verified.entities_expected} entities."
        )
    for entity_id in verified.timeline_missing:
        printer.warn(f"{entity_id} is missing on every timeline.")


@command(group, "block-zones", only_here=True)
async def block_zones(
    printer: Printer,
    *,
    folder: Annotated[Path, argument("DIR", "The folder with the databases.")],
    dry_run: Annotated[
        bool, flag("Show what would be written, and write nothing.", "--dry-run")
    ] = False,
) -> int:
    """Import block zones as the zones and archives of agents.

    The folder is only read, and nothing is imported twice. Exits with 1 if something could not be
    read or written; run the command again to continue.
    """
    from holdfast.wiring import import_blocks, run_imports

    folder = absolute_path(folder)
    async with open_local(printer) as holdfast:
        report = await import_blocks(holdfast, folder, dry_run=dry_run)
        if not dry_run:
            await run_imports(holdfast)
    stats = asdict(report.stats)
    summary = ", ".join(
        f"{name.replace('_', ' ')} {count}" for name, count in stats.items() if count
    )
    troubles = [asdict(each) for each in report.troubles]
    form = {**stats, "dry_run": dry_run, "troubles": troubles}
    printer.done(form, f"{summary or 'nothing to do'}.".capitalize())
    for each in report.troubles:
        printer.warn(f"{each.oid}: {each.step}: {each.error}")
    return FINDINGS if report.troubles else 0
