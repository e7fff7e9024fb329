"""`holdfast timeline`: events by day, as a drawing or as JSON."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Final

import typer

from holdfast.api import Holdfast
from holdfast.cli.command import command
from holdfast.cli.commands.history import LIMIT, End, Start, parse_choice, require_dates
from holdfast.cli.connect import connect
from holdfast.cli.options import Cursor, argument, option
from holdfast.cli.output import Printer
from holdfast.cli.session_refs import session_titles
from holdfast.cli.terminal import is_terminal
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.text import one_line
from holdfast.observations.as_of import parse_window
from holdfast.observations.queries import HistoryQuery, TimelinePage, TimelineQuery
from holdfast.observations.timeline import EventType, TimelineEvent, events_of
from holdfast.wire.observations import timeline_list

app = typer.Typer()


PAGE: Final = 100
NARROWEST: Final = 20
_UNTITLED: Final[Mapping[str, str]] = {}
# For each event type: its symbol, an ASCII symbol, and its colour.
SYMBOLS: Final = {
    "SessionStarted": ("●", "*", "32"),
    "CheckpointReached": ("◆", "+", "36"),
    "SessionEnded": ("■", "#", "2"),
    "DecisionMade": ("◇", "o", "35"),
    "ValidationRecorded": ("▲", "^", "33"),
    "StatusChanged": ("▶", ">", "34"),
}


@command(app, "timeline")
async def timeline(
    printer: Printer,
    *,
    start: Start = None,
    end: End = None,
    entity_id: Annotated[
        str | None,
        argument(
            "ENTITY_ID",
            "The id of an entity, its alias, or the id that outcomes refer to. Default: "
            "all sessions.",
        ),
    ] = None,
    types: Annotated[
        list[str] | None,
        option("TYPE", f"Only these events; repeatable: {', '.join(SYMBOLS)}.", "--type"),
    ] = None,
    limit: Annotated[
        int, option("N", "At most this many events, 1 to 500; without an id, this many sessions.")
    ] = LIMIT,
    cursor: Cursor = None,
) -> None:
    """Show a timeline by day.

    Times are printed in the local time zone. A date or time without an offset is in UTC.
    """
    kinds = tuple(parse_choice(each, EventType, "--type") for each in types or ())
    require_dates(start, end)
    if entity_id is None and cursor is not None:
        text = "--cursor requires an id; for all sessions use --to DATE."
        raise Invalid(Code.INVALID_INPUT, text, {"field": "--cursor"})
    query = TimelineQuery(start_date=start, end_date=end, event_types=kinds, limit=limit)
    async with connect(printer) as holdfast:
        if entity_id is None:
            page, is_cut = await _sessions_timeline(holdfast, query)
        else:
            page, is_cut = (
                await holdfast.observations.timeline(
                    holdfast.owner, entity_id, query, cursor=cursor
                ),
                False,
            )
        known = () if printer.is_json else (event.session_id for event in page.events)
        titles = await session_titles(holdfast, known)
    if printer.is_json:
        printer.document(timeline_list(page))
        return
    draw(printer, page.events, titles)
    if not page.events:
        printer.remark("No events.")
    if page.next_cursor is not None:
        printer.remark(f"More results: --cursor {page.next_cursor}")
    if is_cut:
        printer.remark(
            "There are older sessions: use --limit N for more, or --to DATE for earlier ones."
        )


async def _sessions_timeline(holdfast: Holdfast, query: TimelineQuery) -> tuple[TimelinePage, bool]:
    """Return the events of the newest sessions that have any, and whether there are older ones."""
    window = parse_window(query.start_date, query.end_date)
    found: list[TimelineEvent] = []
    sessions, cursor, is_cut = 0, None, False
    while not is_cut:
        page = await holdfast.observations.query(
            holdfast.owner, HistoryQuery(limit=PAGE), cursor=cursor
        )
        for entity in page.items:
            events = events_of(entity, window=window, types=query.event_types)
            if is_cut := bool(events) and sessions == query.limit:
                break
            found += events
            sessions += bool(events)
        if (cursor := page.next_cursor) is None:
            break
    found.sort(key=lambda event: event.place)
    return TimelinePage(events=tuple(found), total=len(found)), is_cut


def draw(
    printer: Printer, events: Iterable[TimelineEvent], titles: Mapping[str, str] = _UNTITLED
) -> None:
    """Print a line for each day and each event, cut to the terminal's width."""
    shown = list(events)
    width = max(printer.console(sys.stdout).width, NARROWEST) if is_terminal(sys.stdout) else None
    is_plain = (sys.stdout.encoding or "utf8").lower().replace("-", "") not in {"utf8", "utf16"}
    for text, style in lines(shown, titles, is_plain=is_plain):
        printer.line(text if width is None else _fit_width(text, width), style=style)


def lines(
    events: Sequence[TimelineEvent], titles: Mapping[str, str] = _UNTITLED, *, is_plain: bool
) -> Iterator[tuple[str, str]]:
    """Yield each line with its colour; with several sessions each line names its session.

    A title follows the id that it belongs to.
    """
    many = len({event.session_id for event in events}) > 1
    day = None
    for event in events:
        today, time = _when(event.timestamp)
        if today != day:
            yield today, "1"
            day = today
        symbol, plain, style = SYMBOLS[event.event_type]
        whose = event.session_id
        is_named = whose is None or whose in event.description
        more = f" · {whose}" if many and not is_named else ""
        title = titles.get(whose) if whose is not None and (is_named or more) else None
        named = f" · {title}" if title is not None else ""
        text = one_line(f"{event.description}{more}{named}")
        yield f"  {time}  {plain if is_plain else symbol} {text}", style


def _when(timestamp: str) -> tuple[str, str]:
    at = datetime.fromisoformat(timestamp)
    # Near the limits of the calendar, the local time cannot be represented.
    with suppress(OverflowError, ValueError):
        at = at.astimezone()
    return at.date().isoformat(), at.time().isoformat("minutes")


def _fit_width(text: str, width: int) -> str:
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= width else f"{set_cell_size(text, width - 1)}…"
