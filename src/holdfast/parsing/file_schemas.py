"""Schemas of agent files and workflow files: the rule of every key, and each node type."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from holdfast.domain.agents import RETRY_ON, ReasoningEffort, Recovery
from holdfast.domain.tools import FsTier
from holdfast.parsing.files import Fault, FormError, duplicate_faults, translate_fault

PROMPT_LARGEST: Final = 256 << 10
Filled = Annotated[str, Meta(min_length=1)]
Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,255}\Z")]
ProviderName = Annotated[str, Meta(pattern=r"\A[^:\s]+\Z")]
Positive = Annotated[int, Meta(ge=1, le=1_000_000_000)]
NonEmptyNames = Annotated[tuple[Filled, ...], Meta(min_length=1)]


class FallbackForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The next model in the fallback chain, and its number of attempts."""

    model: Filled
    provider: ProviderName
    max_attempts: Positive


class RetryForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Retries of the first model."""

    max: Positive
    backoff: Literal["linear", "exponential"]
    backoff_ms: Positive | UnsetType = UNSET
    retry_on: NonEmptyNames | UnsetType = UNSET


class MemoryForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much history a request contains."""

    type: Literal["none", "summary", "window"]
    window_size: Positive | UnsetType = UNSET


class NamedServer(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An MCP server defined in the configuration."""

    ref: Name
    tools_allowlist: NonEmptyNames | UnsetType = UNSET


class SecretForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A reference to a secret by name."""

    secret: bool
    ref: Filled


class ServerProgram(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An MCP server that is started as a local process."""

    id: Name
    transport: Literal["stdio"]
    command: Filled
    args: tuple[str, ...] = ()
    env: dict[Filled, str | SecretForm] = {}
    tools_allowlist: NonEmptyNames | UnsetType = UNSET


class ServerAddress(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An MCP server at a URL."""

    id: Name
    transport: Literal["http", "sse"]
    url: Filled
    allow_local_endpoint: bool = False
    tools_allowlist: NonEmptyNames | UnsetType = UNSET


class AgentFileForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole agent file."""

    id: Name
    name: Annotated[str, Meta(min_length=1, max_length=255)] | UnsetType = UNSET
    description: Annotated[str, Meta(max_length=10 << 10)] | UnsetType = UNSET
    model: Filled
    provider: ProviderName
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


_FIELDS: Final = {spec.name: spec for spec in msgspec.structs.fields(AgentFileForm)}
# msgspec compiles a type on first use, and two threads doing so at once would race.
_PREPARED: Final = tuple(
    msgspec.json.Decoder(kind)
    for kind in (AgentFileForm, NamedServer, ServerProgram, ServerAddress)
)
_SCHEMES: Final = {
    "http": {"http", "https"},
    "sse": {"http", "https"},
}


def validate_agent(raw: Any) -> AgentFileForm:
    """Return the validated form of a parsed file; raises `FormError`."""
    if not isinstance(raw, dict):
        raise FormError([Fault("", "an agent must be a mapping of keys to values")])
    faults = [Fault(str(key), "unknown key") for key in raw if key not in _FIELDS]
    values: dict[str, Any] = {}
    for name, spec in _FIELDS.items():
        if name not in raw and spec.required:
            faults.append(Fault(name, "it is missing"))
        elif name in raw:
            try:
                values[name] = msgspec.convert(raw[name], spec.type)
            except msgspec.ValidationError as error:
                faults.append(translate_fault(name, error))
    faults += _broken_rules(values)
    if faults:
        raise FormError(faults)
    return AgentFileForm(**values)


def _broken_rules(values: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield the errors that types cannot express."""
    if len(values.get("system_prompt", "").encode("utf-8", "replace")) > PROMPT_LARGEST:
        yield Fault("system_prompt", "it may have at most 256 KiB")
    yield from duplicate_faults("tools", values.get("tools", ()))
    yield from retry_faults("retry", values.get("retry", UNSET))
    memory = values.get("memory")
    if memory is not None and (memory.type == "window") is (memory.window_size is UNSET):
        yield Fault("memory.window_size", "it is for type window only")
    servers = values.get("mcp_servers", ())
    for number, server in enumerate(servers):
        yield from _broken_server(f"mcp_servers[{number}]", server)
    names = [str(server.get("ref", server.get("id", ""))) for server in servers]
    yield from duplicate_faults("mcp_servers", names)


def retry_faults(path: str, retry: RetryForm | UnsetType) -> Iterator[Fault]:
    """Yield the failures of a retry rule that are never retried."""
    names = () if retry is UNSET or retry.retry_on is UNSET else retry.retry_on
    for number, name in enumerate(names):
        if name not in RETRY_ON:
            yield Fault(f"{path}.retry_on[{number}]", f"it must be one of {', '.join(RETRY_ON)}")


def _broken_server(path: str, raw: dict[str, Any]) -> Iterator[Fault]:
    is_program = raw.get("transport") == "stdio"
    kind = NamedServer if "ref" in raw else ServerProgram if is_program else ServerAddress
    try:
        server = msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        yield translate_fault(path, error)
        return
    if isinstance(server, ServerProgram):
        for name, value in server.env.items():
            if isinstance(value, SecretForm) and not value.secret:
                yield Fault(f"{path}.env.{name}.secret", "it must be true")
    if isinstance(server, ServerAddress) and not _is_plain_address(server):
        yield Fault(f"{path}.url", "it must be a URL of its transport, without credentials")


def _is_plain_address(server: ServerAddress) -> bool:
    try:
        parts = urlsplit(server.url)
        has_host = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
    return has_host and "@" not in parts.netloc and parts.scheme in _SCHEMES[server.transport]


KEBAB: Final = r"[a-z0-9]+(?:-[a-z0-9]+)*"
Kebab = Annotated[str, Meta(pattern=rf"\A{KEBAB}\Z", max_length=255)]
EdgeSource = Annotated[str, Meta(pattern=rf"\A{KEBAB}(?::[A-Za-z0-9_-]+)?\Z", max_length=255)]
TextList = tuple[Filled, ...]
Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]


class ManualForm(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="manual"):
    """The workflow is started manually."""


class WebhookForm(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="webhook"):
    """The workflow is started by an HTTP request."""

    path: Filled
    secret_env: Filled


class ScheduleForm(
    Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="schedule"
):
    """The workflow is started on a schedule."""

    cron: Filled


class FileChangeForm(
    Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="file_change"
):
    """The workflow is started by a file change."""

    glob: Filled
    debounce_ms: Count | UnsetType = UNSET


class McpCallForm(
    Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="mcp_call"
):
    """The workflow is started by an MCP call."""


Trigger = ManualForm | WebhookForm | ScheduleForm | FileChangeForm | McpCallForm


class WorkflowInput(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A workflow input; the rules in `validation` depend on its type."""

    name: Annotated[str, Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_-]{0,63}\Z")]
    type: Literal["string", "number", "boolean", "file_path", "code_diff", "secret"]
    required: bool | UnsetType = UNSET
    default: str | int | float | bool | UnsetType = UNSET
    description: str | UnsetType = UNSET
    validation: dict[str, Any] | UnsetType = UNSET


class NumberRules(Struct, frozen=True, forbid_unknown_fields=True):
    """Constraints on a number."""

    min: int | float | UnsetType = UNSET
    max: int | float | UnsetType = UNSET


class TextRules(Struct, frozen=True, forbid_unknown_fields=True):
    """Constraints on a text; the whole text must match the pattern."""

    min_length: Count | UnsetType = UNSET
    max_length: Count | UnsetType = UNSET
    pattern: Filled | UnsetType = UNSET


class NoRules(Struct, frozen=True, forbid_unknown_fields=True):
    """A boolean has no constraints."""


class WorkflowContext(Struct, frozen=True, forbid_unknown_fields=True):
    """A named value."""

    key: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z")]
    value: Any


class ToolsForm(Struct, frozen=True, forbid_unknown_fields=True):
    """The tools, commands, domains and files that the workflow's agents may use."""

    allowedTools: TextList | UnsetType = UNSET  # noqa: N815
    fsScopeTier: FsTier | UnsetType = UNSET  # noqa: N815
    allowedCommands: TextList | UnsetType = UNSET  # noqa: N815 — the key in the file
    allowedCommandGlobs: TextList | UnsetType = UNSET  # noqa: N815
    allowedDomains: TextList | UnsetType = UNSET  # noqa: N815


class WorkflowBudget(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cost limit of the workflow."""

    max_cost_microcents: Annotated[int, Meta(ge=1, le=(1 << 53) - 1)]
    on_exceed: Literal["fail", "pause_for_approval", "warn"]


class EdgeForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An edge from a node, or from one of its handles, to another node."""

    source: EdgeSource = field(name="from")
    to: Kebab
    label: str | UnsetType = UNSET
    condition: str | UnsetType = UNSET


class WorkflowForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `workflow`; its lists are validated item by item."""

    id: Kebab
    version: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    tags: TextList | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET
    trigger: Trigger | UnsetType = UNSET
    inputs: list[Any] | UnsetType = UNSET
    context: list[Any] | UnsetType = UNSET
    agents: list[Any] | UnsetType = UNSET
    tools: ToolsForm | UnsetType = UNSET
    budget: WorkflowBudget | UnsetType = UNSET
    timeout_ms: Positive | UnsetType = UNSET
    max_parallel: Positive | UnsetType = UNSET
    nodes: Annotated[list[Any], Meta(min_length=1)]
    edges: list[Any]


class DocumentForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole workflow file."""

    schema_version: Literal["1.0"]
    workflow: dict[str, Any]


# msgspec compiles a type on first use, and two threads doing so at once would race.
DECODERS: Final = tuple(
    msgspec.json.Decoder(kind)
    for kind in (DocumentForm, WorkflowForm, WorkflowInput, WorkflowContext, EdgeForm, NumberRules)
)
PositiveNumber = Annotated[float, Meta(gt=0, le=1_000_000_000)]
Language = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]+\Z")]


class _Node(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    id: Kebab


class InputNode(_Node, frozen=True, kw_only=True, tag="input"):
    """The entry node."""

    label: str | UnsetType = UNSET


class AgentNode(_Node, frozen=True, kw_only=True, tag="agent"):
    """Runs a turn of an agent."""

    agent_ref: Filled
    prompt_template: str | UnsetType = UNSET
    system_prompt_append: str | UnsetType = UNSET
    tools: TextList | UnsetType = UNSET
    model: Filled | UnsetType = UNSET
    temperature: Annotated[float, Meta(ge=0, le=2)] | UnsetType = UNSET
    max_tokens: Positive | UnsetType = UNSET
    output_schema: dict[str, Any] | UnsetType = UNSET
    output_modalities: TextList | UnsetType = UNSET
    count: Positive | UnsetType = UNSET
    duration_seconds: PositiveNumber | UnsetType = UNSET
    timeout_ms: Positive | UnsetType = UNSET
    retry: RetryForm | UnsetType = UNSET


class HumanGateNode(_Node, frozen=True, kw_only=True, tag="human_gate"):
    """Waits for a person's decision."""

    gate_type: Literal["approval", "input", "review"]
    assignee: Filled | UnsetType = UNSET
    message_template: str | UnsetType = UNSET
    timeout_ms: Positive | UnsetType = UNSET
    timeout_action: Literal["reject", "approve"] | UnsetType = UNSET


class BranchForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The target node of an outcome."""

    when: bool | str | int | float
    target_node: Kebab


class ConditionNode(_Node, frozen=True, kw_only=True, tag="condition"):
    """Selects a branch."""

    expression: Filled
    branches: Annotated[tuple[BranchForm, ...], Meta(min_length=1)]
    expression_type: Language | UnsetType = UNSET
    default: Kebab | UnsetType = UNSET
    retry: RetryForm | UnsetType = UNSET


class TransformNode(_Node, frozen=True, kw_only=True, tag="transform"):
    """Computes a value from another."""

    transform: Filled
    expression_type: Language | UnsetType = UNSET
    output_schema: dict[str, Any] | UnsetType = UNSET
    retry: RetryForm | UnsetType = UNSET


class ParallelNode(_Node, frozen=True, kw_only=True, tag="parallel"):
    """Runs several branches in parallel."""

    parallel_of: Annotated[tuple[Kebab, ...], Meta(min_length=1)]


class MergeNode(_Node, frozen=True, kw_only=True, tag="merge"):
    """Merges parallel branches."""

    merge_strategy: Literal["concat", "object_merge", "first", "custom"]
    merge_fn: Filled | UnsetType = UNSET
    retry: RetryForm | UnsetType = UNSET


class OutputNode(_Node, frozen=True, kw_only=True, tag="output"):
    """The final node."""

    output_format: Filled | UnsetType = UNSET
    save_to: Filled | UnsetType = UNSET


NodeForm = (
    InputNode
    | AgentNode
    | HumanGateNode
    | ConditionNode
    | TransformNode
    | ParallelNode
    | MergeNode
    | OutputNode
)
NODE_DECODER: Final = msgspec.json.Decoder(NodeForm)
