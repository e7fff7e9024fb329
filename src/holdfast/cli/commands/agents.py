"""`holdfast agents …`: manage agents, and detect and check agent programs on this machine."""

import os
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from msgspec.structs import replace

from holdfast.acp.client.agent_command import StartSettings
from holdfast.acp.client.presets import PRESETS, DetectedAgent, detect, preset_fields
from holdfast.cli.agent_files import import_agent, merge_tools, read_agent_file, remark_tools
from holdfast.cli.command import add_group, command
from holdfast.cli.connect import connect, open_local
from holdfast.cli.options import (
    LIMIT,
    LIMIT_MOST,
    AgentArgument,
    Cursor,
    Limit,
    argument,
    flag,
    option,
)
from holdfast.cli.output import Printer, local_time
from holdfast.cli.workspace import absolute_path, working_dir
from holdfast.config import absolute_model
from holdfast.domain.agents import (
    SCHEMA_KEYS,
    AcpRuntime,
    Agent,
    AgentStatus,
    LlmRuntime,
    Runtime,
    file_form,
)
from holdfast.domain.errors import Code, Invalid, Unavailable
from holdfast.domain.ids import slug_of
from holdfast.domain.queries import AgentQuery, require_limit
from holdfast.domain.tools import Grant
from holdfast.parsing.files import read_text
from holdfast.parsing.strict_json import decode_strictly
from holdfast.parsing.yaml import write_yaml
from holdfast.wire.agents import agent_form

app = typer.Typer()
group = add_group(app, "agents")


SCHEMA_LARGEST: Final = 1 << 20


class AgentFilter(StrEnum):
    """Which agents a listing shows."""

    ACTIVE = "active"
    ARCHIVED = "archived"
    ALL = "all"


@command(group, "list")
async def show_list(
    printer: Printer,
    *,
    limit: Limit = LIMIT,
    cursor: Cursor = None,
    status: Annotated[
        AgentFilter, option(None, "Show only agents with this status.")
    ] = AgentFilter.ACTIVE,
    tag: Annotated[list[str] | None, option("TAG", "Only agents with this tag.")] = None,
    query: Annotated[
        str | None, option("TEXT", "Only agents with this text in their name or slug.")
    ] = None,
) -> None:
    """List agents, newest first."""
    async with connect(printer) as holdfast:
        wanted = AgentQuery(
            owner=holdfast.owner,
            status=None if status is AgentFilter.ALL else AgentStatus(status),
            tags=tuple(tag or ()),
            text=query,
            limit=require_limit(limit, most=LIMIT_MOST),
        )
        page = await holdfast.agents.list(wanted, cursor=cursor)
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
    if not page.items and any((tag, query, cursor)):
        printer.remark("No matching agents; remove a filter or the cursor.")
    elif not page.items:
        what = "agents" if status is AgentFilter.ALL else f"{status} agents"
        printer.remark(f"No {what}; create one with `holdfast agents create --name NAME`.")


@command(group, "show")
async def show_one(printer: Printer, *, ref: AgentArgument) -> None:
    """Show an agent."""
    async with connect(printer) as holdfast:
        agent = await holdfast.agents.get(holdfast.owner, ref)
        models = {model.id: model.ref for model in await holdfast.models.list()}
    _print(printer, agent, models)


@dataclass(frozen=True, kw_only=True)
class AgentProgramOptions:
    """Options of an agent that is an external program."""

    preset: Annotated[
        str | None, option("NAME", f"Start from a preset: {', '.join(sorted(PRESETS))}.")
    ] = None
    command: Annotated[
        str | None, option("PROGRAM", "A program that implements the Agent Client Protocol.")
    ] = None
    arg: Annotated[list[str] | None, option("ARG", "An argument for the program; repeatable.")] = (
        None
    )
    env: Annotated[
        list[str] | None,
        option("K=V", "An environment variable for the program; repeatable. Never a secret."),
    ] = None
    env_name: Annotated[
        list[str] | None,
        option("NAME", "Pass this variable of your environment on to the program; repeatable."),
    ] = None
    mode: Annotated[
        str | None, option("MODE", "The program's session mode, one of those it offers.")
    ] = None
    writable: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="A further folder or file that the program may write: absolute, or ~/…; "
            "repeatable.",
        ),
    ] = None
    unconfined: Annotated[
        bool,
        typer.Option("--unconfined", help="Run the program without a sandbox, with your rights."),
    ] = False

    def fields(self) -> dict[str, Any]:
        """Return the fields of the runtime; empty if no program is named."""
        if self.preset is not None and self.preset not in PRESETS:
            raise Invalid(
                Code.INVALID_INPUT,
                f"There is no preset {self.preset}; use one of {', '.join(sorted(PRESETS))}.",
                {"field": "--preset"},
            )
        if self.preset is not None:
            made = preset_fields(self.preset, is_root=os.geteuid() == 0)
        elif self.command is not None:
            made = {"runtime": AcpRuntime(command=self.command), "grant": None}
        else:
            self._require_no_option()
            return {}
        return {**made, "runtime": self._apply(made["runtime"])}

    def _apply(self, runtime: AcpRuntime) -> AcpRuntime:
        """Return the runtime with the given options; a new command also replaces the arguments."""
        options = dict(runtime.options)
        if self.env:
            own = options.get("environment", {})
            options["environment"] = own | dict(map(_variable, self.env))
        if self.mode is not None:
            options["mode"] = self.mode
        if self.writable:
            options["writable"] = [*options.get("writable", ()), *self.writable]
        if self.unconfined:
            options["confined"] = False
        if self.arg or self.command:
            runtime = replace(runtime, args=tuple(self.arg or runtime.args))
        return replace(
            runtime,
            command=self.command or runtime.command,
            env_names=tuple(dict.fromkeys([*runtime.env_names, *(self.env_name or ())])),
            options=options,
        )

    def _require_no_option(self) -> None:
        said = {
            "--arg": self.arg,
            "--env": self.env,
            "--env-name": self.env_name,
            "--mode": self.mode,
            "--writable": self.writable,
            "--unconfined": self.unconfined,
        }
        named = [flag for flag, value in said.items() if value]
        if named:
            raise Invalid(
                Code.INVALID_INPUT,
                f"{', '.join(named)} requires a program; name one with --preset or --command.",
            )


def _variable(text: str) -> tuple[str, str]:
    from holdfast.config.validation import is_credential_variable

    name, sign, value = text.partition("=")
    if not sign or not name:
        raise Invalid(Code.INVALID_INPUT, "Write a variable as --env NAME=VALUE.")
    if is_credential_variable(name):
        # Its value would be stored in plain text.
        raise Invalid(
            Code.INVALID_INPUT,
            f"{name} looks like a credential; store it in your environment or the "
            f"keychain, and use --env-name {name}.",
            {"field": "--env"},
        )
    return name, value


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """Options of an agent; omitted ones are unchanged."""

    slug: Annotated[str | None, option("SLUG", "The agent's slug: A-Z, a-z, 0-9, _ and -.")] = None
    system_prompt: Annotated[
        str | None, option("TEXT", "The system prompt, sent with every turn.")
    ] = None
    model: Annotated[
        list[str] | None,
        option(
            "P:N",
            "A model, provider:name; repeat it to add fallbacks. '' uses the configured model.",
        ),
    ] = None
    temperature: Annotated[float | None, option("T", "The temperature of the model, 0 to 2.")] = (
        None
    )
    max_tokens: Annotated[int | None, option("N", "At most this many tokens per answer.")] = None
    tools: Annotated[
        str | None, option("A,B", "The agent's tools, separated by commas; '' is none.")
    ] = None
    tag: Annotated[list[str] | None, option("TAG", "A tag; repeatable.")] = None
    description: Annotated[str | None, option("TEXT", "A description of the agent.")] = None
    input_schema: Annotated[
        str | None,
        option("FILE", "A JSON Schema that messages must match; '' removes it."),
    ] = None
    output_schema: Annotated[
        str | None,
        option("FILE", "A JSON Schema that the final answer must match; '' removes it."),
    ] = None

    def runtime(self, before: Runtime) -> dict[str, Any]:
        """Return the runtime with the given settings; empty if there are none."""
        settings = {"temperature": self.temperature, "max_tokens": self.max_tokens}
        given = {name: value for name, value in settings.items() if value is not None}
        if given and not isinstance(before, LlmRuntime):
            raise Invalid(
                Code.INVALID_INPUT,
                "--temperature and --max-tokens require a model; a program has its own settings.",
            )
        return {"runtime": replace(before, **given)} if given else {}

    def changes(self) -> dict[str, Any]:
        """Return the given fields; an empty description removes it."""
        models = None if self.model is None else [each for each in self.model if each]
        if models and models != self.model:
            raise Invalid(Code.INVALID_INPUT, "--model '' cannot be combined with other models.")
        named = {
            "slug": self.slug,
            "system_prompt": self.system_prompt,
            "models": None if models is None else tuple(map(absolute_model, models)),
            "tools": None if self.tools is None else _tools(self.tools),
            "tags": tuple(self.tag) if self.tag else None,
            "description": self.description,
        }
        found: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
        # Only the description is nullable, and a shell can express null only as an empty word.
        found |= {"description": None} if self.description == "" else {}
        return found | _read_schemas(self)


@dataclass(frozen=True, kw_only=True)
class AgentCreateOptions(AgentProgramOptions, AgentOptions):
    """A new agent."""

    name: Annotated[str | None, option("NAME", "The agent's name; required without a preset.")] = (
        None
    )

    def changes(self) -> dict[str, Any]:
        """Return the fields of the new agent; options take precedence over the preset."""
        own = {} if self.name is None else {"name": self.name}
        # The grant comes from the configuration, as for an agent from a file.
        found = {"grant": None} | self.fields() | super().changes() | own
        found |= self.runtime(found.get("runtime", LlmRuntime()))
        if "name" not in found:
            raise Invalid(Code.INVALID_INPUT, "An agent needs a name; add --name NAME.")
        return found


@command(group, "create")
async def create(printer: Printer, options: AgentCreateOptions) -> None:
    """Create an agent.

    An agent uses a model, or runs a program: a known one (--preset) or any other (--command).
    """
    fields = options.changes()
    remark_tools(printer, fields)
    async with connect(printer) as holdfast:
        agent = await holdfast.agents.create(holdfast.owner, fields)
    summary = f"Created agent {agent.slug}; chat with it: `holdfast chat --agent {agent.slug}`."
    if options.slug is None and not slug_of(agent.name):
        printer.remark(
            "The name has no letters to build a slug from; set one with --slug (`agents "
            "edit` takes it too)."
        )
    printer.done(agent_form(agent), summary)


@dataclass(frozen=True, kw_only=True)
class AgentEditOptions(AgentOptions):
    """Changes to an agent."""

    ref: AgentArgument
    name: Annotated[str | None, option("NAME", "The agent's name.")] = None
    status: Annotated[AgentStatus | None, option(None, "Archive or restore the agent.")] = None

    def changes(self) -> dict[str, Any]:
        """Return the given fields."""
        own = {"name": self.name, "status": self.status}
        named = {name: value for name, value in own.items() if value is not None}
        return super().changes() | named


@command(group, "edit")
async def edit(printer: Printer, options: AgentEditOptions) -> None:
    """Change an agent.

    Open sessions keep the version they were opened with.
    """
    changes = options.changes()
    if not changes and options.temperature is None and options.max_tokens is None:
        raise Invalid(
            Code.INVALID_INPUT,
            "Nothing to change; `holdfast agents edit --help` lists the options.",
        )
    async with connect(printer) as holdfast:
        before = await holdfast.agents.get(holdfast.owner, options.ref)
        changes |= options.runtime(before.runtime)
        if "tools" in changes:
            changes["tools"] = merge_tools(before, changes["tools"])
            remark_tools(printer, changes)
        agent = await holdfast.agents.update(holdfast.owner, options.ref, changes)
    printer.done(agent_form(agent), f"Changed agent {agent.slug}.")


@command(group, "archive")
async def archive(printer: Printer, *, ref: AgentArgument) -> None:
    """Archive an agent.

    No new session can use it; existing sessions continue.
    """
    async with connect(printer) as holdfast:
        agent = await holdfast.agents.archive(holdfast.owner, ref)
    summary = f"Archived agent {agent.slug}; `agents edit --status active` restores it."
    printer.done(agent_form(agent), summary)


@command(group, "purge", only_here=True)
async def purge(printer: Printer, *, ref: AgentArgument) -> None:
    """Delete an archived agent permanently.

    Refused while sessions with this agent exist.
    """
    async with open_local(printer) as holdfast:
        agent = await holdfast.agents.get(holdfast.owner, ref)
        await holdfast.agents.purge(holdfast.owner, agent.id)
    printer.done({"purged": agent.id}, f"Deleted agent {agent.slug}.")


def _print(printer: Printer, agent: Agent, models: dict[Any, str]) -> None:
    runtime = agent.runtime
    # An external agent chooses its own models.
    chain = runtime.models if isinstance(runtime, LlmRuntime) else ()
    program = (
        shlex.join([runtime.command, *runtime.args]) if isinstance(runtime, AcpRuntime) else None
    )
    facts: dict[str, object] = {
        "slug": agent.slug,
        "id": agent.id,
        "name": agent.name,
        "description": agent.description,
        "status": agent.status.value,
        "models": ", ".join(models.get(each.model_id, each.model_id) for each in chain) or None,
        "temperature": runtime.temperature if isinstance(runtime, LlmRuntime) else None,
        "max tokens": runtime.max_tokens if isinstance(runtime, LlmRuntime) else None,
        "program": program,
        "tools": ", ".join(tool.name for tool in agent.tools) or "none",
        "grant": _grant_text(agent.grant),
        "tags": ", ".join(agent.tags) or None,
        "schemas": ", ".join(key for key in SCHEMA_KEYS if key in agent.extra) or None,
        "created": local_time(agent.created_at),
        "updated": local_time(agent.updated_at),
        "system prompt": agent.system_prompt or None,
    }
    printer.record(agent_form(agent), facts)


def _read_schemas(options: AgentOptions) -> dict[str, Any]:
    """Return the given schemas; an empty name removes one."""
    files = {key: getattr(options, key) for key in SCHEMA_KEYS}
    return {key: _read_schema(file) for key, file in files.items() if file is not None}


def _read_schema(file: str) -> Any:
    if not file:
        return None
    try:
        text = read_text(absolute_path(Path(file)), largest=SCHEMA_LARGEST)
        schema = decode_strictly(text.encode())
    except ValueError as error:
        raise Invalid(Code.INVALID_INPUT, f"{file} is not a JSON Schema: {error}.") from None
    if not isinstance(schema, dict):
        raise Invalid(Code.INVALID_INPUT, f"{file} is not a JSON Schema: it is not an object.")
    return schema


def _tools(text: str) -> list[dict[str, Any]]:
    """Return the tools of a comma-separated list, without duplicates."""
    names = dict.fromkeys(name.strip() for name in text.split(",") if name.strip())
    return [{"name": name} for name in names]


def _grant_text(grant: Grant | None) -> str:
    """Return the maximum grant of an agent, in one line."""
    if grant is None:
        return "the default of [chat] in holdfast.toml"
    commands = [*grant.commands, *grant.command_globs]
    summary = [("commands", commands), ("domains", grant.domains)]
    rest = [f"{what}: {', '.join(each) or 'none'}" for what, each in summary]
    return "; ".join([f"files: {grant.fs}", *rest])


@command(group, "import")
async def import_file(
    printer: Printer, *, file: Annotated[Path, argument("FILE", "An agent file, .agent.yaml.")]
) -> None:
    """Create or update an agent from a file.

    A file grants no access: a new agent gets its grant from the configuration, and an existing one
    keeps its own. An agent without a model stays without one if the file names the default model.
    """
    described = read_agent_file(file)
    async with connect(printer) as holdfast:
        agent, is_new = await import_agent(holdfast, described)
    result = (
        f"Created agent {agent.slug}; chat with it: `holdfast chat --agent {agent.slug}`."
        if is_new
        else f"Updated agent {agent.slug} from {file}."
    )
    printer.done(agent_form(agent), result)


@command(group, "export")
async def export_file(printer: Printer, *, ref: AgentArgument) -> None:
    """Print an agent as a file.

    The grant and the tags are not included. A file must name a model, so an agent without one is
    written with the current default.
    """
    async with connect(printer) as holdfast:
        agent = await holdfast.agents.get(holdfast.owner, ref)
        refs = {model.id: model.ref for model in await holdfast.models.list()}
        default = (await holdfast.defaults()).model
        form = file_form(agent, refs, default=default)
    if isinstance(agent.runtime, LlmRuntime) and not agent.runtime.models:
        printer.remark(
            f"Agent {agent.slug} has no model of its own; the file names the default, "
            f"{default}. After importing it as a new agent, remove the model again with "
            "`agents edit --model ''`."
        )
    if printer.is_json:
        printer.document(form)
        return
    # Raw UTF-8 without terminal cleaning, because the output is meant for a file.
    sys.stdout.flush()
    sys.stdout.buffer.write(write_yaml(form).encode())


@command(group, "detect", only_here=True)
async def show_detected(printer: Printer) -> None:
    """Find known agent programs on this machine.

    Add one of them with `agents create --preset NAME`.
    """
    found = await detect(os.environ)
    # Installed programs first, because they can be used now.
    found.sort(key=lambda each: each.path is None)
    printer.listing(
        found,
        None,
        ("PRESET", "AGENT", "VERSION", "PROGRAM"),
        [(each.preset, each.title, each.version or "-", _where(each)) for each in found],
    )


def _where(each: DetectedAgent) -> str:
    return each.path or f"not installed; {each.install}"


@command(group, "check", only_here=True)
async def check(
    printer: Printer,
    *,
    ref: AgentArgument,
    deep: Annotated[bool, flag("Also open a session in an empty folder.", "--deep")] = False,
) -> None:
    """Start an agent's program, show what it reports, and stop it.

    No model request is made.
    """
    from holdfast.acp.client.probe import probe_agent

    async with _open_program(printer, ref) as (start_settings, runtime):
        found = await probe_agent(start_settings, runtime, is_deep=deep)
    printer.record(
        found,
        {
            "agent": " ".join(filter(None, [found.name, found.version])) or "not reported",
            "protocol": found.protocol,
            "capabilities": ", ".join(found.can) or "only the required ones",
            "sign in": ", ".join(found.sign_in) or None,
            "session": "opened" if deep else None,
            "modes": ", ".join(found.modes or ()) or None,
        },
    )


@command(group, "sessions", only_here=True)
async def show_program_sessions(
    printer: Printer,
    *,
    ref: AgentArgument,
    cwd: Annotated[
        Path | None, option("DIR", "Use this folder instead of the current one.")
    ] = None,
    all: Annotated[bool, flag("List the sessions of all folders.", "--all")] = False,
) -> None:
    """List the sessions that an agent's program stores itself.

    This includes sessions that were not started by Holdfast.
    """
    from holdfast.acp.client.probe import list_agent_sessions

    folder = working_dir(cwd)
    if folder is None:
        raise Invalid(Code.NOT_A_FOLDER, "The current folder does not exist; name one with --cwd.")
    async with _open_program(printer, ref) as (start_settings, runtime):
        found = await list_agent_sessions(start_settings, runtime, folder, is_everywhere=all)
    printer.listing(
        found,
        None,
        ("ID", "UPDATED", "FOLDER", "TITLE"),
        [(each.id, each.updated_at or "-", each.folder or "-", each.title or "") for each in found],
    )
    if not found:
        printer.remark("No sessions in this folder; use --all to list those of all folders.")


@asynccontextmanager
async def _open_program(
    printer: Printer, ref: str
) -> AsyncIterator[tuple[StartSettings, AcpRuntime]]:
    """Yield what is needed to start an agent's program; secrets are redacted in its errors."""
    from holdfast.wiring import build_process_registry

    async with open_local(printer) as holdfast:
        agent = await holdfast.agents.get(holdfast.owner, ref)
        if not isinstance(agent.runtime, AcpRuntime):
            raise Invalid(
                Code.INVALID_INPUT,
                f"Agent {agent.slug} uses a model and has no program to start.",
            )
        try:
            yield build_process_registry(holdfast.config, holdfast.secrets), agent.runtime
        except Unavailable as error:
            redact = holdfast.secrets.scrubber.redact_text
            details = {name: redact(str(value)) for name, value in error.details.items()}
            raise Unavailable(error.code, redact(error.message), details) from None
