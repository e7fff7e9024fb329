"""Tools as an agent is granted them, and the rule that a grant can only become narrower.

What a tool does, and whether a call may run now, is decided elsewhere.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

from holdfast.domain.errors import Code, Denied, Invalid


class FsTier(StrEnum):
    """How much of the file system: each tier contains the one before it."""

    SANDBOXED = "sandboxed"
    PROJECT = "project"
    FULL = "full"


class Effect(StrEnum):
    """What running a call twice would do; decides retry and recovery."""

    PURE = "pure"
    IDEMPOTENT = "idempotent"
    UNSAFE = "unsafe"


class ToolSpec(Struct, frozen=True, kw_only=True):
    """A tool as its author described it; kept and shown as given."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    approval: str | None = None

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise Invalid(Code.AGENT_INVALID, "A tool needs a name.", {"field": "tools.name"})


class Grant(Struct, frozen=True, kw_only=True):
    """What an agent or a session may reach: a file tier, exact commands, exact domains."""

    # The narrowest of each: whoever wants more has to say so.
    fs: FsTier = FsTier.SANDBOXED
    commands: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()


NARROWEST: Final = Grant()

_WIDTH: Final[Mapping[FsTier, int]] = {tier: width for width, tier in enumerate(FsTier)}


def narrow(granted: Grant, wanted: Grant) -> Grant:
    """Return the wanted grant if it lies within the granted one; nothing is silently clamped."""
    # Entry by entry: a prefix or a wildcard here would widen what was granted.
    excess = {
        "fs": [wanted.fs] if _WIDTH[wanted.fs] > _WIDTH[granted.fs] else [],
        "commands": sorted(set(wanted.commands) - set(granted.commands)),
        "domains": sorted(set(wanted.domains) - set(granted.domains)),
    }
    wider = {key: values for key, values in excess.items() if values}
    if wider:
        raise Denied(
            Code.GRANT_EXCEEDED,
            f"A session may only narrow its agent's grant; wider here: {', '.join(wider)}.",
            wider,
        )
    return wanted


def narrow_tools(
    granted: tuple[ToolSpec, ...], wanted: tuple[str, ...] | None
) -> tuple[ToolSpec, ...]:
    """Return the granted tools with the wanted names; `None` keeps all, an empty tuple none."""
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
