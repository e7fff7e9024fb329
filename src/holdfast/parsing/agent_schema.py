"""What an agent file may say: every key with its rule, and all that is wrong with a file at once.

A fault has a path and a rule, never a value. What the keys mean is in `agent_files.py`.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from holdfast.domain.agents import ReasoningEffort, Recovery
from holdfast.parsing.faults import Fault, FormError, fault_of, repeated

PROMPT_LARGEST: Final = 256 << 10

Filled = Annotated[str, Meta(min_length=1)]
Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,255}\Z")]
Provider = Annotated[str, Meta(pattern=r"\A[^:\s]+\Z")]
Positive = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Names = Annotated[tuple[Filled, ...], Meta(min_length=1)]


class FallbackForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who is asked next, and how often."""

    model: Filled
    provider: Provider
    max_attempts: Positive


class RetryForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often the first model is asked."""

    max: Positive
    backoff: Literal["linear", "exponential"]
    backoff_ms: Positive | UnsetType = UNSET
    retry_on: Names | UnsetType = UNSET


class MemoryForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of the past a request carries."""

    type: Literal["none", "summary", "window"]
    window_size: Positive | UnsetType = UNSET


class NamedServer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An MCP server that the configuration describes."""

    ref: Name
    tools_allowlist: Names | UnsetType = UNSET


class SecretForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A secret by its name."""

    secret: bool
    ref: Filled


class ServerProgram(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An MCP server that is started here."""

    id: Name
    transport: Literal["stdio"]
    command: Filled
    args: tuple[str, ...] = ()
    env: dict[Filled, str | SecretForm] = {}
    tools_allowlist: Names | UnsetType = UNSET


class ServerAddress(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An MCP server that runs elsewhere."""

    id: Name
    transport: Literal["http", "sse", "websocket"]
    url: Filled
    allow_local_endpoint: bool = False
    tools_allowlist: Names | UnsetType = UNSET


class AgentForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole file."""

    id: Name
    name: Annotated[str, Meta(min_length=1, max_length=255)] | UnsetType = UNSET
    description: Annotated[str, Meta(max_length=10 << 10)] | UnsetType = UNSET
    model: Filled
    provider: Provider
    system_prompt: Filled
    temperature: Annotated[float, Meta(ge=0, le=2)] | UnsetType = UNSET
    max_tokens: Positive | UnsetType = UNSET
    reasoning_effort: ReasoningEffort | UnsetType = UNSET
    tools: Annotated[tuple[Filled, ...], Meta(max_length=128)] = ()
    mcp_servers: tuple[dict[str, Any], ...] = ()
    fallback_chain: tuple[FallbackForm, ...] = ()
    retry: RetryForm | UnsetType = UNSET
    memory: MemoryForm | UnsetType = UNSET
    recovery: Recovery = Recovery.STOP
    input_schema: dict[str, Any] | UnsetType = UNSET
    output_schema: dict[str, Any] | UnsetType = UNSET


_FIELDS: Final = {field.name: field for field in msgspec.structs.fields(AgentForm)}
# msgspec learns a type at its first use, and two threads must not be the first at once.
_PREPARED: Final = tuple(
    msgspec.json.Decoder(kind) for kind in (AgentForm, NamedServer, ServerProgram, ServerAddress)
)
_SCHEMES: Final = {
    "http": {"http", "https"},
    "sse": {"http", "https"},
    "websocket": {"ws", "wss"},
}


def form_of(raw: Any) -> AgentForm:
    """Return the checked form of what was read; raises `FormError`."""
    if not isinstance(raw, dict):
        raise FormError([Fault("", "an agent is a mapping of keys to values")])
    faults = [Fault(str(key), "there is no such key") for key in raw if key not in _FIELDS]
    values: dict[str, Any] = {}
    for name, field in _FIELDS.items():
        if name not in raw and field.required:
            faults.append(Fault(name, "it is missing"))
        elif name in raw:
            try:
                values[name] = msgspec.convert(raw[name], field.type)
            except msgspec.ValidationError as error:
                faults.append(fault_of(name, error))
    faults += _broken_rules(values)
    if faults:
        raise FormError(faults)
    return AgentForm(**values)


def _broken_rules(values: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield what types cannot express."""
    if len(values.get("system_prompt", "").encode("utf-8", "replace")) > PROMPT_LARGEST:
        yield Fault("system_prompt", "it may have 256 KiB at most")
    yield from repeated("tools", values.get("tools", ()))
    memory = values.get("memory")
    if memory is not None and (memory.type == "window") is (memory.window_size is UNSET):
        yield Fault("memory.window_size", "it belongs to the type window, and only to that")
    servers = values.get("mcp_servers", ())
    for number, server in enumerate(servers):
        yield from _broken_server(f"mcp_servers[{number}]", server)
    names = [str(server.get("ref", server.get("id", ""))) for server in servers]
    yield from repeated("mcp_servers", names)


def _broken_server(path: str, raw: dict[str, Any]) -> Iterator[Fault]:
    is_program = raw.get("transport") == "stdio"
    kind = NamedServer if "ref" in raw else ServerProgram if is_program else ServerAddress
    try:
        server = msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        yield fault_of(path, error)
        return
    if isinstance(server, ServerProgram):
        for name, value in server.env.items():
            if isinstance(value, SecretForm) and not value.secret:
                yield Fault(f"{path}.env.{name}.secret", "it must be true")
    if isinstance(server, ServerAddress) and not _is_plain_address(server):
        yield Fault(f"{path}.url", "it must be an address of its transport, without credentials")


def _is_plain_address(server: ServerAddress) -> bool:
    try:
        parts = urlsplit(server.url)
        has_host = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
    return has_host and "@" not in parts.netloc and parts.scheme in _SCHEMES[server.transport]
