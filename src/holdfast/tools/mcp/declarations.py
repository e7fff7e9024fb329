"""MCP server declarations of an agent or the user: a command to start, or a URL."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.text import visible
from holdfast.domain.tools import Effect, ResultCode
from holdfast.ports.tools import ToolWorkspace
from holdfast.process.child import ChildOrder
from holdfast.process.environment import is_below
from holdfast.process.executables import Executable, find_executable
from holdfast.process.sandbox import Bounds, Confinement
from holdfast.tools.process_context import ProcessContext, ProcessSettings, process_context_of
from holdfast.tools.tool import ToolFailure

_QUOTED: Final = re.compile(r"`(?:\$\.)?([^`]*)`")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NAME_LONGEST: Final = 64
Name = Annotated[str, Meta(min_length=1, max_length=_NAME_LONGEST, pattern=r"^[A-Za-z0-9._-]+$")]
Allowlist = Annotated[tuple[str, ...], Meta(min_length=1)]


class SecretReference(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A reference to a value in the keychain."""

    secret: bool
    ref: Annotated[str, Meta(min_length=1)]

    def __post_init__(self) -> None:
        _require(self.secret, "secret")


class StdioServer(
    Struct,
    frozen=True,
    kw_only=True,
    tag="stdio",
    tag_field="transport",
    forbid_unknown_fields=True,
):
    """A server that Holdfast starts and that communicates over stdin and stdout."""

    id: Name
    command: str
    args: tuple[str, ...] = ()
    env: dict[str, str | SecretReference] = {}
    tools_allowlist: Allowlist | None = None
    trusted: bool = False
    # Names of environment variables that are passed on.
    env_names: tuple[str, ...] = ()
    # Access in addition to the session's; without `confined` it has the full access of the user.
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    network: bool = False
    confined: bool = True
    # Working folder; `/` by default, because a program may run files that it finds there.
    cwd: Literal["workspace"] | None = None

    def __post_init__(self) -> None:
        _require(bool(self.command.strip()) and "\x00" not in self.command, "command")
        _require("\x00" not in "".join(self.args), "args")
        _require(all(map(_VARIABLE.fullmatch, self.env)), "env")
        plain = [value for value in self.env.values() if isinstance(value, str)]
        _require("\x00" not in "".join(plain), "env")

    @property
    def where(self) -> str:
        """Return what is started, for the approval question."""
        return " ".join((self.command, *self.args))


class _RemoteServer(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="transport"
):
    id: Name
    url: Annotated[str, Meta(min_length=1)]
    # Allows loopback addresses, for this server only.
    allow_local_endpoint: bool = False
    tools_allowlist: Allowlist | None = None
    trusted: bool = False
    # Sent with every request, and only to this server.
    headers: dict[str, str | SecretReference] = {}

    def __post_init__(self) -> None:
        _require("@" not in self.url.partition("://")[2].partition("/")[0], "url")

    @property
    def where(self) -> str:
        """Return the URL, for the approval question."""
        return self.url


class HttpServer(_RemoteServer, frozen=True, kw_only=True, tag="http"):
    """A server over streamable HTTP."""


class SseServer(_RemoteServer, frozen=True, kw_only=True, tag="sse"):
    """A server over server-sent events, the older HTTP transport."""


class WebsocketServer(_RemoteServer, frozen=True, kw_only=True, tag="websocket"):
    """A server over a websocket, in an agent that was stored when files could declare one."""


class ListedTool(Struct, frozen=True, kw_only=True):
    """A tool as its server describes it now; `definition` is a hash of the description.

    `hint` is the effect of a repeated call according to the server; used only if it is trusted.
    """

    name: str
    description: str
    schema: dict[str, Any]
    definition: str
    size: int
    hint: Effect


Server = StdioServer | HttpServer | SseServer | WebsocketServer
_USER_ONLY: Final = (
    *("trusted", "env_names", "readable", "writable", "network", "confined", "cwd", "headers"),
)


def read_server(
    entry: Mapping[str, Any], configured: Mapping[str, Mapping[str, Any]] | None = None
) -> Server:
    """Return the server that an entry declares, or the configured one that its `ref` names.

    An entry with `ref` can only narrow what the user configured.
    """
    if "ref" not in entry:
        for field in _USER_ONLY:
            _require(field not in entry, field)
        return _read(entry)
    known = (configured or {}).get(str(entry["ref"]))
    if not entry.keys() <= {"ref", "tools_allowlist"}:
        raise _invalid("ref")
    if known is None:
        raise _unknown(visible(str(entry["ref"]))[:_NAME_LONGEST])
    server = _read({"id": entry["ref"], **known})
    wanted = entry.get("tools_allowlist")
    if wanted is None:
        return server
    narrowed = _read({**known, "id": server.id, "tools_allowlist": wanted}).tools_allowlist or ()
    if server.tools_allowlist is not None:
        narrowed = tuple(name for name in narrowed if name in server.tools_allowlist)
    return msgspec.structs.replace(server, tools_allowlist=narrowed)


def read_client_server(entry: Mapping[str, Any]) -> Server:
    """Return a server supplied by the client: with network, else limited to the session's access.

    Loopback addresses are allowed, because the client named them.
    """
    server = _read(entry)
    if isinstance(server, StdioServer):
        return msgspec.structs.replace(server, network=True)
    return msgspec.structs.replace(server, allow_local_endpoint=True)


def is_registered(server: Server, configured: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether the user has configured the same program or address."""
    known = (_read({"id": name, **entry}) for name, entry in configured.items())
    return any(_consent_key(each) == _consent_key(server) for each in known)


def _consent_key(server: Server) -> tuple[Any, ...]:
    """Return what consent covers: a program with arguments and environment, or an address."""
    if isinstance(server, StdioServer):
        return server.command, server.args, server.env
    return server.url, server.allow_local_endpoint


def _read(entry: Mapping[str, Any]) -> Server:
    try:
        server: Server = msgspec.convert(dict(entry), Server)
    except msgspec.ValidationError as error:
        # The library names the field last, in backquotes, and never shows a value.
        raise _invalid(_QUOTED.findall(str(error))[-1]) from None
    return server


def _require(holds: bool, field: str) -> None:
    if not holds:
        raise _invalid(field)


def _unknown(name: str) -> Invalid:
    return Invalid(
        Code.AGENT_INVALID,
        f"The MCP server {name} is not configured; holdfast.toml has no [mcp.servers.{name}].",
        {"fields": ["mcp_servers.ref"]},
    )


def _invalid(field: str) -> Invalid:
    return Invalid(
        Code.AGENT_INVALID,
        f"The declaration of an MCP server is not valid; check {field}.",
        {"fields": [f"mcp_servers.{field}"]},
    )


# A folder that no session controls. In an untrusted repository, `python -m NAME` and relative
# arguments could run planted files with the secrets of the server.
ROOT_FOLDER: Final = "/"


def build_order(
    server: StdioServer, workspace: ToolWorkspace, settings: ProcessSettings
) -> ChildOrder:
    """Return how to start a server, without its own variables; reads the file system."""
    context = process_context_of(workspace, settings)
    folder = context.folder if server.cwd == "workspace" else ROOT_FOLDER
    program = find_executable(server.command, path=context.path, folder=folder)
    if program is None:
        raise _missing(server, folder)
    home = _home(server, context)
    return ChildOrder(
        argv=(server.command, *server.args),
        program=program.path,
        program_identity=program.identity,
        folder=folder,
        folder_identity=context.folder_identity if folder == context.folder else (),
        environment={**context.environment, **home, **dict(_own(server, context, settings))},
        confinement=_confinement(server, context, program, tuple(set(home.values()))),
    )


def _home(server: StdioServer, context: ProcessContext) -> dict[str, str]:
    """Return the private home of a server in a jailed session; created if missing.

    The session's commands cannot access it, because they could plant files that the server runs.
    """
    if not context.is_jailed or not server.confined:
        return {}
    # A prefix, because a server id may be `..` (path traversal).
    home = os.path.join(f"{context.scratch}.servers", f"of-{server.id}")
    try:
        os.makedirs(home, mode=0o700, exist_ok=True)
    except OSError as error:
        raise ToolFailure(ResultCode.UNAVAILABLE, "its folder cannot be created") from error
    return {"HOME": home, "TMPDIR": home}


def _own(
    server: StdioServer, context: ProcessContext, settings: ProcessSettings
) -> Iterator[tuple[str, str]]:
    if not server.confined and context.user_home is not None:
        yield "HOME", context.user_home
    for name in server.env_names:
        if name in settings.environment:
            yield name, settings.environment[name]


def _confinement(
    server: StdioServer, context: ProcessContext, program: Executable, home: tuple[str, ...]
) -> Confinement:
    reach = context.confinement(program)
    # A file named in the arguments must be readable.
    named = [word for word in server.args if os.path.isabs(word) and os.path.exists(word)]
    return Confinement(
        is_jailed=reach.is_jailed and server.confined,
        readable=(*reach.readable, *_extra_paths((*named, *server.readable), context)),
        writable=(*reach.writable, *home, *_extra_paths(server.writable, context)),
        hidden=reach.hidden,
        has_network=reach.has_network or server.network or not server.confined,
        guard=reach.guard if server.confined else None,
        # No memory or CPU limit: a server runs as long as its session, so its usage accumulates.
        bounds=Bounds(processes=reach.bounds.processes),
    )


def _extra_paths(paths: Iterable[str], context: ProcessContext) -> Iterator[str]:
    """Yield the real paths that the server may access; paths of Holdfast itself are excluded."""
    for path in map(os.path.realpath, paths):
        if not any(is_below(path, folder) for folder in context.hidden):
            yield path


def _missing(server: StdioServer, folder: str) -> ToolFailure:
    is_there = "/" in server.command and os.path.exists(os.path.join(folder, server.command))
    why = "its command cannot be run" if is_there else "its command does not exist"
    return ToolFailure(ResultCode.UNAVAILABLE, why)
