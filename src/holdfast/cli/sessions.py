"""`holdfast sessions …`: everything that can be done with sessions but talking in them."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.commands import command
from holdfast.cli.options import LIMIT_MOST, OneSession, Paging
from holdfast.cli.output import Printer, local_time, money

if TYPE_CHECKING:
    from holdfast.bootstrap import Holdfast
    from holdfast.domain.ids import SessionId
    from holdfast.domain.sessions import Session

group = typer.Typer(
    name="sessions", help="Look at sessions and steer them.", no_args_is_help=True
)


def register(app: typer.Typer) -> None:
    """Put the group into the command line."""
    app.add_typer(group)
