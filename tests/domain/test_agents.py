"""Who answers: the rules an agent keeps from the moment it exists."""

from typing import Any

import msgspec
import pytest

from holdfast.domain.agents import (
    AcpRuntime,
    Agent,
    AgentStatus,
    LlmRuntime,
    Memory,
    ModelChoice,
    ReasoningEffort,
    Recovery,
    Retry,
)
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.ids import ModelId
from holdfast.domain.tools import NARROWEST, FsTier, Grant
from tests.builders import MODEL_ID, a_tool, an_agent
from tests.marks import demands, each_case

MANY_TOOLS = tuple(a_tool(str(number)) for number in range(129))


def refusal(kind: Any, **fields: Any) -> Invalid:
    with pytest.raises(Invalid) as refused:
        kind(**fields)
    return refused.value


def test_an_agent_is_active_narrow_and_careful_unless_told_otherwise() -> None:
    agent = an_agent()

    assert (agent.status, agent.grant, agent.recovery) == (
        AgentStatus.ACTIVE,
        NARROWEST,
        Recovery.STOP,
    )
    assert (agent.tools, agent.mcp_servers, agent.tags, agent.extra) == ((), (), (), {})


@each_case(
    "changes",
    [
        {"slug": "A-z_9"},
        {"name": "n"},
        {"name": "n" * 255},
        {"name": "日本語"},
        {"description": None},
        {"description": "d" * (10 << 10)},
        {"system_prompt": ""},
        {"system_prompt": "p" * 1_048_576},
        {"system_prompt": "{{ctx.name}} keeps {secrets} to itself"},
        {"tools": MANY_TOOLS[:128]},
        {"tags": tuple(str(number) for number in range(50))},
        {"runtime": LlmRuntime(models=(ModelChoice(model_id=MODEL_ID, max_attempts=1),))},
        {"runtime": AcpRuntime(command="gemini", args=("--acp", ""), env_names=("API_KEY",))},
    ],
)
def test_what_is_within_the_rules_is_kept_as_given(changes: dict[str, Any]) -> None:
    built = an_agent(**changes)

    assert {name: getattr(built, name) for name in changes} == changes


@each_case(
    ("changes", "field"),
    [
        ({"slug": ""}, "slug"),
        ({"slug": "a b"}, "slug"),
        ({"slug": "s" * 256}, "slug"),
        ({"tools": MANY_TOOLS}, "tools"),
        ({"tools": (a_tool("a"), a_tool("b"), a_tool("a"))}, "tools"),
        ({"tags": ("a", "b", "a")}, "tags"),
    ],
)
def test_an_agent_against_the_rules_is_refused_by_field(
    changes: dict[str, Any], field: str
) -> None:
    refused = refusal(an_agent, **changes)

    assert (refused.code, refused.details) == (Code.AGENT_INVALID, {"fields": [field]})


@each_case(
    ("changes", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "n" * 256}, "name"),
        ({"name": "a\x00"}, "name"),
        ({"description": "d" * ((10 << 10) + 1)}, "description"),
        ({"description": "\ud800"}, "description"),
        ({"system_prompt": "p" * 1_048_577}, "system_prompt"),
        ({"system_prompt": "a\x00"}, "system_prompt"),
        ({"tags": ("",)}, "tags"),
        ({"tags": tuple(str(number) for number in range(51))}, "tags"),
    ],
)
def test_an_agents_texts_are_texts(changes: dict[str, Any], field: str) -> None:
    refused = refusal(an_agent, **changes)

    assert (refused.code, refused.details["field"]) == (Code.INVALID_TEXT, field)


@demands("S0-014")
def test_a_secret_is_never_put_into_a_prompt() -> None:
    refused = refusal(an_agent, system_prompt="Use {{secrets.canary}} to log in.")

    assert refused.body() == {
        "error": Code.SECRET_INTERPOLATION,
        "message": "A prompt must not contain a secret; remove {{secrets.…}} from system_prompt.",
        "details": {"field": "system_prompt"},
    }


@each_case(
    ("kind", "fields"),
    [
        (ModelChoice, {"model_id": MODEL_ID}),
        (ModelChoice, {"model_id": MODEL_ID, "max_attempts": 1}),
        (Retry, {"max": 1}),
        (Retry, {"max": 9, "backoff": "linear", "backoff_ms": 1, "retry_on": ("rate_limit",)}),
        (Memory, {}),
        (Memory, {"type": "none"}),
        (Memory, {"type": "summary"}),
        (Memory, {"type": "window", "window_size": 1}),
        (LlmRuntime, {"temperature": 0.0, "max_tokens": 1}),
        (LlmRuntime, {"temperature": 2.0, "reasoning_effort": ReasoningEffort.MAX}),
        (AcpRuntime, {"command": "agent"}),
    ],
)
def test_a_setting_at_the_edge_of_its_rule_is_taken(kind: Any, fields: dict[str, Any]) -> None:
    built = kind(**fields)

    assert {name: getattr(built, name) for name in fields} == fields


@each_case(
    ("kind", "fields", "field"),
    [
        (ModelChoice, {"model_id": MODEL_ID, "max_attempts": 0}, "max_attempts"),
        (Retry, {"max": 0}, "retry.max"),
        (Retry, {"max": 1, "backoff": "cubic"}, "retry.backoff"),
        (Retry, {"max": 1, "backoff_ms": 0}, "retry.backoff_ms"),
        (Retry, {"max": 1, "retry_on": ()}, "retry.retry_on"),
        (Memory, {"type": "elephant"}, "memory.type"),
        (Memory, {"type": "window"}, "memory.window_size"),
        (Memory, {"type": "window", "window_size": 0}, "memory.window_size"),
        (Memory, {"type": "window", "window_size": -1}, "memory.window_size"),
        (Memory, {"type": "none", "window_size": 1}, "memory.window_size"),
        (Memory, {"type": "summary", "window_size": 1}, "memory.window_size"),
        (LlmRuntime, {"temperature": -0.1}, "temperature"),
        (LlmRuntime, {"temperature": 2.1}, "temperature"),
        (LlmRuntime, {"temperature": float("nan")}, "temperature"),
        (LlmRuntime, {"temperature": float("inf")}, "temperature"),
        (LlmRuntime, {"max_tokens": 0}, "max_tokens"),
        (AcpRuntime, {"command": " "}, "runtime.command"),
        (AcpRuntime, {"command": "a\x00"}, "runtime.command"),
        (AcpRuntime, {"command": "a", "args": ("b", "\x00")}, "runtime.args"),
    ],
)
def test_a_setting_beyond_its_rule_is_refused(
    kind: Any, fields: dict[str, Any], field: str
) -> None:
    refused = refusal(kind, **fields)

    assert (refused.code, refused.details) == (Code.AGENT_INVALID, {"fields": [field]})


@each_case(
    "agent",
    [
        an_agent(),
        an_agent(
            description="d",
            runtime=LlmRuntime(
                models=(ModelChoice(model_id=ModelId("m"), max_attempts=2),),
                temperature=0.5,
                max_tokens=7,
                reasoning_effort=ReasoningEffort.LOW,
                retry=Retry(max=2, retry_on=("rate_limit",)),
                memory=Memory(type="window", window_size=3),
            ),
            tools=(a_tool(description="d", parameters={"type": "object"}, approval="ask"),),
            mcp_servers=({"id": "files", "transport": "stdio", "command": "x"},),
            grant=Grant(fs=FsTier.PROJECT, commands=("git",), domains=("a.org:443",)),
            recovery=Recovery.CONTINUE,
            extra={"output_schema": {"type": "object"}},
            tags=("b", "a"),
            status=AgentStatus.ARCHIVED,
        ),
        an_agent(runtime=AcpRuntime(command="c", args=("a",), env_names=("E",), options={"o": 1})),
    ],
)
def test_a_frozen_agent_is_read_back_whole(agent: Agent) -> None:
    assert msgspec.json.decode(msgspec.json.encode(agent), type=Agent) == agent
