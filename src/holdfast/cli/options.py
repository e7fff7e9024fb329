"""Global flags of every command, and options that several commands share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Protocol, TypeVar

import typer

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.tools import FsTier

if TYPE_CHECKING:
    from holdfast.config import Config


_SWITCHES: Final = frozenset({"--json", "-q", "--quiet", "-v", "-vv", "--verbose"})
_WITH_VALUE: Final = frozenset({"--config", "--color", "--server"})
_LEVELS: Final = {1: "info", 2: "debug"}


def option(metavar: str | None, text: str, *names: str, **settings: Any) -> Any:
    """Return an option with a value; without names, it is named after its field."""
    return typer.Option(*names, metavar=metavar, help=text, **settings)


def flag(text: str, *names: str, **settings: Any) -> Any:
    """Return an option without a value."""
    return typer.Option(*names, help=text, **settings)


def argument(metavar: str, text: str, **settings: Any) -> Any:
    """Return a positional argument."""
    return typer.Argument(metavar=metavar, help=text, show_default=False, **settings)


class Color(StrEnum):
    """When to use colours."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, kw_only=True)
class GlobalOptions:
    """The global flags."""

    json: Annotated[bool, flag("Print JSON instead of text.", "--json")] = False
    config: Annotated[Path | None, option("FILE", "Use this configuration file.", "--config")] = (
        None
    )
    color: Annotated[Color, option(None, "When to use colors.", "--color")] = Color.AUTO
    quiet: Annotated[bool, flag("Print only results and errors.", "--quiet", "-q")] = False
    verbose: Annotated[
        int,
        flag(
            "Log more; use twice for everything.", "--verbose", "-v", count=True, show_default=False
        ),
    ] = 0
    server: Annotated[
        str | None,
        option(
            "URL",
            "Use this server instead of the local store; authenticates with "
            "HOLDFAST_TOKEN, or on the same machine with the token of the home folder.",
            "--server",
            envvar="HOLDFAST_SERVER",
        ),
    ] = None
    # For the help only: `main` handles it before anything else is loaded.
    version: Annotated[bool, flag("Print the version and exit.", "--version")] = False

    def load(self, flags: Mapping[str, Any] | None = None) -> "Config":
        """Return the configuration, and configure logging from it.

        `flags` are settings of the command itself; they can only restrict.
        """
        from holdfast.cli.logs import configure
        from holdfast.config import load

        config = load(flags, file=self.config)
        configure(self.log_level(config.log_level))
        return config

    def unnamed_model(self) -> str | None:
        """Return which model answers although no setting names it, and why."""
        from holdfast.config import explain
        from holdfast.config.models import DEFAULT_MODELS

        config, origins = explain(file=self.config)
        key = origins["default_model"]
        if key not in DEFAULT_MODELS:
            return None
        return (
            f"{config.default_model} answers, because {key} is set and no model was chosen; "
            "HOLDFAST_MODEL=provider:name chooses another."
        )

    def log_level(self, configured: str) -> str:
        """Return the log level: that of the flags, else the configured one."""
        if self.verbose:
            return _LEVELS[min(self.verbose, 2)]
        return "error" if self.quiet else configured


def hoist_global_flags(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the global flags first, so that they may be anywhere.

    Arguments after `--` are never flags.
    """
    end = arguments.index("--") if "--" in arguments else len(arguments)
    flags: list[str] = []
    rest: list[str] = []
    words = iter(arguments[:end])
    for word in words:
        if word in _SWITCHES or word.partition("=")[0] in _WITH_VALUE:
            flags.append(word)
            if word in _WITH_VALUE:
                flags += [value for value in [next(words, None)] if value is not None]
        else:
            rest.append(word)
    return [*flags, *rest, *arguments[end:]]


LIMIT: Final = 50
LIMIT_MOST: Final = 200
SESSION_HELP: Final = "The session's id, or a prefix of at least 8 characters."
ATTACH_HELP: Final = (
    "Attach this file to PROMPT: text, a picture, a PDF, sound or a video; repeatable. "
    "In the message itself, @FILE does the same for a file of the session's folder."
)
YES_TO_HELP: Final = (
    "Approve the requests of this tool automatically; repeatable. Commits, files "
    "that are executed later, and costs still require approval."
)


class InputForm(StrEnum):
    """Format of stdin."""

    TEXT = "text"
    NDJSON = "ndjson"


# What several commands take.
Limit = Annotated[int, option("N", f"At most this many, 1 to {LIMIT_MOST}.")]
Cursor = Annotated[str | None, option("CURSOR", "Continue after this page.")]
SessionArgument = Annotated[str, argument("ID", SESSION_HELP)]
AgentArgument = Annotated[str, argument("AGENT", "The agent's slug or id.")]
WorkflowArgument = Annotated[
    str, argument("FILE", "A workflow file, .relavium.yaml; - reads stdin.")
]


@dataclass(frozen=True, kw_only=True)
class Paging:
    """Pagination of a listing."""

    limit: Limit = LIMIT
    cursor: Cursor = None


@dataclass(frozen=True, kw_only=True)
class ResumeOptions:
    """Options for resuming a session."""

    resume: Annotated[str, argument("ID", SESSION_HELP)]
    prompt: Annotated[
        str | None, argument("PROMPT", "Send this message, print the answer and exit.")
    ] = None
    all: Annotated[bool, flag("Print all earlier turns.", "--all")] = False
    cwd: Annotated[
        Path | None, option("DIR", "Continue in this folder instead of the session's own.")
    ] = None
    attach: Annotated[list[Path] | None, option("FILE", ATTACH_HELP)] = None
    yes_to: Annotated[list[str] | None, option("TOOL", YES_TO_HELP, "--yes-to")] = None


@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """Options of a chat."""

    prompt: Annotated[
        str | None,
        argument(
            "PROMPT",
            "Send this message, print the answer and exit; - reads it from stdin. Without"
            " it, chat at the terminal, or send each line of stdin as a message.",
        ),
    ] = None
    agent: Annotated[
        str | None, option("AGENT", "The agent's slug or id; default: the built-in agent.")
    ] = None
    model: Annotated[str | None, option("P:N", "The model to try first, provider:name.")] = None
    resume: Annotated[str | None, option("ID", "Resume this session.")] = None
    repo: Annotated[Path | None, option("PATH", "Work in this Git repository.")] = None
    cwd: Annotated[
        Path | None,
        option(
            "DIR",
            "Work in this folder instead of the current one; with --resume, instead of "
            "the session's own.",
        ),
    ] = None
    title: Annotated[str | None, option("TITLE", "The session's title.")] = None
    active_file: Annotated[
        str | None,
        option(
            "FILE",
            "The file that is open in your editor: absolute, or relative to the session's folder.",
        ),
    ] = None
    selection: Annotated[
        str | None, option("FILE:A-B", "The lines that are selected in your editor.")
    ] = None
    var: Annotated[
        list[str] | None, option("K=V", "A variable of the session; repeatable. Never a secret.")
    ] = None
    tools: Annotated[
        str | None, option("A,B", "Allow only these tools of the agent; '' allows only checkpoint.")
    ] = None
    fs_scope: Annotated[
        FsTier | None, option("TIER", f"Restrict file access: {', '.join(FsTier)}.")
    ] = None
    attach: Annotated[list[Path] | None, option("FILE", ATTACH_HELP)] = None
    yes_to: Annotated[list[str] | None, option("TOOL", YES_TO_HELP, "--yes-to")] = None
    all: Annotated[bool, flag("With --resume: print all earlier turns.", "--all")] = False
    input: Annotated[
        InputForm,
        option(
            "FORMAT",
            "The format of stdin: text, one message per line; or ndjson, one JSON object "
            "per line with text, id and on_busy, read while turns run.",
        ),
    ] = InputForm.TEXT


def message_cursor(cursor: str | None, after: int) -> int:
    """Return the number after which a page starts."""
    if cursor is None:
        return after
    # Bounded, because int() raises its own error for very long numbers.
    if not cursor.isascii() or not cursor.isdigit() or len(cursor) > 18:
        raise Invalid(
            Code.INVALID_CURSOR,
            "The cursor does not belong to this listing; start without --cursor.",
        )
    return int(cursor)


class Identified(Protocol):
    """Anything with an id."""

    @property
    def id(self) -> str: ...


Item = TypeVar("Item", bound=Identified)


def page_after(
    every: Sequence[Item], cursor: str | None, limit: int
) -> tuple[Sequence[Item], str | None]:
    """Return a page of a whole listing: what follows a cursor, and the next cursor."""
    ids = [each.id for each in every]
    if cursor is not None and cursor not in ids:
        raise Invalid(
            Code.INVALID_CURSOR,
            "The cursor does not belong to this listing; start without --cursor.",
        )
    rest = every if cursor is None else every[ids.index(cursor) + 1 :]
    return rest[:limit], rest[limit - 1].id if len(rest) > limit else None
