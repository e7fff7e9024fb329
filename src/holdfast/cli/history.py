"""`holdfast history …`: what agents say they did, wherever they ran, and what it comes to."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.commands import command
from holdfast.cli.history_input import (
    CorrectOptions,
    EntityOptions,
    RemovalOptions,
    SubmitOptions,
    correct,
    delete,
    restore,
    submit,
    submit_entity,
)
from holdfast.cli.history_options import (
    AT_HELP,
    INGESTED_HELP,
    SESSION_HELP,
    OneHistory,
    Part,
    required,
)
from holdfast.cli.known_sessions import titles_of
from holdfast.cli.opening import opened
from holdfast.cli.output import Printer
from holdfast.domain.errors import Code, Invalid

if TYPE_CHECKING:
    from holdfast.cli.house import House
    from holdfast.observations.queries import History

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
    from holdfast.http.v1.history_forms import history_list
    from holdfast.observations.queries import Direction, EntityOrder, HistoryQuery

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
