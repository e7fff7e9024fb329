"""Opens the store in this process or connects to a server, depending on the flags."""

import ipaddress
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from holdfast.cli.approval_policy import UNATTENDED, AttendancePolicy
from holdfast.domain.errors import Code, Denied, Invalid

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.api import Holdfast, LocalHoldfast
    from holdfast.cli.output import Printer

TOKEN_VARIABLE: Final = "HOLDFAST_TOKEN"  # noqa: S105 — its name, not its value
# Short timeout: a person waits, and can decide whether to try again.
REQUEST_SECONDS: Final = 3.0


@asynccontextmanager
async def connect(
    printer: "Printer", scope: str = "none", *, policy: AttendancePolicy = UNATTENDED
) -> AsyncIterator["Holdfast"]:
    """Connect to the named server, or open the local store if none is named."""
    server = printer.settings.server
    if server is None:
        async with open_local(printer, scope, policy=policy) as holdfast:
            yield holdfast
        return
    async with connect_server(printer, server) as remote:
        yield remote


@asynccontextmanager
async def connect_server(printer: "Printer", server: str) -> AsyncIterator["Holdfast"]:
    """Connect to a server; its token is redacted in logs from then on."""
    from holdfast.cli.logs import scrub_with
    from holdfast.cli.secrets import secrets_here
    from holdfast.client import Timeouts
    from holdfast.client import connect as connect_to
    from holdfast.domain.secrets import Secret

    _require_address(server)
    secrets = secrets_here()
    config = printer.settings.load()
    scrub_with(lambda: secrets.scrubber)
    token = await _token(server, config.home)
    if token is not None:
        secrets.remember(TOKEN_VARIABLE, Secret(token))
    try:
        async with connect_to(server, token, timeouts=Timeouts(request=REQUEST_SECONDS)) as remote:
            yield remote
    except Denied as error:
        if error.code is not Code.UNAUTHENTICATED:
            raise
        # The server's message is for programs; at the command line the remedy is a variable.
        raise Denied(
            Code.UNAUTHENTICATED,
            "The server did not accept a token; set HOLDFAST_TOKEN to a token of that "
            "server. Create one with `holdfast token create` on the server's machine.",
        ) from None


async def _token(url: str, home: "Path") -> str | None:
    """Return the token for a server: the configured one, else the home's own on this machine."""
    given = os.environ.get(TOKEN_VARIABLE)
    if given:
        return given
    if not is_here(url):
        raise Denied(
            Code.UNAUTHENTICATED,
            f"Set {TOKEN_VARIABLE} to a token of that server; create one with `holdfast "
            "token create` on the server's machine.",
        )
    from holdfast.store.sqlite.token_file import SecretFile

    # Only sent to this machine, because the token gives access to everything in this home.
    return await SecretFile(home).read()


def is_here(url: str) -> bool:
    """Return whether a URL is on this machine; of host names only `localhost` is trusted."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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
            "--server (HOLDFAST_SERVER) must be a URL such as http://HOST:PORT or https://HOST.",
            {"field": "--server"},
        )


@asynccontextmanager
async def open_local(
    printer: "Printer",
    scope: str = "none",
    *,
    policy: AttendancePolicy = UNATTENDED,
    flags: Mapping[str, Any] | None = None,
) -> AsyncIterator["LocalHoldfast"]:
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
