"""`holdfast history …`: submit, correct and query observed history."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from holdfast.api import Holdfast
from holdfast.cli.command import add_group, command
from holdfast.cli.connect import connect
from holdfast.cli.options import Cursor, argument, option
from holdfast.cli.output import Printer
from holdfast.cli.session_refs import session_titles
from holdfast.cli.workspace import absolute_path
from holdfast.domain.canonical_json import canonical_text
from holdfast.domain.errors import Code, Invalid, NotFound
from holdfast.observations.as_of import parse_window
from holdfast.observations.claims import require_sibling
from holdfast.observations.model import EntityType
from holdfast.observations.queries import (
    Correction,
    Direction,
    EntityOrder,
    EntityQuery,
    History,
    HistoryQuery,
    SubmitResult,
)
from holdfast.observations.validation import decode_payload_strictly
from holdfast.wire.observations import entity_list, history_form, observation_list, removal_form

app = typer.Typer()
group = add_group(app, "history")


SOURCE: Final = "holdfast"
LIMIT: Final = 50
LARGEST: Final = 8 << 20
SESSION_HELP: Final = "The submitted session id, or the id of a session in this store."
ORDERS: Final = "started_at, ended_at, duration, last_observation_at or session_id"
Word = TypeVar("Word", bound=StrEnum)
_STDIN: Final = Path("-")


HistoryArgument = Annotated[str, argument("SESSION_ID", SESSION_HELP)]
IdempotencyKey = Annotated[
    str | None,
    option(
        "KEY",
        "An idempotency key: a submission with the same key is stored once.",
        "--idempotency-key",
    ),
]
PageLimit = Annotated[int, option("N", "At most this many, 1 to 500.")]
Start = Annotated[str | None, option("TIME", "Only from this date or time on.", "--from")]
End = Annotated[
    str | None, option("TIME", "Only up to this time, or to the end of this date.", "--to")
]
At = Annotated[
    str | None, option("TIME", "The state that was valid at this time; a date means its end.")
]
OrderBy = Annotated[str, option("FIELD", f"Sort by {ORDERS}.")]
Order = Annotated[str, option("DIRECTION", "asc or desc.")]
Reason = Annotated[str | None, option("WORDS", "The reason, for human readers.")]
Document = Annotated[
    Path, argument("FILE", "A JSON file; - or no argument reads stdin.", allow_dash=True)
]


def require_dates(start: str | None, end: str | None) -> None:
    """Refuse invalid dates or times, using the names of the options."""
    parse_window(start, end, names=("--from", "--to"))


async def read_document(file: Path) -> Any:
    """Return the parsed JSON of a file or of stdin; duplicate keys are preserved for validation."""
    raw = await asyncio.to_thread(_read, file)
    if len(raw) > LARGEST:
        raise Invalid(Code.TOO_LARGE, f"A document may have at most {LARGEST >> 20} MiB.")
    return decode_payload_strictly(raw)


def _read(file: Path) -> bytes:
    if file == _STDIN:
        # Python sets sys.stdin to None if it was closed at the start.
        return sys.stdin.buffer.read(LARGEST + 1) if sys.stdin is not None else b""
    try:
        with absolute_path(file).open("rb") as opened:
            return opened.read(LARGEST + 1)
    except OSError as error:
        message = f"{file} cannot be read: {error.strerror}."
        raise NotFound(Code.PATH_NOT_FOUND, message) from None


@contextmanager
def _print_issues(printer: Printer) -> Iterator[None]:
    """Print the further issues of an error for a person; the first is in its message."""
    try:
        yield
    except Invalid as error:
        for issue in () if printer.is_json else error.details.get("issues", ())[1:]:
            printer.warn(f"also: {issue['message']}")
        raise


def parse_choice(value: str, kind: type[Word], name: str) -> Word:
    """Return a member of an enumeration, or refuse an unknown word."""
    try:
        return kind(value)
    except ValueError:
        message = f"{name} must be one of {', '.join(kind)}."
        raise Invalid(Code.INVALID_INPUT, message, {"field": name}) from None


@command(group, "submit")
async def submit(printer: Printer, *, key: IdempotencyKey = None, file: Document = _STDIN) -> None:
    """Submit an observation of a session.

    Observations with the same session_id are merged, and a repeated observation is stored once.
    """
    payload = await read_document(file)
    key = _take_key(payload, key)
    with _print_issues(printer):
        async with connect(printer) as holdfast:
            done = await holdfast.observations.submit(
                holdfast.owner, payload, idempotency_key=key, source=SOURCE
            )
    _print_result(printer, done)


@command(group, "query")
async def query(
    printer: Printer,
    *,
    limit: PageLimit = LIMIT,
    cursor: Cursor = None,
    order_by: OrderBy = "started_at",
    order: Order = "desc",
    session_id: Annotated[
        str | None, argument("SESSION_ID", f"{SESSION_HELP} Without it, all sessions are listed.")
    ] = None,
    offset: Annotated[int, option("N", "Skip this many; for more pages use --cursor.")] = 0,
    at: At = None,
    at_ingested: Annotated[
        str | None, option("TIME", "The state that was recorded by this time.")
    ] = None,
) -> None:
    """Show the history of a session, or list all sessions."""
    async with connect(printer) as holdfast:
        if session_id is None:
            wanted = HistoryQuery(
                limit=limit,
                offset=offset,
                order_by=parse_choice(order_by, EntityOrder, "--order-by"),
                order=parse_choice(order, Direction, "--order"),
                at=at,
                at_ingested=at_ingested,
            )
            await _list(printer, holdfast, wanted, cursor)
            return
        history = await holdfast.observations.show(
            holdfast.owner, session_id, at=at, at_ingested=at_ingested
        )
        titles = await session_titles(holdfast, (session_id,))
    _show(printer, session_id, history, titles.get(session_id))


async def _list(
    printer: Printer, holdfast: Holdfast, query: HistoryQuery, cursor: str | None
) -> None:
    page = await holdfast.observations.query(holdfast.owner, query, cursor=cursor)
    if printer.is_json:
        printer.document(entity_list(page))
        return
    titles = await session_titles(holdfast, (each.snapshot["session_id"] for each in page.items))
    rows = [
        (
            str(each.snapshot["session_id"]),
            str(each.snapshot["started_at"]),
            str(each.snapshot.get("ended_at", "-")),
            str(len(each.snapshot["actions"])),
            str(len(each.snapshot["checkpoints"])),
            titles.get(each.snapshot["session_id"], "-"),
        )
        for each in page.items
    ]
    columns = ("SESSION", "STARTED", "ENDED", "ACTIONS", "CHECKPOINTS", "TITLE")
    printer.listing((), page.next_cursor, columns, rows)
    if not rows:
        printer.remark("No history; submit some with `holdfast history submit FILE`.")


def _show(printer: Printer, session_id: str, history: History, title: str | None) -> None:
    entity, snapshot = history.entity, history.entity.snapshot
    if printer.is_json:
        printer.document(history_form(history))
        return
    if not snapshot:
        printer.line("Nothing was recorded at that time.")
        return
    duration = snapshot.get("duration")
    printer.record(
        None,
        {
            "session": session_id,
            "title": title,
            "entity": entity.entity_id,
            "started": snapshot["started_at"],
            "ended": snapshot.get("ended_at"),
            "duration": None if duration is None else f"{duration} s",
            "observations": entity.observation_count,
            "hosted": "yes" if entity.hosted else None,
        },
    )
    for kind, columns, names in (
        ("actions", ("ACTION", "RESULT", "WHEN"), ("type", "result", "timestamp")),
        ("checkpoints", ("CHECKPOINT", "REACHED"), ("name", "timestamp")),
        ("outcomes", ("OUTCOME", "ID"), ("type", "id")),
    ):
        rows = [[str(each.get(name, "-")) for name in names] for each in snapshot[kind]]
        printer.table(columns, rows)
    for warning in entity.warnings:
        printer.warn(f"warning: {warning.message}")


@command(group, "observations")
async def observations(
    printer: Printer,
    *,
    limit: PageLimit = LIMIT,
    cursor: Cursor = None,
    start: Start = None,
    end: End = None,
    session_id: HistoryArgument,
) -> None:
    """List all observations of a session as submitted, newest first."""
    require_dates(start, end)
    async with connect(printer) as holdfast:
        page = await holdfast.observations.list_observations(
            holdfast.owner,
            session_id,
            start_date=start,
            end_date=end,
            limit=limit,
            cursor=cursor,
        )
    form = observation_list(page)
    if printer.is_json:
        printer.document(form)
        return
    rows = [
        (each.id, str(each.ordinal), each.kind.value, each.observed_at, each.source)
        for each in form.data
    ]
    printer.listing(
        (), page.next_cursor, ("OBSERVATION", "NUMBER", "KIND", "OBSERVED", "SOURCE"), rows
    )


@command(group, "checkpoint")
async def checkpoint(
    printer: Printer,
    *,
    session_id: HistoryArgument,
    name: Annotated[str, argument("NAME", "The checkpoint's name.")],
    timestamp: Annotated[
        str | None, option("TIME", "The time of the checkpoint; default: the latest.")
    ] = None,
    at: At = None,
) -> None:
    """Print the resume information of a checkpoint."""
    async with connect(printer) as holdfast:
        found = await holdfast.observations.checkpoint(
            holdfast.owner, session_id, name, timestamp=timestamp, at=at
        )
    printer.done(
        found,
        canonical_text(found.state)
        if found.has_state
        else "The checkpoint has no resume information.",
    )


@command(group, "correct")
async def correct(
    printer: Printer,
    *,
    key: IdempotencyKey = None,
    session_id: HistoryArgument,
    field: Annotated[
        str, argument("FIELD", "actions, checkpoints, outcomes, duration, started_at or ended_at.")
    ],
    value: Annotated[
        str, argument("VALUE", "A JSON value, or plain text; null clears duration and ended_at.")
    ],
    reason: Reason = None,
) -> None:
    """Correct one field of a session's history.

    A correction takes precedence over all observations, earlier and later ones. No observation is
    changed.
    """
    correction = Correction(session_id=session_id, field=field, value=_value(value), reason=reason)
    async with connect(printer) as holdfast:
        done = await holdfast.observations.correct(
            holdfast.owner, correction, idempotency_key=key, source=SOURCE
        )
    _print_result(printer, done)


@command(group, "delete")
async def delete(
    printer: Printer,
    *,
    key: IdempotencyKey = None,
    session_id: HistoryArgument,
    reason: Reason = None,
) -> None:
    """Hide the history of a session.

    It is in no list and on no timeline until it is restored; a session of this store is not
    affected.
    """
    async with connect(printer) as holdfast:
        done = await holdfast.observations.delete(
            holdfast.owner, session_id, reason=reason, idempotency_key=key, source=SOURCE
        )
    printer.done(removal_form(done), "Hidden; `holdfast history restore` shows it again.")


@command(group, "restore")
async def restore(
    printer: Printer,
    *,
    key: IdempotencyKey = None,
    session_id: HistoryArgument,
    reason: Reason = None,
) -> None:
    """Restore the hidden history of a session."""
    async with connect(printer) as holdfast:
        done = await holdfast.observations.restore(
            holdfast.owner, session_id, reason=reason, idempotency_key=key, source=SOURCE
        )
    printer.done(removal_form(done), "Restored.")


def _print_result(printer: Printer, done: SubmitResult) -> None:
    if printer.is_json:
        printer.document(done)
        return
    known = "already known" if done.deduplicated else f"observation {done.observation_count}"
    printer.line(f"{done.entity_id}: {known}, {done.observation_id}")
    for warning in done.warnings:
        printer.warn(f"warning: {warning.message}")


def _take_key(payload: Any, key: str | None) -> Any:
    """Remove the key from a document, as every API does; the option takes precedence."""
    found = payload.pop("idempotency_key", None) if isinstance(payload, dict) else None
    return found if key is None else key


def _value(text: str) -> Any:
    try:
        return decode_payload_strictly(text.encode())
    except Invalid:
        # For example a date: the validation decides whether text is allowed.
        return text


@command(group, "entities")
async def entities(
    printer: Printer,
    *,
    limit: PageLimit = LIMIT,
    cursor: Cursor = None,
    start: Start = None,
    end: End = None,
    entity_type: Annotated[
        str,
        argument(
            "TYPE", "agent_session, feature_unit, release, agent_decision or validation_result."
        ),
    ],
    filters: Annotated[
        str | None,
        option(
            "JSON",
            "A JSON object of field paths, each with a value, with contains, or with gte and lte.",
        ),
    ] = None,
    session: Annotated[
        str | None,
        option("SESSION_ID", "Only what this session refers to, or what refers to it."),
    ] = None,
    order_by: OrderBy = "last_observation_at",
    order: Order = "desc",
) -> None:
    """List entities of a type, filtered by their fields."""
    require_dates(start, end)
    history_query = EntityQuery(
        entity_type=parse_choice(entity_type, EntityType, "TYPE"),
        filters=_filters(filters),
        session_id=session,
        start_date=start,
        end_date=end,
        order_by=parse_choice(order_by, EntityOrder, "--order-by"),
        order=parse_choice(order, Direction, "--order"),
        limit=limit,
    )
    async with connect(printer) as holdfast:
        page = await holdfast.observations.entities(holdfast.owner, history_query, cursor=cursor)
    if printer.is_json:
        printer.document(entity_list(page))
        return
    rows = [
        (each.entity_id, str(each.snapshot.get("status", "-")), _title(each.snapshot))
        for each in page.items
    ]
    printer.listing((), page.next_cursor, ("ENTITY", "STATUS", "WHAT"), rows)
    if not rows:
        printer.remark(f"No {entity_type}; submit some with `holdfast history submit-entity`.")


def _filters(text: str | None) -> Any:
    try:
        return None if text is None else decode_payload_strictly(text.encode())
    except Invalid:
        message = "--filters must be a JSON object."
        raise Invalid(Code.INVALID_INPUT, message, {"field": "--filters"}) from None


def _title(snapshot: dict[str, Any]) -> str:
    named = ("session_id", "id", "decision", "validation_type")
    found = [str(snapshot[name]) for name in named if name in snapshot]
    more = [str(snapshot[name]) for name in ("description", "target") if name in snapshot]
    return " ".join([*found[:1], *more])


@command(group, "submit-entity")
async def submit_entity(
    printer: Printer,
    *,
    key: IdempotencyKey = None,
    entity_type: Annotated[
        str, argument("TYPE", "feature_unit, release, agent_decision or validation_result.")
    ],
    file: Document = _STDIN,
) -> None:
    """Submit an observation of an entity that is not a session."""
    # Before stdin is read: an invalid command must not wait for input.
    require_sibling(entity_type)
    fields = await read_document(file)
    with _print_issues(printer):
        async with connect(printer) as holdfast:
            done = await holdfast.observations.submit_entity(
                holdfast.owner, entity_type, fields, idempotency_key=key, source=SOURCE
            )
    _print_result(printer, done)
