"""What a workflow file may say beside its nodes: every key with its rule.

A fault has a path and a rule, never a value. What types cannot express is in `workflow_rules.py`.
"""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, field

from holdfast.parsing.agent_schema import Filled, Positive

KEBAB: Final = r"[a-z0-9]+(?:-[a-z0-9]+)*"
Kebab = Annotated[str, Meta(pattern=rf"\A{KEBAB}\Z", max_length=255)]
Source = Annotated[str, Meta(pattern=rf"\A{KEBAB}(?::[A-Za-z0-9_-]+)?\Z", max_length=255)]
Names = tuple[Filled, ...]
Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]


class ManualForm(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="manual"):
    """Somebody starts it."""


class WebhookForm(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="webhook"):
    """A request starts it."""

    path: Filled
    secret_env: Filled


class ScheduleForm(
    Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="schedule"
):
    """A time starts it."""

    cron: Filled


class FileChangeForm(
    Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="file_change"
):
    """A file that changes starts it."""

    glob: Filled
    debounce_ms: Count | UnsetType = UNSET


class McpCallForm(
    Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="mcp_call"
):
    """A call over MCP starts it."""


Trigger = ManualForm | WebhookForm | ScheduleForm | FileChangeForm | McpCallForm


class InputForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What whoever starts it says; the rules of `validation` depend on the type."""

    name: Annotated[str, Meta(pattern=r"\A[A-Za-z_][A-Za-z0-9_-]{0,63}\Z")]
    type: Literal["string", "number", "boolean", "file_path", "code_diff", "secret"]
    required: bool | UnsetType = UNSET
    default: str | int | float | bool | UnsetType = UNSET
    description: str | UnsetType = UNSET
    validation: dict[str, Any] | UnsetType = UNSET


class NumberRules(Struct, frozen=True, forbid_unknown_fields=True):
    """What a number must be."""

    min: int | float | UnsetType = UNSET
    max: int | float | UnsetType = UNSET


class TextRules(Struct, frozen=True, forbid_unknown_fields=True):
    """What a text must be; the pattern is kept, and not applied here."""

    min_length: Count | UnsetType = UNSET
    max_length: Count | UnsetType = UNSET
    pattern: Filled | UnsetType = UNSET


class NoRules(Struct, frozen=True, forbid_unknown_fields=True):
    """Nothing can be said about a yes or a no."""


class ContextForm(Struct, frozen=True, forbid_unknown_fields=True):
    """A value with a name."""

    key: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z")]
    value: Any


class ToolsForm(Struct, frozen=True, forbid_unknown_fields=True):
    """What its agents may run and reach."""

    allowedCommands: Names | UnsetType = UNSET  # noqa: N815 — the file's own word
    allowedCommandGlobs: Names | UnsetType = UNSET  # noqa: N815
    allowedDomains: Names | UnsetType = UNSET  # noqa: N815


class BudgetForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What it may cost."""

    max_cost_microcents: Annotated[int, Meta(ge=1, le=(1 << 53) - 1)]
    on_exceed: Literal["fail", "pause_for_approval", "warn"]


class EdgeForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A way from a node, or from one of its handles, to another."""

    source: Source = field(name="from")
    to: Kebab
    label: str | UnsetType = UNSET
    condition: str | UnsetType = UNSET


class WorkflowForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What stands under `workflow`; its lists are judged item by item."""

    id: Kebab
    version: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    tags: Names | UnsetType = UNSET
    metadata: dict[str, Any] | UnsetType = UNSET
    trigger: Trigger | UnsetType = UNSET
    inputs: list[Any] | UnsetType = UNSET
    context: list[Any] | UnsetType = UNSET
    agents: list[Any] | UnsetType = UNSET
    tools: ToolsForm | UnsetType = UNSET
    budget: BudgetForm | UnsetType = UNSET
    timeout_ms: Positive | UnsetType = UNSET
    max_parallel: Positive | UnsetType = UNSET
    nodes: Annotated[list[Any], Meta(min_length=1)]
    edges: list[Any]


class DocumentForm(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole file."""

    schema_version: Literal["1.0"]
    workflow: dict[str, Any]


# msgspec learns a type at its first use, and two threads must not be the first at once.
PREPARED: Final = tuple(
    msgspec.json.Decoder(kind)
    for kind in (DocumentForm, WorkflowForm, InputForm, ContextForm, EdgeForm, NumberRules)
)
