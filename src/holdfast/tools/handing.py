"""MCP servers for somebody else's agent, which starts and reaches them by itself.

The same consent as for our own use decides which of them go along. What only we could keep a
server to is no reason to hand it over without.
"""

from collections.abc import Iterator
from typing import Final

from holdfast.domain.errors import HoldfastError, Invalid
from holdfast.domain.secrets import Secret
from holdfast.domain.tools import ResultCode, remote_id
from holdfast.ports import ClientMcpServer, ClientMcpServers, ToolWorkspace
from holdfast.tools.lines import McpSettings, opened, require_agreed
from holdfast.tools.programs import find_program
from holdfast.tools.remote import declared, read_entry
from holdfast.tools.servers import Server, SseServer, StdioServer
from holdfast.tools.starting import NOWHERE
from holdfast.tools.surroundings import surroundings_of
from holdfast.tools.threads import in_thread
from holdfast.tools.tool import ToolTrouble

# The agent starts it in the repository, where what somebody else left would be found and run.
_ELSEWHERE: Final = ("/bin/sh", "-c", f'cd {NOWHERE} && exec "$0" "$@"')


class HandedServers:
    """Implements the `Companions` port."""

    def __init__(self, settings: McpSettings) -> None:
        self._settings = settings

    async def of(self, place: ToolWorkspace) -> ClientMcpServers:
        """Return the servers of a place that an agent may have, and why it has no others."""
        found: dict[str, ClientMcpServer] = {}
        troubles = []
        for entry, is_guest in declared(place):
            try:
                server = read_entry(entry, self._settings, is_guest=is_guest)
            except Invalid as error:
                troubles.append(error.message)
                continue
            if server.id in found:
                troubles.append(f"The MCP server {server.id} is declared twice.")
                continue
            grants = None if is_guest else place.grants
            try:
                require_agreed(server, self._settings, grants, is_named="ref" in entry)
                _require_whole(server, place)
                found[server.id] = await self._handed(server, place)
            except (ToolTrouble, HoldfastError) as trouble:
                why = trouble.message.rstrip(".")
                troubles.append(f"The agent does not get the MCP server {server.id}: {why}.")
        return ClientMcpServers(companions=tuple(found.values()), troubles=tuple(troubles))

    async def _handed(self, server: Server, place: ToolWorkspace) -> ClientMcpServer:
        if isinstance(server, StdioServer):
            argv = await in_thread(lambda _: self._argv(server, place))
            own = await opened(server.env, self._settings)
            return ClientMcpServer(
                name=server.id,
                transport="stdio",
                command=argv[0],
                args=argv[1:],
                values=_hidden({**dict(self._passed_on(server)), **own}),
            )
        return ClientMcpServer(
            name=server.id,
            transport="sse" if isinstance(server, SseServer) else "http",
            url=server.url,
            values=_hidden(await opened(server.headers, self._settings)),
        )

    def _argv(self, server: StdioServer, place: ToolWorkspace) -> tuple[str, ...]:
        """Return what is run: the file itself, because the agent may look for names elsewhere."""
        around = surroundings_of(place, self._settings.processes)
        is_at_home = server.cwd == "workspace"
        folder = around.folder if is_at_home else NOWHERE
        program = find_program(server.command, path=around.path, folder=folder)
        if program is None:
            raise ToolTrouble(ResultCode.UNAVAILABLE, "its command is not there")
        return (*(() if is_at_home else _ELSEWHERE), program.path, *server.args)

    def _passed_on(self, server: StdioServer) -> Iterator[tuple[str, str]]:
        ours = self._settings.processes.environment
        return ((name, ours[name]) for name in server.env_names if name in ours)


def _require_whole(server: Server, place: ToolWorkspace) -> None:
    """Refuse a server of which only some tools may be used: nobody holds the agent to that."""
    begins = remote_id(server.id)
    if server.tools_allowlist is not None or any(name.startswith(begins) for name in place.tools):
        why = "only some of its tools are allowed, and a program that has it has all of them"
        raise ToolTrouble(ResultCode.UNAVAILABLE, why)


def _hidden(values: dict[str, str]) -> dict[str, Secret]:
    return {name: Secret(value) for name, value in values.items()}
