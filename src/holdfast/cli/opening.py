"""Opening the house for a command."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from holdfast.domain.ids import SessionId

if TYPE_CHECKING:
    from holdfast.bootstrap import Holdfast
    from holdfast.cli.output import Printer


@asynccontextmanager
async def opened(printer: "Printer", scope: str = "none") -> AsyncIterator["Holdfast"]:
    """Open the house of the configured home; `scope` says whose turns this process plays."""
    from holdfast.bootstrap import open_holdfast
    from holdfast.execution.local import Scope

    async with open_holdfast(config=printer.settings.load(), scope=Scope(scope)) as holdfast:
        yield holdfast


def session_id(text: str) -> SessionId:
    """Return what a person wrote as a session's id; whether there is such a one shows later."""
    return SessionId(text.strip().lower())
