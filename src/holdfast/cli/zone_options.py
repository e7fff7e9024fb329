"""What the commands about zones share: how a desk and an archive are named, and times."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import typer

from holdfast.cli.output import local_time

ID_HELP = "The agent's id or slug, or any other id of A-Z, a-z, 0-9, _ and -."
MS_HELP = "When it was archived, as `zones archives` shows it."


@dataclass(frozen=True, kw_only=True)
class OneDesk:
    """A desk by the id it belongs to."""

    id: Annotated[str, typer.Argument(metavar="ID", help=ID_HELP, show_default=False)]


@dataclass(frozen=True, kw_only=True)
class OneArchive(OneDesk):
    """An archive by its time."""

    ms: Annotated[str, typer.Argument(metavar="MS", help=MS_HELP, show_default=False)]


def archive_ms(id_: str, text: str) -> int:
    """Return the time of an archive as a person has written it."""
    from holdfast.zones.model import (
        archive_not_found,
        parse_archive_time,
        require_definition_id,
    )

    require_definition_id(id_)
    ms = parse_archive_time(text)
    if ms is None:
        raise archive_not_found()
    return ms


def shown_time(ms: int) -> str:
    """Return when it was, as people at this machine read it."""
    try:
        return local_time(datetime.fromtimestamp(ms / 1000, UTC))
    except (OverflowError, OSError, ValueError):
        # An importer may have brought any number.
        return "-"
