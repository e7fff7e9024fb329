"""MCP servers as an agent declares them: a command to start, or an address to reach.

Strict: what is not written here is refused, naming the field and never its value.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.tools import Effect

_QUOTED: Final = re.compile(r"`(?:\$\.)?([^`]*)`")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Name = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9._-]+$")]
Allowlist = Annotated[tuple[str, ...], Meta(min_length=1)]


class SecretReference(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value that the keychain holds under this name."""

    secret: bool
    ref: Annotated[str, Meta(min_length=1)]

    def __post_init__(self) -> None:
        _require(self.secret, "env")


class StdioServer(
    Struct,
    frozen=True,
    kw_only=True,
    tag="stdio",
    tag_field="transport",
    forbid_unknown_fields=True,
):
    """A server that we start and talk to over its input and output."""

    id: Name
    command: str
    args: tuple[str, ...] = ()
    env: dict[str, str | SecretReference] = {}
    tools_allowlist: Allowlist | None = None
    trusted: bool = False

    def __post_init__(self) -> None:
        _require(bool(self.command.strip()) and "\x00" not in self.command, "command")
        _require("\x00" not in "".join(self.args), "args")
        _require(all(map(_VARIABLE.fullmatch, self.env)), "env")
        plain = [value for value in self.env.values() if isinstance(value, str)]
        _require("\x00" not in "".join(plain), "env")

    @property
    def where(self) -> str:
        """Say what is started, for the person who agrees."""
        return " ".join((self.command, *self.args))


class _Reached(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="transport"
):
    id: Name
    url: Annotated[str, Meta(min_length=1)]
    # Loopback, for this one server only.
    allow_local_endpoint: bool = False
    tools_allowlist: Allowlist | None = None
    trusted: bool = False

    def __post_init__(self) -> None:
        _require("@" not in self.url.partition("://")[2].partition("/")[0], "url")

    @property
    def where(self) -> str:
        """Say who is reached, for the person who agrees."""
        return self.url


class HttpServer(_Reached, frozen=True, kw_only=True, tag="http"):
    """A server over streamable HTTP."""


class SseServer(_Reached, frozen=True, kw_only=True, tag="sse"):
    """A server over server-sent events, as older ones speak."""


class WebsocketServer(_Reached, frozen=True, kw_only=True, tag="websocket"):
    """A server over a websocket; it can be declared, and the protocol's package speaks none."""


class Listed(Struct, frozen=True, kw_only=True):
    """A tool as its server describes it now; `definition` changes with any of it.

    `hint` is what the server says about a second call, for those who trust it.
    """

    name: str
    description: str
    schema: dict[str, Any]
    definition: str
    size: int
    hint: Effect


Server = StdioServer | HttpServer | SseServer | WebsocketServer


def read_server(
    entry: Mapping[str, Any], configured: Mapping[str, Mapping[str, Any]] | None = None
) -> Server:
    """Return the server that an entry declares or, by `ref`, picks from the configured ones.

    An entry by reference can only narrow what the user configured.
    """
    if "ref" not in entry:
        return _read(entry)
    known = (configured or {}).get(str(entry["ref"]))
    if known is None or not entry.keys() <= {"ref", "tools_allowlist"}:
        raise _invalid("ref")
    server = _read({"id": entry["ref"], **known})
    wanted = entry.get("tools_allowlist")
    if wanted is None:
        return server
    narrowed = _read({**known, "id": server.id, "tools_allowlist": wanted}).tools_allowlist or ()
    if server.tools_allowlist is not None:
        narrowed = tuple(name for name in narrowed if name in server.tools_allowlist)
    return msgspec.structs.replace(server, tools_allowlist=narrowed)


def _read(entry: Mapping[str, Any]) -> Server:
    try:
        server: Server = msgspec.convert(dict(entry), Server)
    except msgspec.ValidationError as error:
        # The library names the field last, in quotes of its own, and never shows a value.
        raise _invalid(_QUOTED.findall(str(error))[-1]) from None
    return server


def _require(holds: bool, field: str) -> None:
    if not holds:
        raise _invalid(field)


def _invalid(field: str) -> Invalid:
    return Invalid(
        Code.AGENT_INVALID,
        f"An MCP server is declared wrongly: look at {field}.",
        {"fields": [f"mcp_servers.{field}"]},
    )
