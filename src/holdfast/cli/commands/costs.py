"""`holdfast costs`: what sessions have cost, read from the store's ledger."""

from datetime import datetime
from typing import Annotated

import typer

from holdfast.cli.command import command
from holdfast.cli.connect import connect
from holdfast.cli.options import SESSION_HELP, option
from holdfast.cli.output import Printer, money
from holdfast.cli.session_refs import find_session
from holdfast.domain.costs import CostGroup, CostQuery, CostSum
from holdfast.domain.errors import Code, Invalid
from holdfast.wire.costs import costs_form

app = typer.Typer()


@command(app, "costs")
async def show_costs(
    printer: Printer,
    *,
    by: Annotated[
        CostGroup, option("GROUP", f"Group by: {', '.join(CostGroup)}.", "--group-by")
    ] = CostGroup.MODEL,
    session: Annotated[str | None, option("ID", f"Only this session. {SESSION_HELP}")] = None,
    agent: Annotated[str | None, option("AGENT", "Only this agent: its slug or id.")] = None,
    since: Annotated[
        str | None,
        option("TIME", "Only from this date or time on, such as 2026-01-31T12:00Z.", "--from"),
    ] = None,
    until: Annotated[str | None, option("TIME", "Only before this date or time.", "--to")] = None,
) -> None:
    """Show costs by model, agent, session or day (UTC).

    A date or time without an offset is in the local time zone.
    """
    first, last = parse_time_option(since, "--from"), parse_time_option(until, "--to")
    async with connect(printer) as holdfast:
        found = await holdfast.agents.get(holdfast.owner, agent) if agent else None
        query = CostQuery(
            owner=holdfast.owner,
            group_by=by,
            session_id=await find_session(holdfast, session) if session else None,
            agent_id=found.id if found else None,
            since=first,
            until=last,
        )
        report = await holdfast.costs.report(query)
    if printer.is_json:
        printer.document(costs_form(report))
        return
    # A session by its id, because several may have the same title.
    is_named = by is not CostGroup.SESSION
    rows = [_row((is_named and each.name) or each.key, each) for each in report.groups]
    total = [_row("total", report.total)] if len(rows) > 1 else []
    columns = (by.value.upper(), "REQUESTS", "INPUT", "OUTPUT", "COST")
    printer.table(columns, [*rows, *total])
    if not rows:
        printer.remark("No costs.")
        return
    if report.total.unpriced_requests > report.total.estimated_requests:
        printer.remark("unknown: some requests have no known price and may have cost more.")
    if report.total.estimated_requests:
        printer.remark(
            "at most: some requests ended without a usage report and are counted in full."
        )


def _row(key: str, spent: CostSum) -> tuple[str, ...]:
    usage = spent.usage
    is_exact = not spent.estimated_requests
    cost = money(spent.microcents, priced=is_exact, estimated=not is_exact)
    # Requests without a known price make the sum a lower bound.
    is_unknown = spent.unpriced_requests > spent.estimated_requests
    shown = f"{cost} + unknown" if is_unknown else cost
    put_in = usage.input + usage.cache_write + usage.cache_read
    return (key, str(spent.requests), str(put_in), str(usage.output), shown)


def parse_time_option(text: str | None, name: str) -> datetime | None:
    """Return the time of an option; without an offset it is local time."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        message = f"{name} must be a date or a time, such as 2026-01-31 or 2026-01-31T12:00Z."
        raise Invalid(Code.INVALID_INPUT, message, {"field": name}) from None
