"""A provider's streamed response as our deltas: text, calls, stop reason, tokens."""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.domain.costs import Usage
from holdfast.llm.reasoning_state import encode_state
from holdfast.ports import (
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
    """The provider stopped in the middle of its answer."""


def stop_reason(response: "ModelResponse") -> StepStop:
    """Return why the model stopped; raises `BrokenOffError` when it has not."""
    told = (response.provider_details or {}).get("finish_reason")
    # A refusal ends an answer without the provider's usual word for it.
    if told is None and response.finish_reason != "content_filter":
        raise IncompleteResponseError
    if response.finish_reason == "error":
        raise IncompleteResponseError
    return _STOPS.get(response.finish_reason or "stop", StepStop.STOP)


def is_complete_json(arguments: str) -> bool:
    """Tell whether the text of a call's arguments is complete JSON."""
    try:
        msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return False
    return True


def token_usage(told: "RequestUsage") -> Usage | None:
    """Return the tokens by class, or nothing when the provider has not told them."""
    if told.unmeasured_requests or not (told.input_tokens or told.output_tokens):
        return None
    cached = told.cache_read_tokens + told.cache_write_tokens
    thought = told.output_reasoning_tokens or max(
        told.details.get(name, 0) for name in ("reasoning_tokens", "thoughts_tokens")
    )
    return Usage(
        input=max(told.input_tokens - cached, 0),
        output=told.output_tokens,
        cache_read=told.cache_read_tokens,
        cache_write=told.cache_write_tokens,
        reasoning=min(thought, told.output_tokens),
    )


# No model means it: beyond this an answer is a fault, and each call more would cost more.
CALLS_MOST: Final = 1_000
# What every provider accepts, so that a conversation can go on with another one.
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
# How pydantic-ai begins the ids that it makes up where a provider gave none.
_GENERATED_PREFIX: Final = "pyd_ai_"


class TooManyCallsError(Exception):
    """The provider asks for more calls than anybody would run."""


class ResponseStream:
    """One answer while it comes in."""

    def __init__(self, request: LlmRequest) -> None:
        self._ordinal = request.ordinal
        self._taken = {call.id for message in request.messages for call in message.calls}
        # By the place of the part: the call's id, and the pieces of its arguments.
        self._calls: dict[int, tuple[str, list[str]]] = {}

    def hear(self, event: "ModelResponseStreamEvent") -> Iterator[LlmDelta]:
        """Yield the deltas of one event; most events have one, some have none."""
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
            # A part may be told again when it is complete; it has begun before.
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
        """Yield what is left when the provider has closed its answer; raises `BrokenOffError`."""
        reason = stop_reason(response)
        last = max(self._calls, default=None)
        for place, (call_id, pieces) in sorted(self._calls.items()):
            # Cut off in the middle of its arguments, a call is none.
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
        # Some providers know no reason of their own for calls.
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
