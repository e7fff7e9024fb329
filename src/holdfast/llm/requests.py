"""Translates a request to pydantic-ai: messages, tools and settings. Performs no I/O."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from holdfast.domain.agents import ReasoningEffort
from holdfast.llm.providers import PROVIDERS, Provider
from holdfast.llm.reasoning_state import restore_parts
from holdfast.ports.llm import LlmMessage, LlmRequest, ToolChoice

if TYPE_CHECKING:
    from pydantic_ai.messages import BinaryContent, ModelMessage, ModelRequestPart, ModelResponse
    from pydantic_ai.models import Model as VendorModel
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.settings import ModelSettings

_THINKING: Final[Mapping[ReasoningEffort, bool | str]] = {
    ReasoningEffort.OFF: False,
    ReasoningEffort.LOW: "low",
    ReasoningEffort.MEDIUM: "medium",
    ReasoningEffort.HIGH: "high",
    ReasoningEffort.MAX: "max",
}
# Settings always sent to a kind of provider.
_PROVIDER_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    # Each step resends the history; cached input costs a tenth.
    "anthropic": {"cache": True},
    # Disabled, because OpenAI would otherwise store each response for a month.
    "openai-responses": {"openai_store": False},
}


def build_messages(
    request: LlmRequest, provider: Provider, model: "VendorModel"
) -> list["ModelMessage"]:
    """Return the messages; consecutive non-assistant messages become one."""
    from pydantic_ai.messages import ModelRequest

    found: list[ModelMessage] = []
    asked: list[ModelRequestPart] = []
    for message in request.messages:
        if message.role == "assistant":
            found.append(_response_message(message, provider, model))
            asked = []
            continue
        if not asked:
            found.append(ModelRequest(asked))
        asked.append(_request_parts(message))
    return found


def build_parameters(request: LlmRequest) -> "ModelRequestParameters":
    """Return the tools and the system prompt."""
    from pydantic_ai.messages import InstructionPart
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.tools import ToolDefinition

    return ModelRequestParameters(
        function_tools=[
            ToolDefinition(
                name=tool.name,
                description=tool.description,
                parameters_json_schema=dict(tool.parameters),
                # Strict mode rewrites schemas, and most of these come from third parties.
                strict=False,
            )
            for tool in request.tools
        ],
        instruction_parts=[InstructionPart(content=request.system)] if request.system else [],
    )


def build_settings(
    request: LlmRequest, provider: Provider, model: "VendorModel"
) -> "ModelSettings":
    """Return the settings that the model supports; others are omitted."""
    thinking = _thinking(request, model)
    settings: Any = {"max_retries": 0, **_PROVIDER_DEFAULTS.get(provider.kind, {})}
    if request.max_tokens is not None and provider.takes_max_tokens:
        settings["extra_body"] = {"max_tokens": request.max_tokens}
    elif request.max_tokens is not None:
        settings["max_tokens"] = request.max_tokens
    if thinking is not None:
        settings["thinking"] = thinking
    # Claude rejects a temperature together with thinking; other providers ignore it.
    if request.temperature is not None and not (thinking and model.system == "anthropic"):
        settings["temperature"] = request.temperature
    if request.tools:
        settings["tool_choice"] = _tool_choice(request, model)
    return settings  # type: ignore[no-any-return]


def _request_parts(message: LlmMessage) -> "ModelRequestPart":
    from pydantic_ai.messages import ToolReturnPart, UserPromptPart

    content = _content_pieces(message) if message.media else message.text
    if message.role != "tool":
        return UserPromptPart(content)
    return ToolReturnPart(
        message.name or "",
        content,
        message.call_id or "",
        outcome="failed" if message.is_error else "success",
    )


def _content_pieces(message: LlmMessage) -> list["str | BinaryContent"]:
    """Return text and media in their original order."""
    from pydantic_ai.messages import BinaryContent

    pieces: list[str | BinaryContent] = []
    start = 0
    for media in message.media:
        pieces.append(message.text[start : media.at])
        pieces.append(BinaryContent(media.content, media_type=media.mime_type))
        start = media.at
    pieces.append(message.text[start:])
    # Some providers reject whitespace-only text, and it carries no meaning.
    return [each for each in pieces if not isinstance(each, str) or each.strip()]


def _response_message(
    message: LlmMessage, provider: Provider, model: "VendorModel"
) -> "ModelResponse":
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

    signatures = [
        each.signature
        for each in message.reasoning
        # Signed reasoning is sent only to the provider that signed it.
        if each.signature and PROVIDERS.get(each.provider) is provider
    ]
    parts = restore_parts(message, signatures[-1], system=model.system) if signatures else []
    if not parts:
        parts = [TextPart(message.text)] if message.text else []
        parts += [ToolCallPart(call.name, dict(call.arguments), call.id) for call in message.calls]
    return ModelResponse(parts, provider_name=model.system, canonical_system=model.canonical_system)


def _thinking(request: LlmRequest, model: "VendorModel") -> bool | str | None:
    if request.reasoning_effort is None or not model.profile.get("supports_thinking", False):
        return None
    # Few models support thinking together with a required tool call.
    if request.tools and request.tool_choice is ToolChoice.REQUIRED:
        return None
    thinking = _THINKING[request.reasoning_effort]
    return None if thinking and not _is_affordable(thinking, request, model) else thinking


def _is_affordable(thinking: bool | str, request: LlmRequest, model: "VendorModel") -> bool:
    """Return whether the thinking budget leaves tokens for an answer; older models only."""
    from pydantic_ai.profiles.anthropic import ANTHROPIC_THINKING_BUDGET_MAP

    profile: Mapping[str, Any] = model.profile
    adaptive = profile.get("anthropic_supports_adaptive_thinking", False)
    if model.system != "anthropic" or adaptive or request.max_tokens is None:
        return True
    budgets: Mapping[Any, int] = ANTHROPIC_THINKING_BUDGET_MAP
    return request.max_tokens > budgets[thinking]


def _tool_choice(request: LlmRequest, model: "VendorModel") -> str:
    if request.tool_choice is not ToolChoice.REQUIRED:
        return str(request.tool_choice)
    profile = model.profile
    forced = profile.get("supports_forced_tool_choice", True)
    if profile.get("thinking_enabled_by_default", False):
        forced = forced and profile.get("supports_forced_tool_choice_with_thinking", True)
    return "required" if forced else "auto"
