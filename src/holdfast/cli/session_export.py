"""`holdfast sessions export`: a session written out, to keep or to read."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from holdfast.cli.commands import command
from holdfast.cli.opening import find_session, opened
from holdfast.cli.options import OneSession
from holdfast.cli.output import Printer
from holdfast.cli.terminal import is_terminal
from holdfast.domain.errors import Code, Conflict, Invalid
from holdfast.services.exports import ExportFormat

if TYPE_CHECKING:
    from holdfast.services.exports import Export

STDOUT: Final = "-"


@dataclass(frozen=True, kw_only=True)
class ExportOptions(OneSession):
    """In which form, how much of it, and where to."""

    form: Annotated[
        ExportFormat | None,
        typer.Option(
            "--format",
            metavar="FORM",
            help=f"One of {', '.join(ExportFormat)}; else markdown, and jsonl with --json.",
        ),
    ] = None
    through: Annotated[int | None, typer.Option(metavar="N", help="Only up to this message.")] = (
        None
    )
    out: Annotated[
        str, typer.Option(metavar="FILE", help="Write this file; - is the standard output.")
    ] = STDOUT
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False


async def export(printer: Printer, wanted: ExportOptions) -> None:
    """Write a session out: one message per line, or to be read.

    Secrets that Holdfast knows are masked; what was typed is not.
    """
    from holdfast.http.v1.messages_forms import export_line

    form = wanted.form or (ExportFormat.JSONL if printer.is_json else ExportFormat.MARKDOWN)
    if wanted.through is not None and wanted.through < 1:
        raise Invalid(Code.INVALID_INPUT, "--through is the number of a message, 1 or more.")
    async with opened(printer) as holdfast:
        session_id = await find_session(holdfast, wanted.id)
        file = await holdfast.exports.export(
            holdfast.owner, session_id, form, through=wanted.through, line=export_line(session_id)
        )
    if wanted.out == STDOUT:
        _print(printer, file)
        return
    path = Path(wanted.out)
    _write(path, file.content, force=wanted.force)
    told = {"session_id": session_id, "format": form, "file": str(path), "bytes": len(file.content)}
    printer.done(told, f"Session {session_id} is written to {path}.")


def _print(printer: Printer, file: "Export") -> None:
    if is_terminal(sys.stdout):
        # What a model has said may hold codes that a terminal would obey.
        for line in file.content.decode().splitlines():
            printer.line(line)
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(file.content)


def _write(path: Path, content: bytes, *, force: bool) -> None:
    # Only its owner may read it, like everything that holds conversations.
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if force else os.O_EXCL)
    try:
        with open(os.open(path, flags, 0o600), "wb") as stream:
            stream.write(content)
    except FileExistsError:
        told = f"{path} exists; choose another, or add --force to replace it."
        raise Conflict(Code.FILE_EXISTS, told, {"file": str(path)}) from None
    except OSError as error:
        told = f"{path} cannot be written: {error.strerror}."
        raise Invalid(Code.INVALID_INPUT, told, {"file": str(path)}) from None


def register(group: typer.Typer) -> None:
    """Put the command into the group."""
    command(group, "export", ExportOptions)(export)
