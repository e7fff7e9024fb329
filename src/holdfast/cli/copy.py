"""`holdfast copy`: the whole store moved between a file and Postgres."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.commands import command
from holdfast.cli.copy_ends import file_of, is_address, source_of, target_of
from holdfast.cli.output import Printer

if TYPE_CHECKING:
    from holdfast.config import Config
    from holdfast.store.transfer.run import CopiedTable


@dataclass(frozen=True, kw_only=True)
class CopyOptions:
    """Where to."""

    to: Annotated[
        str,
        typer.Option(
            metavar="URL|FOLDER|FILE.db",
            help="An empty database (postgresql://…), a folder that becomes a home, or a file.",
            show_default=False,
        ),
    ]
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Look at both sides and count; change nothing.")
    ] = False


async def copy(printer: Printer, wanted: CopyOptions) -> None:
    """Copy the whole store into another database.

    From the store that is configured into Postgres, or into a file. Nobody writes meanwhile, so
    stop every server first. Rows are counted and hashed on both sides and hash chains verified;
    what fails leaves nothing in the target.
    """
    from holdfast.store.transfer import run as transfer_run

    def tell(each: "CopiedTable") -> None:
        printer.remark(f"{each.table}: {each.rows} rows")

    config = printer.settings.load()
    is_kept = not wanted.dry_run
    async with source_of(config) as source:
        await transfer_run.require_idle(source)
        async with target_of(config, wanted.to, is_kept=is_kept) as target:
            if target is not None:
                await transfer_run.require_empty(target)
            if is_kept and target is not None:
                tables = await transfer_run.copy(source, target, tell)
            else:
                tables = await transfer_run.count_rows(source)
    _report(printer, config, wanted, tables)


def _report(
    printer: Printer, config: "Config", wanted: CopyOptions, tables: "list[CopiedTable]"
) -> None:
    from holdfast.app import STORE_NAME
    from holdfast.store.database_url import shown_url

    url = config.database_url
    target = shown_url(wanted.to) if is_address(wanted.to) else str(file_of(wanted.to))
    rows = sum(each.rows for each in tables)
    form = {
        "from": str(config.home / STORE_NAME) if url is None else shown_url(url),
        "to": target,
        "dry_run": wanted.dry_run,
        "rows": rows,
        "tables": {each.table: {"rows": each.rows, "hash": each.hash} for each in tables},
    }
    told = "would be copied to" if wanted.dry_run else "are copied and verified in"
    printer.done(form, f"{rows} rows of {len(tables)} tables {told} {target}.")


def register(app: typer.Typer) -> None:
    """Put the command into the command line."""
    command(app, "copy", CopyOptions, only_here=True)(copy)
