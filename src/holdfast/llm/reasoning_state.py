"""Signatures and encrypted reasoning that a provider requires unchanged within a turn."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from holdfast.ports.llm import LlmMessage, LlmToolCall

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponsePart


class _Thought(Struct, frozen=True, kw_only=True, tag="thought", omit_defaults=True):
    # The exact signed text, because the displayed text may have been altered.
    text: str = ""
    id: str | None = None
    signature: str | None = None
    details: dict[str, Any] | None = None


class _Said(Struct, frozen=True, kw_only=True, tag="said", omit_defaults=True):
    length: int
    id: str | None = None
    details: dict[str, Any] | None = None


class _Called(Struct, frozen=True, kw_only=True, tag="called", omit_defaults=True):
    call: str
    id: str | None = None
    details: dict[str, Any] | None = None


_Mark = _Thought | _Said | _Called
# Unsigned reasoning that must be sent back is identified by the field it came in.
_FIELDS = frozenset({"reasoning", "reasoning_content"})
_decoder = msgspec.json.Decoder(tuple[_Mark, ...])


def encode_state(parts: Sequence["ModelResponsePart"], call_ids: Sequence[str]) -> str | None:
    """Encode the provider-bound state of a response; None if no part is provider-bound.

    `call_ids` are the assigned ids of the calls, in order.
    """
    marks = tuple(_marks(parts, iter(call_ids)))
    if not any(isinstance(mark, _Thought) or mark.details for mark in marks):
        return None
    return msgspec.json.encode(marks).decode()


def restore_parts(message: LlmMessage, signature: str, *, system: str) -> list["ModelResponsePart"]:
    """Restore the parts of a message; returns none if the message does not match the state."""
    try:
        marks = _decoder.decode(signature)
    except msgspec.DecodeError:
        return []
    calls = {call.id: call for call in message.calls}
    if [mark.call for mark in marks if isinstance(mark, _Called)] != list(calls):
        return []
    if sum(mark.length for mark in marks if isinstance(mark, _Said)) != len(message.text):
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
                yield _Thought(
                    text=part.content,
                    id=part.id,
                    signature=part.signature,
                    details=part.provider_details,
                )
            case TextPart():
                yield _Said(length=len(part.content), id=part.id, details=part.provider_details)
            case ToolCallPart():
                yield _Called(call=next(call_ids), id=part.id, details=part.provider_details)
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
            case _Thought():
                yield ThinkingPart(mark.text, signature=mark.signature, **bound)
            case _Said():
                yield TextPart(text[begin : begin + mark.length], **bound)
                begin += mark.length
            case _Called():
                call = calls[mark.call]
                yield ToolCallPart(call.name, dict(call.arguments), call.id, **bound)
