"""The client of one MCP server in one session: connects on first use, and reconnects."""

import asyncio
import importlib
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from holdfast.domain.errors import HoldfastError
from holdfast.domain.secrets import Secret
from holdfast.domain.tools import Grant, ResultCode
from holdfast.ports.tools import ToolWorkspace
from holdfast.process.cancellation import run_in_thread
from holdfast.process.launcher import Launcher
from holdfast.tools.mcp.declarations import (
    HttpServer,
    ListedTool,
    SecretReference,
    Server,
    SseServer,
    StdioServer,
    WebsocketServer,
    build_order,
    is_registered,
)
from holdfast.tools.process_context import ProcessSettings
from holdfast.tools.tool import ToolFailure
from holdfast.tools.web.connection import WebSettings
from holdfast.tools.web.ssrf import Url, read_local_url, read_url, require_domain

if TYPE_CHECKING:
    from holdfast.tools.mcp.connection import McpConnection


# Back-off after a failure: three times the duration of the failed attempt.
_RETRY_FACTOR: Final = 3.0
_CONNECTION_MODULE: Final = "holdfast.tools.mcp.connection"

log = logging.getLogger(__name__)


async def no_secret(_: str) -> Secret:
    """Raise, because no secret store is configured."""
    raise ToolFailure(ResultCode.UNAVAILABLE, "a required secret is missing")


@dataclass(frozen=True, kw_only=True)
class McpSettings:
    """Settings of MCP servers; `configured` are the user's own, which agents name by `ref`.

    An agent definition may come from an untrusted repository. A program or a loopback address that
    it declares is only used if the user has configured the same one, or if `consent` returns true.
    The limits are seconds for the handshake, for listing tools, and for one call.
    """

    web: WebSettings = field(default_factory=WebSettings)
    configured: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    secret: Callable[[str], Awaitable[Secret]] = no_secret
    launcher: Launcher = field(default_factory=Launcher)
    processes: ProcessSettings = field(
        default_factory=lambda: ProcessSettings(environment=os.environ)
    )
    consent: Callable[[Server], bool] = lambda _: False
    connect_limit: float = 30.0
    list_limit: float = 10.0
    call_limit: float = 300.0


class McpClient:
    """The tools of a server as last listed, or the reason why there are none."""

    def __init__(
        self,
        server: Server,
        settings: McpSettings,
        *,
        is_named: bool = False,
        is_client_server: bool = False,
        kept: frozenset[str] | None = None,
    ) -> None:
        """Create a client without connecting.

        `is_named` means that the agent refers to a server configured by the user.
        `is_client_server` means that the client supplied it for this session, which implies
        consent. `kept` are the ids of the tools that the session has from it; `None` before the
        first discovery.
        """
        self.server = server
        self.kept = kept
        self.tools: tuple[ListedTool, ...] = ()
        self.trouble: str | None = None
        self._settings = settings
        self._connection: McpConnection | None = None
        self._lock = asyncio.Lock()
        self._rests_until = 0.0
        self._is_closed = False
        self._is_named = is_named
        self._is_client_server = is_client_server

    async def refresh(self, workspace: ToolWorkspace) -> None:
        """List the tools again and reconnect if needed; never raises for a server failure."""
        async with self._lock:
            began = asyncio.get_running_loop().time()
            if began < self._rests_until:
                return
            try:
                self.tools, self.trouble = await self._list_tools(workspace), None
                return
            except (ToolFailure, HoldfastError) as trouble:
                self.trouble = trouble.message
            # A server failure must never end a turn.
            except Exception:
                log.exception("the MCP server %s failed with an internal error", self.server.id)
                self.trouble = "it failed with an internal error"
            self.tools = ()
            took = asyncio.get_running_loop().time() - began
            self._rests_until = began + took * (1 + _RETRY_FACTOR)
            await self._hang_up()

    async def call(self, name: str, arguments: dict[str, Any], *, key: str) -> dict[str, Any]:
        """Call a tool from the current list; the key identifies repetitions of the call."""
        connection = self._connection
        if connection is None or not connection.is_alive:
            raise ToolFailure(ResultCode.UNAVAILABLE, f"The MCP server {self.server.id} is closed.")
        return await connection.call(name, arguments, key=key, within=self._settings.call_limit)

    async def close(self) -> None:
        """Close permanently; a connection attempt in progress is ended too."""
        self._is_closed = True
        if self._connection is not None:
            await self._connection.close()
        async with self._lock:
            await self._hang_up()

    async def _list_tools(self, workspace: ToolWorkspace) -> tuple[ListedTool, ...]:
        if self._is_closed:
            raise _unavailable("the session has closed it")
        # Checked every time, because a grant may have been narrowed since.
        grants = None if self._is_client_server else workspace.grants
        require_consent(self.server, self._settings, grants, is_named=self._is_named)
        if self._connection is not None and self._connection.is_alive:
            try:
                return await self._connection.list_tools(self._settings.list_limit)
            except ToolFailure:
                # The server may have restarted and lost its state, which only a new handshake
                # repairs.
                pass
        await self._hang_up()
        self._connection = await self._connect(workspace)
        await self._connection.ready(self._settings.connect_limit)
        return await self._connection.list_tools(self._settings.list_limit)

    async def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _connect(self, workspace: ToolWorkspace) -> "McpConnection":
        """Start or reach the server; the handshake may still fail."""
        # In a thread, because the package of the protocol takes long to import.
        await asyncio.to_thread(importlib.import_module, _CONNECTION_MODULE)
        from holdfast.tools.mcp.connection import (
            McpConnection,
            McpServerTransport,
            open_http,
            open_sse,
            open_stdio,
        )

        server, settings = self.server, self._settings
        if isinstance(server, StdioServer):
            order = await run_in_thread(
                lambda _: build_order(server, workspace, settings.processes)
            )
            own = await resolve_secrets(server.env, settings)
            order = replace(order, environment={**order.environment, **own})
            return McpConnection(partial(open_stdio, settings.launcher, order))
        url, local = _endpoint(server, None if self._is_client_server else workspace.grants)
        headers = await resolve_secrets(server.headers, settings)
        reach = open_sse if isinstance(server, SseServer) else open_http
        return McpConnection(
            lambda connection: reach(
                McpServerTransport(
                    url,
                    settings.web,
                    local=local,
                    headers=headers,
                    on_failure=connection.record_failure,
                )
            )
        )


async def resolve_secrets(
    values: Mapping[str, str | SecretReference], settings: McpSettings
) -> dict[str, str]:
    """Return the values with secrets resolved; they are passed to the started process."""
    found = {}
    for name, value in values.items():
        if isinstance(value, SecretReference):
            found[name] = (await settings.secret(value.ref)).reveal()
        else:
            found[name] = value
    return found


def require_consent(
    server: Server, settings: McpSettings, grants: tuple[Grant, ...] | None, *, is_named: bool
) -> None:
    """Refuse a server without consent, or outside the grants.

    Without grants the client supplied it; `is_named` means that the user configured it.
    """
    if isinstance(server, WebsocketServer):
        raise _unavailable("websockets are not supported; declare it with transport http")
    if not isinstance(server, StdioServer):
        _endpoint(server, grants)
    if not (is_named or grants is None or _has_consent(server, settings)):
        raise _consent_error(server)


def _has_consent(server: Server, settings: McpSettings) -> bool:
    """Return whether the user has consented to a declared server; hosts need a grant instead."""
    if not isinstance(server, StdioServer):
        is_here = server.allow_local_endpoint and read_local_url(server.url) is not None
        if not is_here:
            return True
    return is_registered(server, settings.configured) or settings.consent(server)


def _consent_error(server: Server) -> ToolFailure:
    if not isinstance(server, StdioServer):
        return _unavailable(
            "its agent uses a local address, and only your configuration may allow "
            "those. To allow this one, add it to holdfast.toml as "
            f"[mcp.servers.{server.id}], with the same url and allow_local_endpoint = true"
        )
    return _unavailable(
        "its agent declares a program, and only your configuration may start "
        "programs. To allow this one, add it to holdfast.toml as "
        f"[mcp.servers.{server.id}], with the same command, args and env"
    )


def _endpoint(
    server: HttpServer | SseServer | WebsocketServer, grants: tuple[Grant, ...] | None
) -> tuple[Url, bool]:
    """Return the URL of a server after the SSRF checks, and whether it is on this machine.

    Without grants the host was named by the client.
    """
    local = read_local_url(server.url) if server.allow_local_endpoint else None
    if local is not None:
        return local, True
    url = read_url(server.url)
    named = (Grant(domains=(f"{url.host}:{url.port}",)),)
    require_domain(url, named if grants is None else grants)
    return url, False


def _unavailable(why: str) -> ToolFailure:
    return ToolFailure(ResultCode.UNAVAILABLE, why)
