"""What four providers say on the wire: one answer, written as each of them would stream it."""

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.domain.costs import Usage
from holdfast.ports.llm import StepStop
from tests.llm.fake_providers import Reply, refusing

USAGE = Usage(input=9, output=5)


@dataclass(frozen=True)
class Thought:
    """Thinking in pieces, and the signature that goes with it."""

    pieces: tuple[str, ...]
    signature: str = ""


@dataclass(frozen=True)
class Call:
    """A call; the arguments are JSON text in pieces."""

    id: str
    name: str
    pieces: tuple[str, ...] = ()


@dataclass(frozen=True)
class Saying:
    """One answer, before anybody wrote it down."""

    thoughts: tuple[Thought, ...] = ()
    text: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    stop: StepStop = StepStop.STOP
    usage: Usage | None = USAGE


@dataclass(frozen=True)
class Dialect:
    """How one provider speaks; `stream` gives the pieces of an answer, the last ends it."""

    model: str
    stream: Callable[[Saying], list[bytes]]
    too_long: Reply
    # What the base URL ends with.
    prefix: str = ""

    @property
    def provider(self) -> str:
        """Return the provider's name."""
        return self.model.partition(":")[0]

    def reply(self, saying: Saying) -> Reply:
        """Return a whole answer."""
        return Reply(self.stream(saying))


def _event(data: object, name: str = "") -> bytes:
    text = data if isinstance(data, str) else json.dumps(data)
    return f"{f'event: {name}{chr(10)}' if name else ''}data: {text}\n\n".encode()


# OpenAI's chat completions. Thinking comes in a field that compatible servers use, not signed.

_CHAT_STOPS = {
    StepStop.STOP: "stop",
    StepStop.LENGTH: "length",
    StepStop.TOOL_USE: "tool_calls",
    StepStop.FILTERED: "content_filter",
}


def _chat(saying: Saying) -> list[bytes]:
    return [*(_event(chunk) for chunk in _chat_chunks(saying)), _event("[DONE]")]


def _chat_chunks(saying: Saying) -> Iterator[object]:
    yield _chunk({"role": "assistant", "content": ""})
    for thought in saying.thoughts:
        for piece in thought.pieces:
            yield _chunk({"reasoning_content": piece})
    for piece in saying.text:
        yield _chunk({"content": piece})
    for index, call in enumerate(saying.calls):
        function: dict[str, str] = {"name": call.name, "arguments": ""}
        begun = {"index": index, "id": call.id, "type": "function", "function": function}
        yield _chunk({"tool_calls": [begun]})
        for piece in call.pieces:
            yield _chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield _chunk({}, finish_reason=_CHAT_STOPS[saying.stop])
    if usage := saying.usage:
        asked = usage.input + usage.cache_read + usage.cache_write
        yield _chunk(
            None,
            usage={
                "prompt_tokens": asked,
                "completion_tokens": usage.output,
                "total_tokens": asked + usage.output,
                "prompt_tokens_details": {
                    "cached_tokens": usage.cache_read,
                    "cache_write_tokens": usage.cache_write,
                },
                "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
            },
        )


def _chunk(
    delta: object, *, finish_reason: str | None = None, usage: object = None
) -> dict[str, object]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "gpt-4.1",
        "choices": [] if delta is None else [choice],
        "usage": usage,
    }


# OpenAI's responses.


def _responses(saying: Saying) -> list[bytes]:
    events = _numbered(_response_events(saying))
    return [_event(event, event["type"]) for event in events]


def _numbered(events: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for number, event in enumerate(events):
        yield {**event, "sequence_number": number}


def _response_events(saying: Saying) -> Iterator[dict[str, Any]]:
    yield {"type": "response.created", "response": _response("in_progress")}
    for number, thought in enumerate(saying.thoughts):
        yield from _reasoning_item(f"rs_{number}", thought, place=number)
    place = len(saying.thoughts)
    if saying.text:
        yield from _message_item(saying.text, place=place)
        place += 1
    for number, call in enumerate(saying.calls):
        yield from _call_item(f"fc_{number}", call, place=place + number)
    yield _response_end(saying)


def _response(status: str, **others: object) -> dict[str, object]:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "gpt-5",
        "status": status,
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        **others,
    }


def _reasoning_item(item_id: str, thought: Thought, *, place: int) -> Iterator[dict[str, Any]]:
    item = {"type": "reasoning", "id": item_id, "summary": []}
    yield {"type": "response.output_item.added", "output_index": place, "item": item}
    for number, piece in enumerate(thought.pieces):
        summary = {"item_id": item_id, "output_index": place, "summary_index": 0}
        if not number:
            part = {"type": "summary_text", "text": ""}
            yield {"type": "response.reasoning_summary_part.added", "part": part, **summary}
        yield {"type": "response.reasoning_summary_text.delta", "delta": piece, **summary}
    done = {**item, "encrypted_content": thought.signature}
    yield {"type": "response.output_item.done", "output_index": place, "item": done}


def _message_item(pieces: tuple[str, ...], *, place: int) -> Iterator[dict[str, Any]]:
    item = {"type": "message", "id": "msg_1", "role": "assistant", "content": []}
    added = {**item, "status": "in_progress"}
    yield {"type": "response.output_item.added", "output_index": place, "item": added}
    where = {"item_id": "msg_1", "output_index": place, "content_index": 0}
    part = {"type": "output_text", "text": "", "annotations": []}
    yield {"type": "response.content_part.added", "part": part, **where}
    for piece in pieces:
        yield {"type": "response.output_text.delta", "delta": piece, "logprobs": [], **where}
    text = "".join(pieces)
    yield {"type": "response.output_text.done", "text": text, "logprobs": [], **where}
    done = {**item, "status": "completed", "content": [{**part, "text": text}]}
    yield {"type": "response.output_item.done", "output_index": place, "item": done}


def _call_item(item_id: str, call: Call, *, place: int) -> Iterator[dict[str, Any]]:
    item = {"type": "function_call", "id": item_id, "call_id": call.id, "name": call.name}
    begun = {**item, "arguments": "", "status": "in_progress"}
    yield {"type": "response.output_item.added", "output_index": place, "item": begun}
    where = {"item_id": item_id, "output_index": place}
    for piece in call.pieces:
        yield {"type": "response.function_call_arguments.delta", "delta": piece, **where}
    text = "".join(call.pieces)
    finished = {"name": call.name, "arguments": text, **where}
    yield {"type": "response.function_call_arguments.done", **finished}
    done = {**item, "arguments": text, "status": "completed"}
    yield {"type": "response.output_item.done", "output_index": place, "item": done}


def _response_end(saying: Saying) -> dict[str, Any]:
    usage = _response_usage(saying.usage)
    if saying.stop not in (StepStop.LENGTH, StepStop.FILTERED):
        return {"type": "response.completed", "response": _response("completed", usage=usage)}
    reason = "max_output_tokens" if saying.stop is StepStop.LENGTH else "content_filter"
    response = _response("incomplete", usage=usage, incomplete_details={"reason": reason})
    return {"type": "response.incomplete", "response": response}


def _response_usage(usage: Usage | None) -> dict[str, object] | None:
    if usage is None:
        return None
    asked = usage.input + usage.cache_read + usage.cache_write
    return {
        "input_tokens": asked,
        "input_tokens_details": {
            "cached_tokens": usage.cache_read,
            "cache_write_tokens": usage.cache_write,
        },
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": asked + usage.output,
    }


# Anthropic's messages.

_MESSAGE_STOPS = {
    StepStop.STOP: "end_turn",
    StepStop.LENGTH: "max_tokens",
    StepStop.TOOL_USE: "tool_use",
    StepStop.FILTERED: "refusal",
}


def _messages(saying: Saying) -> list[bytes]:
    return [_event(event, event["type"]) for event in _message_events(saying)]


def _message_events(saying: Saying) -> Iterator[dict[str, Any]]:
    usage = saying.usage or Usage()
    asked = {
        "input_tokens": usage.input,
        "cache_read_input_tokens": usage.cache_read,
        "cache_creation_input_tokens": usage.cache_write,
        "output_tokens": 0,
    }
    message = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}
    rest = {"model": "claude-sonnet-4-5", "stop_reason": None, "stop_sequence": None}
    yield {"type": "message_start", "message": {**message, **rest, "usage": asked}}
    for index, (block, deltas) in enumerate(_blocks(saying)):
        yield {"type": "content_block_start", "index": index, "content_block": block}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    told = {"output_tokens": usage.output}
    if usage.reasoning:
        told["output_tokens_details"] = {"thinking_tokens": usage.reasoning}  # type: ignore[assignment]
    stop = {"stop_reason": _MESSAGE_STOPS[saying.stop], "stop_sequence": None}
    yield {"type": "message_delta", "delta": stop, "usage": told}
    yield {"type": "message_stop"}


def _blocks(saying: Saying) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    for thought in saying.thoughts:
        if not thought.pieces:
            yield {"type": "redacted_thinking", "data": thought.signature}, []
            continue
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in thought.pieces]
        signed = {"type": "signature_delta", "signature": thought.signature}
        yield {"type": "thinking", "thinking": "", "signature": ""}, [*deltas, signed]
    if saying.text:
        deltas = [{"type": "text_delta", "text": piece} for piece in saying.text]
        yield {"type": "text", "text": ""}, deltas
    for call in saying.calls:
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in call.pieces]
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}, deltas


# Google's streamGenerateContent. Arguments come whole, and a signature sits on what follows.

_CANDIDATE_STOPS = {
    StepStop.STOP: "STOP",
    StepStop.TOOL_USE: "STOP",
    StepStop.LENGTH: "MAX_TOKENS",
    StepStop.FILTERED: "SAFETY",
}


def _candidates(saying: Saying) -> list[bytes]:
    parts = [*_candidate_parts(saying)]
    chunks = [_candidate([part]) for part in parts]
    end = _candidate([{"text": ""}], finish_reason=_CANDIDATE_STOPS[saying.stop])
    if usage := saying.usage:
        end["usageMetadata"] = {
            "promptTokenCount": usage.input + usage.cache_read,
            "cachedContentTokenCount": usage.cache_read,
            "candidatesTokenCount": usage.output - usage.reasoning,
            "thoughtsTokenCount": usage.reasoning,
            "totalTokenCount": usage.input + usage.cache_read + usage.output,
        }
    return [_event(chunk) for chunk in [*chunks, end]]


def _candidate_parts(saying: Saying) -> Iterator[dict[str, object]]:
    signature = saying.thoughts[-1].signature if saying.thoughts else ""
    signed = {"thoughtSignature": base64.b64encode(signature.encode()).decode()}
    for thought in saying.thoughts:
        for piece in thought.pieces:
            yield {"text": piece, "thought": True}
    for piece in saying.text:
        yield {"text": piece}
    for number, call in enumerate(saying.calls):
        arguments = json.loads("".join(call.pieces) or "{}")
        function: dict[str, object] = {"name": call.name, "args": arguments}
        if call.id:
            function["id"] = call.id
        mark = signed if signature and not number else {}
        yield {"functionCall": function, **mark}


def _candidate(parts: list[dict[str, object]], finish_reason: str | None = None) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    if finish_reason:
        candidate["finishReason"] = finish_reason
    return {"candidates": [candidate], "modelVersion": "gemini-2.5-flash", "responseId": "r1"}


CANARY = "the-provider-said-canary"


def _openai_error(code: str, message: str) -> dict[str, object]:
    told = {"message": f"{message} {CANARY}", "type": "invalid_request_error", "code": code}
    return {"error": {**told, "param": "messages"}}


CHAT = Dialect(
    model="openai:gpt-4.1",
    prefix="/v1",
    stream=_chat,
    too_long=refusing(
        400, _openai_error("context_length_exceeded", "This model's maximum context length is 8.")
    ),
)
RESPONSES = Dialect(
    model="openai-responses:gpt-5",
    prefix="/v1",
    stream=_responses,
    too_long=refusing(
        400, _openai_error("context_length_exceeded", "Your input exceeds the context window.")
    ),
)
MESSAGES = Dialect(
    model="anthropic:claude-sonnet-4-5",
    stream=_messages,
    too_long=refusing(
        400,
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": f"prompt is too long: 9 tokens > 8 maximum {CANARY}",
            },
        },
    ),
)
CANDIDATES = Dialect(
    model="google:gemini-2.5-flash",
    stream=_candidates,
    too_long=refusing(
        400,
        {
            "error": {
                "code": 400,
                "status": "INVALID_ARGUMENT",
                "message": "The input token count (9) exceeds the maximum number of tokens "
                f"allowed (8). {CANARY}",
            }
        },
    ),
)
DIALECTS = (CHAT, RESPONSES, MESSAGES, CANDIDATES)
