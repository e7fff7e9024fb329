"""JSON forms of agents, and of the well-known agent programs installed on a machine."""

from collections.abc import Mapping
from itertools import starmap
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict

from holdfast.domain.agent_processes import KnownProgram
from holdfast.domain.agents import (
    SCHEMA_KEYS,
    AcpRuntime,
    Agent,
    AgentStatus,
    ExternalRuntime,
    LlmRuntime,
    LoopRuntime,
    Memory,
    ModelChoice,
    ReasoningEffort,
    Recovery,
    Retry,
    Runtime,
)
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import LOCAL_OWNER, AgentId, ModelId
from holdfast.domain.queries import AgentQuery
from holdfast.domain.tools import FsTier, Grant, ToolSpec, tool_fields
from holdfast.wire.errors import invalid_body, split_violation
from holdfast.wire.scalars import (
    Cursor,
    Instant,
    Limit,
    ModelRef,
    Uuid,
    Words,
    format_time,
    is_given,
    parse_time,
)

Slug = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,255}$")]
Name = Annotated[str, Meta(min_length=1, max_length=255)]
Description = Annotated[str, Meta(max_length=10 << 10)]
Prompt = Annotated[str, Meta(max_length=1 << 20)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
MaxTokens = Annotated[int, Meta(ge=1, le=(1 << 31) - 1)]
Tags = tuple[Annotated[str, Meta(min_length=1, max_length=64)], ...]


class LlmRuntimeForm(
    Struct, frozen=True, forbid_unknown_fields=True, tag="llm", kw_only=True, omit_defaults=True
):
    """A language model that Holdfast's own loop runs."""

    reasoning_effort: ReasoningEffort | None = None
    retry: Retry | None = None
    memory: Memory | None = None


class LoopRuntimeForm(Struct, frozen=True, forbid_unknown_fields=True, tag="loop", kw_only=True):
    """A Python function that runs the turns, by the name under which a process registers it."""

    name: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,64}$")]


class ExternalRuntimeForm(
    Struct, frozen=True, forbid_unknown_fields=True, tag="external", kw_only=True
):
    """A framework in a program of the user, which runs the turns itself."""

    framework: Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,64}$")]


class AcpRuntimeForm(Struct, frozen=True, forbid_unknown_fields=True, tag="acp", kw_only=True):
    """An external program that speaks the Agent Client Protocol.

    `env_names` lists names of environment variables, never their values.
    """

    command: Annotated[str, Meta(min_length=1)]
    args: tuple[str, ...] = ()
    env_names: tuple[str, ...] = ()
    options: dict[str, Any] = {}


class GrantForm(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The access rights of an agent or a session: files, commands and domains."""

    fs: FsTier = FsTier.SANDBOXED
    commands: tuple[str, ...] = ()
    command_globs: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()


class ToolShape(Struct, frozen=True, kw_only=True):
    """The fields of a tool description that Holdfast validates; other fields are allowed."""

    name: Annotated[str, Meta(min_length=1, max_length=255)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    approval: Literal["auto", "ask", "deny", "mode"] | None = None


RuntimeForm = LlmRuntimeForm | AcpRuntimeForm | LoopRuntimeForm | ExternalRuntimeForm
ToolObject = Annotated[
    dict[str, Any],
    Meta(
        description="A tool description; stored and returned unchanged.",
        extra_json_schema={
            "properties": {
                "name": {"type": "string", "minLength": 1, "maxLength": 255},
                "description": {"type": ["string", "null"]},
                "parameters": {"type": ["object", "null"]},
                "approval": {"enum": ["ask", "deny", None]},
            },
            "required": ["name"],
        },
    ),
]
JsonSchema = Annotated[
    dict[str, Any],
    Meta(description="A JSON Schema (2020-12) of the messages or of the final answer of a turn."),
]
Tools = tuple[Annotated[str, Meta(min_length=1)] | ToolObject, ...]


class AgentForm(Struct, frozen=True, kw_only=True):
    """An agent."""

    id: Uuid
    slug: str
    name: str
    description: str | None
    system_prompt: str
    default_model_id: Uuid | None
    fallback_model_ids: tuple[Uuid, ...]
    temperature: float | None
    max_tokens: int | None
    tools: Tools
    tags: tuple[str, ...]
    runtime: RuntimeForm
    grant: GrantForm | None
    recovery: Recovery
    status: AgentStatus
    created_at: Instant
    updated_at: Instant
    input_schema: JsonSchema | UnsetType = UNSET
    output_schema: JsonSchema | UnsetType = UNSET
    # Only an agent file can set the fields below; they are read-only over HTTP.
    max_attempts: tuple[int | None, ...] | UnsetType = UNSET
    mcp_servers: tuple[dict[str, Any], ...] | UnsetType = UNSET
    extra: dict[str, Any] | UnsetType = UNSET
    # Only in the answer to its creation: tools that no process has registered.
    warnings: tuple[str, ...] | UnsetType = UNSET


class AgentList(Struct, frozen=True):
    """A page of agents."""

    data: tuple[AgentForm, ...]
    next_cursor: str | None


class AgentPost(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A new agent; `system_prompt` is required unless the agent is an external program."""

    id: Uuid | None = None
    slug: Slug | None = None
    name: Name
    description: Description | None = None
    system_prompt: Prompt | UnsetType = UNSET
    default_model_id: ModelRef | None = None
    fallback_model_ids: tuple[ModelRef, ...] = ()
    temperature: Temperature | None = None
    max_tokens: MaxTokens | None = None
    tools: Tools = ()
    tags: Tags = ()
    runtime: RuntimeForm = LlmRuntimeForm()
    grant: GrantForm | None = GrantForm()
    recovery: Recovery = Recovery.STOP
    status: AgentStatus = AgentStatus.ACTIVE
    input_schema: JsonSchema | UnsetType | None = UNSET
    output_schema: JsonSchema | UnsetType | None = UNSET


class AgentPatch(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Changes to an agent: absent fields stay unchanged, and null clears an optional field."""

    slug: Slug | UnsetType = UNSET
    name: Name | UnsetType = UNSET
    description: Description | UnsetType | None = UNSET
    system_prompt: Prompt | UnsetType = UNSET
    default_model_id: ModelRef | UnsetType | None = UNSET
    fallback_model_ids: tuple[ModelRef, ...] | UnsetType = UNSET
    temperature: Temperature | UnsetType | None = UNSET
    max_tokens: MaxTokens | UnsetType | None = UNSET
    tools: Tools | UnsetType = UNSET
    tags: Tags | UnsetType = UNSET
    runtime: RuntimeForm | UnsetType = UNSET
    grant: GrantForm | UnsetType | None = UNSET
    recovery: Recovery | UnsetType = UNSET
    status: AgentStatus | UnsetType = UNSET
    input_schema: JsonSchema | UnsetType | None = UNSET
    output_schema: JsonSchema | UnsetType | None = UNSET


class AgentsQuery(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Filters of a list of agents."""

    status: Literal["active", "archived", "all"] = "active"
    tag: tuple[str, ...] = ()
    q: Words | None = None
    limit: Limit = 100
    cursor: Cursor | None = None


def agent_form(agent: Agent) -> AgentForm:
    """Return the form of an agent."""
    runtime = agent.runtime
    llm = runtime if isinstance(runtime, LlmRuntime) else LlmRuntime()
    models = tuple(choice.model_id for choice in llm.models)
    return AgentForm(
        id=agent.id,
        slug=agent.slug,
        name=agent.name,
        description=agent.description,
        system_prompt=agent.system_prompt,
        default_model_id=models[0] if models else None,
        fallback_model_ids=models[1:],
        temperature=llm.temperature,
        max_tokens=llm.max_tokens,
        tools=tuple(tool.as_given() for tool in agent.tools),
        tags=agent.tags,
        runtime=_runtime_form(runtime),
        grant=grant_form(agent.grant),
        recovery=agent.recovery,
        status=agent.status,
        created_at=format_time(agent.created_at),
        updated_at=format_time(agent.updated_at),
        max_attempts=_attempts(llm),
        mcp_servers=agent.mcp_servers or UNSET,
        input_schema=agent.extra.get("input_schema", UNSET),
        output_schema=agent.extra.get("output_schema", UNSET),
        extra=_without_schemas(agent.extra) or UNSET,
    )


def _without_schemas(extra: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in extra.items() if key not in SCHEMA_KEYS}


def _attempts(runtime: LlmRuntime) -> tuple[int | None, ...] | UnsetType:
    attempts = tuple(choice.max_attempts for choice in runtime.models)
    return attempts if any(attempts) else UNSET


def grant_form(grant: Grant | None) -> GrantForm | None:
    """Return the form of a grant; None if the configuration decides."""
    return None if grant is None else GrantForm(**msgspec.structs.asdict(grant))


def grant_of(form: GrantForm | None) -> Grant | None:
    """Return the grant of a form."""
    return None if form is None else Grant(**msgspec.structs.asdict(form))


def agent_fields(body: AgentPost) -> dict[str, Any]:
    """Return the fields of a new agent."""
    if isinstance(body.runtime, LlmRuntimeForm) and isinstance(body.system_prompt, UnsetType):
        raise invalid_body("system_prompt", "it is required for a language model, but may be empty")
    changes = AgentPatch(
        **{name: getattr(body, name) for name in AgentPatch.__struct_fields__ if name != "slug"}
    )
    slug = {} if body.slug is None else {"slug": body.slug}
    return changed_fields(changes, LlmRuntime()) | slug


def changed_fields(body: AgentPatch, runtime: Runtime) -> dict[str, Any]:
    """Return the fields that a body changes; `runtime` is the agent's present runtime."""
    plain = ("slug", "name", "description", "system_prompt", "recovery", "status", *SCHEMA_KEYS)
    fields = {name: getattr(body, name) for name in plain if is_given(getattr(body, name))}
    if not isinstance(body.tags, UnsetType):
        fields["tags"] = tuple(dict.fromkeys(body.tags))
    if not isinstance(body.tools, UnsetType):
        fields["tools"] = tuple(starmap(tool_of, enumerate(body.tools)))
    if not isinstance(body.grant, UnsetType):
        fields["grant"] = grant_of(body.grant)
    return fields | _runtime_fields(body, runtime)


def _runtime_fields(body: AgentPatch, runtime: Runtime) -> dict[str, Any]:
    """Return the new runtime and models; the wire has some runtime fields beside `runtime`."""
    wanted = runtime if isinstance(body.runtime, UnsetType) else _runtime_of(body.runtime, runtime)
    if not isinstance(wanted, LlmRuntime):
        _require_no_model(body)
        return {} if wanted == runtime else {"runtime": wanted}
    for name in ("temperature", "max_tokens"):
        if is_given(getattr(body, name)):
            wanted = msgspec.structs.replace(wanted, **{name: getattr(body, name)})
    fields: dict[str, Any] = {} if wanted == runtime else {"runtime": wanted}
    if is_given(body.default_model_id) or is_given(body.fallback_model_ids):
        fields["models"] = _models_of(body, wanted)
    return fields


def _models_of(body: AgentPatch, runtime: LlmRuntime) -> tuple[str, ...]:
    known: tuple[str, ...] = tuple(choice.model_id for choice in runtime.models)
    first, others = known[:1], known[1:]
    if not isinstance(body.default_model_id, UnsetType):
        first = () if body.default_model_id is None else (body.default_model_id,)
    if not isinstance(body.fallback_model_ids, UnsetType):
        others = body.fallback_model_ids
    if others and not first:
        raise invalid_body("fallback_model_ids", "they need a default_model_id")
    return (*first, *others)


def _require_no_model(body: AgentPatch) -> None:
    for name in ("default_model_id", "fallback_model_ids", "temperature", "max_tokens"):
        if is_given(getattr(body, name)) and getattr(body, name):
            raise invalid_body(
                name, "it cannot be set for an external program, which chooses its own models"
            )


def _runtime_of(form: RuntimeForm, before: Runtime) -> Runtime:
    if isinstance(form, AcpRuntimeForm):
        return AcpRuntime(**msgspec.structs.asdict(form))
    if isinstance(form, LoopRuntimeForm):
        return LoopRuntime(name=form.name)
    if isinstance(form, ExternalRuntimeForm):
        return ExternalRuntime(framework=form.framework)
    own = before if isinstance(before, LlmRuntime) else LlmRuntime()
    return msgspec.structs.replace(own, **msgspec.structs.asdict(form))


def _runtime_form(runtime: Runtime) -> RuntimeForm:
    if isinstance(runtime, LlmRuntime):
        return LlmRuntimeForm(
            reasoning_effort=runtime.reasoning_effort, retry=runtime.retry, memory=runtime.memory
        )
    if isinstance(runtime, LoopRuntime):
        return LoopRuntimeForm(name=runtime.name)
    if isinstance(runtime, ExternalRuntime):
        return ExternalRuntimeForm(framework=runtime.framework)
    return AcpRuntimeForm(**msgspec.structs.asdict(runtime))


def tool_of(number: int, tool: str | dict[str, Any]) -> ToolSpec:
    try:
        if isinstance(tool, dict):
            msgspec.convert(tool, ToolShape)
    except msgspec.ValidationError as error:
        path, rule = split_violation(error)
        raise invalid_body(f"tools[{number}]{path and '.'}{path}", rule) from None
    return ToolSpec(**tool_fields(tool))


def definitions_of(tools: Tools | None) -> tuple[ToolSpec, ...]:
    """Return the definitions among the tools of a session; refuses one without parameters."""
    found = tuple(tool_of(*each) for each in enumerate(tools or ()) if isinstance(each[1], dict))
    for tool in found:
        if tool.parameters is None:
            raise Invalid(
                Code.TOOL_INVALID,
                f"The tool {tool.name} needs parameters, or must be a bare name.",
                {"field": "tools", "tool": tool.name},
            )
    return found


def names_of(tools: Tools | None) -> tuple[str, ...] | None:
    """Return the names to which an agent is narrowed; definitions alone do not narrow it."""
    names = tuple(dict.fromkeys(each for each in tools or () if isinstance(each, str)))
    return None if tools is None or (tools and not names) else names


class KnownProgramForm(Struct, frozen=True, kw_only=True):
    """A well-known agent program; `path` is null if it is not installed on the server's machine."""

    preset: str
    title: str
    path: str | None
    version: str | None
    install: str
    runtime: AcpRuntimeForm


class KnownProgramList(Struct, frozen=True):
    """All well-known agent programs, installed ones first."""

    data: tuple[KnownProgramForm, ...]
    next_cursor: str | None = None


def program_form(program: KnownProgram) -> KnownProgramForm:
    """Return the form of a program."""
    runtime = AcpRuntimeForm(**asdict(program.runtime))
    return KnownProgramForm(**{**asdict(program), "runtime": runtime})


# Fields with the same name on both sides.
_SHARED_FIELDS: Final = (
    "slug",
    "name",
    "description",
    "system_prompt",
    "recovery",
    "tags",
    "status",
    *SCHEMA_KEYS,
)
# Only a file on the server's machine may set these, because its author has access there.
_LOCAL_FIELDS: Final = ("mcp_servers", "extra")
_DEFAULT_ATTEMPTS: Final = (None, 2)


def agent_changes(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return an agent's fields for `AgentPost` and `AgentPatch`; refuse local fields."""
    extra = fields.get("extra") or {}
    schemas = {key: extra[key] for key in SCHEMA_KEYS if key in extra}
    fields = {**schemas, **fields, "extra": _without_schemas(extra)}
    for name in _LOCAL_FIELDS:
        if fields.get(name):
            raise _local_field(name)
    sent: dict[str, Any] = {name: fields[name] for name in _SHARED_FIELDS if name in fields}
    if "tools" in fields:
        sent["tools"] = tuple(map(_tool_as_sent, fields["tools"]))
    if "models" in fields:
        first, *others = fields["models"] or (None,)
        sent |= {"default_model_id": first, "fallback_model_ids": tuple(others)}
    # Only null can be sent: it leaves the grant to the server's configuration.
    if "grant" in fields and fields["grant"] is None:
        sent["grant"] = None
    runtime = fields.get("runtime")
    if isinstance(runtime, AcpRuntime):
        sent["runtime"] = AcpRuntimeForm(**asdict(runtime))
    if isinstance(runtime, LoopRuntime):
        sent["runtime"] = LoopRuntimeForm(name=runtime.name)
    if isinstance(runtime, ExternalRuntime):
        sent["runtime"] = ExternalRuntimeForm(framework=runtime.framework)
    if isinstance(runtime, LlmRuntime):
        if any(each.max_attempts not in _DEFAULT_ATTEMPTS for each in runtime.models):
            raise _local_field("fallback_chain.max_attempts")
        sent |= {"temperature": runtime.temperature, "max_tokens": runtime.max_tokens}
        sent["runtime"] = LlmRuntimeForm(
            reasoning_effort=runtime.reasoning_effort, retry=runtime.retry, memory=runtime.memory
        )
    return sent


def _tool_as_sent(tool: str | Mapping[str, Any] | ToolSpec) -> str | dict[str, Any]:
    """Return a tool as it is sent: a definition whole, anything else by its name."""
    if isinstance(tool, str):
        return tool
    given = tool.as_given() if isinstance(tool, ToolSpec) else tool
    if isinstance(given, str):
        return given
    said = {name: value for name, value in given.items() if value is not None}
    return str(said["name"]) if len(said) == 1 else said


def _local_field(name: str) -> Invalid:
    return Invalid(
        Code.AGENT_INVALID,
        f"{name} cannot be set over the network; run the command on the server's machine, "
        "without --server.",
        {"fields": [name]},
    )


def agents_query(query: AgentQuery, cursor: str | None) -> AgentsQuery:
    """Return the query parameters of a query."""
    return AgentsQuery(
        status=query.status.value if query.status else "all",
        tag=query.tags,
        q=query.text,
        limit=query.limit,
        cursor=cursor,
    )


def agent_of(form: AgentForm) -> Agent:
    """Return the agent of a form; its owner is the caller."""
    return Agent(
        id=AgentId(form.id),
        owner=LOCAL_OWNER,
        slug=form.slug,
        name=form.name,
        description=form.description,
        system_prompt=form.system_prompt,
        runtime=_agent_runtime_of(form),
        tools=tuple(ToolSpec(**tool_fields(tool)) for tool in form.tools),
        mcp_servers=() if isinstance(form.mcp_servers, UnsetType) else form.mcp_servers,
        grant=grant_of(form.grant),
        recovery=form.recovery,
        extra=_extra_of(form),
        tags=form.tags,
        status=form.status,
        created_at=parse_time(form.created_at),
        updated_at=parse_time(form.updated_at),
    )


def _extra_of(form: AgentForm) -> dict[str, Any]:
    schemas = {key: getattr(form, key) for key in SCHEMA_KEYS if is_given(getattr(form, key))}
    return schemas if isinstance(form.extra, UnsetType) else form.extra | schemas


def _agent_runtime_of(form: AgentForm) -> Runtime:
    if isinstance(form.runtime, AcpRuntimeForm):
        return AcpRuntime(**asdict(form.runtime))
    if isinstance(form.runtime, LoopRuntimeForm):
        return LoopRuntime(name=form.runtime.name)
    if isinstance(form.runtime, ExternalRuntimeForm):
        return ExternalRuntime(framework=form.runtime.framework)
    first = () if form.default_model_id is None else (form.default_model_id,)
    ids = (*first, *form.fallback_model_ids)
    sent = form.max_attempts
    attempts = (None,) * len(ids) if isinstance(sent, UnsetType) else sent
    return LlmRuntime(
        models=tuple(
            ModelChoice(model_id=ModelId(id_), max_attempts=most)
            for id_, most in zip(ids, attempts, strict=True)
        ),
        temperature=form.temperature,
        max_tokens=form.max_tokens,
        reasoning_effort=form.runtime.reasoning_effort,
        retry=form.runtime.retry,
        memory=form.runtime.memory,
    )


RuntimeKind = Literal["llm", "acp", "loop", "external"]


class SessionAgentForm(Struct, frozen=True, kw_only=True):
    """The agent of a session, as it was when the session was opened."""

    slug: Annotated[str, Meta(description="The agent's slug.")]
    name: Annotated[str, Meta(description="The agent's display name.")]
    runtime: Annotated[
        RuntimeKind,
        Meta(
            description="llm for Holdfast's own loop, acp for an external program, loop for a "
            "Python function, external for a framework."
        ),
    ]
    model_ids: Annotated[tuple[Uuid, ...], Meta(description="The models, in order of preference.")]
    output_schema: (
        Annotated[dict[str, Any], Meta(description="The schema of each answer's value, if any.")]
        | UnsetType
    ) = UNSET


_KINDS: Final[Mapping[type[Runtime], RuntimeKind]] = {
    LlmRuntime: "llm",
    AcpRuntime: "acp",
    LoopRuntime: "loop",
    ExternalRuntime: "external",
}


def session_agent_form(agent: Agent) -> SessionAgentForm:
    """Return the form of the agent of a session."""
    chain = agent.runtime.models if isinstance(agent.runtime, LlmRuntime) else ()
    return SessionAgentForm(
        slug=agent.slug,
        name=agent.name,
        runtime=_KINDS[type(agent.runtime)],
        model_ids=tuple(each.model_id for each in chain),
        output_schema=agent.extra.get("output_schema", UNSET),
    )


def runtime_of_form(form: SessionAgentForm, chain: tuple[ModelChoice, ...]) -> Runtime:
    """Return the runtime of a session's agent, as far as its form says."""
    if form.runtime == "loop":
        return LoopRuntime(name=form.slug)
    if form.runtime == "external":
        return ExternalRuntime(framework=form.slug)
    # The command is not in the form; only the kind of runtime is.
    return LlmRuntime(models=chain) if form.runtime == "llm" else AcpRuntime(command="-")
