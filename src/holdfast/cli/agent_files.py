"""`holdfast agents import|export`: agents as files."""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import replace

from holdfast.cli.opening import opened
from holdfast.cli.options import OneAgent
from holdfast.cli.output import Printer
from holdfast.cli.secrets import secrets_here
from holdfast.domain.agents import Agent, LlmRuntime

if TYPE_CHECKING:
    from holdfast.cli.house import House
    from holdfast.parsing.agent_files import AgentFile


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """A file that describes an agent."""

    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A file, .agent.yaml.", show_default=False)
    ]


async def import_file(printer: Printer, wanted: ImportOptions) -> None:
    """Make an agent out of a file, or make it what the file says now.

    The file grants nothing: what a new agent may reach comes from the configuration, and one that
    is there keeps its grant. A model that it leaves open stays open where the file names the
    default.
    """
    from holdfast.cli.forms import agent_form

    described = described_in(wanted.file)
    for key in described.not_applied:
        printer.warn(f"field_not_applied: {key} is kept with the agent, and changes nothing yet.")
    async with opened(printer) as holdfast:
        agent, is_new = await imported(holdfast, described)
    told = (
        f"Agent {agent.slug} is there; `holdfast chat --agent {agent.slug}` talks to it."
        if is_new
        else f"Agent {agent.slug} is what {wanted.file} says."
    )
    printer.done(agent_form(agent), told)


def described_in(file: Path) -> "AgentFile":
    """Return the agent of a file; a script's path begins where the file lies."""
    from holdfast.config import absolute_model
    from holdfast.parsing.agent_files import read_agent_file

    rename = partial(absolute_model, folder=file.absolute().parent)
    return read_agent_file(file, secrets_here().scrubber).with_models(rename)


async def imported(holdfast: "House", described: "AgentFile") -> tuple[Agent, bool]:
    """Make an agent what a file says, and tell whether it is a new one."""
    from holdfast.domain.errors import NotFound

    fields = described.fields()
    try:
        known = await holdfast.agents.get(holdfast.owner, described.slug)
    except NotFound:
        agent = await holdfast.agents.create(holdfast.owner, {**fields, "grant": None})
        return agent, True
    fields |= _kept(known, described, holdfast.config.default_model)
    return await holdfast.agents.update(holdfast.owner, described.slug, fields), False


def _kept(known: Agent, described: "AgentFile", default: str) -> dict[str, Any]:
    """Return what an agent keeps because a file has no words for it.

    So an agent that was exported is the same after its file was imported.
    """
    kept: dict[str, Any] = {"tools": kept_tools(known, described.fields()["tools"])}
    is_open = isinstance(known.runtime, LlmRuntime) and not known.runtime.models
    if is_open and [model.ref for model in described.models] == [default]:
        kept |= {"models": (), "runtime": replace(described.runtime, models=())}
    return kept


def kept_tools(known: Agent, named: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools as they are named; those that the agent has stay as they were described."""
    described = {tool.name: tool.as_given() for tool in known.tools if tool.is_described}
    return [{**each, **dict(described.get(each["name"], each))} for each in named]


async def export_file(printer: Printer, wanted: OneAgent) -> None:
    """Print an agent as a file.

    Its grant and its tags have no place in one. A file names a model, and an agent that leaves it
    open is written with the default of now.
    """
    from holdfast.domain.agents import file_form
    from holdfast.parsing.yaml import write_yaml

    async with opened(printer) as holdfast:
        agent = await holdfast.agents.get(holdfast.owner, wanted.ref)
        refs = {model.id: model.ref for model in await holdfast.models.list()}
        default = holdfast.config.default_model
        form = file_form(agent, refs, default=default)
    if isinstance(agent.runtime, LlmRuntime) and not agent.runtime.models:
        printer.remark(
            f"Agent {agent.slug} leaves its model open; the file names the default, {default}. "
            "Where it is imported as a new agent, `agents edit --model ''` leaves it open again."
        )
    if printer.is_json:
        printer.document(form)
        return
    # As it is and in UTF-8, because it is meant for a file and not for a screen.
    sys.stdout.flush()
    sys.stdout.buffer.write(write_yaml(form).encode())
