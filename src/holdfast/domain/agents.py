"""Agents: a language model with tools, a program that speaks ACP, or a Python function."""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from math import isfinite
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import AgentId, ModelId, Owner, is_slug
from holdfast.domain.secrets import Scrubber, is_credential
from holdfast.domain.text import did_you_mean, require_tags, require_text
from holdfast.domain.tools import (
    ACCEPTED_TOOLS,
    CATALOGUE,
    INVOKE_AGENT,
    REMOTE,
    Grant,
    ToolSpec,
    narrow_tools,
    remote_id,
)

SYSTEM_PROMPT_LONGEST: Final = 1 << 20
_SECRET_REFERENCE: Final = re.compile(r"\{\{\s*secrets\.")


class AgentStatus(StrEnum):
    """An archived agent opens no new sessions; its existing sessions continue."""

    ACTIVE = "active"
    ARCHIVED = "archived"


class Recovery(StrEnum):
    """What a turn does after a crash that left the outcome of an unsafe call unknown."""

    STOP = "stop"
    CONTINUE = "continue"


class ReasoningEffort(StrEnum):
    """Reasoning effort of a model, if it supports one."""

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


# The failures that `retry_on` may name: a kind, or the code of the turn that it fails.
RETRY_ON: Final = ("rate_limit", "unavailable", "provider_rate_limit", "provider_unavailable")


class Retry(Struct, frozen=True, kw_only=True):
    """Retries of the first model; `retry_on` restricts them to these failures."""

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
    """How much history a request contains."""

    type: str = "none"
    window_size: int | None = None

    def __post_init__(self) -> None:
        _require(self.type in {"none", "summary", "window"}, "memory.type", "none, summary, window")
        windowed = self.type == "window"
        fits = (self.window_size or 0) > 0 if windowed else self.window_size is None
        _require(fits, "memory.window_size", "above 0, for type window only")


class LlmRuntime(Struct, frozen=True, kw_only=True, tag="llm"):
    """A language model in the built-in loop; an empty chain selects the configured default."""

    models: tuple[ModelChoice, ...] = ()
    temperature: float | None = None
    max_tokens: int | None = None
    reasoning_effort: ReasoningEffort | None = None
    retry: Retry | None = None
    memory: Memory | None = None

    def __post_init__(self) -> None:
        # Checked explicitly, because NaN is neither below 0 nor above 2.
        warmth = self.temperature
        _require(warmth is None or (isfinite(warmth) and 0 <= warmth <= 2), "temperature", "0 to 2")
        _require(self.max_tokens is None or self.max_tokens > 0, "max_tokens", "above 0")


class AcpRuntime(Struct, frozen=True, kw_only=True, tag="acp"):
    """A program that speaks the Agent Client Protocol."""

    command: str
    args: tuple[str, ...] = ()
    # Names without values, because a value here would be a secret at rest.
    env_names: tuple[str, ...] = ()
    options: dict[str, Any] = {}

    def __post_init__(self) -> None:
        _require(bool(self.command.strip()), "runtime.command", "not empty")
        _require("\x00" not in self.command, "runtime.command", "without NUL")
        _require("\x00" not in "".join(self.args), "runtime.args", "without NUL")


class LoopRuntime(Struct, frozen=True, kw_only=True, tag="loop"):
    """A Python function that runs the turns; the process that registered it has it by its name."""

    name: str

    def __post_init__(self) -> None:
        _require(is_slug(self.name), "runtime.name", "letters, digits, - and _")


class ExternalRuntime(Struct, frozen=True, kw_only=True, tag="external"):
    """A framework in a program of the user; no process of Holdfast runs its turns."""

    framework: str

    def __post_init__(self) -> None:
        _require(is_slug(self.framework), "runtime.framework", "letters, digits, - and _")


Runtime = LlmRuntime | AcpRuntime | LoopRuntime | ExternalRuntime


class AgentOverrides(Struct, frozen=True, kw_only=True):
    """Settings that a session replaces in its snapshot; `None` keeps those of the agent."""

    temperature: float | None = None
    max_tokens: int | None = None
    retry: Retry | None = None
    system_prompt_append: str | None = None
    output_schema: dict[str, Any] | None = None


class Agent(Struct, frozen=True, kw_only=True):
    """A complete agent definition; a session stores a snapshot of it when it opens."""

    id: AgentId
    owner: Owner
    slug: str
    name: str
    description: str | None = None
    system_prompt: str
    runtime: Runtime
    tools: tuple[ToolSpec, ...] = ()
    mcp_servers: tuple[dict[str, Any], ...] = ()
    # None: the configuration decides when a session opens.
    grant: Grant | None = Grant()
    # Stop by default, because continuing after an unknown side effect must be an explicit choice.
    recovery: Recovery = Recovery.STOP
    extra: dict[str, Any] = {}
    tags: tuple[str, ...] = ()
    status: AgentStatus = AgentStatus.ACTIVE
    created_at: datetime
    updated_at: datetime

    def __post_init__(self) -> None:
        _require(is_slug(self.slug), "slug", "1 to 255 characters of A-Z, a-z, 0-9, _ and -")
        require_text(self.name, field="name", shortest=1, longest=255)
        _require_size(self.description or "", field="description", largest=10 << 10)
        _require_size(self.system_prompt, field="system_prompt", largest=SYSTEM_PROMPT_LONGEST)
        _refuse_secret_references(self.system_prompt)
        names = [tool.name for tool in self.tools]
        _require(len(names) <= 128, "tools", "at most 128")
        _require(len(set(names)) == len(names), "tools", "distinct")
        _require(require_tags(self.tags) == self.tags, "tags", "distinct")


def override_agent(agent: Agent, overrides: AgentOverrides | None) -> Agent:
    """Return the agent with other settings; refused for an agent that has none of them."""
    if overrides is None or overrides == AgentOverrides():
        return agent
    if not isinstance(agent.runtime, LlmRuntime):
        raise Invalid(
            Code.INVALID_INPUT,
            f"Agent {agent.slug} is a program that chooses its own model settings; leave out "
            "temperature, max_tokens, retry, system_prompt_append and output_schema.",
            {"field": "overrides"},
        )
    named = {key: getattr(overrides, key) for key in ("temperature", "max_tokens", "retry")}
    given = {key: value for key, value in named.items() if value is not None}
    prompt = filter(None, (agent.system_prompt, overrides.system_prompt_append))
    schema = overrides.output_schema
    extra = agent.extra if schema is None else {**agent.extra, _OUTPUT_SCHEMA: schema}
    return replace(
        agent,
        runtime=replace(agent.runtime, **given),
        system_prompt="\n\n".join(prompt),
        extra=extra,
    )


def require_retry(retry: Retry | None) -> None:
    """Refuse a rule that names a failure after which no model is ever asked again."""
    unknown = sorted(set((retry and retry.retry_on) or ()) - set(RETRY_ON))
    if unknown:
        raise Invalid(
            Code.AGENT_INVALID,
            f"retry.retry_on may name {', '.join(RETRY_ON)}; remove {', '.join(unknown)}.",
            {"fields": ["retry.retry_on"]},
        )


def _require(holds: bool, field: str, rule: str) -> None:
    if not holds:
        raise Invalid(Code.AGENT_INVALID, f"{field} must be {rule}.", {"fields": [field]})


def _require_size(text: str, *, field: str, largest: int) -> None:
    require_text(text, field=field, longest=largest)
    # In bytes, because the limits of stores and providers are in bytes.
    size = len(text.encode())
    if size > largest:
        raise Invalid(
            Code.INVALID_TEXT,
            f"{field} must have at most {largest >> 10:,} KiB, not {size:,} bytes.",
            {"field": field, "bytes": size},
        )


def _refuse_secret_references(prompt: str) -> None:
    if _SECRET_REFERENCE.search(prompt):
        raise Invalid(
            Code.SECRET_INTERPOLATION,
            "A prompt must not contain a secret; remove {{secrets.…}} from system_prompt.",
            {"field": "system_prompt"},
        )


_VARIABLE: Final = re.compile(r"\{\{ctx\.([A-Za-z0-9_-]{1,64})\}\}")
_OPENER: Final = re.compile(r"\{(?=\{)")
# NUL is not allowed in prompts and variables, so it can mark the edges of a value.
_EDGE: Final = "\x00"
# Two braces that are adjacent only because a value was inserted (template injection).
_SEAM: Final = re.compile(r"\{\x00+(?=\{)")


class Rendered(Struct, frozen=True, kw_only=True):
    """A rendered text, and the distinct names that have no variable."""

    text: str
    unknown: tuple[str, ...] = ()


def render(template: str, variables: Mapping[str, str]) -> Rendered:
    """Return the template with its variables inserted in one pass; unknown ones are left as is."""
    names = _VARIABLE.findall(template)
    # Checked before rendering, because a short template can insert one long value many times.
    if len(template) + sum(len(variables.get(name, "")) for name in names) > SYSTEM_PROMPT_LONGEST:
        raise Invalid(
            Code.INVALID_TEXT,
            f"With its variables the prompt has more than {SYSTEM_PROMPT_LONGEST} "
            "characters; shorten it.",
            {"field": "system_prompt"},
        )
    marked = _VARIABLE.sub(lambda found: _put_in(found, variables), template)
    text = _SEAM.sub("{ ", marked).replace(_EDGE, "")
    return Rendered(text=text, unknown=tuple(dict.fromkeys(n for n in names if n not in variables)))


def neutralise(text: str) -> str:
    """Return the text with `{{` split by a space, so that it cannot open a placeholder."""
    return _OPENER.sub("{ ", text)


def has_secret_reference(text: str) -> bool:
    """Return whether a text contains a placeholder for a secret."""
    return _SECRET_REFERENCE.search(text) is not None


def refuse_secrets(variables: Mapping[str, str], scrubber: Scrubber) -> None:
    """Refuse variables that contain a secret; report their names, never their values."""
    found = sorted(
        name
        for name, value in variables.items()
        if scrubber.holds(value) or is_credential(value, name)
    )
    if found:
        raise Invalid(
            Code.SECRET_IN_VARIABLES,
            f"Variables are stored as plain text; remove the secret from: {', '.join(found)}.",
            {"variables": found},
        )


def _put_in(found: re.Match[str], variables: Mapping[str, str]) -> str:
    value = variables.get(found[1])
    return found[0] if value is None else f"{_EDGE}{neutralise(value)}{_EDGE}"


# Keys of an agent file that are kept in `extra`.
SCHEMA_KEYS: Final[tuple[str, ...]] = ("input_schema", "output_schema")
_OUTPUT_SCHEMA: Final = SCHEMA_KEYS[1]
# Attempts of a chain entry that was created without a number.
_USUAL_ATTEMPTS: Final = 2


def file_form(agent: Agent, refs: Mapping[ModelId, str], *, default: str) -> dict[str, Any]:
    """Return an agent in the form of its file; `default` is used if it names no model.

    Its grant, tags and detailed tool descriptions cannot be expressed in a file.
    """
    runtime = agent.runtime
    if not isinstance(runtime, LlmRuntime):
        raise Invalid(
            Code.AGENT_INVALID,
            "An agent that runs a program cannot be exported as a file.",
            {"fields": ["runtime"]},
        )
    if not agent.system_prompt:
        raise Invalid(
            Code.AGENT_INVALID,
            f"Agent {agent.slug} has no system prompt, which a file requires; set one "
            f"with `holdfast agents edit {agent.slug} --system-prompt TEXT`.",
            {"fields": ["system_prompt"]},
        )
    chain = [(refs[each.model_id], each.max_attempts) for each in runtime.models]
    (first, _), *others = chain or [(default, None)]
    settings = msgspec.to_builtins(runtime)
    form = {
        "id": agent.slug,
        "name": agent.name,
        "description": agent.description,
        **_provider_and_model(first),
        "system_prompt": agent.system_prompt,
        **{key: settings[key] for key in ("temperature", "max_tokens", "reasoning_effort")},
        "tools": [tool.name for tool in agent.tools],
        "mcp_servers": list(agent.mcp_servers),
        "fallback_chain": [
            {**_provider_and_model(ref), "max_attempts": attempts or _USUAL_ATTEMPTS}
            for ref, attempts in others
        ],
        "retry": _without_nothing(settings["retry"] or {}),
        "memory": _without_nothing(settings["memory"] or {}),
        "recovery": agent.recovery.value,
    }
    said = {key: value for key, value in form.items() if value not in (None, [], {})}
    return said | {key: agent.extra[key] for key in SCHEMA_KEYS if key in agent.extra}


def _provider_and_model(ref: str) -> dict[str, str]:
    provider, _, model = ref.partition(":")
    return {"model": model, "provider": provider}


def _without_nothing(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def extend_agent(agent: Agent, functions: tuple[ToolSpec, ...]) -> Agent:
    """Return the agent with the functions and definitions that its session is opened with."""
    if functions and isinstance(agent.runtime, AcpRuntime):
        raise Invalid(
            Code.OPTION_NOT_OFFERED,
            f"Agent {agent.slug} is a program and has its own tools; functions need a model agent.",
        )
    named = {tool.name for tool in agent.tools}
    added = tuple(tool for tool in functions if tool.name not in named)
    return replace(agent, tools=(*agent.tools, *added)) if added else agent


def narrow_agent(
    agent: Agent, wanted: tuple[str, ...] | None
) -> tuple[Agent, tuple[ToolSpec, ...]]:
    """Return the agent and its tools narrowed to a request; `None` keeps all of both.

    Declaring a server grants its tools. A request that names tools must also name those of servers:
    a server without a named tool is removed from the session.
    """
    if wanted is None:
        return agent, agent.tools
    # An agent that names some tools of a server has no other tools of that server.
    whole = [begins for begins in _beginnings(agent) if not _any_begins(agent.tools, begins)]
    named = {tool.name for tool in agent.tools}
    implied = tuple(
        ToolSpec(name=name)
        for name in dict.fromkeys(wanted)
        if name not in named and name.startswith(tuple(whole))
    )
    tools = narrow_tools((*agent.tools, *implied), wanted)
    servers = tuple(
        server for server in agent.mcp_servers if _any_begins(tools, _beginning(server))
    )
    return replace(agent, mcp_servers=servers), tools


def _beginning(server: Mapping[str, Any]) -> str:
    return remote_id(str(server.get("id") or server.get("ref") or ""))


def _beginnings(agent: Agent) -> list[str]:
    return [_beginning(server) for server in agent.mcp_servers]


def _any_begins(tools: Iterable[ToolSpec], beginning: str) -> bool:
    return any(tool.name.startswith(beginning) for tool in tools)


def is_known_tool(tool: ToolSpec, agent: Agent, known: frozenset[str]) -> bool:
    """Return whether a tool can be offered; refuses a name that is likely mistyped."""
    if tool.name in known or tool.is_client_run or tool.agents or _is_remote(tool, agent):
        return True
    # A tool described without parameters cannot be called: it is only shown as given.
    if tool.name in ACCEPTED_TOOLS or tool.is_described:
        return False
    raise unknown_tool(
        tool.name,
        known,
        f"Agent {agent.slug} names it; change its tools with `holdfast agents edit {agent.slug} "
        "--tools A,B`.",
    )


def require_known_tools(wanted: Iterable[str], agent: Agent, known: frozenset[str]) -> None:
    """Refuse names that no tool has, and that are likely mistyped."""
    given = {tool.name for tool in agent.tools}
    for name in wanted:
        if name not in known | given | ACCEPTED_TOOLS and not name.startswith(REMOTE):
            raise unknown_tool(name, known | given, "Leave it out, or pass the function.")


# What an agent lacks whose tools have the bare name.
CHILD_AGENTS_MISSING: Final = (
    f"{INVOKE_AGENT} can start no agent: name those that it may start, as "
    f'{{"name": "{INVOKE_AGENT}", "agents": ["SLUG"]}} in the tools of the agent.'
)


def tool_warnings(names: Iterable[str], functions: frozenset[str]) -> tuple[str, ...]:
    """Return a sentence for each bare name that no tool and none of these functions has."""
    known = CATALOGUE | functions
    missing = [name for name in names if name not in known and not name.startswith(REMOTE)]
    texts = {
        name: f"There is no tool {name}{did_you_mean(name, known)}. If it is a function, sessions "
        "open once a process has registered it."
        for name in missing
        if name not in ACCEPTED_TOOLS
    }
    return tuple(texts.values()) + (CHILD_AGENTS_MISSING,) * (INVOKE_AGENT in missing)


def unknown_tool(name: str, known: Iterable[str], remedy: str) -> Invalid:
    """Return the error for a name that no tool has."""
    names = ", ".join(sorted(known))
    return Invalid(
        Code.UNKNOWN_TOOL,
        f"There is no tool {name}{did_you_mean(name, known)}; the tools are {names}, and functions "
        f"that are registered in this process. {remedy}",
        {"tool": name},
    )


def functions_of(tools: Iterable[ToolSpec]) -> list[str]:
    """Return the names of the tools that are functions of a program."""
    return [
        tool.name
        for tool in tools
        if tool.name not in CATALOGUE
        and tool.name not in ACCEPTED_TOOLS
        and not tool.is_described
        # Also those of servers that a client has named, and may name no more.
        and not tool.name.startswith(REMOTE)
    ]


def _is_remote(tool: ToolSpec, agent: Agent) -> bool:
    return tool.name.startswith(tuple(_beginnings(agent)))
