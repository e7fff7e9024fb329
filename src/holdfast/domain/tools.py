"""Tools granted to an agent, and the rule that a grant can only be narrowed.

What a tool does, and whether a call may run now, is decided elsewhere.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, TypeGuard

from msgspec import Struct

from holdfast.domain.errors import Code, Denied, Invalid
from holdfast.domain.ids import is_slug


class FsTier(StrEnum):
    """File system access; each tier includes the previous one."""

    SANDBOXED = "sandboxed"
    PROJECT = "project"
    FULL = "full"


class Effect(StrEnum):
    """The effect of running a call twice; decides retry and recovery."""

    PURE = "pure"
    IDEMPOTENT = "idempotent"
    UNSAFE = "unsafe"


class ToolClass(StrEnum):
    """What a call affects; decides whether approval is needed."""

    READ = "read"
    WRITE = "write"
    # Files that are executed later without review: build scripts, hooks, editor tasks.
    SENSITIVE_WRITE = "sensitive_write"
    PROCESS = "process"
    EGRESS = "egress"
    COMMIT = "commit"
    # A function of the program itself; registering it is the developer's consent.
    FUNCTION = "function"
    MONEY = "budget"


class ResultCode(StrEnum):
    """Why a call has no result: one closed list."""

    UNKNOWN_TOOL = "unknown_tool"
    NOT_GRANTED = "not_granted"
    INVALID_ARGUMENTS = "invalid_arguments"
    UNAVAILABLE = "unavailable"
    OUTSIDE_SCOPE = "outside_scope"
    PROTECTED_PATH = "protected_path"
    COMMAND_NOT_ALLOWED = "command_not_allowed"
    INSECURE_URL = "insecure_url"
    DOMAIN_NOT_ALLOWED = "domain_not_allowed"
    ADDRESS_BLOCKED = "address_blocked"
    FILTER_NEEDED = "filter_needed"
    REJECTED = "rejected"
    EXPIRED = "expired"
    TARGET_CHANGED = "target_changed"
    ABORTED = "aborted"
    CHILD_FAILED = "child_failed"
    LIMIT = "limit"
    TIMEOUT = "timeout"
    TOO_LARGE = "too_large"
    BINARY = "binary"
    NOT_FOUND = "not_found"
    EXISTS = "exists"
    NO_MATCH = "no_match"
    AMBIGUOUS_MATCH = "ambiguous_match"
    NOT_A_FILE = "not_a_file"
    FAILED = "failed"
    UNKNOWN = "unknown"


# Every built-in tool, available here or not.
CATALOGUE: Final = frozenset(
    {
        "checkpoint",
        "edit_file",
        "find_text",
        "git_commit",
        "git_status",
        "http_request",
        "list_directory",
        "notify",
        "read_file",
        "read_media",
        "read_output",
        "run_command",
        "write_file",
    }
)


# Granted to every agent, because they affect only the session itself; `read_output` has nothing to
# read in a session without other tools.
CHECKPOINT: Final = "checkpoint"
ALWAYS: Final = frozenset({CHECKPOINT, "read_output"})
# Starts another agent; offered only where its definition names agents.
INVOKE_AGENT: Final = "invoke_agent"
# Tools named in files of other programs; such files load, but the tools are not offered.
ACCEPTED_TOOLS: Final = frozenset({"web_search", "mcp_call", "read_clipboard", INVOKE_AGENT})

# Prefix of every MCP tool id; no built-in tool has it.
REMOTE: Final = "mcp_"
# Names that no function and no definition may have, and the form of all others.
RESERVED: Final = CATALOGUE | {INVOKE_AGENT, "final_result"}
TOOL_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
# How long a client has to answer a call, in seconds.
CLIENT_TIMEOUT: Final = 3_600.0
CLIENT_TIMEOUT_LONGEST: Final = 2_592_000.0
_NOT_IN_AN_ID: Final = re.compile(r"[^A-Za-z0-9_-]")


def remote_id(server: str, tool: str = "") -> str:
    """Return the id of an MCP server's tool, or the common prefix of all its tools."""
    return _NOT_IN_AN_ID.sub("_", f"{REMOTE}{server}_{tool}")


def is_reserved(name: str) -> bool:
    """Return whether a name belongs to a tool of Holdfast or of an MCP server."""
    return name in RESERVED or name.startswith(REMOTE)


def is_list_of_texts(value: Any) -> TypeGuard[Sequence[str]]:
    """Return whether a value of plain JSON is a list of texts."""
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)


class ToolSpec(Struct, frozen=True, kw_only=True):
    """A tool as its author described it; stored and shown unchanged."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    approval: str | None = None
    # Further keys from the author; None if only the name was given.
    extra: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise Invalid(Code.AGENT_INVALID, "A tool needs a name.", {"field": "tools.name"})

    @property
    def is_client_run(self) -> bool:
        """Return whether a client runs it: it has parameters, and Holdfast has no such tool."""
        return self.parameters is not None and not is_reserved(self.name)

    @property
    def effect(self) -> Effect:
        """Return the effect of running a call twice; `unsafe` unless the author says otherwise."""
        given = (self.extra or {}).get("effect")
        return Effect(given) if given in list(Effect) else Effect.UNSAFE

    @property
    def timeout_s(self) -> float:
        """Return how long a client has to answer a call, in seconds."""
        given = (self.extra or {}).get("timeout_s")
        return float(given) if isinstance(given, int | float) else CLIENT_TIMEOUT

    @property
    def is_parallel(self) -> bool:
        """Return whether adjacent calls of a model step are requested at once."""
        if self.effect is Effect.UNSAFE:
            return False
        return bool((self.extra or {}).get("parallel", True))

    @property
    def agents(self) -> tuple[str, ...]:
        """Return the slugs of the agents that `invoke_agent` may start."""
        given = (self.extra or {}).get("agents") if self.name == INVOKE_AGENT else None
        return tuple(filter(is_slug, given)) if is_list_of_texts(given) else ()

    @property
    def is_described(self) -> bool:
        """Return whether more than the name was given."""
        fields = (self.description, self.parameters, self.approval, self.extra)
        return any(each is not None for each in fields)

    def as_given(self) -> str | dict[str, Any]:
        """Return the tool as its author wrote it: a bare name, or an object."""
        if not self.is_described:
            return self.name
        own = {name: getattr(self, name) for name in _OWN_KEYS}
        return {name: value for name, value in own.items() if value is not None} | (
            self.extra or {}
        )


_OWN_KEYS: Final = ("name", "description", "parameters", "approval")


def tool_fields(given: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a tool given as a bare name or as an object."""
    if isinstance(given, str):
        return {"name": given}
    own = {name: given[name] for name in _OWN_KEYS if name in given}
    return own | {"extra": {name: value for name, value in given.items() if name not in own}}


def spec_of(tool: str | ToolSpec) -> ToolSpec:
    """Return the tool of a bare name, or a described one as it is."""
    return tool if isinstance(tool, ToolSpec) else ToolSpec(name=tool)


class Grant(Struct, frozen=True, kw_only=True):
    """What an agent or a session may access: a file tier, commands, exact domains.

    A command is a line of exact tokens. In a glob, `*` and `?` match within a token, and a last
    token `**` matches any rest.
    """

    # The narrowest by default, because access must be granted explicitly.
    fs: FsTier = FsTier.SANDBOXED
    commands: tuple[str, ...] = ()
    command_globs: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()


NARROWEST: Final = Grant()

_WIDTH: Final[Mapping[FsTier, int]] = {tier: width for width, tier in enumerate(FsTier)}


def narrowest_tier(grants: Iterable[Grant]) -> FsTier:
    """Return the widest tier that all of the grants allow."""
    return min((grant.fs for grant in grants), key=_WIDTH.__getitem__, default=FsTier.SANDBOXED)


def narrow(granted: Grant, wanted: Grant) -> Grant:
    """Return the wanted grant if it lies within the granted one; never clamp it silently."""
    # Compare exact entries, because a prefix or wildcard match would widen the grant.
    excess = {
        "fs": [wanted.fs] if _WIDTH[wanted.fs] > _WIDTH[granted.fs] else [],
        "commands": sorted(set(wanted.commands) - set(granted.commands)),
        "command_globs": sorted(set(wanted.command_globs) - set(granted.command_globs)),
        "domains": sorted(set(wanted.domains) - set(granted.domains)),
    }
    wider = {key: values for key, values in excess.items() if values}
    if wider:
        raise Denied(
            Code.GRANT_EXCEEDED,
            f"A session may only restrict its agent's grant; it is wider here: {', '.join(wider)}.",
            wider,
        )
    return wanted


def common_grant(one: Grant, other: Grant) -> Grant:
    """Return what both grants allow."""
    return Grant(
        fs=narrowest_tier((one, other)),
        # Exact entries, as in `narrow`: one glob within another is not recognized.
        commands=_common(one.commands, other.commands),
        command_globs=_common(one.command_globs, other.command_globs),
        domains=_common(one.domains, other.domains),
    )


def _common(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(each for each in one if each in other)


def narrow_tools(
    granted: tuple[ToolSpec, ...], wanted: tuple[str, ...] | None
) -> tuple[ToolSpec, ...]:
    """Return the granted tools with the wanted names; `None` selects all, an empty tuple none."""
    if wanted is None:
        return granted
    missing = sorted(set(wanted) - {tool.name for tool in granted})
    if missing:
        raise Denied(
            Code.GRANT_EXCEEDED,
            f"The agent does not have these tools: {', '.join(missing)}.",
            {"tools": missing},
        )
    return tuple(tool for tool in granted if tool.name in wanted)
