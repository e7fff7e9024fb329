"""Answers in the forms of the four providers, each with ids that no other answer has."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from tests.interop.asked import Asked, Json, read_chat, read_contents, read_messages, read_responses
from tests.llm.dialects import CANDIDATES, CHAT, MESSAGES, RESPONSES, Dialect, Saying

# The ids that a dialect writes, the same in each answer.
_ID: Final = re.compile(r"(?:chatcmpl-|resp_|rs_|msg_|fc_|call_|r)\d+")
_USAGE: Final = (9, 5)


@dataclass(frozen=True)
class Form:
    """How one provider is asked and answers: streamed as its dialect does, and whole."""

    dialect: Dialect
    read: Callable[[Json, bool], Asked]
    whole: Callable[[Saying], Json]
    refusal: Callable[[int], Json]

    def stream(self, saying: Saying) -> list[bytes]:
        """Return the events of an answer, with ids of its own."""
        return [*refreshed(self.dialect.stream(saying))]

    def document(self, saying: Saying) -> bytes:
        """Return an answer that is not streamed."""
        return json.dumps(_renamed(self.whole(saying), uuid4().hex[:16])).encode()


def refreshed(events: list[bytes]) -> Iterator[bytes]:
    """Yield the events with fresh ids; the last one of a response holds all of its items."""
    mark, items = uuid4().hex[:16], []
    for event in events:
        head, _, data = event.decode().partition("data: ")
        if not data.startswith("{"):
            yield event
            continue
        told = _renamed(json.loads(data), mark)
        if told.get("type") == "response.output_item.done":
            items.append(told["item"])
        if told.get("type") == "response.completed":
            told["response"]["output"] = items
        yield f"{head}data: {json.dumps(told)}\n\n".encode()
        if told.get("type") == "response.created":
            going_on = {**told, "type": "response.in_progress"}
            yield f"event: response.in_progress\ndata: {json.dumps(going_on)}\n\n".encode()


def _renamed(value: Any, mark: str) -> Any:
    if isinstance(value, dict):
        return {name: _renamed(each, mark) for name, each in value.items()}
    if isinstance(value, list):
        return [_renamed(each, mark) for each in value]
    if isinstance(value, str) and _ID.fullmatch(value):
        return f"{value}{mark}"
    return value


def _chat_whole(saying: Saying) -> Json:
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": "".join(call.pieces)},
        }
        for call in saying.calls
    ]
    message: Json = {"role": "assistant", "content": "".join(saying.text)}
    asked, told = _USAGE
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "fake-model",
        "choices": [
            {
                "index": 0,
                "message": message | ({"tool_calls": calls} if calls else {}),
                "finish_reason": "tool_calls" if calls else "stop",
            }
        ],
        "usage": {
            "prompt_tokens": asked,
            "completion_tokens": told,
            "total_tokens": asked + told,
        },
    }


def _response_whole(saying: Saying) -> Json:
    *_, last = refreshed(RESPONSES.stream(saying))
    told: Json = json.loads(last.decode().partition("data: ")[2])
    return dict(told["response"])


def _message_whole(saying: Saying) -> Json:
    content: list[Json] = []
    if saying.text:
        content.append({"type": "text", "text": "".join(saying.text)})
    for call in saying.calls:
        given = json.loads("".join(call.pieces) or "{}")
        content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": given})
    asked, told = _USAGE
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "fake-model",
        "content": content,
        "stop_reason": "tool_use" if saying.calls else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": asked, "output_tokens": told},
    }


def _content_whole(saying: Saying) -> Json:
    parts: list[Json] = [{"text": "".join(saying.text)}]
    for call in saying.calls:
        given = json.loads("".join(call.pieces) or "{}")
        parts.append({"functionCall": {"name": call.name, "args": given, "id": call.id}})
    asked, told = _USAGE
    return {
        "candidates": [
            {"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}
        ],
        "modelVersion": "fake-model",
        "responseId": "r1",
        "usageMetadata": {
            "promptTokenCount": asked,
            "candidatesTokenCount": told,
            "totalTokenCount": asked + told,
        },
    }


def _openai_refusal(status: int) -> Json:
    return {"error": {"message": "refused as asked", "type": "refused", "code": str(status)}}


def _anthropic_refusal(_: int) -> Json:
    return {"type": "error", "error": {"type": "api_error", "message": "refused as asked"}}


def _google_refusal(status: int) -> Json:
    return {"error": {"code": status, "message": "refused as asked", "status": "REFUSED"}}


CHAT_FORM: Final = Form(CHAT, lambda body, _: read_chat(body), _chat_whole, _openai_refusal)
RESPONSES_FORM: Final = Form(
    RESPONSES, lambda body, _: read_responses(body), _response_whole, _openai_refusal
)
MESSAGES_FORM: Final = Form(
    MESSAGES, lambda body, _: read_messages(body), _message_whole, _anthropic_refusal
)
CONTENTS_FORM: Final = Form(
    CANDIDATES,
    lambda body, is_streamed: read_contents(body, is_streamed=is_streamed),
    _content_whole,
    _google_refusal,
)
