"""`holdfast agents list|show|create|edit|archive|purge|import|export`: who answers."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from holdfast.cli.agent_files import ImportOptions, export_file, import_file
from holdfast.cli.commands import command
from holdfast.cli.opening import opened, opened_here
from holdfast.cli.options import LIMIT_MOST, OneAgent, Paging
from holdfast.cli.output import Printer, local_time
from holdfast.domain.agents import Agent, AgentStatus, LlmRuntime


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
            metavar="P:N", help="A model, provider:name; repeat it to name what is asked next."
        ),
    ] = None
    tag: Annotated[list[str] | None, typer.Option(metavar="TAG", help="A tag; repeatable.")] = None
    description: Annotated[str | None, typer.Option(metavar="TEXT", help="What it is for.")] = None

    def changes(self) -> dict[str, Any]:
        """Return the fields that were named; an empty description takes it away."""
        from holdfast.config import absolute_model

        named = {
            "slug": self.slug,
            "system_prompt": self.system_prompt,
            # Nothing named is no wish: an empty list would take all models away.
            "models": tuple(map(absolute_model, self.model)) if self.model else None,
            "tags": tuple(self.tag) if self.tag else None,
            "description": self.description,
        }
        found = {name: value for name, value in named.items() if value is not None}
        # Nullable unlike the others, and a shell has no null but an empty word.
        return found | ({"description": None} if self.description == "" else {})


@dataclass(frozen=True, kw_only=True)
class CreateOptions(Wishes):
    """A new agent."""

    name: Annotated[
        str, typer.Option(metavar="NAME", help="What it is called.", show_default=False)
    ]


async def create(printer: Printer, wanted: CreateOptions) -> None:
    """Create an agent."""
    from holdfast.cli.forms import agent_form

    async with opened(printer) as holdfast:
        fields = {"name": wanted.name, **wanted.changes()}
        agent = await holdfast.agents.create(holdfast.owner, fields)
    told = f"Agent {agent.slug} is there; `holdfast chat --agent {agent.slug}` talks to it."
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
    from holdfast.domain.errors import Code, Invalid

    changes = wanted.changes()
    if not changes:
        raise Invalid(
            Code.INVALID_INPUT, "Say what to change; `holdfast agents edit --help` shows what can."
        )
    async with opened(printer) as holdfast:
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
    facts: dict[str, object] = {
        "slug": agent.slug,
        "id": agent.id,
        "name": agent.name,
        "description": agent.description,
        "status": agent.status.value,
        "models": ", ".join(models.get(each.model_id, each.model_id) for each in chain) or None,
        "tags": ", ".join(agent.tags) or None,
        "created": local_time(agent.created_at),
        "updated": local_time(agent.updated_at),
        "system prompt": agent.system_prompt or None,
    }
    printer.record(agent_form(agent), facts)


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
    app.add_typer(group)
