"""`holdfast sessions export`, `holdfast chat-export`: write a session to a file or to stdout."""

import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Annotated, Final

from holdfast.api import Holdfast
from holdfast.cli.connect import connect
from holdfast.cli.files import open_replacement, write_file
from holdfast.cli.options import SessionArgument, flag, option
from holdfast.cli.output import Printer
from holdfast.cli.session_refs import find_session
from holdfast.cli.terminal import is_terminal
from holdfast.cli.workspace import absolute_path
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import SessionId
from holdfast.parsing.workflow_files import parse_workflow
from holdfast.wire.messages import export_line
from holdfast.wire.stream_events import StreamVocabulary
from holdfast.workflows.checks import check, find_unresolved
from holdfast.workflows.export import find_left_out
from holdfast.workflows.model import Workflow
from holdfast.workflows.session_export import Export, ExportFormat

STDOUT: Final = "-"
REVIEW: Final = (
    "Review the file before you share or commit it: it contains the whole "
    "conversation, including everything you typed."
)


async def export(
    printer: Printer,
    *,
    id: SessionArgument,
    out: Annotated[
        str | None,
        option(
            "FILE",
            "The file to write; - is stdout. Default: a workflow is named after its "
            "session, any other format is printed.",
            show_default=False,
        ),
    ] = None,
    force: Annotated[bool, flag("Replace the file if it exists.", "--force")] = False,
    form: Annotated[
        ExportFormat,
        option("FORMAT", f"The format: {', '.join(sorted(ExportFormat))}.", "--format"),
    ] = ExportFormat.WORKFLOW,
    through: Annotated[int | None, option("N", "Export only up to this message.")] = None,
) -> None:
    """Export a session as a workflow or a transcript.

    A workflow is a .relavium.yaml file with one node for each answered turn, and the transcript.
    Secrets known to Holdfast are masked; secrets you typed are not.
    """
    if through is not None and through < 1:
        raise Invalid(Code.INVALID_INPUT, "--through must be the number of a message, 1 or more.")
    is_workflow = form is ExportFormat.WORKFLOW
    if is_workflow and printer.is_json and out == STDOUT:
        raise Invalid(
            Code.INVALID_INPUT,
            "With --json, stdout is used for the event; name a file for the workflow.",
        )
    async with connect(printer) as holdfast:
        session_id = await find_session(holdfast, id)
        exports, owner, line = holdfast.exports, holdfast.owner, export_line(session_id)
        if is_workflow:
            file = await exports.export(owner, session_id, form, through=through, line=line)
            await _save_workflow(printer, holdfast, session_id, file, out=out, force=force)
            return
        stream = await exports.stream(owner, session_id, form, through=through, line=line)
        if out in (None, STDOUT):
            await _print(printer, stream.pieces)
            return
        path, size = Path(str(out)), 0
        with open_replacement(path, force=force) as target:
            async for piece in stream.pieces:
                size += target.write(piece)
    done = {"session_id": session_id, "format": form, "file": str(path), "bytes": size}
    printer.done(done, f"Exported session {session_id} to {path}.")


def remarks_on(workflow: Workflow) -> list[str]:
    """Return notes for the author about an exported workflow."""
    bound = find_unresolved(workflow)
    report = [f"Bind agent_ref: the file does not contain agent {ref}." for ref in bound]
    report += [
        f"{name} is not in any node: the call was denied." for name in find_left_out(workflow)
    ]
    found = [each for each in check(workflow) if each.code != "agent_ref_unresolved"]
    return report + list(dict.fromkeys(f"{each.code}: {each.message}." for each in found))


async def _save_workflow(
    printer: Printer,
    holdfast: Holdfast,
    session_id: SessionId,
    file: Export,
    *,
    out: str | None,
    force: bool,
) -> None:
    """Write a workflow to its target, record the export in the session, then print the result."""
    # A server sends only the text.
    workflow = file.workflow or parse_workflow(file.content.decode(), where=file.file_name)
    target = out or workflow.file_name
    if target == STDOUT:
        await _print(printer, _only(file.content))
    else:
        write_file(Path(target), file.content, force=force)
    # An absolute path, because the event is read in other folders than this one.
    noted = target if target == STDOUT else str(absolute_path(Path(target)))
    event = await holdfast.exports.record(holdfast.owner, session_id, noted)
    for remark in remarks_on(workflow):
        printer.warn(remark)
    printer.remark(REVIEW)
    if printer.is_json:
        session = await holdfast.sessions.get(holdfast.owner, session_id)
        printer.document(StreamVocabulary(session.agent.slug, {}, "").line(event))
    elif target != STDOUT:
        printer.line(f"Exported session {session_id} to {target}.")


async def _only(content: bytes) -> AsyncGenerator[bytes, None]:
    yield content


async def _print(printer: Printer, pieces: AsyncGenerator[bytes, None]) -> None:
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
