"""How an answer ends: the reason, the tokens, and whether its last call is whole."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.domain.costs import Usage
from holdfast.ports import StepStop

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.usage import RequestUsage

_STOPS: Final[Mapping[str, StepStop]] = {
    "stop": StepStop.STOP,
    "length": StepStop.LENGTH,
    "tool_call": StepStop.TOOL_USE,
    "content_filter": StepStop.FILTERED,
}


class BrokenOffError(Exception):
    """The provider stopped in the middle of its answer."""


def reason_of(response: "ModelResponse") -> StepStop:
    """Return why the model stopped; raises `BrokenOffError` when it has not."""
    told = (response.provider_details or {}).get("finish_reason")
    # A refusal ends an answer without the provider's usual word for it.
    if told is None and response.finish_reason != "content_filter":
        raise BrokenOffError
    if response.finish_reason == "error":
        raise BrokenOffError
    return _STOPS.get(response.finish_reason or "stop", StepStop.STOP)


def is_whole(arguments: str) -> bool:
    """Tell whether the text of a call's arguments is complete JSON."""
    try:
        msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return False
    return True


def usage_of(told: "RequestUsage") -> Usage | None:
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
