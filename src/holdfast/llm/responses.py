"""Translates a provider's streamed response into deltas: text, calls, stop reason, usage."""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.domain.costs import Usage
from holdfast.llm.reasoning_state import encode_state
from holdfast.ports.llm import (
    CallArguments,
    CallEnded,
    CallStarted,
    LlmDelta,
    LlmRequest,
    ReasoningDelta,
    ReasoningEnded,
    StepStop,
    Stopped,
    TextDelta,
)

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse, ModelResponseStreamEvent, ToolCallPart
    from pydantic_ai.usage import RequestUsage


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

    def hear(self, event: "ModelResponseStreamEvent") -> Iterator[LlmDelta]:
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
                yield TextDelta(text=text)
            case PartDeltaEvent(delta=TextPartDelta(content_delta=text)) if text:
                yield TextDelta(text=text)
            case PartStartEvent(part=ThinkingPart(content=text)) if text:
                yield ReasoningDelta(text=text)
            case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=str(text))) if text:
                yield ReasoningDelta(text=text)
            # A part may be repeated when it is complete; only its first start counts.
            case PartStartEvent(index=place, part=ToolCallPart() as part) if (
                place not in self._calls
            ):
                yield self._begun(place, part)
                yield from self._argued(place, part.args)
            case PartDeltaEvent(index=place, delta=ToolCallPartDelta(args_delta=arguments)):
                yield from self._argued(place, arguments)
            case _:
                pass

    def end(self, response: "ModelResponse") -> Iterator[LlmDelta]:
        """Yield the final deltas; raises `IncompleteResponseError` if the stream broke off."""
        reason = stop_reason(response)
        last = max(self._calls, default=None)
        for place, (call_id, pieces) in sorted(self._calls.items()):
            # A call truncated in its arguments is dropped.
            if (
                reason is StepStop.LENGTH
                and place == last
                and not is_complete_json("".join(pieces))
            ):
                continue
            if not pieces:
                yield from self._argued(place, "{}")
            yield CallEnded(id=call_id)
        call_ids = [self._calls[place][0] for place in sorted(self._calls)]
        if signature := encode_state(response.parts, call_ids):
            yield ReasoningEnded(signature=signature)
        # Some providers have no separate stop reason for tool calls.
        if self._calls and reason is StepStop.STOP:
            reason = StepStop.TOOL_USE
        yield Stopped(reason=reason, usage=token_usage(response.usage))

    def _begun(self, place: int, part: "ToolCallPart") -> CallStarted:
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
        self._calls[place] = call_id, []
        return CallStarted(id=call_id, name=part.tool_name)

    def _argued(self, place: int, arguments: str | dict[str, Any] | None) -> Iterator[LlmDelta]:
        if place not in self._calls or not arguments:
            return
        call_id, pieces = self._calls[place]
        text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
        pieces.append(text)
        yield CallArguments(id=call_id, text=text)
