"""`holdfast sessions events`: the news of a session, once or as it happens."""

from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated

import typer

from holdfast.cli.commands import command
from holdfast.cli.opening import find_session, opened
from holdfast.cli.options import OneSession, message_cursor
from holdfast.cli.output import Printer


@dataclass(frozen=True, kw_only=True)
class EventsOptions(OneSession):
    """Which events."""

    after: Annotated[int, typer.Option(metavar="N", help="Only events behind this one.")] = 0
    limit: Annotated[int, typer.Option(metavar="N", help="At most so many, 1 to 10,000.")] = 1_000
    cursor: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Go on behind an earlier page.")
    ] = None
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")
    ] = False


async def show_events(printer: Printer, wanted: EventsOptions) -> None:
    """Print the events of a session.

    With --json they have the words of `chat --json`: one document, or with --follow one line for
    each event.
    """
    from holdfast.cli.stream import EventLines

    after = message_cursor(wanted.cursor, wanted.after)
    async with opened(printer) as holdfast:
        owner = holdfast.owner
        session = await holdfast.sessions.get(owner, await find_session(holdfast, wanted.id))
        if not wanted.follow:
            page = await holdfast.events.list(owner, session.id, after=after, limit=wanted.limit)
            # What was not asked for is heard all the same: some lines repeat what it said.
            lines = await EventLines.behind(holdfast, session, after)
            forms = [await lines.line(item) for item in page.items]
            rows = [_row(form) for form in forms]
            printer.listing(forms, page.next_cursor, ("NUMBER", "TIME", "TYPE", "DATA"), rows)
            if not rows:
                printer.remark(f"There is no event behind {after}; --follow waits for the next.")
            return
        lines = await EventLines.behind(holdfast, session, after)
        async with aclosing(holdfast.follow(session.id, after=after)) as news:
            async for item in news:
                form = await lines.line(item)
                if printer.is_json:
                    printer.document(form)
                else:
                    printer.line("\t".join(_row(form)))
                    printer.flush()


def _row(form: dict[str, object]) -> tuple[str, ...]:
    import msgspec

    envelope = ("type", "timestamp", "sequenceNumber", "sessionId")
    data = {name: value for name, value in form.items() if name not in envelope}
    said = msgspec.json.encode(data).decode() if data else ""
    return (str(form["sequenceNumber"]), str(form["timestamp"]), str(form["type"]), said)


def register(group: typer.Typer) -> None:
    """Put the command into the group."""
    command(group, "events", EventsOptions)(show_events)
