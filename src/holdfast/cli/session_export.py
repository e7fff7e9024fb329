"""`holdfast sessions export`, `holdfast chat-export`: write a session to a file or to stdout."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from holdfast.cli.command import command
from holdfast.cli.connect import connect
from holdfast.cli.files import write_file, writing
from holdfast.cli.options import SessionRef, flag, option
from holdfast.cli.output import Printer
from holdfast.cli.session_refs import find_session
from holdfast.cli.terminal import is_terminal
from holdfast.cli.workspace import absolute_path
from holdfast.domain.errors import Code, Invalid
from holdfast.workflows.session_export import ExportFormat

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from holdfast.api import Holdfast
    from holdfast.domain.events import Event
    from holdfast.domain.ids import SessionId
    from holdfast.workflows.model import Workflow
    from holdfast.workflows.session_export import Export

STDOUT: Final = "-"
REVIEW: Final = (
    "Review the file before you share or commit it: it contains the whole "
    "conversation, including everything you typed."
)


@dataclass(frozen=True, kw_only=True)
class ExportOptions(SessionRef):
    """Format, range and target of an export."""

    out: Annotated[
        str | None,
        option(
            "FILE",
            "The file to write; - is stdout. Default: a workflow is named after its "
            "session, any other format is printed.",
            show_default=False,
        ),
    ] = None
    force: Annotated[bool, flag("Replace the file if it exists.", "--force")] = False

    form: Annotated[
        ExportFormat,
        option("FORMAT", f"The format: {', '.join(sorted(ExportFormat))}.", "--format"),
    ] = ExportFormat.WORKFLOW
    through: Annotated[int | None, option("N", "Export only up to this message.")] = None


async def export(printer: Printer, options: ExportOptions) -> None:
    """Export a session as a workflow or a transcript.

    A workflow is a .relavium.yaml file with one node for each answered turn, and the transcript.
    Secrets known to Holdfast are masked; secrets you typed are not.
    """
    if options.through is not None and options.through < 1:
        raise Invalid(Code.INVALID_INPUT, "--through must be the number of a message, 1 or more.")
    is_workflow = options.form is ExportFormat.WORKFLOW
    if is_workflow and printer.is_json and options.out == STDOUT:
        raise Invalid(
            Code.INVALID_INPUT,
            "With --json, stdout is used for the event; name a file for the workflow.",
        )
    async with connect(printer) as holdfast:
        session_id = await find_session(holdfast, options.id)
        if is_workflow:
            file = await _export(holdfast, session_id, options)
            await _save_workflow(printer, holdfast, session_id, (file, options))
            return
        pieces = await _pieces(holdfast, session_id, options)
        if options.out in (None, STDOUT):
            await _print(printer, pieces)
            return
        path, size = Path(str(options.out)), 0
        with writing(path, force=options.force) as stream:
            async for piece in pieces:
                size += stream.write(piece)
    form = {"session_id": session_id, "format": options.form, "file": str(path), "bytes": size}
    printer.done(form, f"Exported session {session_id} to {path}.")


def remarks_on(workflow: "Workflow") -> list[str]:
    """Return notes for the author about an exported workflow."""
    from holdfast.workflows.checks import check, unresolved
    from holdfast.workflows.export import left_out

    bound = unresolved(workflow)
    report = [f"Bind agent_ref: the file does not contain agent {ref}." for ref in bound]
    report += [f"{name} is not in any node: the call was denied." for name in left_out(workflow)]
    found = [each for each in check(workflow) if each.code != "agent_ref_unresolved"]
    return report + list(dict.fromkeys(f"{each.code}: {each.message}." for each in found))


async def _export(
    holdfast: "Holdfast", session_id: "SessionId", options: ExportOptions
) -> "Export":
    from holdfast.wire.messages import export_line

    line = export_line(session_id)
    return await holdfast.exports.export(
        holdfast.owner, session_id, options.form, through=options.through, line=line
    )


async def _pieces(
    holdfast: "Holdfast", session_id: "SessionId", options: ExportOptions
) -> "AsyncGenerator[bytes, None]":
    from holdfast.wire.messages import export_line

    stream = await holdfast.exports.stream(
        holdfast.owner,
        session_id,
        options.form,
        through=options.through,
        line=export_line(session_id),
    )
    return stream.pieces


async def _only(content: bytes) -> "AsyncGenerator[bytes, None]":
    yield content


async def _save_workflow(
    printer: Printer,
    holdfast: "Holdfast",
    session_id: "SessionId",
    made: "tuple[Export, ExportOptions]",
) -> None:
    """Write a workflow to its target, record the export in the session, then print the result."""
    file, options = made
    workflow = _parse_workflow_file(file)
    target = options.out or workflow.file_name
    if target == STDOUT:
        await _print(printer, _only(file.content))
    else:
        write_file(Path(target), file.content, force=options.force)
    # An absolute path, because the event is read in other folders than this one.
    noted = target if target == STDOUT else str(absolute_path(Path(target)))
    event = await holdfast.exports.record(holdfast.owner, session_id, noted)
    for remark in remarks_on(workflow):
        printer.warn(remark)
    printer.remark(REVIEW)
    if printer.is_json:
        printer.document(await _line(holdfast, session_id, event))
    elif target != STDOUT:
        printer.line(f"Exported session {session_id} to {target}.")


def _parse_workflow_file(file: "Export") -> "Workflow":
    """Return the parsed workflow of a file; a server sends only its text."""
    from holdfast.parsing.workflow_files import parse_workflow

    return file.workflow or parse_workflow(file.content.decode(), where=file.file_name)


async def _line(holdfast: "Holdfast", session_id: "SessionId", event: "Event") -> object:
    from holdfast.wire.stream_events import StreamVocabulary

    session = await holdfast.sessions.get(holdfast.owner, session_id)
    return StreamVocabulary(session.agent.slug, {}, "").line(event)


async def _print(printer: Printer, pieces: "AsyncGenerator[bytes, None]") -> None:
    if not is_terminal(sys.stdout):
        sys.stdout.flush()
        async for piece in pieces:
            sys.stdout.buffer.write(piece)
        return
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        # A model's text may contain control sequences that a terminal would execute.
        for line in lines:
            printer.line(line.decode())
    if rest:
        printer.line(rest.decode())


def register(group: typer.Typer) -> None:
    """Add the command to the group."""
    command(group, "export", ExportOptions)(export)


def register_alone(app: typer.Typer) -> None:
    """Add the command's alias to the command line."""
    command(app, "chat-export", ExportOptions)(export)
