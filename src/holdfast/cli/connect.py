"""Opens the store in this process or connects to a server, depending on the flags."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from holdfast.cli.approval_policy import UNATTENDED, AttendancePolicy
from holdfast.domain.errors import Code, Denied, Invalid

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.cli.output import Printer
    from holdfast.cli.remote.services import RemoteHouse
    from holdfast.cli.services import House


@asynccontextmanager
async def connect(
    printer: "Printer",
    scope: str = "none",
    *,
    policy: AttendancePolicy = UNATTENDED,
    flags: Mapping[str, Any] | None = None,
) -> AsyncIterator["House"]:
    """Connect to the named server, or open the local store if none is named."""
    server = printer.settings.server
    if server is None:
        async with open_local(printer, scope, policy=policy, flags=flags) as holdfast:
            yield holdfast
        return
    async with connect_server(printer, server) as holdfast:
        yield holdfast


@asynccontextmanager
async def connect_server(printer: "Printer", server: str) -> AsyncIterator["RemoteHouse"]:
    """Connect to a server."""
    from holdfast.cli.logs import scrub_with
    from holdfast.cli.remote.services import remote_house
    from holdfast.cli.secrets import secrets_here

    _require_address(server)
    secrets = secrets_here()
    # Without the command's own settings, because the server decides about access.
    config = printer.settings.load()
    scrub_with(lambda: secrets.scrubber)
    try:
        async with remote_house(server, config, secrets) as holdfast:
            yield holdfast
    except Denied as error:
        if error.code is not Code.UNAUTHENTICATED:
            raise
        # The server's message is for programs; at the command line the remedy is a variable.
        raise Denied(
            Code.UNAUTHENTICATED,
            "The server was sent no token that it takes; put one of that server into "
            "HOLDFAST_TOKEN. `holdfast token create` makes one where the server runs.",
        ) from None


def _require_address(server: str) -> None:
    """Refuse an invalid server URL before a token is read."""
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
async def open_local(
    printer: "Printer",
    scope: str = "none",
    *,
    policy: AttendancePolicy = UNATTENDED,
    flags: Mapping[str, Any] | None = None,
) -> AsyncIterator["Holdfast"]:
    """Open the configured store; `scope` selects which turns this process runs.

    `policy` is whether a person can be asked; `flags` are settings of the command itself.
    """
    from holdfast.app import Environment, open_holdfast
    from holdfast.cli.logs import scrub_with
    from holdfast.execution.coordinator import RunScope

    config = printer.settings.load(flags)
    outside = Environment(is_attended=policy.is_attended, yes_to=policy.yes_to)
    async with open_holdfast(config=config, scope=RunScope(scope), outside=outside) as holdfast:
        scrub_with(lambda: holdfast.secrets.scrubber)
        yield holdfast
