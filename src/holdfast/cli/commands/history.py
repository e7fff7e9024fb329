"""`holdfast history …`: submit, correct and query observed history."""

import asyncio
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from holdfast.cli.command import command
from holdfast.cli.connect import opened
from holdfast.cli.output import Printer
from holdfast.cli.session_refs import titles_of
from holdfast.cli.workspace import named_path
from holdfast.domain.errors import Code, Invalid, NotFound

if TYPE_CHECKING:
    from holdfast.cli.services import House
    from holdfast.observations.queries import History, SubmitResult


SOURCE: Final = "holdfast"
LIMIT: Final = 50
LARGEST: Final = 8 << 20
SESSION_HELP: Final = "The session's id as it was submitted, or that of a session hosted here."
AT_HELP: Final = "As it was true then; a day is its last moment."
INGESTED_HELP: Final = "As it had been written down by then."
Word = TypeVar("Word", bound=StrEnum)
_STDIN: Final = Path("-")


@dataclass(frozen=True, kw_only=True)
class OneHistory:
    """A session by the id that it was submitted with."""

    session_id: Annotated[
        str, typer.Argument(metavar="SESSION_ID", help=SESSION_HELP, show_default=False)
    ]


@dataclass(frozen=True, kw_only=True)
class Keyed:
    """A claim that may be made again."""

    key: Annotated[
        str | None,
        typer.Option(
            "--idempotency-key",
            metavar="KEY",
            help="Send the same key again to say the same thing once.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of a listing."""

    limit: Annotated[int, typer.Option(metavar="N", help="At most so many, 1 to 500.")] = LIMIT
    cursor: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Go on behind an earlier page.")
    ] = None


async def document_in(file: Path) -> Any:
    """Return what a file spells, or stdin; doubled keys are still there to be refused."""
    from holdfast.observations.validation import decode_payload_strictly

    raw = await asyncio.to_thread(_read, file)
    if len(raw) > LARGEST:
        raise Invalid(Code.TOO_LARGE, f"A document may have {LARGEST >> 20} MiB at most.")
    return decode_payload_strictly(raw)


def _read(file: Path) -> bytes:
    if file == _STDIN:
        # Python has no stdin where whoever started it closed it.
        return sys.stdin.buffer.read(LARGEST + 1) if sys.stdin is not None else b""
    try:
        with named_path(file).open("rb") as opened:
            return opened.read(LARGEST + 1)
    except OSError as error:
        told = f"{file} cannot be read: {error.strerror}."
        raise NotFound(Code.PATH_NOT_FOUND, told) from None


def tell_issues(printer: Printer, error: Invalid) -> None:
    """Tell a person what else is wrong; the first of all is in the error itself."""
    for issue in error.details.get("issues", ())[1:]:
        if not printer.is_json:
            printer.warn(f"also: {issue['message']}")


def required(value: str, kind: type[Word], name: str) -> Word:
    """Return one of a few words, or refuse what is none of them."""
    try:
        return kind(value)
    except ValueError:
        told = f"{name} must be one of {', '.join(kind)}."
        raise Invalid(Code.INVALID_INPUT, told, {"field": name}) from None


FILE_HELP = "A JSON file; - or nothing is stdin."
REASON_HELP = "Why; for people."


@dataclass(frozen=True, kw_only=True)
class SubmitOptions(Keyed):
    """A document with what happened in a session."""

    file: Annotated[
        Path, typer.Argument(metavar="FILE", help=FILE_HELP, show_default=False, allow_dash=True)
    ] = Path("-")


async def submit(printer: Printer, wanted: SubmitOptions) -> None:
    """Write down what happened in a session.

    Say it as often as you like: what belongs to one session_id is merged, and the same thing
    twice is written once.
    """
    payload = await document_in(wanted.file)
    key = _key_in(payload, wanted.key)
    try:
        async with opened(printer) as holdfast:
            done = await holdfast.observations.submit(
                holdfast.owner, payload, idempotency_key=key, source=SOURCE
            )
    except Invalid as error:
        tell_issues(printer, error)
        raise
    _tell(printer, done)


@dataclass(frozen=True, kw_only=True)
class EntityOptions(Keyed):
    """A document with what is known of an entity."""

    entity_type: Annotated[
        str,
        typer.Argument(
            metavar="TYPE",
            help="feature_unit, release, agent_decision or validation_result.",
            show_default=False,
        ),
    ]
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help=FILE_HELP, show_default=False, allow_dash=True)
    ] = Path("-")


async def submit_entity(printer: Printer, wanted: EntityOptions) -> None:
    """Write down what is known of an entity that is no session."""
    from holdfast.observations.claims import require_sibling

    # Before anything is read: a command that cannot be right waits for nobody.
    require_sibling(wanted.entity_type)
    fields = await document_in(wanted.file)
    try:
        async with opened(printer) as holdfast:
            done = await holdfast.observations.submit_entity(
                holdfast.owner,
                wanted.entity_type,
                fields,
                idempotency_key=wanted.key,
                source=SOURCE,
            )
    except Invalid as error:
        tell_issues(printer, error)
        raise
    _tell(printer, done)


@dataclass(frozen=True, kw_only=True)
class CorrectOptions(OneHistory, Keyed):
    """One field, and what it should have been."""

    field: Annotated[
        str,
        typer.Argument(
            metavar="FIELD",
            help="actions, checkpoints, outcomes, duration, started_at or ended_at.",
            show_default=False,
        ),
    ]
    value: Annotated[
        str,
        typer.Argument(
            metavar="VALUE",
            help="JSON, or else words as they are; null clears duration and ended_at.",
            show_default=False,
        ),
    ]
    reason: Annotated[str | None, typer.Option(metavar="WORDS", help=REASON_HELP)] = None


async def correct(printer: Printer, wanted: CorrectOptions) -> None:
    """Put one field of a session's history right.

    It outweighs whatever is submitted, before or after. Nothing that was written is changed.
    """
    from holdfast.observations.queries import Correction

    correction = Correction(
        session_id=wanted.session_id,
        field=wanted.field,
        value=_value(wanted.value),
        reason=wanted.reason,
    )
    async with opened(printer) as holdfast:
        done = await holdfast.observations.correct(
            holdfast.owner, correction, idempotency_key=wanted.key, source=SOURCE
        )
    _tell(printer, done)


@dataclass(frozen=True, kw_only=True)
class RemovalOptions(OneHistory, Keyed):
    """Whose history, and why."""

    reason: Annotated[str | None, typer.Option(metavar="WORDS", help=REASON_HELP)] = None


async def delete(printer: Printer, wanted: RemovalOptions) -> None:
    """Hide the history of a session.

    It is in no list and on no timeline until it is restored; a session that is hosted here stays.
    """
    from holdfast.services.history_forms import removal_form

    async with opened(printer) as holdfast:
        done = await holdfast.observations.delete(
            holdfast.owner,
            wanted.session_id,
            reason=wanted.reason,
            idempotency_key=wanted.key,
            source=SOURCE,
        )
    printer.done(removal_form(done), "It is hidden; `holdfast history restore` shows it again.")


async def restore(printer: Printer, wanted: RemovalOptions) -> None:
    """Show the history of a session again."""
    from holdfast.services.history_forms import removal_form

    async with opened(printer) as holdfast:
        done = await holdfast.observations.restore(
            holdfast.owner,
            wanted.session_id,
            reason=wanted.reason,
            idempotency_key=wanted.key,
            source=SOURCE,
        )
    printer.done(removal_form(done), "It is shown again.")


def _tell(printer: Printer, done: "SubmitResult") -> None:
    if printer.is_json:
        printer.document(done)
        return
    known = "known already" if done.deduplicated else f"observation {done.observation_count}"
    printer.line(f"{done.entity_id}: {known}, {done.observation_id}")
    for warning in done.warnings:
        printer.warn(f"odd: {warning.message}")


def _key_in(payload: Any, given: str | None) -> Any:
    """Take the key out of a document, as every surface does; one on the line wins."""
    found = payload.pop("idempotency_key", None) if isinstance(payload, dict) else None
    return found if given is None else given


def _value(text: str) -> Any:
    from holdfast.observations.validation import decode_payload_strictly

    try:
        return decode_payload_strictly(text.encode())
    except Invalid:
        # A date, for example: whoever judges it says whether words may stand there.
        return text


ORDERS = "started_at, ended_at, duration, last_observation_at or session_id"


@dataclass(frozen=True, kw_only=True)
class Ordered(Part):
    """A part of a listing, in an order."""

    order_by: Annotated[str, typer.Option(metavar="WHAT", help=f"By {ORDERS}.")] = "started_at"
    order: Annotated[str, typer.Option(metavar="HOW", help="asc or desc.")] = "desc"


@dataclass(frozen=True, kw_only=True)
class QueryOptions(Ordered):
    """Which sessions, in which order, and as of when."""

    session_id: Annotated[
        str | None,
        typer.Argument(metavar="SESSION_ID", help=f"{SESSION_HELP} Without one, all are listed."),
    ] = None
    offset: Annotated[
        int, typer.Option(metavar="N", help="Pass over so many; a cursor leads further.")
    ] = 0
    at: Annotated[str | None, typer.Option(metavar="TIME", help=AT_HELP)] = None
    at_ingested: Annotated[str | None, typer.Option(metavar="TIME", help=INGESTED_HELP)] = None


async def query(printer: Printer, wanted: QueryOptions) -> None:
    """Show what is known of a session, or list all sessions."""
    async with opened(printer) as holdfast:
        if wanted.session_id is None:
            await _list(printer, holdfast, wanted)
            return
        history = await holdfast.observations.show(
            holdfast.owner, wanted.session_id, at=wanted.at, at_ingested=wanted.at_ingested
        )
        titles = await titles_of(holdfast, (wanted.session_id,))
    _show(printer, wanted.session_id, history, titles.get(wanted.session_id))


async def _list(printer: Printer, holdfast: "House", wanted: QueryOptions) -> None:
    from holdfast.observations.queries import Direction, EntityOrder, HistoryQuery
    from holdfast.wire.observations import history_list

    asked = HistoryQuery(
        limit=wanted.limit,
        offset=wanted.offset,
        order_by=required(wanted.order_by, EntityOrder, "--order-by"),
        order=required(wanted.order, Direction, "--order"),
        at=wanted.at,
        at_ingested=wanted.at_ingested,
    )
    page = await holdfast.observations.query(holdfast.owner, asked, cursor=wanted.cursor)
    if printer.is_json:
        printer.document(history_list(page))
        return
    titles = await titles_of(holdfast, (each.snapshot["session_id"] for each in page.items))
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
        printer.remark("No history; `holdfast history submit FILE` writes some down.")


def _show(printer: Printer, session_id: str, history: "History", title: str | None) -> None:
    from holdfast.services.history_forms import history_form

    entity, snapshot = history.entity, history.entity.snapshot
    if printer.is_json:
        printer.document(history_form(history))
        return
    if not snapshot:
        printer.line("Nothing was known then.")
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
            "hosted here": "yes" if entity.hosted else None,
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
        printer.warn(f"odd: {warning.message}")


def _seconds(duration: Any) -> str | None:
    return None if duration is None else f"{duration} s"


@dataclass(frozen=True, kw_only=True)
class ClaimsOptions(OneHistory, Part):
    """Which claims."""


async def observations(printer: Printer, wanted: ClaimsOptions) -> None:
    """List every claim about a session as it was made, newest first."""
    from holdfast.services.history_forms import observation_list

    async with opened(printer) as holdfast:
        page = await holdfast.observations.list_observations(
            holdfast.owner, wanted.session_id, limit=wanted.limit, cursor=wanted.cursor
        )
    form = observation_list(page)
    if printer.is_json:
        printer.document(form)
        return
    rows = [
        (each.id, str(each.ordinal), each.kind.value, each.observed_at, each.source)
        for each in form.observations
    ]
    printer.listing(
        (), page.next_cursor, ("OBSERVATION", "NUMBER", "KIND", "OBSERVED", "SOURCE"), rows
    )


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions(OneHistory):
    """Which checkpoint, as of when."""

    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The checkpoint's name.", show_default=False)
    ]
    timestamp: Annotated[
        str | None, typer.Option(metavar="TIME", help="When it was reached; else the latest.")
    ] = None
    at: Annotated[str | None, typer.Option(metavar="TIME", help=AT_HELP)] = None


async def checkpoint(printer: Printer, wanted: CheckpointOptions) -> None:
    """Print what was kept at a checkpoint, to go on from there."""
    from holdfast.domain.canonical_json import canonical_text

    async with opened(printer) as holdfast:
        found = await holdfast.observations.checkpoint(
            holdfast.owner,
            wanted.session_id,
            wanted.name,
            timestamp=wanted.timestamp,
            at=wanted.at,
        )
    printer.done(found, canonical_text(found.state) if found.has_state else "Nothing was kept.")


@dataclass(frozen=True, kw_only=True)
class EntitiesOptions(Part):
    """Which entities, in which order."""

    entity_type: Annotated[
        str,
        typer.Argument(
            metavar="TYPE",
            help="agent_session, feature_unit, release, agent_decision or validation_result.",
            show_default=False,
        ),
    ]
    filters: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help="An object of paths into what is known, each with a value, with contains, or with "
            "gte and lte.",
        ),
    ] = None
    order_by: Annotated[str, typer.Option(metavar="WHAT", help=f"By {ORDERS}.")] = (
        "last_observation_at"
    )
    order: Annotated[str, typer.Option(metavar="HOW", help="asc or desc.")] = "desc"


async def entities(printer: Printer, wanted: EntitiesOptions) -> None:
    """List entities of a type by what is known of them."""
    from holdfast.observations.model import EntityType
    from holdfast.observations.queries import Direction, EntityOrder, EntityQuery
    from holdfast.services.history_forms import entity_list

    asked = EntityQuery(
        entity_type=required(wanted.entity_type, EntityType, "TYPE"),
        filters=_filters(wanted.filters),
        order_by=required(wanted.order_by, EntityOrder, "--order-by"),
        order=required(wanted.order, Direction, "--order"),
        limit=wanted.limit,
    )
    async with opened(printer) as holdfast:
        page = await holdfast.observations.entities(holdfast.owner, asked, cursor=wanted.cursor)
    if printer.is_json:
        printer.document(entity_list(page))
        return
    rows = [
        (each.entity_id, _standing(each.snapshot), _title(each.snapshot)) for each in page.items
    ]
    printer.listing((), page.next_cursor, ("ENTITY", "STATUS", "WHAT"), rows)
    if not rows:
        printer.remark(f"No {wanted.entity_type}; `holdfast history submit-entity` adds some.")


def _filters(text: str | None) -> Any:
    from holdfast.observations.validation import decode_payload_strictly

    try:
        return None if text is None else decode_payload_strictly(text.encode())
    except Invalid:
        told = "--filters must be a JSON object."
        raise Invalid(Code.INVALID_INPUT, told, {"field": "--filters"}) from None


def _standing(snapshot: dict[str, Any]) -> str:
    return str(snapshot.get("status", "-"))


def _title(snapshot: dict[str, Any]) -> str:
    named = ("session_id", "id", "decision", "validation_type")
    found = [str(snapshot[name]) for name in named if name in snapshot]
    more = [str(snapshot[name]) for name in ("description", "target") if name in snapshot]
    return " ".join([*found[:1], *more])


def register(app: typer.Typer) -> None:
    """Put the group into the command line."""
    group = typer.Typer(
        name="history",
        help="Tell and read what agents did, wherever they ran.",
        no_args_is_help=True,
    )
    command(group, "submit", SubmitOptions)(submit)
    command(group, "query", QueryOptions)(query)
    command(group, "observations", ClaimsOptions)(observations)
    command(group, "checkpoint", CheckpointOptions)(checkpoint)
    command(group, "correct", CorrectOptions)(correct)
    command(group, "delete", RemovalOptions)(delete)
    command(group, "restore", RemovalOptions)(restore)
    command(group, "entities", EntitiesOptions)(entities)
    command(group, "submit-entity", EntityOptions)(submit_entity)
    app.add_typer(group)
