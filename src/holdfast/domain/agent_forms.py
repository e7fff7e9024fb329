"""An agent as its file says it, `.agent.yaml`, and as a workflow brings it along."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from holdfast.domain.agents import Agent, LlmRuntime
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import ModelId

# Kept and written back; nothing here acts on them yet.
NOT_APPLIED: Final = ("input_schema", "output_schema")
# What a chain entry says that was made without a number.
_USUAL_ATTEMPTS: Final = 2


def file_form(agent: Agent, refs: Mapping[ModelId, str], *, default: str) -> dict[str, Any]:
    """Return an agent as its file says it; `default` stands where it leaves the model open.

    Its grant, its tags and the rest of its tools' descriptions have no place in a file.
    """
    runtime = agent.runtime
    if not isinstance(runtime, LlmRuntime):
        raise Invalid(
            Code.AGENT_INVALID,
            "An agent with a program of its own has no file form.",
            {"fields": ["runtime"]},
        )
    if not agent.system_prompt:
        raise Invalid(
            Code.AGENT_INVALID,
            f"Agent {agent.slug} has no system prompt, and a file needs one; `holdfast agents edit "
            f"{agent.slug} --system-prompt TEXT` gives it one.",
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
    return said | {key: agent.extra[key] for key in NOT_APPLIED if key in agent.extra}


def _provider_and_model(ref: str) -> dict[str, str]:
    provider, _, model = ref.partition(":")
    return {"model": model, "provider": provider}


def _without_nothing(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
