"""What the commands about observed history share: how a session is named, keys, and input."""

import asyncio
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from holdfast.cli.output import Printer
from holdfast.cli.places import named_path
from holdfast.domain.errors import Code, Invalid, NotFound

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
