"""Agents: who answers. Either a language model with tools, or somebody else's program over ACP."""

import re
from datetime import datetime
from enum import StrEnum
from math import isfinite
from typing import Any, Final

from msgspec import Struct

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import AgentId, ModelId, Owner, is_slug
from holdfast.domain.texts import require_tags, require_text
from holdfast.domain.tools import Grant, ToolSpec

SYSTEM_PROMPT_LONGEST: Final = 1 << 20
_SECRET_REFERENCE: Final = re.compile(r"\{\{\s*secrets\.")


class AgentStatus(StrEnum):
    """An archived agent opens no new session; its sessions go on."""

    ACTIVE = "active"
    ARCHIVED = "archived"


class Recovery(StrEnum):
    """What a turn does after a crash left an unsafe call in doubt."""

    STOP = "stop"
    CONTINUE = "continue"


class ReasoningEffort(StrEnum):
    """How hard a model should think, where it can be told."""

    OFF = "off"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    MAX = "max"


class ModelChoice(Struct, frozen=True, kw_only=True):
    """One entry of the fallback chain."""

    model_id: ModelId
    max_attempts: int | None = None

    def __post_init__(self) -> None:
        _require(self.max_attempts is None or self.max_attempts > 0, "max_attempts", "above 0")


class Retry(Struct, frozen=True, kw_only=True):
    """Attempts of the first model."""

    max: int
    backoff: str = "exponential"
    backoff_ms: int | None = None
    retry_on: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        _require(self.max > 0, "retry.max", "above 0")
        _require(self.backoff in {"linear", "exponential"}, "retry.backoff", "linear, exponential")
        _require(self.backoff_ms is None or self.backoff_ms > 0, "retry.backoff_ms", "above 0")
        _require(self.retry_on is None or self.retry_on != (), "retry.retry_on", "not empty")


class Memory(Struct, frozen=True, kw_only=True):
    """How much of the past a request carries."""

    type: str = "none"
    window_size: int | None = None

    def __post_init__(self) -> None:
        _require(self.type in {"none", "summary", "window"}, "memory.type", "none, summary, window")
        windowed = self.type == "window"
        fits = (self.window_size or 0) > 0 if windowed else self.window_size is None
        _require(fits, "memory.window_size", "above 0, and given exactly for type window")


class LlmRuntime(Struct, frozen=True, kw_only=True, tag="llm"):
    """A language model in our own loop; an empty chain means the configured default."""

    models: tuple[ModelChoice, ...] = ()
    temperature: float | None = None
    max_tokens: int | None = None
    reasoning_effort: ReasoningEffort | None = None
    retry: Retry | None = None
    memory: Memory | None = None

    def __post_init__(self) -> None:
        # Asked for by name, because NaN is neither below 0 nor above 2.
        warmth = self.temperature
        _require(warmth is None or (isfinite(warmth) and 0 <= warmth <= 2), "temperature", "0 to 2")
        _require(self.max_tokens is None or self.max_tokens > 0, "max_tokens", "above 0")


class AcpRuntime(Struct, frozen=True, kw_only=True, tag="acp"):
    """A program that speaks the Agent Client Protocol."""

    command: str
    args: tuple[str, ...] = ()
    # Names and no values: a value here would be a secret at rest.
    env_names: tuple[str, ...] = ()
    options: dict[str, Any] = {}

    def __post_init__(self) -> None:
        _require(bool(self.command.strip()), "runtime.command", "not empty")
        _require("\x00" not in self.command, "runtime.command", "without NUL")
        _require("\x00" not in "".join(self.args), "runtime.args", "without NUL")


Runtime = LlmRuntime | AcpRuntime


class Agent(Struct, frozen=True, kw_only=True):
    """Who answers, complete: a session freezes one of these when it opens."""

    id: AgentId
    owner: Owner
    slug: str
    name: str
    description: str | None = None
    system_prompt: str
    runtime: Runtime
    tools: tuple[ToolSpec, ...] = ()
    mcp_servers: tuple[dict[str, Any], ...] = ()
    # None where the configuration decides, at the moment a session opens.
    grant: Grant | None = Grant()
    # Stop, because going on past an unknown effect is a choice that somebody has to make.
    recovery: Recovery = Recovery.STOP
    extra: dict[str, Any] = {}
    tags: tuple[str, ...] = ()
    status: AgentStatus = AgentStatus.ACTIVE
    created_at: datetime
    updated_at: datetime

    def __post_init__(self) -> None:
        _require(is_slug(self.slug), "slug", "1 to 255 characters out of A-Z, a-z, 0-9, _ and -")
        require_text(self.name, field="name", shortest=1, longest=255)
        _require_size(self.description or "", field="description", largest=10 << 10)
        _require_size(self.system_prompt, field="system_prompt", largest=SYSTEM_PROMPT_LONGEST)
        _refuse_secret_references(self.system_prompt)
        names = [tool.name for tool in self.tools]
        _require(len(names) <= 128, "tools", "at most 128")
        _require(len(set(names)) == len(names), "tools", "distinct")
        _require(require_tags(self.tags) == self.tags, "tags", "distinct")


def _require(holds: bool, field: str, rule: str) -> None:
    if not holds:
        raise Invalid(Code.AGENT_INVALID, f"{field} must be {rule}.", {"fields": [field]})


def _require_size(text: str, *, field: str, largest: int) -> None:
    require_text(text, field=field, longest=largest)
    # In bytes, because that is what a store and a provider have to carry.
    size = len(text.encode())
    if size > largest:
        raise Invalid(
            Code.INVALID_TEXT,
            f"{field} must have {largest >> 10:,} KiB at most, not {size:,} bytes.",
            {"field": field, "bytes": size},
        )


def _refuse_secret_references(prompt: str) -> None:
    if _SECRET_REFERENCE.search(prompt):
        raise Invalid(
            Code.SECRET_INTERPOLATION,
            "A secret is never put into a prompt; remove {{secrets.…}} from system_prompt.",
            {"field": "system_prompt"},
        )
