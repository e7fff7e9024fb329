"""`holdfast costs`: what sessions have cost, read from the store's ledger."""

from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True)
class CostsOptions:
    """What is added up by what."""

    by: Annotated[
        CostGroup, option("GROUP", f"Group by: {', '.join(CostGroup)}.", "--group-by")
    ] = CostGroup.MODEL
    session: Annotated[str | None, option("ID", f"Only this session. {SESSION_HELP}")] = None
    agent: Annotated[str | None, option("AGENT", "Only this agent: its slug or id.")] = None
    since: Annotated[
        str | None,
        option("TIME", "Only from this date or time on, such as 2026-01-31T12:00Z.", "--from"),
    ] = None
    until: Annotated[str | None, option("TIME", "Only before this date or time.", "--to")] = None


async def show_costs(printer: Printer, options: CostsOptions) -> None:
    """Show costs by model, agent, session or day (UTC).

    A date or time without an offset is in the local time zone.
    """
    from holdfast.wire.costs import costs_form

    since, until = (
        parse_time_option(options.since, "--from"),
        parse_time_option(options.until, "--to"),
    )
    async with connect(printer) as holdfast:
        agent = await holdfast.agents.get(holdfast.owner, options.agent) if options.agent else None
        query = CostQuery(
            owner=holdfast.owner,
            group_by=options.by,
            session_id=await find_session(holdfast, options.session) if options.session else None,
            agent_id=agent.id if agent else None,
            since=since,
            until=until,
        )
        report = await holdfast.costs.report(query)
    if printer.is_json:
        printer.document(costs_form(report))
        return
    rows = [_row(_group_label(each, options.by), each) for each in report.groups]
    total = [_row("total", report.total)] if len(rows) > 1 else []
    columns = (options.by.value.upper(), "REQUESTS", "INPUT", "OUTPUT", "COST")
    printer.table(columns, [*rows, *total])
    if not rows:
        printer.remark("No costs.")
        return
    if report.total.unpriced_requests > report.total.estimated_requests:
        printer.remark("+ ?: some requests have no known price and may have cost more.")
    if report.total.estimated_requests:
        printer.remark(
            "at most: some requests ended without a usage report and are counted in full."
        )


def _group_label(spent: CostSum, by: CostGroup) -> str:
    # Not the title, because several sessions may have the same.
    return spent.key if by is CostGroup.SESSION else spent.name or spent.key


def _row(key: str, spent: CostSum) -> tuple[str, ...]:
    usage = spent.usage
    is_exact = not spent.estimated_requests
    cost = money(spent.microcents, priced=is_exact, estimated=not is_exact)
    # Requests without a known price make the sum a lower bound.
    is_unknown = spent.unpriced_requests > spent.estimated_requests
    shown = f"{cost} + ?" if is_unknown else cost
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


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    command(app, "costs", CostsOptions)(show_costs)
