"""Translates requests and responses between our types and those of pydantic-ai."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from holdfast.domain.agents import ReasoningEffort
from holdfast.domain.costs import Usage
from holdfast.llm.providers import PROVIDERS, Provider
from holdfast.ports.llm import (
    CallArguments,
    CallEnded,
    CallStarted,
    LlmDelta,
    LlmMessage,
    LlmReasoningDelta,
    LlmRequest,
    LlmTextDelta,
    LlmToolCall,
    ReasoningEnded,
    StepStop,
    Stopped,
    ToolChoice,
)

if TYPE_CHECKING:
    from pydantic_ai.messages import (
        BinaryContent,
        ModelMessage,
        ModelRequestPart,
        ModelResponse,
        ModelResponsePart,
        ModelResponseStreamEvent,
        ToolCallPart,
    )
    from pydantic_ai.models import Model as VendorModel
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.usage import RequestUsage


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
    parts = (
        restore_reasoning_parts(message, signatures[-1], system=model.system) if signatures else []
    )
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


_STOPS: Final[Mapping[str, StepStop]] = {
    "stop": StepStop.STOP,
    "length": StepStop.LENGTH,
    "tool_call": StepStop.TOOL_USE,
    "content_filter": StepStop.FILTERED,
}


class IncompleteResponseError(Exception):
    """The provider ended the stream in the middle of its response."""


def stop_reason(response: "ModelResponse") -> StepStop:
    """Return why the model stopped; raises `IncompleteResponseError` if it did not."""
    reason = (response.provider_details or {}).get("finish_reason")
    # A refusal ends a response without the provider's usual finish reason.
    if reason is None and response.finish_reason != "content_filter":
        raise IncompleteResponseError
    if response.finish_reason == "error":
        raise IncompleteResponseError
    return _STOPS.get(response.finish_reason or "stop", StepStop.STOP)


def is_complete_json(arguments: str) -> bool:
    """Return whether the text of a call's arguments is complete JSON."""
    try:
        msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return False
    return True


def token_usage(reported: "RequestUsage") -> Usage | None:
    """Return the token usage, or None if the provider did not report it."""
    if reported.unmeasured_requests or not (reported.input_tokens or reported.output_tokens):
        return None
    cached = reported.cache_read_tokens + reported.cache_write_tokens
    thought = reported.output_reasoning_tokens or max(
        reported.details.get(name, 0) for name in ("reasoning_tokens", "thoughts_tokens")
    )
    return Usage(
        input=max(reported.input_tokens - cached, 0),
        output=reported.output_tokens,
        cache_read=reported.cache_read_tokens,
        cache_write=reported.cache_write_tokens,
        reasoning=min(thought, reported.output_tokens),
    )


# A response with more calls than this is an error, and running them would be expensive.
CALLS_MOST: Final = 1_000
# Format accepted by every provider, so that a session can switch providers.
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
# Prefix of ids that pydantic-ai generates when the provider sends none.
_GENERATED_PREFIX: Final = "pyd_ai_"


class TooManyCallsError(Exception):
    """The response requests more tool calls than the limit."""


class ResponseStream:
    """State of one response while it is streamed."""

    def __init__(self, request: LlmRequest) -> None:
        self._ordinal = request.ordinal
        self._taken = {call.id for message in request.messages for call in message.calls}
        # By part index: the call's id and the fragments of its arguments.
        self._calls: dict[int, tuple[str, list[str]]] = {}

    def deltas_of(self, event: "ModelResponseStreamEvent") -> Iterator[LlmDelta]:
        """Yield the deltas of one event; some events have none."""
        from pydantic_ai.messages import (
            PartDeltaEvent,
            PartStartEvent,
            TextPart,
            TextPartDelta,
            ThinkingPart,
            ThinkingPartDelta,
            ToolCallPart,
            ToolCallPartDelta,
        )

        match event:
            case PartStartEvent(part=TextPart(content=text)) if text:
                yield LlmTextDelta(text=text)
            case PartDeltaEvent(delta=TextPartDelta(content_delta=text)) if text:
                yield LlmTextDelta(text=text)
            case PartStartEvent(part=ThinkingPart(content=text)) if text:
                yield LlmReasoningDelta(text=text)
            case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=str(text))) if text:
                yield LlmReasoningDelta(text=text)
            # A part may be repeated when it is complete; only its first start counts.
            case PartStartEvent(index=index, part=ToolCallPart() as part) if (
                index not in self._calls
            ):
                yield self._start_call(index, part)
                yield from self._add_arguments(index, part.args)
            case PartDeltaEvent(index=index, delta=ToolCallPartDelta(args_delta=arguments)):
                yield from self._add_arguments(index, arguments)
            case _:
                pass

    def end(self, response: "ModelResponse") -> Iterator[LlmDelta]:
        """Yield the final deltas; raises `IncompleteResponseError` if the stream broke off."""
        reason = stop_reason(response)
        last = max(self._calls, default=None)
        for index, (call_id, pieces) in sorted(self._calls.items()):
            # A call truncated in its arguments is dropped.
            if (
                reason is StepStop.LENGTH
                and index == last
                and not is_complete_json("".join(pieces))
            ):
                continue
            if not pieces:
                yield from self._add_arguments(index, "{}")
            yield CallEnded(id=call_id)
        call_ids = [self._calls[index][0] for index in sorted(self._calls)]
        if signature := encode_reasoning_state(response.parts, call_ids):
            yield ReasoningEnded(signature=signature)
        # Some providers have no separate stop reason for tool calls.
        if self._calls and reason is StepStop.STOP:
            reason = StepStop.TOOL_USE
        yield Stopped(reason=reason, usage=token_usage(response.usage))

    def _start_call(self, index: int, part: "ToolCallPart") -> CallStarted:
        if len(self._calls) == CALLS_MOST:
            raise TooManyCallsError
        call_id = part.tool_call_id
        made = (
            call_id.startswith(_GENERATED_PREFIX)
            or call_id in self._taken
            or not _ID.fullmatch(call_id)
        )
        if made:
            call_id = f"call_{self._ordinal}_{len(self._calls) + 1}"
        self._taken.add(call_id)
        self._calls[index] = call_id, []
        return CallStarted(id=call_id, name=part.tool_name)

    def _add_arguments(
        self, index: int, arguments: str | dict[str, Any] | None
    ) -> Iterator[LlmDelta]:
        if index not in self._calls or not arguments:
            return
        call_id, pieces = self._calls[index]
        text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
        pieces.append(text)
        yield CallArguments(id=call_id, text=text)


# Signatures and encrypted reasoning that a provider requires unchanged within a turn.
class _ReasoningMark(Struct, frozen=True, kw_only=True, tag="thought", omit_defaults=True):
    # The exact signed text, because the displayed text may have been altered.
    text: str = ""
    id: str | None = None
    signature: str | None = None
    details: dict[str, Any] | None = None


class _TextMark(Struct, frozen=True, kw_only=True, tag="said", omit_defaults=True):
    length: int
    id: str | None = None
    details: dict[str, Any] | None = None


class _CallMark(Struct, frozen=True, kw_only=True, tag="called", omit_defaults=True):
    call: str
    id: str | None = None
    details: dict[str, Any] | None = None


_Mark = _ReasoningMark | _TextMark | _CallMark
# Unsigned reasoning that must be sent back is identified by the field it came in.
_FIELDS = frozenset({"reasoning", "reasoning_content"})
_decoder = msgspec.json.Decoder(tuple[_Mark, ...])


def encode_reasoning_state(
    parts: Sequence["ModelResponsePart"], call_ids: Sequence[str]
) -> str | None:
    """Encode the provider-bound state of a response; None if no part is provider-bound.

    `call_ids` are the assigned ids of the calls, in order.
    """
    marks = tuple(_marks(parts, iter(call_ids)))
    if not any(isinstance(mark, _ReasoningMark) or mark.details for mark in marks):
        return None
    return msgspec.json.encode(marks).decode()


def restore_reasoning_parts(
    message: LlmMessage, signature: str, *, system: str
) -> list["ModelResponsePart"]:
    """Restore the parts of a message; returns none if the message does not match the state."""
    try:
        marks = _decoder.decode(signature)
    except msgspec.DecodeError:
        return []
    calls = {call.id: call for call in message.calls}
    if [mark.call for mark in marks if isinstance(mark, _CallMark)] != list(calls):
        return []
    if sum(mark.length for mark in marks if isinstance(mark, _TextMark)) != len(message.text):
        return []
    return list(_parts(marks, message.text, calls, system))


def _marks(parts: Sequence["ModelResponsePart"], call_ids: Iterator[str]) -> Iterator[_Mark]:
    from pydantic_ai.messages import TextPart, ThinkingPart, ToolCallPart

    kept = {part.id for part in parts if isinstance(part, ThinkingPart) and part.signature}
    kept = (kept | _FIELDS) - {None}
    for part in parts:
        match part:
            # Other reasoning is dropped: unsigned, it is rejected or sent as normal text.
            case ThinkingPart() if part.signature or part.id in kept or part.provider_details:
                yield _ReasoningMark(
                    text=part.content,
                    id=part.id,
                    signature=part.signature,
                    details=part.provider_details,
                )
            case TextPart():
                yield _TextMark(length=len(part.content), id=part.id, details=part.provider_details)
            case ToolCallPart():
                yield _CallMark(call=next(call_ids), id=part.id, details=part.provider_details)
            case _:
                pass


def _parts(
    marks: Sequence[_Mark], text: str, calls: Mapping[str, LlmToolCall], system: str
) -> Iterator["ModelResponsePart"]:
    from pydantic_ai.messages import TextPart, ThinkingPart, ToolCallPart

    begin = 0
    for mark in marks:
        bound: Any = {"id": mark.id, "provider_name": system, "provider_details": mark.details}
        match mark:
            case _ReasoningMark():
                yield ThinkingPart(mark.text, signature=mark.signature, **bound)
            case _TextMark():
                yield TextPart(text[begin : begin + mark.length], **bound)
                begin += mark.length
            case _CallMark():
                call = calls[mark.call]
                yield ToolCallPart(call.name, dict(call.arguments), call.id, **bound)
