"""The command line: the table of lazily loaded commands, and the error renderer.

A command's own code is in `commands/`.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from io import TextIOWrapper
from typing import Any, Final, TextIO, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from holdfast.cli.command import signature_of
from holdfast.cli.errors import INTERRUPTED, exit_code, translate_error
from holdfast.cli.options import GlobalOptions, hoist_global_flags
from holdfast.domain.errors import Code, HoldfastError, Invalid
from holdfast.domain.text import is_encodable, one_line

# For each command its module and its summary, in the order in which help lists them.
COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "chat": ("commands.chat", "Chat with an agent."),
    "chat-resume": ("commands.chat", "Resume a session."),
    "chat-list": ("commands.sessions", "List sessions, most recently used first."),
    "chat-export": ("commands.sessions", "Export a session as a workflow or a transcript."),
    "search": ("commands.search", "Search messages, tool calls, titles and observations."),
    "costs": ("commands.costs", "Show costs by model, agent, session or day (UTC)."),
    "timeline": ("commands.timeline", "Show a timeline by day."),
    "acp": ("commands.acp", "Run an ACP server on stdin and stdout."),
    "mcp": ("commands.mcp", "Run an MCP server on stdin and stdout."),
    "serve": ("commands.serve", "Run the server."),
    "backup": ("commands.store", "Back up the whole store to a file."),
    "restore": ("commands.store", "Replace the store with a backup."),
    "copy": ("commands.store", "Copy the whole store into another database."),
    "salvage": ("commands.store", "Recover a store with a damaged log."),
    "doctor": ("doctor", "Check the home folder and the store."),
    "config": ("commands.config", "Show all settings and their sources."),
    "sessions": ("commands.sessions", "Manage sessions."),
    "approvals": ("commands.approvals", "List and answer approval requests of agents."),
    "calls": ("commands.calls", "List, answer and settle tool calls."),
    "workers": ("commands.workers", "List the processes that run tools."),
    "agents": ("commands.agents", "Manage agents."),
    "zones": ("commands.zones", "Manage the zones of agents and their archives."),
    "repos": ("commands.repos", "Manage the repositories agents may work in."),
    "key": ("commands.keys", "Manage keys in the system keychain."),
    "token": ("commands.tokens", "Manage access tokens of the server."),
    "workflow": ("commands.workflows", "Check, format and run workflows."),
    "history": ("commands.history", "Submit and show the history of agents, on any platform."),
    "import": ("commands.imports", "Import data of other programs."),
    "migrate": ("commands.store", "Show and change the schema of the store."),
}
PROGRAM: Final = "holdfast"
_LIBRARY_PREFIX: Final = re.compile(r": Value error, ")
HELP: Final = (
    "Holdfast: the durable session layer for AI agents.\n"
    "\n"
    "Every step of a session is saved before it takes effect, so a session can "
    "always be resumed.\n"
    "Start with `holdfast chat`."
)


class LazyGroup(TyperGroup):
    """The commands by name and summary; the module of a command is imported when it is run."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, known, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if known and name else None, rest


@cache
def load_command(name: str) -> TyperCommand | TyperGroup:
    """Import the module of a command, and return the command."""
    module, summary = COMMANDS[name]
    app = typer.Typer(rich_markup_mode=None)
    app.add_typer(import_module(f"holdfast.cli.{module}").app)
    found = typer.main.get_group(app).commands[name]
    # A group has no function whose docstring describes it.
    found.help = found.help or summary
    return cast("TyperCommand | TyperGroup", found)


@cache
def command_line() -> TyperGroup:
    """Return the whole command line, of which nothing is imported yet."""
    app = typer.Typer(
        name=PROGRAM,
        cls=LazyGroup,
        help=HELP,
        no_args_is_help=True,
        # Otherwise text in brackets would be parsed as markup.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(_globals())
    group = cast("TyperGroup", typer.main.get_command(app))
    for name, (_, summary) in COMMANDS.items():
        group.add_command(TyperCommand(name, help=summary))
    return group


def run(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code; never raises."""
    words = hoist_global_flags(arguments)
    # Read from the arguments directly: an error may occur before the flags are parsed.
    as_json = "--json" in words[: words.index("--")] if "--" in words else "--json" in words
    _require_streams()
    for stream in (sys.stdout, sys.stderr):
        _make_printable(stream, as_json=as_json)
    try:
        _require_text(arguments)
        # In standalone mode, the library would print errors its own way and end the process.
        return command_line().main(words, PROGRAM, standalone_mode=False) or 0
    except TyperException as error:
        return _report_usage(error, as_json=as_json)
    except typer.Abort:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 — the one place where everything ends up
        return _report(translate_error(error), as_json=as_json)


def _globals() -> Callable[..., None]:
    """Return the function that parses the global flags and passes them to the command."""

    def remember(ctx: typer.Context, **given: object) -> None:
        ctx.obj = GlobalOptions(**given)  # type: ignore[arg-type]

    remember.__signature__ = signature_of(GlobalOptions)  # type: ignore[attr-defined]
    return remember


def _require_text(arguments: Sequence[str]) -> None:
    """Refuse arguments that are not valid Unicode, because they could not be stored."""
    for number, word in enumerate(arguments, start=1):
        if "\x00" in word or not is_encodable(word):
            raise Invalid(
                Code.INVALID_TEXT,
                f"Argument {number} of the command is not UTF-8 text; correct it, or rename "
                "the file.",
                {"word": number},
            )


def _report(error: HoldfastError, *, as_json: bool) -> int:
    from holdfast.cli.logs import current_scrubber

    # A message may contain typed text or a provider's response, and so a secret.
    scrubber = current_scrubber()
    if as_json:
        # Details may have values without a JSON form, and reporting an error must not raise one.
        body = json.dumps(error.body(), default=str, separators=(",", ":")).encode()
        line = scrubber.mask(scrubber.redact_json(body)).decode()
    else:
        message = scrubber.redact_and_mask(error.message)
        line = f"{PROGRAM}: {one_line(message, longest=2_000)}"
    sys.stderr.write(f"{line}\n")
    return exit_code(error)


def _report_usage(error: TyperException, *, as_json: bool) -> int:
    """Report a usage error; a group without a command shows its help."""
    # The library adds its internal position of the error, which means nothing to users.
    message = _LIBRARY_PREFIX.sub(": ", error.format_message(), count=1)
    # The library's error for a group without a command is the group's whole help.
    if "\n" in message and not as_json:
        sys.stderr.write(f"{message}\n")
        return 2
    if "\n" in message:
        message = "Missing command."
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else PROGRAM
    end = "" if message.endswith((".", "?")) else "."
    remedy = f"{message}{end} See `{path} --help`."
    return _report(Invalid(Code.INVALID_INPUT, remedy), as_json=as_json)


def _require_streams() -> None:
    """Open /dev/null in place of streams that were closed at the start."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 — until the end


def _make_printable(stream: TextIO, *, as_json: bool) -> None:
    """Make a stream replace characters that it cannot encode instead of raising."""
    if isinstance(stream, TextIOWrapper):
        # JSON is UTF-8 whatever the locale is.
        stream.reconfigure(encoding="utf-8" if as_json else None, errors="replace")
