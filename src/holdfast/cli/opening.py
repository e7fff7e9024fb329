"""Opening the house for a command, and finding the session it is about."""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from holdfast.cli.manners import ANYBODY, Manner
from holdfast.domain.errors import Code, Denied, Invalid, NotFound
from holdfast.domain.ids import SessionId, is_uuid

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.cli.house import House
    from holdfast.cli.output import Printer
    from holdfast.cli.remote.house import RemoteHouse

# Ids begin with the time: with less, all sessions of a quarter of an hour look alike.
BEGINNING_SHORTEST: Final = 8
SHOWN_MOST: Final = 5
_BEGINNING: Final = re.compile(r"[0-9a-f-]+")


@asynccontextmanager
async def opened(
    printer: "Printer",
    scope: str = "none",
    *,
    manner: Manner = ANYBODY,
    flags: Mapping[str, Any] | None = None,
) -> AsyncIterator["House"]:
    """Reach the house that the command is about: behind the named server, else the home's own."""
    server = printer.settings.server
    if server is None:
        async with opened_here(printer, scope, manner=manner, flags=flags) as holdfast:
            yield holdfast
        return
    async with opened_there(printer, server) as house:
        yield house


@asynccontextmanager
async def opened_there(printer: "Printer", server: str) -> AsyncIterator["RemoteHouse"]:
    """Reach the house behind a server."""
    from holdfast.cli.logs import scrub_with
    from holdfast.cli.remote.house import remote_house
    from holdfast.cli.secrets import secrets_here

    _require_address(server)
    secrets = secrets_here()
    # Without the command's own settings: what may be reached is the server's to judge.
    config = printer.settings.load()
    scrub_with(lambda: secrets.scrubber)
    try:
        async with remote_house(server, config, secrets) as house:
            yield house
    except Denied as error:
        if error.code is not Code.UNAUTHENTICATED:
            raise
        # The server tells programs what to send; a person at a command sets a variable.
        raise Denied(
            Code.UNAUTHENTICATED,
            "The server was sent no token that it takes; put one of that server into "
            "HOLDFAST_TOKEN. `holdfast token create` makes one where the server runs.",
        ) from None


def _require_address(server: str) -> None:
    """Refuse what cannot be the address of a server, before a token is looked for."""
    try:
        parts = urlsplit(server)
        is_address = parts.scheme in {"http", "https"} and bool(parts.hostname)
    except ValueError:
        is_address = False
    if not is_address:
        raise Invalid(
            Code.INVALID_INPUT,
            "--server (HOLDFAST_SERVER) takes an address like http://HOST:PORT, or https://HOST.",
            {"field": "--server"},
        )


@asynccontextmanager
async def opened_here(
    printer: "Printer",
    scope: str = "none",
    *,
    manner: Manner = ANYBODY,
    flags: Mapping[str, Any] | None = None,
) -> AsyncIterator["Holdfast"]:
    """Open the house of the configured home; `scope` says whose turns this process plays.

    `manner` says whether somebody can be asked, `flags` are settings that a command takes itself.
    """
    from holdfast.app import Environment, open_holdfast
    from holdfast.cli.logs import scrub_with
    from holdfast.execution.coordinator import RunScope

    config = printer.settings.load(flags)
    outside = Environment(is_attended=manner.is_attended, yes_to=manner.yes_to)
    async with open_holdfast(config=config, scope=RunScope(scope), outside=outside) as holdfast:
        scrub_with(lambda: holdfast.secrets.scrubber)
        yield holdfast


async def find_session(holdfast: "House", text: str) -> SessionId:
    """Return the session that a person means by its id, or by the beginning of it.

    Whether there is one of a whole id, or of a word that is none, its service says.
    """
    wanted = text.strip().lower()
    if is_uuid(wanted) or not _BEGINNING.fullmatch(wanted):
        return SessionId(wanted)
    if len(wanted) < BEGINNING_SHORTEST:
        raise NotFound(
            Code.SESSION_NOT_FOUND,
            f"Write at least {BEGINNING_SHORTEST} characters of a session's id; `holdfast sessions "
            "list` shows yours.",
        )
    found = await holdfast.sessions.find(holdfast.owner, wanted, limit=SHOWN_MOST)
    if len(found) > 1:
        raise Invalid(
            Code.INVALID_ID,
            f"Several sessions begin with {wanted}: {', '.join(found)}; write more of the id.",
            {"sessions": list(found)},
        )
    return found[0] if found else SessionId(wanted)
