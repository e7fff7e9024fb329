"""Options that several modules share, and how a listing is paged."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.tools import FsTier

LIMIT: Final = 50
LIMIT_MOST: Final = 200
SESSION_HELP: Final = "The session's id, or its first 8 characters or more."
YES_TO_HELP: Final = (
    "Allow what this tool asks about, without asking; repeatable. Commits, files that run later "
    "by themselves, and money are still asked about."
)


class InputForm(StrEnum):
    """What stdin brings."""

    TEXT = "text"
    NDJSON = "ndjson"


@dataclass(frozen=True, kw_only=True)
class Paging:
    """A part of a listing."""

    limit: Annotated[
        int, typer.Option(metavar="N", help=f"At most so many, 1 to {LIMIT_MOST}.")
    ] = LIMIT
    cursor: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Go on behind an earlier page.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class OneSession:
    """A session by its id."""

    id: Annotated[str, typer.Argument(metavar="ID", help=SESSION_HELP, show_default=False)]


@dataclass(frozen=True, kw_only=True)
class OneAgent:
    """An agent by its id or slug."""

    ref: Annotated[
        str, typer.Argument(metavar="AGENT", help="The agent's slug or id.", show_default=False)
    ]


@dataclass(frozen=True, kw_only=True)
class ResumeOptions:
    """A session to pick up, and what to say in it."""

    resume: Annotated[str, typer.Argument(metavar="ID", help=SESSION_HELP, show_default=False)]
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="Say this, print the answer and leave."),
    ] = None
    all: Annotated[bool, typer.Option("--all", help="Print all turns of the past.")] = False
    cwd: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Go on in this folder, not where it was.")
    ] = None
    yes_to: Annotated[
        list[str] | None, typer.Option("--yes-to", metavar="TOOL", help=YES_TO_HELP)
    ] = None


@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """What to say, to whom, where."""

    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT",
            help="Say this, print the answer and leave; - takes it from stdin. Without it, "
            "converse: at a terminal line by line, else one message for each line of stdin.",
        ),
    ] = None
    agent: Annotated[
        str | None, typer.Option(metavar="AGENT", help="Who answers; else Holdfast's own agent.")
    ] = None
    model: Annotated[
        str | None, typer.Option(metavar="P:N", help="The model to ask first, provider:name.")
    ] = None
    resume: Annotated[str | None, typer.Option(metavar="ID", help="Go on in this session.")] = None
    repo: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Work in this Git repository.")
    ] = None
    cwd: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Work in this folder, not the current one; with --resume, not where it was.",
        ),
    ] = None
    title: Annotated[str | None, typer.Option(metavar="TITLE", help="The session's title.")] = None
    var: Annotated[
        list[str] | None,
        typer.Option(metavar="K=V", help="A variable of the session; repeatable. Never a secret."),
    ] = None
    tools: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Only these tools of the agent's; '' is none of them."),
    ] = None
    fs_scope: Annotated[
        FsTier | None,
        typer.Option(metavar="TIER", help=f"Reach less of the disk: {', '.join(FsTier)}."),
    ] = None
    yes_to: Annotated[
        list[str] | None, typer.Option("--yes-to", metavar="TOOL", help=YES_TO_HELP)
    ] = None
    all: Annotated[
        bool, typer.Option("--all", help="With --resume: print all turns of the past.")
    ] = False
    input: Annotated[
        InputForm,
        typer.Option(
            metavar="FORM",
            help="What stdin is: text, a message on each line; or ndjson, a JSON object with text, "
            "id and on_busy on each, taken while turns run.",
        ),
    ] = InputForm.TEXT


def message_cursor(cursor: str | None, after: int) -> int:
    """Return the number a page starts behind."""
    if cursor is None:
        return after
    # Bounded, because int() refuses very long numbers with an error of its own.
    if not cursor.isascii() or not cursor.isdigit() or len(cursor) > 18:
        raise Invalid(
            Code.INVALID_CURSOR, "The cursor does not belong to this listing; start anew."
        )
    return int(cursor)
