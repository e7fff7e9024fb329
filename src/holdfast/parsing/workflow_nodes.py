"""What the nodes of a workflow file may say, type by type."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from holdfast.parsing.agent_schema import Filled, Positive, RetryForm
from holdfast.parsing.workflow_schema import Kebab, Names

Positively = Annotated[float, Meta(gt=0, le=1_000_000_000)]
Language = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]+\Z")]


class _Node(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    id: Kebab


class InputNode(_Node, frozen=True, kw_only=True, tag="input"):
    """Where it begins."""

    label: str | UnsetType = UNSET


class AgentNode(_Node, frozen=True, kw_only=True, tag="agent"):
    """An agent's turn."""

    agent_ref: Filled
    prompt_template: str | UnsetType = UNSET
    system_prompt_append: str | UnsetType = UNSET
    tools: Names | UnsetType = UNSET
    model: Filled | UnsetType = UNSET
    temperature: Annotated[float, Meta(ge=0, le=2)] | UnsetType = UNSET
    max_tokens: Positive | UnsetType = UNSET
    output_schema: dict[str, Any] | UnsetType = UNSET
    output_modalities: Names | UnsetType = UNSET
    count: Positive | UnsetType = UNSET
    duration_seconds: Positively | UnsetType = UNSET
    timeout_ms: Positive | UnsetType = UNSET
    retry: RetryForm | UnsetType = UNSET


class HumanGateNode(_Node, frozen=True, kw_only=True, tag="human_gate"):
    """Somebody is asked."""

    gate_type: Literal["approval", "input", "review"]
    assignee: Filled | UnsetType = UNSET
    message_template: str | UnsetType = UNSET
    timeout_ms: Positive | UnsetType = UNSET
    timeout_action: Literal["reject", "approve"] | UnsetType = UNSET


class BranchForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where an outcome leads."""

    when: bool | str | int | float
    target_node: Kebab


class ConditionNode(_Node, frozen=True, kw_only=True, tag="condition"):
    """A choice of the way."""

    expression: Filled
    branches: Annotated[tuple[BranchForm, ...], Meta(min_length=1)]
    expression_type: Language | UnsetType = UNSET
    default: Kebab | UnsetType = UNSET
    retry: RetryForm | UnsetType = UNSET


class TransformNode(_Node, frozen=True, kw_only=True, tag="transform"):
    """A value made into another."""

    transform: Filled
    expression_type: Language | UnsetType = UNSET
    output_schema: dict[str, Any] | UnsetType = UNSET
    retry: RetryForm | UnsetType = UNSET


class ParallelNode(_Node, frozen=True, kw_only=True, tag="parallel"):
    """Several ways at once."""

    parallel_of: Annotated[tuple[Kebab, ...], Meta(min_length=1)]


class MergeNode(_Node, frozen=True, kw_only=True, tag="merge"):
    """Several ways made one."""

    merge_strategy: Literal["concat", "object_merge", "first", "custom"]
    merge_fn: Filled | UnsetType = UNSET
    retry: RetryForm | UnsetType = UNSET


class OutputNode(_Node, frozen=True, kw_only=True, tag="output"):
    """Where it ends."""

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
PREPARED: Final = msgspec.json.Decoder(NodeForm)
