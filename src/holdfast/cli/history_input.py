"""`holdfast history submit|correct|delete|restore|submit-entity`: saying what happened."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.history_options import (
    SOURCE,
    Keyed,
    OneHistory,
    document_in,
    tell_issues,
)
from holdfast.cli.opening import opened
from holdfast.cli.output import Printer
from holdfast.domain.errors import Invalid

if TYPE_CHECKING:
    from holdfast.observations.queries import SubmitResult

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
