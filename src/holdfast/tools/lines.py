"""A line to one MCP server of one session: connected when first needed, again when it is dead."""

import asyncio
import importlib
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from holdfast.domain.errors import HoldfastError
from holdfast.domain.secrets import Secret
from holdfast.domain.tools import ResultCode
from holdfast.ports import Workplace
from holdfast.tools.environments import child_environment, restricted_path
from holdfast.tools.fetching import WebSettings
from holdfast.tools.servers import (
    HttpServer,
    Listed,
    SecretReference,
    Server,
    SseServer,
    StdioServer,
    WebsocketServer,
)
from holdfast.tools.tool import ToolTrouble
from holdfast.tools.urls import Url, read_local_url, read_url, require_domain

if TYPE_CHECKING:
    from holdfast.tools.connections import Connection, Transport

# After a failure nobody waits for the server again before three times what the failure took.
_PATIENCE: Final = 3.0
_HEAVY: Final = "holdfast.tools.connections"

log = logging.getLogger(__name__)


def environment_at(place: Workplace) -> dict[str, str]:
    """Return the variables that a server started at this place may know."""
    here = tuple(os.path.realpath(each) for each in (place.working_dir, place.scratch))
    path = restricted_path(os.environ.get("PATH"), without=here)
    return child_environment(os.environ, path=path, scratch=place.scratch)


async def no_secret(_: str) -> Secret:
    """Have no secret to give."""
    raise ToolTrouble(ResultCode.UNAVAILABLE, "a secret that it needs is not there")


@dataclass(frozen=True, kw_only=True)
class McpSettings:
    """How MCP servers are reached; `configured` are the user's own, which agents name by `ref`.

    Seconds are for the handshake, for a list of tools, and for one call.
    """

    web: WebSettings = field(default_factory=WebSettings)
    configured: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    secret: Callable[[str], Awaitable[Secret]] = no_secret
    environment: Callable[[Workplace], dict[str, str]] = environment_at
    connect_limit: float = 30.0
    list_limit: float = 10.0
    call_limit: float = 300.0


class Line:
    """The tools of a server as they were last listed, or why there are none."""

    def __init__(self, server: Server, settings: McpSettings) -> None:
        self.server = server
        self.tools: tuple[Listed, ...] = ()
        self.trouble: str | None = None
        self._settings = settings
        self._connection: Connection | None = None
        self._lock = asyncio.Lock()
        self._rests_until = 0.0
        self._is_closed = False

    async def refresh(self, place: Workplace) -> None:
        """List the tools anew, over a new connection if need be; never raises for the server."""
        async with self._lock:
            began = asyncio.get_running_loop().time()
            if began < self._rests_until:
                return
            try:
                self.tools, self.trouble = await self._listed(place), None
                return
            except (ToolTrouble, HoldfastError) as trouble:
                self.trouble = trouble.message
            # Whatever it is, a server cannot be the end of a turn.
            except Exception:
                log.exception("the MCP server %s failed in a way of its own", self.server.id)
                self.trouble = "it failed for a reason of its own"
            self.tools = ()
            took = asyncio.get_running_loop().time() - began
            self._rests_until = began + took * (1 + _PATIENCE)
            await self._hang_up()

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a tool that was listed a moment ago."""
        connection = self._connection
        if connection is None or not connection.is_alive:
            raise ToolTrouble(ResultCode.UNAVAILABLE, f"The MCP server {self.server.id} is gone.")
        return await connection.call(name, arguments, self._settings.call_limit)

    async def close(self) -> None:
        """Hang up for good; a connection that is just being made ends too."""
        self._is_closed = True
        if self._connection is not None:
            await self._connection.close()
        async with self._lock:
            await self._hang_up()

    async def _listed(self, place: Workplace) -> tuple[Listed, ...]:
        if self._is_closed:
            raise _unavailable("the session has left it")
        # Asked every time: a grant may have become narrower since.
        _require_reach(self.server, place)
        if self._connection is not None and self._connection.is_alive:
            try:
                return await self._connection.listed(self._settings.list_limit)
            except ToolTrouble:
                # It may have restarted and forgotten us, which only a new handshake mends.
                pass
        await self._hang_up()
        transport = await self._transport(place)
        connections = await asyncio.to_thread(importlib.import_module, _HEAVY)
        self._connection = connections.Connection(transport)
        await self._connection.ready(self._settings.connect_limit)
        return await self._connection.listed(self._settings.list_limit)

    async def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _transport(self, place: Workplace) -> "Callable[[Connection], Transport]":
        server = self.server
        if isinstance(server, StdioServer):
            return await self._started(server, place)
        url, local = _endpoint(server, place)
        web, over_events = self._settings.web, isinstance(server, SseServer)

        def reached(connection: "Connection") -> "Transport":
            from holdfast.tools import pinned

            endpoint = pinned.Endpoint(url, web, local=local, told=connection.heard)
            return pinned.over_events(endpoint) if over_events else pinned.over_http(endpoint)

        return reached

    async def _started(
        self, server: StdioServer, place: Workplace
    ) -> "Callable[[Connection], Transport]":
        # Looks at folders, so not on the loop.
        environment = await asyncio.to_thread(self._settings.environment, place)
        for name, value in server.env.items():
            if isinstance(value, SecretReference):
                environment[name] = (await self._settings.secret(value.ref)).reveal()
            else:
                environment[name] = value

        def started(connection: "Connection") -> "Transport":
            from holdfast.tools import pipes

            program = pipes.Program(
                argv=(server.command, *server.args),
                environment=environment,
                folder=place.working_dir,
            )
            return pipes.over_pipes(program, connection.ended)

        return started


def _require_reach(server: Server, place: Workplace) -> None:
    if isinstance(server, WebsocketServer):
        raise _unavailable("websockets are not spoken; declare it with transport http")
    if not isinstance(server, StdioServer):
        _endpoint(server, place)


def _endpoint(
    server: HttpServer | SseServer | WebsocketServer, place: Workplace
) -> tuple[Url, bool]:
    """Return where a server is, judged like every other host, and whether it is on this machine."""
    local = read_local_url(server.url) if server.allow_local_endpoint else None
    if local is not None:
        return local, True
    url = read_url(server.url)
    require_domain(url, place.grants)
    return url, False


def _unavailable(why: str) -> ToolTrouble:
    return ToolTrouble(ResultCode.UNAVAILABLE, why)
