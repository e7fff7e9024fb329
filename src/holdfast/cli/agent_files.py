"""`holdfast agents import|export`: agents as files."""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.opening import opened
from holdfast.cli.options import OneAgent
from holdfast.cli.output import Printer
from holdfast.cli.secrets import secrets_here


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """A file that describes an agent."""

    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A file, .agent.yaml.", show_default=False)
    ]


async def import_file(printer: Printer, wanted: ImportOptions) -> None:
    """Make an agent out of a file, or make it what the file says now.

    The file grants nothing: what the agent may reach comes from the configuration.
    """
    from holdfast.cli.forms import agent_form
    from holdfast.config import absolute_model
    from holdfast.domain.errors import NotFound
    from holdfast.parsing.agent_files import read_agent_file

    # A script's path begins where the file lies, wherever this command runs.
    rename = partial(absolute_model, folder=wanted.file.absolute().parent)
    described = read_agent_file(wanted.file, secrets_here().scrubber).with_models(rename)
    for key in described.not_applied:
        printer.warn(f"field_not_applied: {key} is kept with the agent, and changes nothing yet.")
    async with opened(printer) as holdfast:
        fields = described.fields()
        try:
            await holdfast.agents.get(holdfast.owner, described.slug)
        except NotFound:
            agent = await holdfast.agents.create(holdfast.owner, fields)
            told = f"Agent {agent.slug} is there; `holdfast chat --agent {agent.slug}` talks to it."
        else:
            agent = await holdfast.agents.update(holdfast.owner, described.slug, fields)
            told = f"Agent {agent.slug} is what {wanted.file} says."
    printer.done(agent_form(agent), told)


async def export_file(printer: Printer, wanted: OneAgent) -> None:
    """Print an agent as a file; its grant and its tags have no place in one."""
    from holdfast.parsing.agent_files import file_form
    from holdfast.parsing.yaml_output import write_yaml

    async with opened(printer) as holdfast:
        agent = await holdfast.agents.get(holdfast.owner, wanted.ref)
        refs = {model.id: model.ref for model in await holdfast.models.list()}
        form = file_form(agent, refs, default=holdfast.config.default_model)
    if printer.is_json:
        printer.document(form)
        return
    # As it is and in UTF-8, because it is meant for a file and not for a screen.
    sys.stdout.flush()
    sys.stdout.buffer.write(write_yaml(form).encode())
