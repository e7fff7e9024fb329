"""`holdfast workflow validate|format|run`: workflow files, `.relavium.yaml`."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from holdfast.cli.command import add_group, command
from holdfast.cli.errors import FINDINGS
from holdfast.cli.files import write_file
from holdfast.cli.options import FormatOptions, RunOptions, WorkflowFile
from holdfast.cli.output import Printer
from holdfast.domain.errors import Code, Invalid, NotFound

if TYPE_CHECKING:
    from holdfast.api import Holdfast
    from holdfast.domain.agents import Agent
    from holdfast.parsing.agent_files import AgentFile
    from holdfast.workflows.model import Workflow


STDIN: Final = "-"


async def validate(printer: Printer, options: WorkflowFile) -> int:
    """Check a workflow.

    A file that cannot be parsed is an error; content that has no effect is a finding. Exits with 1
    if there are findings.
    """
    from holdfast.workflows.checks import check

    workflow = read(options.file)
    findings = check(workflow, await _known_agents(printer, workflow, options.file))
    why = _why_not_runnable(workflow)
    form = {
        "file": options.file,
        "id": workflow.id,
        "nodes": len(workflow.nodes),
        "edges": len(workflow.edges),
        "findings": findings,
        "runnable": why is None,
        "why": why,
    }
    if printer.is_json:
        printer.document(form)
    else:
        for each in findings:
            printer.line(f"{each.code} at {each.node}: {each.message}.")
        printer.line(
            f"{options.file} is a valid workflow, {workflow.id}, with {len(workflow.nodes)} nodes."
        )
        printer.remark(why or "`holdfast workflow run` can run it.")
    return FINDINGS if findings else 0


def format_file(printer: Printer, options: FormatOptions) -> int:
    """Print a workflow in canonical form.

    Keys are sorted and lists keep their order, so equal workflows give equal files. With --check it
    exits with 1 if the file is not in canonical form.
    """
    from holdfast.parsing.workflow_files import write_workflow

    if options.check and options.write:
        raise Invalid(Code.INVALID_INPUT, "Choose one of --check and --write.")
    if options.write and options.file == STDIN:
        raise Invalid(Code.INVALID_INPUT, "--write requires a file name.")
    before = _text(options.file)
    text = write_workflow(parse(before, options.file))
    is_same = text == before
    if options.write and not is_same:
        write_file(Path(options.file), text.encode(), force=True)
    if not (options.check or options.write or printer.is_json):
        # Raw UTF-8 without terminal cleaning, because the output is meant for a file.
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode())
        return 0
    state = "is in canonical form" if is_same or options.write else "is not in canonical form"
    form = {"file": options.file, "formatted": is_same, "written": options.write and not is_same}
    printer.done(form, f"{options.file} {state}.")
    return FINDINGS if options.check and not is_same else 0


async def run(printer: Printer, options: RunOptions) -> int:
    """Run a workflow: a line of nodes from input to output.

    The turns of its agents run in ordinary sessions, which are saved and can be resumed. A workflow
    that cannot be run is refused before the first turn. The exit code is that of the last turn.
    """
    from holdfast.cli.commands.workflow_run import run_workflow

    workflow = read(options.file)
    return await run_workflow(printer, workflow, options)


def read(file: str) -> "Workflow":
    """Return the workflow of a file, or of stdin."""
    from holdfast.cli.secrets import secrets_here
    from holdfast.parsing.workflow_files import read_workflow

    if file == STDIN:
        return parse(_text(file), file)
    return read_workflow(Path(file), secrets_here().scrubber)


def parse(text: str, where: str) -> "Workflow":
    """Return the workflow of a text."""
    from holdfast.cli.secrets import secrets_here
    from holdfast.parsing.workflow_files import parse_workflow

    return parse_workflow(text, where=where, scrubber=secrets_here().scrubber)


def _text(file: str) -> str:
    """Return the text of a file unchanged; the parser reports invalid content."""
    from holdfast.parsing.workflow_files import read_workflow_text
    from holdfast.parsing.yaml import WRITTEN_LARGEST

    if file != STDIN:
        return read_workflow_text(Path(file))
    content = sys.stdin.buffer.read(WRITTEN_LARGEST + 1) if sys.stdin is not None else b""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Invalid(
            Code.YAML_INVALID, "stdin is not UTF-8 text; convert it first.", {"file": file}
        ) from None


def _why_not_runnable(workflow: "Workflow") -> str | None:
    from holdfast.workflows.model import agent_runs

    try:
        agent_runs(workflow)
    except Invalid as error:
        return error.message
    return None


async def _known_agents(
    printer: Printer, workflow: "Workflow", file: str
) -> dict[str, dict[str, Any]]:
    """Return the agents that a workflow names but does not define, by name."""
    from holdfast.cli.commands.workflow_run import capabilities, referenced_agents
    from holdfast.cli.connect import connect
    from holdfast.workflows.checks import unresolved

    known = {ref: capabilities(each) for ref, each in referenced_agents(workflow, file).items()}
    missing = [ref for ref in unresolved(workflow) if ref not in known]
    # The store is opened only if needed: checking a file should have no side effects.
    if not missing:
        return known
    async with connect(printer) as holdfast:
        for ref in missing:
            with suppress(NotFound):
                known[ref] = capabilities(await _find_agent(printer, holdfast, ref))
    return known


async def _find_agent(printer: Printer, holdfast: "Holdfast", ref: str) -> "Agent | AgentFile":
    from holdfast.cli.agent_files import find_agent_file, read_named_agent_file
    from holdfast.cli.commands.workflow_run import resolve_folder

    file = find_agent_file(ref, resolve_folder(printer), printer.settings.load().home)
    if file is None:
        return await holdfast.agents.get(holdfast.owner, ref)
    return read_named_agent_file(ref, file)


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = add_group(app, "workflow", "Check, format and run workflows.")
    command(group, "validate", WorkflowFile)(validate)
    command(group, "format", FormatOptions)(format_file)
    command(group, "run", RunOptions)(run)
