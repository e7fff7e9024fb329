"""`holdfast agents list|show|create|edit|archive|purge|…`: who answers."""

import shlex
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from holdfast.cli.agent_files import (
    ImportOptions,
    export_file,
    import_file,
    kept_tools,
)
from holdfast.cli.agent_programs import (
    CheckOptions,
    KeptOptions,
    ProgramWishes,
    check,
    show_detected,
    show_kept,
)
from holdfast.cli.commands import Nothing, command
from holdfast.cli.opening import opened, opened_here
from holdfast.cli.options import LIMIT_MOST, OneAgent, Paging
from holdfast.cli.output import Printer, local_time
from holdfast.domain.agents import Agent, AgentStatus, LlmRuntime
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import slug_of
from holdfast.domain.tools import Grant, ToolSpec, require_tools


class Shown(StrEnum):
    """Which agents a listing shows."""

    ACTIVE = "active"
    ARCHIVED = "archived"
    ALL = "all"


@dataclass(frozen=True, kw_only=True)
class ListOptions(Paging):
    """Which agents."""

    status: Annotated[Shown, typer.Option(help="Which agents.")] = Shown.ACTIVE
    tag: Annotated[
        list[str] | None, typer.Option(metavar="TAG", help="Only agents with this tag.")
    ] = None
    query: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only with this in their name or slug.")
    ] = None


async def show_list(printer: Printer, wanted: ListOptions) -> None:
    """List agents, newest first."""
    from holdfast.cli.forms import agent_form
    from holdfast.domain.queries import AgentQuery, require_limit

    async with opened(printer) as holdfast:
        query = AgentQuery(
            owner=holdfast.owner,
            status=None if wanted.status is Shown.ALL else AgentStatus(wanted.status),
            tags=tuple(wanted.tag or ()),
            text=wanted.query,
            limit=require_limit(wanted.limit, most=LIMIT_MOST),
        )
        page = await holdfast.agents.list(query, cursor=wanted.cursor)
    rows = [
        (each.slug, each.status.value, local_time(each.updated_at), each.name)
        for each in page.items
    ]
    printer.listing(
        [agent_form(each) for each in page.items],
        page.next_cursor,
        ("SLUG", "STATUS", "UPDATED", "NAME"),
        rows,
    )
    if not page.items and any((wanted.tag, wanted.query, wanted.cursor)):
        printer.remark("No agent fits; leave a filter out, or the cursor.")
    elif not page.items:
        printer.remark(f"No {_shown(wanted)}; `holdfast agents create --name NAME` makes one.")


def _shown(wanted: ListOptions) -> str:
    return "agents" if wanted.status is Shown.ALL else f"{wanted.status} agents"


async def show_one(printer: Printer, wanted: OneAgent) -> None:
    """Show an agent."""
    async with opened(printer) as holdfast:
        agent = await holdfast.agents.get(holdfast.owner, wanted.ref)
        models = {model.id: model.ref for model in await holdfast.models.list()}
    _print(printer, agent, models)


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What can be said about an agent; what is left out stays as it is."""

    slug: Annotated[
        str | None, typer.Option(metavar="SLUG", help="Its short name: A-Z, a-z, 0-9, _ and -.")
    ] = None
    system_prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What it is told before every turn.")
    ] = None
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="P:N",
            help="A model, provider:name; repeat it to name what is asked next. '' leaves it to "
            "the configuration.",
        ),
    ] = None
    tools: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="The tools it has, by their names; '' is none."),
    ] = None
    tag: Annotated[list[str] | None, typer.Option(metavar="TAG", help="A tag; repeatable.")] = None
    description: Annotated[str | None, typer.Option(metavar="TEXT", help="What it is for.")] = None

    def changes(self) -> dict[str, Any]:
        """Return the fields that were named; an empty description takes it away."""
        from holdfast.config import absolute_model

        models = None if self.model is None else [each for each in self.model if each]
        if models and models != self.model:
            raise Invalid(Code.INVALID_INPUT, "--model '' stands alone: it names no model.")
        named = {
            "slug": self.slug,
            "system_prompt": self.system_prompt,
            "models": None if models is None else tuple(map(absolute_model, models)),
            "tools": None if self.tools is None else _tools(self.tools),
            "tags": tuple(self.tag) if self.tag else None,
            "description": self.description,
        }
        found = {name: value for name, value in named.items() if value is not None}
        # Nullable unlike the others, and a shell has no null but an empty word.
        return found | ({"description": None} if self.description == "" else {})


@dataclass(frozen=True, kw_only=True)
class CreateOptions(ProgramWishes, Wishes):
    """A new agent."""

    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="What it is called; needed without a preset."),
    ] = None

    def changes(self) -> dict[str, Any]:
        """Return the fields that make it; what was named goes before what a preset says."""
        own = {} if self.name is None else {"name": self.name}
        # What it may reach is the configuration's to say, as for an agent out of a file.
        found = {"grant": None} | self.fields() | super().changes() | own
        if "name" not in found:
            raise Invalid(Code.INVALID_INPUT, "An agent needs a name: --name NAME.")
        return found


async def create(printer: Printer, wanted: CreateOptions) -> None:
    """Create an agent.

    It asks a model, or it is a program of its own: a well-known one (--preset) or another
    (--command).
    """
    from holdfast.cli.forms import agent_form

    fields = wanted.changes()
    _require_tools(fields)
    async with opened(printer) as holdfast:
        agent = await holdfast.agents.create(holdfast.owner, fields)
    told = f"Agent {agent.slug} is there; `holdfast chat --agent {agent.slug}` talks to it."
    if wanted.slug is None and not slug_of(agent.name):
        printer.remark("The name has no letter for a slug; --slug chooses one, also with edit.")
    printer.done(agent_form(agent), told)


@dataclass(frozen=True, kw_only=True)
class EditOptions(Wishes, OneAgent):
    """Changes to an agent."""

    name: Annotated[str | None, typer.Option(metavar="NAME", help="What it is called.")] = None
    status: Annotated[AgentStatus | None, typer.Option(help="Archive it, or bring it back.")] = None

    def changes(self) -> dict[str, Any]:
        """Return the fields that were named."""
        own = {"name": self.name, "status": self.status}
        named = {name: value for name, value in own.items() if value is not None}
        return super().changes() | named


async def edit(printer: Printer, wanted: EditOptions) -> None:
    """Change an agent.

    Sessions that are open keep the one they know.
    """
    from holdfast.cli.forms import agent_form

    changes = wanted.changes()
    if not changes:
        raise Invalid(
            Code.INVALID_INPUT, "Say what to change; `holdfast agents edit --help` shows what can."
        )
    async with opened(printer) as holdfast:
        before = await holdfast.agents.get(holdfast.owner, wanted.ref)
        if "tools" in changes:
            _require_tools(changes, before.tools)
            changes["tools"] = kept_tools(before, changes["tools"])
        agent = await holdfast.agents.update(holdfast.owner, wanted.ref, changes)
    printer.done(agent_form(agent), f"Agent {agent.slug} is changed.")


async def archive(printer: Printer, wanted: OneAgent) -> None:
    """Archive an agent.

    No new session opens with it, and its sessions go on.
    """
    from holdfast.cli.forms import agent_form

    async with opened(printer) as holdfast:
        agent = await holdfast.agents.archive(holdfast.owner, wanted.ref)
    told = f"Agent {agent.slug} is archived; `agents edit --status active` brings it back."
    printer.done(agent_form(agent), told)


async def purge(printer: Printer, wanted: OneAgent) -> None:
    """Remove an archived agent for good.

    Refused while there are sessions with it: they keep what it was.
    """
    async with opened_here(printer) as holdfast:
        agent = await holdfast.agents.get(holdfast.owner, wanted.ref)
        await holdfast.agents.purge(holdfast.owner, agent.id)
    printer.done({"purged": agent.id}, f"Agent {agent.slug} is removed.")


def _print(printer: Printer, agent: Agent, models: dict[Any, str]) -> None:
    from holdfast.cli.forms import agent_form

    runtime = agent.runtime
    # An agent with a program of its own chooses its own models.
    chain = runtime.models if isinstance(runtime, LlmRuntime) else ()
    program = (
        None if isinstance(runtime, LlmRuntime) else shlex.join([runtime.command, *runtime.args])
    )
    facts: dict[str, object] = {
        "slug": agent.slug,
        "id": agent.id,
        "name": agent.name,
        "description": agent.description,
        "status": agent.status.value,
        "models": ", ".join(models.get(each.model_id, each.model_id) for each in chain) or None,
        "program": program,
        "tools": ", ".join(tool.name for tool in agent.tools) or "none",
        "grant": _granted(agent.grant),
        "tags": ", ".join(agent.tags) or None,
        "created": local_time(agent.created_at),
        "updated": local_time(agent.updated_at),
        "system prompt": agent.system_prompt or None,
    }
    printer.record(agent_form(agent), facts)


def _tools(text: str) -> list[dict[str, Any]]:
    """Return the tools of a list with commas, each once."""
    names = dict.fromkeys(name.strip() for name in text.split(",") if name.strip())
    return [{"name": name} for name in names]


def _require_tools(fields: dict[str, Any], known: tuple[ToolSpec, ...] = ()) -> None:
    require_tools((tool["name"] for tool in fields.get("tools", ())), known, field="--tools")


def _granted(grant: Grant | None) -> str:
    """Return what an agent may reach at most, in one line."""
    if grant is None:
        return "what [chat] of holdfast.toml says"
    commands = [*grant.commands, *grant.command_globs]
    told = [("commands", commands), ("domains", grant.domains)]
    rest = [f"{what}: {', '.join(each) or 'none'}" for what, each in told]
    return "; ".join([f"files: {grant.fs}", *rest])


def register(app: typer.Typer) -> None:
    """Put the group into the command line."""
    group = typer.Typer(name="agents", help="See and change who answers.", no_args_is_help=True)
    command(group, "list", ListOptions)(show_list)
    command(group, "show", OneAgent)(show_one)
    command(group, "create", CreateOptions)(create)
    command(group, "edit", EditOptions)(edit)
    command(group, "archive", OneAgent)(archive)
    command(group, "purge", OneAgent, only_here=True)(purge)
    command(group, "import", ImportOptions)(import_file)
    command(group, "export", OneAgent)(export_file)
    command(group, "detect", Nothing, only_here=True)(show_detected)
    command(group, "check", CheckOptions, only_here=True)(check)
    command(group, "sessions", KeptOptions, only_here=True)(show_kept)
    app.add_typer(group)
