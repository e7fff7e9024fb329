"""Rules of each setting beyond its type, and validation of `[mcp.servers.NAME]`.

A rule returns an error text, or `None`.
"""

import ipaddress
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, fields

from holdfast.config.files import GivenValue, suggest_nearest, unknown_key
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.secrets import is_credential
from holdfast.domain.text import is_encodable
from holdfast.store.database_url import url_fault

Rule = Callable[[Any], str | None]
MILLION: Final = 1_000_000
# The largest amount that a store can sum without integer overflow.
MICROCENTS_MOST: Final = 10**18
DAY: Final = timedelta(days=1)
YEAR: Final = timedelta(days=365)
LEVELS: Final = ("debug", "info", "warning", "error")
_HOST: Final = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)(?:\.(?!-)[a-z0-9-]{1,63}(?<!-))*\.?", re.I)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ENTRY: Final = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
# Variables that decide which code a program loads or which settings it uses (code injection).
_LOADER_VARIABLES: Final = re.compile(
    r"LD_.*|DYLD_.*|PYTHON.*|GIT_.*|NODE_OPTIONS|NODE_PATH|NPM_CONFIG_.*|BASH_ENV|BASH_FUNC_.*|ENV"
    r"|IFS|SHELLOPTS|BASHOPTS|PS4|PROMPT_COMMAND|PERL5.*|PERLLIB|RUBY.*|GEM_.*|BUNDLE_.*|LUA_.*"
    r"|PHPRC|PHP_INI_SCAN_DIR|CLASSPATH|_?JAVA_(?:TOOL_)?OPTIONS|JDK_JAVA_OPTIONS|MAVEN_OPTS"
    r"|GRADLE_OPTS|CARGO_.*|RUSTC.*|RUSTFLAGS|GO(?:FLAGS|PATH|ROOT|ENV|PROXY)|PIP_.*|UV_.*"
    r"|MAKEFLAGS|GCONV_PATH|LOCPATH|GLIBC_TUNABLES|XDG_(?:CONFIG|DATA)_.*|EDITOR|VISUAL|PAGER"
    r"|BROWSER|SSH_ASKPASS|SUDO_ASKPASS|DOCKER_.*|KUBECONFIG|HOLDFAST_.*",
    re.IGNORECASE,
)
# Variables whose values are credentials; plain `PWD` is a folder.
_CREDENTIAL: Final = re.compile(
    r".*(?:SECRET|TOKEN|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|APIKEY|COOKIE).*"
    r"|(?:.*_)?(?:KEYS?|PASS|AUTH|PAT|DSN|CERT)(?:_.*)?|.+_PWD|DATABASE_URL|.*CONNECTION_STRING",
    re.IGNORECASE,
)
# Key prefixes of the large providers.
_SECRET: Final = re.compile(
    r"(?:sk|rk|pk)[-_]|gh[pousr]_|github_pat_|glpat-|xox[abpr]-|AKIA|ASIA|AIza|ya29\.|eyJ|hf_|npm_"
)


def _among(*words: str) -> Rule:
    return lambda value: None if value in words else f"must be one of {', '.join(words)}"


def _between(least: float, most: float, *, but: str = "") -> Rule:
    # As a chained comparison, because NaN must fail it, too.
    fault_text = f"must be {least:,} to {most:,}{but}"
    return lambda value: None if value is None or least <= value <= most else fault_text


def _share(value: float) -> str | None:
    return None if 0 < value <= 1 else "must be above 0 and at most 1"


def _expiry(value: timedelta) -> str | None:
    return None if timedelta() < value <= YEAR else "must be above 0 and at most 365 days"


def _pause(value: timedelta) -> str | None:
    return None if timedelta() <= value <= YEAR else "must be 0 to 365 days"


def _retention(least: timedelta, *, but: str = "") -> Rule:
    most = 100 * YEAR
    fault_text = f"must be {least // timedelta(minutes=1)} minutes to {most.days:,} days{but}"
    return lambda value: None if least <= value <= most or (but and not value) else fault_text


def _each_entry(rule: Rule) -> Rule:
    """Return the rule for a list: the first error, with the entry's number."""

    def first_fault(entries: Sequence[Any]) -> str | None:
        faults = ((number, rule(entry)) for number, entry in enumerate(entries, start=1))
        return next((f"entry {number} {fault}" for number, fault in faults if fault), None)

    return first_fault


def _root(path: Path) -> str | None:
    return None if path.is_absolute() else "must be the absolute path of a folder"


def _folder_name(name: str) -> str | None:
    is_name = bool(name.strip()) and not set(name) & set("/\\\x00") and name not in {".", ".."}
    return None if is_name else "must be a folder name without a slash"


def _entry_name(name: str) -> str | None:
    fault = "must be the name of a file or folder without a slash"
    return fault if _folder_name(name) else None


def _memory(value: int) -> str | None:
    is_fit = value == 0 or 64 <= value <= 1 << 24
    return None if is_fit else f"must be 64 to {1 << 24:,}, or 0 for no limit"


def _command(entry: str) -> str | None:
    return None if _words(entry) else "must be a command with its arguments, quoted as in a shell"


def _glob(entry: str) -> str | None:
    words = _words(entry)
    if not words:
        return "must be a command with its arguments, quoted as in a shell"
    if set(words[0]) & set("*?"):
        return "must begin with a command name; only its arguments may contain * and ?"
    return "may have ** only as its last word" if "**" in words[1:-1] else None


def _words(entry: str) -> list[str]:
    try:
        words = shlex.split(entry)
    except ValueError:
        return []
    return words if words and words[0] else []


def variable_fault(name: str) -> str | None:
    """Return why a variable is not passed to programs; `None` if it may be."""
    if not _VARIABLE.fullmatch(name):
        return "must be the name of an environment variable"
    if _LOADER_VARIABLES.fullmatch(name):
        return "names a variable that controls what a program loads; it is never passed on"
    if is_credential_variable(name):
        return "names a variable that looks like a credential; it is never passed on"
    return None


def is_credential_variable(name: str) -> bool:
    """Return whether a variable of this name holds a credential."""
    return _CREDENTIAL.fullmatch(name) is not None


def _domain(entry: str) -> str | None:
    host, colon, port = entry.partition(":")
    fits = not colon or (port.isascii() and port.isdigit() and 0 < int(port[:6]) <= 65_535)
    return (
        None if fits and _is_host(host) else "must be host or host:port, in xn--… form if not ASCII"
    )


def _is_host(text: str) -> bool:
    """Return whether the text is a host name; an IP address in any notation is not (SSRF)."""
    if len(text) > 254 or not _HOST.fullmatch(text):
        return False
    try:
        ipaddress.ip_address(text)
    except ValueError:
        # Resolvers accept `127.1` and `0x7f000001` as addresses; no top-level domain has such a
        # form.
        return not re.fullmatch(r"\d+|0x[0-9a-f]*", text.rstrip(".").rpartition(".")[2], re.I)
    return False


def _credential(entry: Any) -> str | None:
    if not _is_host(entry.host):
        return "must have a host name without a port"
    return entry_fault(entry.secret)


def entry_fault(name: str) -> str | None:
    """Return why a text is not a keychain entry name: it may be the secret itself."""
    if not _ENTRY.fullmatch(name) or _SECRET.match(name):
        return "must have the name of a keychain entry as its secret, never the secret itself"
    return None


def _server_names(servers: Sequence[Any]) -> str | None:
    names = [server.name for server in servers]
    return None if len(set(names)) == len(names) else "must name each server once"


def _credentials(entries: Sequence[Any]) -> str | None:
    fault = _each_entry(_credential)(entries)
    hosts = {entry.host.lower().rstrip(".") for entry in entries}
    return fault or (None if len(hosts) == len(entries) else "must name each host once")


def _timeout(value: timedelta) -> str | None:
    return None if timedelta() < value <= DAY else "must be above 0 and at most a day"


def _slug(value: str | None) -> str | None:
    return None if value is None or _SLUG.fullmatch(value) else "must be the slug of an agent"


def _flag(value: str | None) -> str | None:
    is_flag = value is None or _FLAG.fullmatch(value) is not None
    return None if is_flag else "must be an option of a program, such as --workspace"


def _wrap(words: Sequence[str]) -> str | None:
    if not words:
        return None
    is_sure = bool(words[0].strip()) and ("/" not in words[0] or words[0].startswith("/"))
    return None if is_sure else "must begin with a program name or an absolute path"


_SLUG: Final = re.compile(r"[A-Za-z0-9_-]{1,255}")
_FLAG: Final = re.compile(r"-{1,2}[A-Za-z0-9][A-Za-z0-9-]*")
RULES: Final[Mapping[str, Rule]] = {
    "acp.agent": _slug,
    "acp.cancel_timeout": _timeout,
    "acp.line_limit": _between(1 << 10, 1 << 30),
    "acp.option_timeout": _timeout,
    "acp.session_timeout": _timeout,
    "acp.silence_timeout": _timeout,
    "acp.start_timeout": _timeout,
    "acp.workspace_flag": _flag,
    "acp.wrap": _wrap,
    "acp.write_timeout": _timeout,
    "approvals_expire_after": _expiry,
    "approvals_pause_after": _pause,
    "chat.allowed_command_globs": _each_entry(_glob),
    "chat.allowed_commands": _each_entry(_command),
    "chat.allowed_domains": _each_entry(_domain),
    "chat.command_env": _each_entry(variable_fault),
    "chat.command_cpu_seconds": _between(0, MILLION, but=", or 0 for no limit"),
    "chat.command_memory_mb": _memory,
    # A pid namespace cannot be limited to fewer pids.
    "chat.command_processes": _between(400, 1 << 22),
    "chat.command_writes": _each_entry(_entry_name),
    "chat.compact_threshold": _share,
    "chat.extra_roots": _each_entry(_root),
    "chat.linked_dirs": _each_entry(_folder_name),
    "chat.max_cost_microcents": _between(0, MICROCENTS_MOST, but=", or 0 for no cap"),
    "chat.max_messages": _between(1, MILLION),
    "credentials": _credentials,
    "database_url": url_fault,
    "encryption": _among("auto", "keychain", "off"),
    "events_delta_retention": _retention(timedelta()),
    "events_retention": _retention(timedelta(minutes=1), but=", or 0 for no expiry"),
    "idle_timeout_minutes": _between(0, 525_600, but=", or 0 for never"),
    "log_level": _among(*LEVELS),
    "max_concurrent_sessions": _between(1, MILLION),
    "max_tool_rounds": _between(1, MILLION),
    "mcp_servers": _server_names,
    "observations_per_minute": _between(0, MILLION, but=", or 0 for no limit"),
    "turn_cap": _between(1, MILLION),
    "attended_turn_cap": _between(1, MILLION),
    "turns_at_a_time": _between(1, MILLION),
    "child_depth": _between(0, 100),
    "children_at_a_time": _between(1, MILLION),
    "children_per_session": _between(1, MILLION),
    "tool_threads": _between(1, 10_000),
}
# Short enough that tool ids with this prefix stay within their length limit.
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_HEADER_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")
# Headers that frame a message (request smuggling) or belong to proxies.
_RESERVED_HEADERS: Final = re.compile(
    r"host|content-length|transfer-encoding|connection|keep-alive|te|trailer|upgrade|expect"
    r"|accept-encoding|proxy-.*|forwarded|x-forwarded-.*"
)
_SHOWN_ONLY_BY_REFERENCE: Final = frozenset({"authorization", "cookie"})


class SecretEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A reference to a value in the keychain, stored as `mcp:` and this name."""

    secret: Literal[True]
    ref: str


class McpServer(Struct, frozen=True, kw_only=True):
    """An MCP server: a program to start, or a URL to connect to."""

    name: str
    transport: Literal["stdio", "http", "sse"] | None = None
    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str | SecretEntry] = {}
    env_names: tuple[str, ...] = ()
    # What a program may access besides its session: paths, the network, or everything.
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    network: bool = False
    confined: bool = True
    # The working directory is unspecified, unless it is set to the session's folder.
    cwd: Literal["workspace"] | None = None
    url: str | None = None
    headers: dict[str, str | SecretEntry] = {}
    allow_local_endpoint: bool = False
    tools_allowlist: tuple[str, ...] | None = None
    # Whether the server's own tool annotations decide which calls are retried after a crash.
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
        """Return the server's declaration as plain data."""
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
_VALUES: Final = 'must be a table of strings, or of { secret = true, ref = "NAME" }'
_TYPE_MESSAGES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("command", "url"), "must be a string"),
    **dict.fromkeys(
        ("args", "env_names", "readable", "writable", "tools_allowlist"),
        "must be a list of strings",
    ),
    **dict.fromkeys(
        ("network", "confined", "allow_local_endpoint", "trusted"), "must be true or false"
    ),
    **dict.fromkeys(("env", "headers"), _VALUES),
    "cwd": 'must be "workspace", or left out',
    "transport": "must be one of stdio, http, sse",
}


def read_servers(value: GivenValue) -> tuple[McpServer, ...]:
    """Return the servers in a file; errors are reported with their line."""
    if not isinstance(value.value, Mapping):
        raise value.below("").invalid("must be tables [mcp.servers.NAME]")
    return tuple(_server(value, name, table) for name, table in value.value.items())


def _server(given: GivenValue, name: str, table: Any) -> McpServer:
    if not _NAME.fullmatch(name):
        rule = "must have names of 1 to 40 characters of A-Z, a-z, 0-9, _ and -"
        raise given.below("").invalid(rule)
    if not isinstance(table, Mapping):
        raise given.below(name).invalid("must be a table")
    values = {}
    for key, value in table.items():
        location = given.below(f"{name}.{key}")
        if key not in _FIELDS:
            known = {f"mcp.servers.{name}.{each}": each for each in _FIELDS}
            raise unknown_key(location, suggest_nearest(location.path, known))
        try:
            values[key] = msgspec.convert(value, _FIELDS[key].type)
        except msgspec.ValidationError:
            # Replace msgspec's message, because it would repeat the value.
            raise location.invalid(_TYPE_MESSAGES[key]) from None
    try:
        return McpServer(name=name, **values)
    except Invalid as error:
        key = str(error.details["key"]).removeprefix(f"{given.path}.")
        raise given.below(key).invalid(str(error.details["rule"])) from None


Fault = tuple[str, str]


def _faults(server: McpServer) -> Iterator[Fault]:
    """Yield the errors that types cannot express, as key and rule."""
    if not _NAME.fullmatch(server.name):
        yield "", "must have a name of 1 to 40 characters of A-Z, a-z, 0-9, _ and -"
    texts = (each for key in _FIELDS for each in _texts(key, asdict(server)[key]))
    yield from (
        (key, "must be UTF-8 text without NUL") for key, text in texts if not _is_text(text)
    )
    if (server.command is None) is (server.url is None):
        yield "", "must have either a command or a url"
        return
    is_program = server.command is not None
    if server.transport is not None and (server.transport == "stdio") is not is_program:
        yield "transport", "must be stdio for a command, and http or sse for a url"
    for key in _OF_ADDRESSES if is_program else _OF_PROGRAMS:
        # All keys except `confined` are off by default.
        if bool(getattr(server, key)) is not (key == "confined"):
            yield key, f"requires a {'url' if is_program else 'command'}"
    if server.tools_allowlist is not None and not all(server.tools_allowlist or ("",)):
        yield "tools_allowlist", "must name a tool; leave it out to allow all tools"
    yield from _program_faults(server) if is_program else _address_faults(server)


def _program_faults(server: McpServer) -> Iterator[Fault]:
    command = server.command or ""
    # Never relative, because the session's folder may be untrusted.
    if not command.strip() or ("/" in command and not os.path.isabs(command)):
        yield "command", "must be a program name or an absolute path"
    if any(map(is_credential, server.args)):
        yield "args", _IN_KEYCHAIN
    for name, value in server.env.items():
        if not _VARIABLE.fullmatch(name):
            yield "env", "must have environment variable names as keys"
        yield from _value_faults(f"env.{name}", name, value)
    yield from _entry_faults("env_names", server.env_names, variable_fault)
    for key in ("readable", "writable"):
        yield from _entry_faults(key, getattr(server, key), _path_fault)


def _address_faults(server: McpServer) -> Iterator[Fault]:
    if not _is_address(server.url or "", local=server.allow_local_endpoint):
        yield "url", "must be https://HOST/… without user and password (http:// on this machine)"
    elif is_credential(server.url or ""):
        yield "url", "must not contain a secret; use headers with a secret of the keychain"
    for name, value in server.headers.items():
        if not _HEADER.fullmatch(name) or _RESERVED_HEADERS.fullmatch(name.lower()):
            yield (
                "headers",
                "must not contain invalid header names, or headers that Holdfast sets itself",
            )
        elif name.lower() in _SHOWN_ONLY_BY_REFERENCE and isinstance(value, str):
            yield f"headers.{name}", _IN_KEYCHAIN
        elif isinstance(value, str) and not _HEADER_VALUE.fullmatch(value):
            yield f"headers.{name}", "must be printable text"
        yield from _value_faults(f"headers.{name}", name, value)


_IN_KEYCHAIN: Final = (
    "must not contain a secret; store it in the keychain (`holdfast key set "
    'mcp:NAME`) and write { secret = true, ref = "NAME" }'
)


def _value_faults(key: str, name: str, value: str | SecretEntry) -> Iterator[Fault]:
    if isinstance(value, str):
        if is_credential(value, name):
            yield key, _IN_KEYCHAIN
    elif entry_fault(value.ref):
        yield key, "must have the name of a keychain entry as its ref, never the secret itself"


def _entry_faults(
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
