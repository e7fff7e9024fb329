"""Global flags of every command, and options that several commands share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.tools import FsTier

if TYPE_CHECKING:
    from holdfast.config import Config


_SWITCHES: Final = frozenset({"--json", "-q", "--quiet", "-v", "-vv", "--verbose"})
_WITH_VALUE: Final = frozenset({"--config", "--color", "--server"})
_LEVELS: Final = {1: "info", 2: "debug"}


class Color(StrEnum):
    """When to use colours."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, kw_only=True)
class GlobalOptions:
    """The global flags."""

    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="Use this configuration file."),
    ] = None
    color: Annotated[Color, typer.Option("--color", help="When to use colors.")] = Color.AUTO
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only results and errors.")] = (
        False
    )
    verbose: Annotated[
        int,
        typer.Option(
            "--verbose",
            "-v",
            count=True,
            show_default=False,
            help="Log more; use twice for everything.",
        ),
    ] = 0
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            metavar="URL",
            envvar="HOLDFAST_SERVER",
            help="Use this server instead of the local store; authenticates with "
            "HOLDFAST_TOKEN, or on the same machine with the token of the home folder.",
        ),
    ] = None
    # For the help only: `main` handles it before anything else is loaded.
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False

    def load(self, flags: Mapping[str, Any] | None = None) -> "Config":
        """Return the configuration, and configure logging from it.

        `flags` are settings of the command itself; they can only restrict.
        """
        from holdfast.cli.logs import configure
        from holdfast.config import load

        config = load(flags, file=self.config)
        configure(self.log_level(config.log_level))
        return config

    def log_level(self, configured: str) -> str:
        """Return the log level: that of the flags, else the configured one."""
        if self.verbose:
            return _LEVELS[min(self.verbose, 2)]
        return "error" if self.quiet else configured


def hoist_global_flags(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the global flags first, so that they may stand anywhere.

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
YES_TO_HELP: Final = (
    "Approve the requests of this tool automatically; repeatable. Commits, files "
    "that are executed later, and costs still require approval."
)


class InputForm(StrEnum):
    """Format of stdin."""

    TEXT = "text"
    NDJSON = "ndjson"


@dataclass(frozen=True, kw_only=True)
class Paging:
    """Pagination of a listing."""

    limit: Annotated[
        int, typer.Option(metavar="N", help=f"At most this many, 1 to {LIMIT_MOST}.")
    ] = LIMIT
    cursor: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Continue after this page.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class SessionRef:
    """A session by its id."""

    id: Annotated[str, typer.Argument(metavar="ID", help=SESSION_HELP, show_default=False)]


@dataclass(frozen=True, kw_only=True)
class AgentRef:
    """An agent by its id or slug."""

    ref: Annotated[
        str, typer.Argument(metavar="AGENT", help="The agent's slug or id.", show_default=False)
    ]


@dataclass(frozen=True, kw_only=True)
class ResumeOptions:
    """Options for resuming a session."""

    resume: Annotated[str, typer.Argument(metavar="ID", help=SESSION_HELP, show_default=False)]
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="Send this message, print the answer and exit."),
    ] = None
    all: Annotated[bool, typer.Option("--all", help="Print all earlier turns.")] = False
    cwd: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Continue in this folder instead of the session's own."),
    ] = None
    yes_to: Annotated[
        list[str] | None, typer.Option("--yes-to", metavar="TOOL", help=YES_TO_HELP)
    ] = None


@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """Options of a chat."""

    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT",
            help="Send this message, print the answer and exit; - reads it from stdin. "
            "Without it, chat at the terminal, or send each line of stdin as a message.",
        ),
    ] = None
    agent: Annotated[
        str | None,
        typer.Option(metavar="AGENT", help="The agent's slug or id; default: the built-in agent."),
    ] = None
    model: Annotated[
        str | None, typer.Option(metavar="P:N", help="The model to try first, provider:name.")
    ] = None
    resume: Annotated[str | None, typer.Option(metavar="ID", help="Resume this session.")] = None
    repo: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Work in this Git repository.")
    ] = None
    cwd: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Work in this folder instead of the current one; with --resume, instead of "
            "the session's own.",
        ),
    ] = None
    title: Annotated[str | None, typer.Option(metavar="TITLE", help="The session's title.")] = None
    var: Annotated[
        list[str] | None,
        typer.Option(metavar="K=V", help="A variable of the session; repeatable. Never a secret."),
    ] = None
    tools: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Allow only these tools of the agent; '' allows none."),
    ] = None
    fs_scope: Annotated[
        FsTier | None,
        typer.Option(metavar="TIER", help=f"Restrict file access: {', '.join(FsTier)}."),
    ] = None
    yes_to: Annotated[
        list[str] | None, typer.Option("--yes-to", metavar="TOOL", help=YES_TO_HELP)
    ] = None
    all: Annotated[bool, typer.Option("--all", help="With --resume: print all earlier turns.")] = (
        False
    )
    input: Annotated[
        InputForm,
        typer.Option(
            metavar="FORMAT",
            help="The format of stdin: text, one message per line; or ndjson, one JSON object "
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


@dataclass(frozen=True, kw_only=True)
class WorkflowFile:
    """A workflow file."""

    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A workflow file, .relavium.yaml; - reads stdin.",
            show_default=False,
        ),
    ]


@dataclass(frozen=True, kw_only=True)
class FormatOptions(WorkflowFile):
    """Options for formatting a workflow."""

    write: Annotated[
        bool, typer.Option("--write", help="Write the result to the file; comments are lost.")
    ] = False
    check: Annotated[
        bool, typer.Option("--check", help="Only check whether the file is in canonical form.")
    ] = False


@dataclass(frozen=True, kw_only=True)
class RunOptions(WorkflowFile):
    """Options for running a workflow."""

    cwd: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Work in this folder instead of the current one."),
    ] = None
    model: Annotated[
        str | None, typer.Option(metavar="P:N", help="The model to try first, provider:name.")
    ] = None
    yes_to: Annotated[
        list[str] | None, typer.Option("--yes-to", metavar="TOOL", help=YES_TO_HELP)
    ] = None
