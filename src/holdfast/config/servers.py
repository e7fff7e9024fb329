"""`[mcp.servers.NAME]`: the user's own MCP servers, which agents name by `ref`.

Only here a program can be agreed to, be trusted, or be given more than a session has. Faults name
a key and a rule, never a value.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, fields

from holdfast.config.files import Given, nearest_to, unknown
from holdfast.config.rules import entry_fault, passed_on_fault
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.secrets import is_credential
from holdfast.domain.text import is_encodable

# So short that the names of its tools still fit behind it.
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_HEADER_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")
# Headers that frame a message or speak for somebody on the way.
_NOBODYS: Final = re.compile(
    r"host|content-length|transfer-encoding|connection|keep-alive|te|trailer|upgrade|expect"
    r"|accept-encoding|proxy-.*|forwarded|x-forwarded-.*"
)
_SHOWN_ONLY_BY_REFERENCE: Final = frozenset({"authorization", "cookie"})


class SecretEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value that the keychain holds, as `mcp:` and this name."""

    secret: Literal[True]
    ref: str


class McpServer(Struct, frozen=True, kw_only=True):
    """A program that is started, or an address that is reached."""

    name: str
    transport: Literal["stdio", "http", "sse"] | None = None
    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str | SecretEntry] = {}
    env_names: tuple[str, ...] = ()
    # What a program reaches beside its session: folders and files, the network, or everything.
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    network: bool = False
    confined: bool = True
    # A program starts nowhere in particular, unless it is to start in the session's own folder.
    cwd: Literal["workspace"] | None = None
    url: str | None = None
    headers: dict[str, str | SecretEntry] = {}
    allow_local_endpoint: bool = False
    tools_allowlist: tuple[str, ...] | None = None
    # Whether what it says about its own tools decides which calls run again after a crash.
    trusted: bool = False

    def __post_init__(self) -> None:
        fault = next(_faults(self), None)
        if fault is not None:
            key, rule = fault
            path = f"mcp.servers.{self.name if _NAME.fullmatch(self.name) else '…'}"
            raise Invalid(
                Code.CONFIG_INVALID,
                f"{path}.{key} {rule}." if key else f"{path} {rule}.",
                {"key": f"{path}.{key}" if key else path, "rule": rule},
            )

    @property
    def declaration(self) -> dict[str, Any]:
        """Return the server as one is declared."""
        is_program = self.command is not None
        keys = ("command", *_OF_PROGRAMS) if is_program else ("url", *_OF_ADDRESSES)
        said = {key: getattr(self, key) for key in (*keys, "trusted")}
        if self.tools_allowlist is not None:
            said["tools_allowlist"] = self.tools_allowlist
        transport = self.transport or ("stdio" if is_program else "http")
        found: dict[str, Any] = msgspec.to_builtins({"transport": transport, **said})
        return found


_FIELDS: Final = {each.name: each for each in fields(McpServer) if each.name != "name"}
_OF_PROGRAMS: Final = (
    *("args", "env", "env_names", "readable", "writable", "network", "confined", "cwd"),
)
_OF_ADDRESSES: Final = ("headers", "allow_local_endpoint")
_VALUES: Final = 'must be a table of texts, or of { secret = true, ref = "NAME" }'
_WORDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("command", "url"), "must be a text"),
    **dict.fromkeys(
        ("args", "env_names", "readable", "writable", "tools_allowlist"), "must be a list of texts"
    ),
    **dict.fromkeys(
        ("network", "confined", "allow_local_endpoint", "trusted"), "must be true or false"
    ),
    **dict.fromkeys(("env", "headers"), _VALUES),
    "cwd": 'must be "workspace", or be left out',
    "transport": "must be one of stdio, http, sse",
}


def servers_of(given: Given) -> tuple[McpServer, ...]:
    """Return the servers of a file; what is wrong is told with its line."""
    if not isinstance(given.value, Mapping):
        raise given.below("").invalid("must be tables [mcp.servers.NAME]")
    return tuple(_server(given, name, table) for name, table in given.value.items())


def _server(given: Given, name: str, table: Any) -> McpServer:
    if not _NAME.fullmatch(name):
        rule = "must have names of 1 to 40 characters out of A-Z, a-z, 0-9, _ and -"
        raise given.below("").invalid(rule)
    if not isinstance(table, Mapping):
        raise given.below(name).invalid("must be a table")
    values = {}
    for key, value in table.items():
        place = given.below(f"{name}.{key}")
        if key not in _FIELDS:
            known = {f"mcp.servers.{name}.{each}": each for each in _FIELDS}
            raise unknown(place, nearest_to(place.path, known))
        try:
            values[key] = msgspec.convert(value, _FIELDS[key].type)
        except msgspec.ValidationError:
            # Our own words, because the library's would repeat the value.
            raise place.invalid(_WORDS[key]) from None
    try:
        return McpServer(name=name, **values)
    except Invalid as error:
        key = str(error.details["key"]).removeprefix(f"{given.path}.")
        raise given.below(key).invalid(str(error.details["rule"])) from None


Fault = tuple[str, str]


def _faults(server: McpServer) -> Iterator[Fault]:
    """Yield what types cannot express, the key first."""
    if not _NAME.fullmatch(server.name):
        yield "", "must have a name of 1 to 40 characters out of A-Z, a-z, 0-9, _ and -"
    texts = (each for key in _FIELDS for each in _texts(key, asdict(server)[key]))
    yield from (
        (key, "must be UTF-8 text without NUL") for key, text in texts if not _is_text(text)
    )
    if (server.command is None) is (server.url is None):
        yield "", "must have a command or a url, and not both"
        return
    is_program = server.command is not None
    if server.transport is not None and (server.transport == "stdio") is not is_program:
        yield "transport", "must be stdio for a command, and http or sse for a url"
    for key in _OF_ADDRESSES if is_program else _OF_PROGRAMS:
        # All but one are off when nothing is said.
        if bool(getattr(server, key)) is not (key == "confined"):
            yield key, f"belongs to a {'url' if is_program else 'command'}"
    if server.tools_allowlist is not None and not all(server.tools_allowlist or ("",)):
        yield "tools_allowlist", "must name a tool; leave it out to allow all of them"
    yield from _program_faults(server) if is_program else _address_faults(server)


def _program_faults(server: McpServer) -> Iterator[Fault]:
    command = server.command or ""
    # Never from the folder that a session works in: that may be somebody else's.
    if not command.strip() or ("/" in command and not os.path.isabs(command)):
        yield "command", "must be the name of a program, or an absolute path"
    if any(map(is_credential, server.args)):
        yield "args", _IN_KEYCHAIN
    for name, value in server.env.items():
        if not _VARIABLE.fullmatch(name):
            yield "env", "must have names of variables as its keys"
        yield from _value_faults(f"env.{name}", name, value)
    yield from _each("env_names", server.env_names, passed_on_fault)
    for key in ("readable", "writable"):
        yield from _each(key, getattr(server, key), _path_fault)


def _address_faults(server: McpServer) -> Iterator[Fault]:
    if not _is_address(server.url or "", local=server.allow_local_endpoint):
        yield "url", "must be https://HOST/… without user and password (http:// on this machine)"
    elif is_credential(server.url or ""):
        yield "url", "must not hold a secret; headers take one from the keychain"
    for name, value in server.headers.items():
        if not _HEADER.fullmatch(name) or _NOBODYS.fullmatch(name.lower()):
            yield "headers", "must not hold names that no header has, or that belong to us"
        elif name.lower() in _SHOWN_ONLY_BY_REFERENCE and isinstance(value, str):
            yield f"headers.{name}", _IN_KEYCHAIN
        elif isinstance(value, str) and not _HEADER_VALUE.fullmatch(value):
            yield f"headers.{name}", "must be printable text"
        yield from _value_faults(f"headers.{name}", name, value)


_IN_KEYCHAIN: Final = (
    "must not hold a secret; keep it in the keychain (`holdfast key set mcp:NAME`) and write "
    '{ secret = true, ref = "NAME" }'
)


def _value_faults(key: str, name: str, value: str | SecretEntry) -> Iterator[Fault]:
    if isinstance(value, str):
        if is_credential(value, name):
            yield key, _IN_KEYCHAIN
    elif entry_fault(value.ref):
        yield key, "must have the name of a keychain's entry as its ref, never the secret itself"


def _each(
    key: str, entries: tuple[str, ...], fault_of: Callable[[str], str | None]
) -> Iterator[Fault]:
    for number, entry in enumerate(entries, start=1):
        if fault := fault_of(entry):
            yield key, f"entry {number} {fault}"


def _path_fault(path: str) -> str | None:
    return None if os.path.isabs(path) else "must be an absolute path"


def _is_address(url: str, *, local: bool) -> bool:
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
    schemes = {"https", "http"} if local else {"https"}
    return has_host and "@" not in parts.netloc and parts.scheme in schemes and not parts.fragment


def _texts(key: str, value: Any) -> Iterator[Fault]:
    match value:
        case str():
            yield key, value
        case Mapping():
            for name, inner in value.items():
                yield key, name
                yield from _texts(f"{key}.{name}", inner)
        case tuple():
            for each in value:
                yield from _texts(key, each)
        case SecretEntry(ref=ref):
            yield key, ref


def _is_text(text: str) -> bool:
    return "\x00" not in text and is_encodable(text)
