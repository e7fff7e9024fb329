"""The command line: the table of lazily loaded commands, and the error renderer.

A command's own code is in `commands/`.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib import import_module
from io import TextIOWrapper
from itertools import takewhile
from typing import Final, Protocol, TextIO, cast

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from holdfast.cli.command import signature_of
from holdfast.cli.errors import INTERRUPTED, exit_code, translate_error
from holdfast.cli.options import GlobalOptions, hoist_global_flags
from holdfast.domain.errors import Code, HoldfastError, Invalid
from holdfast.domain.text import is_encodable, one_line

# In the order in which help lists them.
COMMANDS: Final = {
    "chat": ("chat", "chat-resume"),
    "sessions": ("sessions", "chat-list", "chat-export"),
    "search": ("search",),
    "approvals": ("approvals",),
    "calls": ("calls",),
    "costs": ("costs",),
    "agents": ("agents",),
    "zones": ("zones",),
    "repos": ("repos",),
    "keys": ("key",),
    "tokens": ("token",),
    "workflows": ("workflow",),
    "history": ("history",),
    "timeline": ("timeline",),
    "acp": ("acp",),
    "mcp": ("mcp",),
    "serve": ("serve",),
    "imports": ("import",),
    "store": ("backup", "restore", "salvage", "migrate", "copy"),
    "doctor": ("doctor",),
    "config": ("config",),
}


class CommandModule(Protocol):
    """A module with commands."""

    def register(self, app: typer.Typer) -> None:
        """Add the module's commands."""


def modules_of(words: Sequence[str]) -> tuple[str, ...]:
    """Return the modules whose commands the arguments may name; all of them if they name none.

    All of them, too, if help is asked for before a command: it lists every command.
    """
    before = set(takewhile(lambda word: word.startswith("-"), words))
    named = set() if before & {"-h", "--help"} else set(words)
    return tuple(module for module, names in COMMANDS.items() if named & set(names)) or tuple(
        COMMANDS
    )


def load_module(module: str) -> CommandModule:
    """Import and return a command module."""
    return cast("CommandModule", import_module(f"holdfast.cli.commands.{module}"))


PROGRAM: Final = "holdfast"
_LIBRARY_PREFIX: Final = re.compile(r": Value error, ")
HELP: Final = (
    "Holdfast: the durable session layer for AI agents.\n"
    "\n"
    "Every step of a session is saved before it takes effect, so a session can "
    "always be resumed.\n"
    "Start with `holdfast chat`."
)


def build(modules: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return the command line with the commands of all modules, or of some."""
    app = typer.Typer(
        name=PROGRAM,
        help=HELP,
        no_args_is_help=True,
        # Otherwise text in brackets would be parsed as markup.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(_globals())
    for module in modules:
        load_module(module).register(app)
    return app


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
        return cast(
            "int", _command(modules_of(words)).main(words, PROGRAM, standalone_mode=False) or 0
        )
    except TyperException as error:
        return _report_usage(error, as_json=as_json)
    except typer.Abort:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 — the one place where everything ends up
        return _report(translate_error(error), as_json=as_json)


@cache
def _command(modules: tuple[str, ...]) -> TyperGroup:
    """Return the command line ready to run; cached, because reading signatures is slow."""
    return cast("TyperGroup", typer.main.get_command(build(modules)))


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
        line = scrubber.mask(scrubber.clean_json(body)).decode()
    else:
        message = scrubber.clean_and_mask(error.message)
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
