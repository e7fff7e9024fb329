"""`holdfast workers list`: the processes that run tools of agents."""

import typer

from holdfast.cli.command import add_group, command
from holdfast.cli.connect import connect
from holdfast.cli.output import Printer, local_time
from holdfast.wire.workers import worker_form

app = typer.Typer()
group = add_group(app, "workers")


@command(group, "list")
async def show_list(printer: Printer) -> None:
    """List the processes that run calls of tools, and those that have functions of their own.

    A process that is not heard of for half a minute is left out.
    """
    async with connect(printer) as holdfast:
        found = await holdfast.workers.list(holdfast.owner)
    printer.listing(
        [worker_form(each) for each in found],
        None,
        ("ID", "NAME", "UNTIL", "CAPABILITIES"),
        [
            (each.id, each.name, local_time(each.until), ", ".join(each.capabilities))
            for each in found
        ],
    )
    if not found:
        printer.remark("No workers.")
