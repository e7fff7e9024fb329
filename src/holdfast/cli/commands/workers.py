"""`holdfast workers list`: the processes that run tools of agents."""

import typer

from holdfast.cli.command import add_group, command
from holdfast.cli.connect import connect
from holdfast.cli.options import LIMIT, LIMIT_MOST, Cursor, Limit, page_after
from holdfast.cli.output import Printer, local_time
from holdfast.domain.queries import require_limit
from holdfast.wire.workers import worker_form

app = typer.Typer()
group = add_group(app, "workers")


@command(group, "list")
async def show_list(printer: Printer, *, limit: Limit = LIMIT, cursor: Cursor = None) -> None:
    """List the processes that run tools.

    These are the workers that serve tools of agents, and the processes that play turns with
    functions of their own. A process that is not heard of for half a minute is left out.
    """
    limit = require_limit(limit, most=LIMIT_MOST)
    async with connect(printer) as holdfast:
        every = await holdfast.workers.list(holdfast.owner)
    shown, more = page_after(every, cursor, limit)
    printer.listing(
        [worker_form(each) for each in shown],
        more,
        ("ID", "NAME", "UNTIL", "CAPABILITIES"),
        [
            (each.id, each.name, local_time(each.until), ", ".join(each.capabilities))
            for each in shown
        ],
    )
    if not every:
        printer.remark("No workers.")
