"""Options that several commands share, and how a listing is paged."""

from dataclasses import dataclass
from typing import Annotated, Final

import typer

LIMIT: Final = 50
LIMIT_MOST: Final = 200


@dataclass(frozen=True, kw_only=True)
class Paging:
    """A part of a listing."""

    limit: Annotated[int, typer.Option(metavar="N", help=f"At most so many, 1 to {LIMIT_MOST}.")] = (
        LIMIT
    )
    cursor: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="Go on behind an earlier page.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class OneSession:
    """A session by its id."""

    id: Annotated[str, typer.Argument(metavar="ID", help="The session's id.", show_default=False)]


@dataclass(frozen=True, kw_only=True)
class OneAgent:
    """An agent by its id or slug."""

    ref: Annotated[
        str, typer.Argument(metavar="AGENT", help="The agent's slug or id.", show_default=False)
    ]
