"""Tools of MCP servers: discovered at run time, named by our ids, validated like other tools.

Also the servers that are passed through to an ACP agent, which connects to them itself.
"""

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from holdfast.domain.errors import HoldfastError, Invalid
from holdfast.domain.secrets import Secret
from holdfast.domain.text import quote, visible, visible_json
from holdfast.domain.tools import REMOTE, Effect, ResultCode, ToolClass, remote_id
from holdfast.ports.llm import LlmTool
from holdfast.ports.tools import ClientMcpServer, ClientMcpServers, RequestedCall, ToolWorkspace
from holdfast.process.cancellation import run_in_thread
from holdfast.process.executables import find_executable
from holdfast.tools.mcp.client import McpClient, McpSettings, require_consent, resolve_secrets
from holdfast.tools.mcp.declarations import (
    ROOT_FOLDER,
    ListedTool,
    Server,
    SseServer,
    StdioServer,
    read_client_server,
    read_server,
)
from holdfast.tools.process_context import process_context_of
from holdfast.tools.tool import CallPlan, LocalTool, ToolFailure
from holdfast.tools.web.ssrf import read_url

_ID_LONGEST: Final = 64
_DEFINITION_LARGEST: Final = 64 << 10
_NAMED_AT_MOST: Final = 10
_CAUTION: Final = {Effect.PURE: 0, Effect.IDEMPOTENT: 1, Effect.UNSAFE: 2}


class FoundTool(Struct, frozen=True, kw_only=True):
    """A tool of a server, with its local id."""

    id: str
    server: Server
    listed: ListedTool

    @property
    def effect(self) -> Effect:
        """Return the effect that the server declares; `unsafe` unless the server is trusted."""
        return self.listed.hint if self.server.trusted else Effect.UNSAFE

    @property
    def target(self) -> str:
        """Return a hash of the server and the tool definition; it changes with either of them."""
        whose = msgspec.json.encode([self.server, self.listed.definition], order="sorted")
        return hashlib.sha256(whose).hexdigest()


class ToolSurvey(Struct, frozen=True, kw_only=True):
    """The tools of a session's servers, and messages about missing ones."""

    found: Mapping[str, FoundTool]
    troubles: tuple[str, ...]


class McpTools:
    """The tools of all MCP servers, per session."""

    def __init__(self, settings: McpSettings) -> None:
        self._settings = settings
        self._lines: dict[str, dict[str, McpClient]] = {}
        self._wrong: dict[str, tuple[str, ...]] = {}

    def effect(self, name: str) -> Effect:
        """Return the effect of a repeated call; the most cautious value over all sessions."""
        hints = [
            found[name].effect
            for session in self._lines
            if name in (found := self._survey(session).found)
        ]
        return max(hints, key=_CAUTION.__getitem__, default=Effect.UNSAFE)

    async def offers(self, workspace: ToolWorkspace) -> tuple[LlmTool, ...]:
        """Return the session's tools that its servers offer now."""
        survey = await self._refresh(workspace)
        return tuple(
            LlmTool(
                name=each.id, description=each.listed.description, parameters=each.listed.schema
            )
            for each in survey.found.values()
        )

    def grants(self, workspace: ToolWorkspace, name: str) -> bool:
        """Return whether a declared server grants the tool: all tools of the first discovery."""
        return any(
            _has_tool(line.kept, name)
            for server, line in self._lines.get(workspace.session, {}).items()
            if name.startswith(remote_id(server))
        )

    async def troubles(self, workspace: ToolWorkspace) -> tuple[str, ...]:
        """Return what is missing, as sentences for display; queries the servers at most once."""
        if workspace.session in self._lines:
            return self._survey(workspace.session).troubles
        return (await self._refresh(workspace)).troubles

    async def find(self, workspace: ToolWorkspace, name: str) -> LocalTool[Any] | None:
        """Return the tool; if its declared server is missing, the tool fails with `unavailable`."""
        if not name.startswith(REMOTE) or not (workspace.servers or workspace.session_servers):
            return None
        known = self._survey(workspace.session).found.get(name)
        found = known or (await self._refresh(workspace)).found.get(name)
        if found is not None:
            return self._tool(found.id, found.listed.description, found.listed.schema)
        declared = self._lines.get(workspace.session, {})
        is_declared = any(name.startswith(remote_id(server)) for server in declared)
        return self._tool(name, "", {"type": "object"}) if is_declared else None

    async def leave(self, session: str) -> None:
        """Close the connections to all servers of the session."""
        self._wrong.pop(session, None)
        lines = self._lines.pop(session, {})
        async with asyncio.TaskGroup() as group:
            for line in lines.values():
                group.create_task(line.close())

    async def aclose(self) -> None:
        """Close all connections."""
        for session in list(self._lines):
            await self.leave(session)

    def _tool(self, name: str, description: str, schema: Mapping[str, Any]) -> LocalTool[Any]:
        async def plan(workspace: ToolWorkspace, arguments: dict[str, Any]) -> CallPlan:
            return await self._plan(workspace, name, arguments)

        async def act(
            workspace: ToolWorkspace, arguments: dict[str, Any], request: RequestedCall
        ) -> dict[str, Any]:
            found = self._require_tool(workspace, name)
            line = self._lines[workspace.session][found.server.id]
            return await line.call(found.listed.name, arguments, key=request.idempotency_key)

        return LocalTool(
            name=name,
            description=description,
            arguments=dict,
            schema=schema,
            effect=lambda _: self.effect(name),
            plan=plan,
            act=act,
        )

    async def _plan(
        self, workspace: ToolWorkspace, name: str, arguments: dict[str, Any]
    ) -> CallPlan:
        await self._refresh(workspace, only=name)
        found = self._require_tool(workspace, name)
        _require_fit(found.listed.schema, arguments)
        server, listed = found.server, found.listed
        lines = [f"Call {visible(listed.name)} of the MCP server {server.id} at"]
        lines += [quote(server.where)]
        lines += ["which describes it as", quote(listed.description)] if listed.description else []
        lines += ["with the arguments", visible_json(arguments)]
        is_command = isinstance(server, StdioServer)
        return CallPlan(
            tool_class=ToolClass.EGRESS,
            targets=(found.target,),
            question="\n".join(lines),
            preview={"command": server.where} if is_command else {"host": _host(server.where)},
            # Includes the definition, because an approval for the session is for this definition
            # only.
            memory=f"mcp:{name}:{found.target[:16]}",
        )

    def _require_tool(self, workspace: ToolWorkspace, name: str) -> FoundTool:
        survey = self._survey(workspace.session)
        found = survey.found.get(name)
        if found is None:
            why = " ".join(survey.troubles)
            raise ToolFailure(ResultCode.UNAVAILABLE, f"{name} is not available now. {why}".strip())
        return found

    async def _refresh(self, workspace: ToolWorkspace, *, only: str | None = None) -> ToolSurvey:
        lines = self._lines_of(workspace)
        known = self._survey(workspace.session).found.get(only) if only else None
        clients = [lines[known.server.id]] if known else list(lines.values())
        async with asyncio.TaskGroup() as group:
            for line in clients:
                group.create_task(line.refresh(workspace))
        survey = self._survey(workspace.session)
        for line in clients:
            if line.kept is None:
                ids = (id for id, each in survey.found.items() if each.server is line.server)
                # Stays `None` while no tool is found: the first non-empty discovery defines the
                # set.
                line.kept = frozenset(ids) or None
        return survey

    def _lines_of(self, workspace: ToolWorkspace) -> dict[str, McpClient]:
        if workspace.session not in self._lines:
            lines: dict[str, McpClient] = {}
            wrong = []
            for entry, is_client_server in declared_servers(workspace):
                try:
                    server = read_entry(entry, self._settings, is_client_server=is_client_server)
                except Invalid as error:
                    wrong.append(error.message)
                    continue
                if server.id in lines:
                    wrong.append(f"The MCP server {server.id} is declared twice.")
                named = (name for name in workspace.tools if name.startswith(remote_id(server.id)))
                line = McpClient(
                    server,
                    self._settings,
                    is_named="ref" in entry,
                    is_client_server=is_client_server,
                    kept=frozenset(named) or None,
                )
                lines.setdefault(server.id, line)
            self._lines[workspace.session] = lines
            self._wrong[workspace.session] = tuple(wrong)
        return self._lines[workspace.session]

    def _survey(self, session: str) -> ToolSurvey:
        lines = self._lines.get(session, {}).values()
        by_id: dict[str, list[FoundTool]] = defaultdict(list)
        troubles = list(self._wrong.get(session, ()))
        for line in lines:
            troubles += _server_notices(line)
            for each in _allowed_tools(line):
                by_id[each.id].append(each)
        twice = [id for id, found in by_id.items() if len(found) > 1]
        if twice:
            troubles.append(f"Skipped because several tools would share the id: {_names(twice)}.")
        single = {id: found[0] for id, found in by_id.items() if len(found) == 1}
        kept = {line.server.id: line.kept for line in lines}
        found = {id: each for id, each in single.items() if _has_tool(kept[each.server.id], id)}
        return ToolSurvey(found=found, troubles=tuple(troubles))


def declared_servers(workspace: ToolWorkspace) -> Iterator[tuple[Mapping[str, Any], bool]]:
    """Yield the servers of the agent, then those of the client, with a flag for the latter."""
    yield from ((entry, False) for entry in workspace.servers)
    yield from ((entry, True) for entry in workspace.session_servers)


def read_entry(
    entry: Mapping[str, Any], settings: McpSettings, *, is_client_server: bool
) -> Server:
    """Return the server that an entry declares."""
    return (
        read_client_server(entry) if is_client_server else read_server(entry, settings.configured)
    )


def _has_tool(kept: frozenset[str] | None, id: str) -> bool:
    """Return whether a session has a tool of a server; all of them before the first discovery."""
    return kept is None or id in kept


def _allowed_tools(line: McpClient) -> Iterator[FoundTool]:
    allowlist = line.server.tools_allowlist
    for listed in line.tools:
        id = remote_id(line.server.id, listed.name)
        is_allowed = allowlist is None or listed.name in allowlist
        if is_allowed and not _is_unfit(id, listed):
            yield FoundTool(id=id, server=line.server, listed=listed)


def _is_unfit(id: str, listed: ListedTool) -> bool:
    return len(id) > _ID_LONGEST or listed.size > _DEFINITION_LARGEST


def _server_notices(line: McpClient) -> Iterator[str]:
    """Yield messages about a server."""
    server, names = line.server, [each.name for each in line.tools]
    if line.trouble is not None:
        yield f"The MCP server {server.id} is not available: {line.trouble.rstrip('.')}."
        return
    allowlist = server.tools_allowlist
    if outside := [name for name in names if allowlist is not None and name not in allowlist]:
        yield (
            f"Skipped from {server.id} because they are not in tools_allowlist: {_names(outside)}."
        )
    if missing := [name for name in allowlist or () if name not in names]:
        yield f"Named in tools_allowlist but not offered by {server.id}: {_names(missing)}."
    if unfit := [
        each.name for each in line.tools if _is_unfit(remote_id(server.id, each.name), each)
    ]:
        yield (
            f"Skipped from {server.id} because the name or description is too long: "
            f"{_names(unfit)}."
        )


def _names(names: Iterable[str]) -> str:
    shown = [visible(name)[:_ID_LONGEST] for name in names]
    more = len(shown) - _NAMED_AT_MOST
    return ", ".join(shown[:_NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")


def _host(url: str) -> str:
    return read_url(url, schemes=("https", "http")).host


def _require_fit(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Refuse missing or unknown argument names; the server validates the values."""
    wanted, known = schema.get("required"), schema.get("properties")
    names = [each for each in wanted if isinstance(each, str)] if isinstance(wanted, list) else []
    missing = [name for name in names if name not in arguments]
    is_closed = schema.get("additionalProperties") is False
    extra = set(arguments) - set(known) if is_closed and isinstance(known, dict) else set()
    if missing or extra:
        raise ToolFailure(
            ResultCode.INVALID_ARGUMENTS,
            f"The arguments are not valid: {_names([*missing, *sorted(extra)])} missing "
            "or unknown.",
        )


# The agent starts servers in the repository, where `python -m` could run planted files.
_START_AT_ROOT: Final = ("/bin/sh", "-c", f'cd {ROOT_FOLDER} && exec "$0" "$@"')


class PassthroughServers:
    """Implements the `McpServerSource` port."""

    def __init__(self, settings: McpSettings) -> None:
        self._settings = settings

    async def of(self, workspace: ToolWorkspace) -> ClientMcpServers:
        """Return the servers that an agent may get, and why others are refused."""
        found: dict[str, ClientMcpServer] = {}
        troubles = []
        for entry, is_client_server in declared_servers(workspace):
            try:
                server = read_entry(entry, self._settings, is_client_server=is_client_server)
            except Invalid as error:
                troubles.append(error.message)
                continue
            if server.id in found:
                troubles.append(f"The MCP server {server.id} is declared twice.")
                continue
            grants = None if is_client_server else workspace.grants
            try:
                require_consent(server, self._settings, grants, is_named="ref" in entry)
                _require_whole(server, workspace)
                found[server.id] = await self._to_client_server(server, workspace)
            except (ToolFailure, HoldfastError) as trouble:
                why = trouble.message.rstrip(".")
                troubles.append(f"The agent does not get the MCP server {server.id}: {why}.")
        return ClientMcpServers(companions=tuple(found.values()), troubles=tuple(troubles))

    async def _to_client_server(self, server: Server, workspace: ToolWorkspace) -> ClientMcpServer:
        if isinstance(server, StdioServer):
            argv = await run_in_thread(lambda _: self._argv(server, workspace))
            own = await resolve_secrets(server.env, self._settings)
            return ClientMcpServer(
                name=server.id,
                transport="stdio",
                command=argv[0],
                args=argv[1:],
                values=_hide_secrets({**dict(self._env_to_pass(server)), **own}),
            )
        return ClientMcpServer(
            name=server.id,
            transport="sse" if isinstance(server, SseServer) else "http",
            url=server.url,
            values=_hide_secrets(await resolve_secrets(server.headers, self._settings)),
        )

    def _argv(self, server: StdioServer, workspace: ToolWorkspace) -> tuple[str, ...]:
        """Return the argv with an absolute program path, because the agent's PATH may differ."""
        context = process_context_of(workspace, self._settings.processes)
        is_at_home = server.cwd == "workspace"
        folder = context.folder if is_at_home else ROOT_FOLDER
        program = find_executable(server.command, path=context.path, folder=folder)
        if program is None:
            raise ToolFailure(ResultCode.UNAVAILABLE, "its command does not exist")
        return (*(() if is_at_home else _START_AT_ROOT), program.path, *server.args)

    def _env_to_pass(self, server: StdioServer) -> Iterator[tuple[str, str]]:
        ours = self._settings.processes.environment
        return ((name, ours[name]) for name in server.env_names if name in ours)


def _require_whole(server: Server, workspace: ToolWorkspace) -> None:
    """Refuse a server with a tool allowlist, because the agent would not enforce it."""
    begins = remote_id(server.id)
    if server.tools_allowlist is not None or any(
        name.startswith(begins) for name in workspace.tools
    ):
        why = "only some of its tools are allowed, and an agent program would get all of them"
        raise ToolFailure(ResultCode.UNAVAILABLE, why)


def _hide_secrets(values: dict[str, str]) -> dict[str, Secret]:
    return {name: Secret(value) for name, value in values.items()}
