"""`holdfast history …`: submit, correct and query observed history."""

import asyncio
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from holdfast.cli.command import add_group, command
from holdfast.cli.connect import connect
from holdfast.cli.options import argument, option
from holdfast.cli.output import Printer
from holdfast.cli.session_refs import session_titles
from holdfast.cli.workspace import absolute_path
from holdfast.domain.errors import Code, Invalid, NotFound

if TYPE_CHECKING:
    from holdfast.api import Holdfast
    from holdfast.observations.queries import History, SubmitResult


SOURCE: Final = "holdfast"
LIMIT: Final = 50
LARGEST: Final = 8 << 20
SESSION_HELP: Final = "The submitted session id, or the id of a session in this store."
AT_HELP: Final = "The state that was valid at this time; a date means its end."
INGESTED_HELP: Final = "The state that was recorded by this time."
Word = TypeVar("Word", bound=StrEnum)
_STDIN: Final = Path("-")


@dataclass(frozen=True, kw_only=True)
class HistoryRef:
    """A session by the id that it was submitted with."""

    session_id: Annotated[str, argument("SESSION_ID", SESSION_HELP)]


@dataclass(frozen=True, kw_only=True)
class IdempotentOptions:
    """A claim that may be made again."""

    key: Annotated[
        str | None,
        option(
            "KEY",
            "An idempotency key: a submission with the same key is stored once.",
            "--idempotency-key",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """A part of a listing."""

    limit: Annotated[int, option("N", "At most this many, 1 to 500.")] = LIMIT
    cursor: Annotated[str | None, option("CURSOR", "Continue after this page.")] = None


@dataclass(frozen=True, kw_only=True)
class DateOptions:
    """A range of time."""

    start: Annotated[str | None, option("TIME", "Only from this date or time on.", "--from")] = None
    end: Annotated[
        str | None, option("TIME", "Only up to this time, or to the end of this date.", "--to")
    ] = None

    def require_dates(self) -> None:
        """Refuse invalid dates or times, using the names of the options."""
        from holdfast.observations.as_of import parse_window

        parse_window(self.start, self.end, names=("--from", "--to"))


async def read_document(file: Path) -> Any:
    """Return the parsed JSON of a file or of stdin; duplicate keys are preserved for validation."""
    from holdfast.observations.validation import decode_payload_strictly

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


def print_issues(printer: Printer, error: Invalid) -> None:
    """Print the further issues of an error for a person; the first is in its message."""
    for issue in error.details.get("issues", ())[1:]:
        if not printer.is_json:
            printer.warn(f"also: {issue['message']}")


def parse_choice(value: str, kind: type[Word], name: str) -> Word:
    """Return a member of an enumeration, or refuse an unknown word."""
    try:
        return kind(value)
    except ValueError:
        message = f"{name} must be one of {', '.join(kind)}."
        raise Invalid(Code.INVALID_INPUT, message, {"field": name}) from None


FILE_HELP = "A JSON file; - or no argument reads stdin."
REASON_HELP = "The reason, for human readers."


@dataclass(frozen=True, kw_only=True)
class SubmitOptions(IdempotentOptions):
    """A document with what happened in a session."""

    file: Annotated[Path, argument("FILE", FILE_HELP, allow_dash=True)] = Path("-")


async def submit(printer: Printer, options: SubmitOptions) -> None:
    """Submit an observation of a session.

    Observations with the same session_id are merged, and a repeated observation is stored once.
    """
    payload = await read_document(options.file)
    key = _take_key(payload, options.key)
    try:
        async with connect(printer) as holdfast:
            done = await holdfast.observations.submit(
                holdfast.owner, payload, idempotency_key=key, source=SOURCE
            )
    except Invalid as error:
        print_issues(printer, error)
        raise
    _print_result(printer, done)


@dataclass(frozen=True, kw_only=True)
class EntityOptions(IdempotentOptions):
    """A document with what is known of an entity."""

    entity_type: Annotated[
        str, argument("TYPE", "feature_unit, release, agent_decision or validation_result.")
    ]
    file: Annotated[Path, argument("FILE", FILE_HELP, allow_dash=True)] = Path("-")


async def submit_entity(printer: Printer, options: EntityOptions) -> None:
    """Submit an observation of an entity that is not a session."""
    from holdfast.observations.claims import require_sibling

    # Before stdin is read: an invalid command must not wait for input.
    require_sibling(options.entity_type)
    fields = await read_document(options.file)
    try:
        async with connect(printer) as holdfast:
            done = await holdfast.observations.submit_entity(
                holdfast.owner,
                options.entity_type,
                fields,
                idempotency_key=options.key,
                source=SOURCE,
            )
    except Invalid as error:
        print_issues(printer, error)
        raise
    _print_result(printer, done)


@dataclass(frozen=True, kw_only=True)
class CorrectOptions(HistoryRef, IdempotentOptions):
    """One field, and what it should have been."""

    field: Annotated[
        str, argument("FIELD", "actions, checkpoints, outcomes, duration, started_at or ended_at.")
    ]
    value: Annotated[
        str, argument("VALUE", "A JSON value, or plain text; null clears duration and ended_at.")
    ]
    reason: Annotated[str | None, option("WORDS", REASON_HELP)] = None


async def correct(printer: Printer, options: CorrectOptions) -> None:
    """Correct one field of a session's history.

    A correction takes precedence over all observations, earlier and later ones. No observation is
    changed.
    """
    from holdfast.observations.queries import Correction

    correction = Correction(
        session_id=options.session_id,
        field=options.field,
        value=_value(options.value),
        reason=options.reason,
    )
    async with connect(printer) as holdfast:
        done = await holdfast.observations.correct(
            holdfast.owner, correction, idempotency_key=options.key, source=SOURCE
        )
    _print_result(printer, done)


@dataclass(frozen=True, kw_only=True)
class RemovalOptions(HistoryRef, IdempotentOptions):
    """Whose history, and why."""

    reason: Annotated[str | None, option("WORDS", REASON_HELP)] = None


async def delete(printer: Printer, options: RemovalOptions) -> None:
    """Hide the history of a session.

    It is in no list and on no timeline until it is restored; a session of this store is not
    affected.
    """
    from holdfast.wire.observations import removal_form

    async with connect(printer) as holdfast:
        done = await holdfast.observations.delete(
            holdfast.owner,
            options.session_id,
            reason=options.reason,
            idempotency_key=options.key,
            source=SOURCE,
        )
    printer.done(removal_form(done), "Hidden; `holdfast history restore` shows it again.")


async def restore(printer: Printer, options: RemovalOptions) -> None:
    """Restore the hidden history of a session."""
    from holdfast.wire.observations import removal_form

    async with connect(printer) as holdfast:
        done = await holdfast.observations.restore(
            holdfast.owner,
            options.session_id,
            reason=options.reason,
            idempotency_key=options.key,
            source=SOURCE,
        )
    printer.done(removal_form(done), "Restored.")


def _print_result(printer: Printer, done: "SubmitResult") -> None:
    if printer.is_json:
        printer.document(done)
        return
    known = "already known" if done.deduplicated else f"observation {done.observation_count}"
    printer.line(f"{done.entity_id}: {known}, {done.observation_id}")
    for warning in done.warnings:
        printer.warn(f"warning: {warning.message}")


def _take_key(payload: Any, given: str | None) -> Any:
    """Remove the key from a document, as every API does; the option takes precedence."""
    found = payload.pop("idempotency_key", None) if isinstance(payload, dict) else None
    return found if given is None else given


def _value(text: str) -> Any:
    from holdfast.observations.validation import decode_payload_strictly

    try:
        return decode_payload_strictly(text.encode())
    except Invalid:
        # For example a date: the validation decides whether text is allowed.
        return text


ORDERS = "started_at, ended_at, duration, last_observation_at or session_id"


@dataclass(frozen=True, kw_only=True)
class OrderedPageOptions(PageOptions):
    """A part of a listing, in an order."""

    order_by: Annotated[str, option("FIELD", f"Sort by {ORDERS}.")] = "started_at"
    order: Annotated[str, option("DIRECTION", "asc or desc.")] = "desc"


@dataclass(frozen=True, kw_only=True)
class QueryOptions(OrderedPageOptions):
    """Which sessions, in which order, and as of when."""

    session_id: Annotated[
        str | None, argument("SESSION_ID", f"{SESSION_HELP} Without it, all sessions are listed.")
    ] = None
    offset: Annotated[int, option("N", "Skip this many; for more pages use --cursor.")] = 0
    at: Annotated[str | None, option("TIME", AT_HELP)] = None
    at_ingested: Annotated[str | None, option("TIME", INGESTED_HELP)] = None


async def query(printer: Printer, options: QueryOptions) -> None:
    """Show the history of a session, or list all sessions."""
    async with connect(printer) as holdfast:
        if options.session_id is None:
            await _list(printer, holdfast, options)
            return
        history = await holdfast.observations.show(
            holdfast.owner, options.session_id, at=options.at, at_ingested=options.at_ingested
        )
        titles = await session_titles(holdfast, (options.session_id,))
    _show(printer, options.session_id, history, titles.get(options.session_id))


async def _list(printer: Printer, holdfast: "Holdfast", options: QueryOptions) -> None:
    from holdfast.observations.queries import Direction, EntityOrder, HistoryQuery
    from holdfast.wire.observations import entity_list

    history_query = HistoryQuery(
        limit=options.limit,
        offset=options.offset,
        order_by=parse_choice(options.order_by, EntityOrder, "--order-by"),
        order=parse_choice(options.order, Direction, "--order"),
        at=options.at,
        at_ingested=options.at_ingested,
    )
    page = await holdfast.observations.query(holdfast.owner, history_query, cursor=options.cursor)
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


def _show(printer: Printer, session_id: str, history: "History", title: str | None) -> None:
    from holdfast.wire.observations import history_form

    entity, snapshot = history.entity, history.entity.snapshot
    if printer.is_json:
        printer.document(history_form(history))
        return
    if not snapshot:
        printer.line("Nothing was recorded at that time.")
        return
    printer.record(
        None,
        {
            "session": session_id,
            "title": title,
            "entity": entity.entity_id,
            "started": snapshot["started_at"],
            "ended": snapshot.get("ended_at"),
            "duration": _seconds(snapshot.get("duration")),
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


def _seconds(duration: Any) -> str | None:
    return None if duration is None else f"{duration} s"


@dataclass(frozen=True, kw_only=True)
class ClaimsOptions(HistoryRef, DateOptions, PageOptions):
    """Which claims."""


async def observations(printer: Printer, options: ClaimsOptions) -> None:
    """List all observations of a session as submitted, newest first."""
    from holdfast.wire.observations import observation_list

    options.require_dates()
    async with connect(printer) as holdfast:
        page = await holdfast.observations.list_observations(
            holdfast.owner,
            options.session_id,
            start_date=options.start,
            end_date=options.end,
            limit=options.limit,
            cursor=options.cursor,
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


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions(HistoryRef):
    """Which checkpoint, as of when."""

    name: Annotated[str, argument("NAME", "The checkpoint's name.")]
    timestamp: Annotated[
        str | None, option("TIME", "The time of the checkpoint; default: the latest.")
    ] = None
    at: Annotated[str | None, option("TIME", AT_HELP)] = None


async def checkpoint(printer: Printer, options: CheckpointOptions) -> None:
    """Print the resume information of a checkpoint."""
    from holdfast.domain.canonical_json import canonical_text

    async with connect(printer) as holdfast:
        found = await holdfast.observations.checkpoint(
            holdfast.owner,
            options.session_id,
            options.name,
            timestamp=options.timestamp,
            at=options.at,
        )
    printer.done(
        found,
        canonical_text(found.state)
        if found.has_state
        else "The checkpoint has no resume information.",
    )


@dataclass(frozen=True, kw_only=True)
class EntitiesOptions(DateOptions, PageOptions):
    """Which entities, in which order."""

    entity_type: Annotated[
        str,
        argument(
            "TYPE", "agent_session, feature_unit, release, agent_decision or validation_result."
        ),
    ]
    filters: Annotated[
        str | None,
        option(
            "JSON",
            "A JSON object of field paths, each with a value, with contains, or with gte and lte.",
        ),
    ] = None
    session: Annotated[
        str | None,
        option("SESSION_ID", "Only what this session refers to, or what refers to it."),
    ] = None
    order_by: Annotated[str, option("FIELD", f"Sort by {ORDERS}.")] = "last_observation_at"
    order: Annotated[str, option("DIRECTION", "asc or desc.")] = "desc"


async def entities(printer: Printer, options: EntitiesOptions) -> None:
    """List entities of a type, filtered by their fields."""
    from holdfast.observations.model import EntityType
    from holdfast.observations.queries import Direction, EntityOrder, EntityQuery
    from holdfast.wire.observations import entity_list

    options.require_dates()
    history_query = EntityQuery(
        entity_type=parse_choice(options.entity_type, EntityType, "TYPE"),
        filters=_filters(options.filters),
        session_id=options.session,
        start_date=options.start,
        end_date=options.end,
        order_by=parse_choice(options.order_by, EntityOrder, "--order-by"),
        order=parse_choice(options.order, Direction, "--order"),
        limit=options.limit,
    )
    async with connect(printer) as holdfast:
        page = await holdfast.observations.entities(
            holdfast.owner, history_query, cursor=options.cursor
        )
    if printer.is_json:
        printer.document(entity_list(page))
        return
    rows = [
        (each.entity_id, _state_text(each.snapshot), _title(each.snapshot)) for each in page.items
    ]
    printer.listing((), page.next_cursor, ("ENTITY", "STATUS", "WHAT"), rows)
    if not rows:
        printer.remark(
            f"No {options.entity_type}; submit some with `holdfast history submit-entity`."
        )


def _filters(text: str | None) -> Any:
    from holdfast.observations.validation import decode_payload_strictly

    try:
        return None if text is None else decode_payload_strictly(text.encode())
    except Invalid:
        message = "--filters must be a JSON object."
        raise Invalid(Code.INVALID_INPUT, message, {"field": "--filters"}) from None


def _state_text(snapshot: dict[str, Any]) -> str:
    return str(snapshot.get("status", "-"))


def _title(snapshot: dict[str, Any]) -> str:
    named = ("session_id", "id", "decision", "validation_type")
    found = [str(snapshot[name]) for name in named if name in snapshot]
    more = [str(snapshot[name]) for name in ("description", "target") if name in snapshot]
    return " ".join([*found[:1], *more])


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = add_group(app, "history", "Submit and show the history of agents, on any platform.")
    command(group, "submit", SubmitOptions)(submit)
    command(group, "query", QueryOptions)(query)
    command(group, "observations", ClaimsOptions)(observations)
    command(group, "checkpoint", CheckpointOptions)(checkpoint)
    command(group, "correct", CorrectOptions)(correct)
    command(group, "delete", RemovalOptions)(delete)
    command(group, "restore", RemovalOptions)(restore)
    command(group, "entities", EntitiesOptions)(entities)
    command(group, "submit-entity", EntityOptions)(submit_entity)
