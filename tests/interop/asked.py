"""What a program asks of a model, read out of the four forms in which programs ask."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

# Notes that some programs put into a prompt beside the words of the person.
_ASIDE = re.compile(
    r"<(system-reminder|environment_context|user_info|turn-context)>.*?</\1>", re.DOTALL
)


@dataclass(frozen=True)
class Tool:
    """A tool that the program offers, and the JSON schema of its arguments."""

    name: str
    schema: Json


@dataclass(frozen=True)
class Asked:
    """One question: the last words of the person, what came after them, and what may be called."""

    prompt: str
    # Whether a result of a tool stands anywhere behind those words.
    has_result: bool
    tools: tuple[Tool, ...]
    is_streamed: bool
    # The schema that the answer has to fit, where the program wants JSON and no words.
    answer_schema: Json | None = None


@dataclass(frozen=True)
class _Row:
    """One entry of a history: the texts of a person, or a tool's result, or something else."""

    texts: tuple[str, ...] = ()
    is_result: bool = False


def read_chat(body: Json) -> Asked:
    """Read a request for chat completions."""
    rows = [_chat_row(each) for each in body.get("messages", ())]
    tools = [
        Tool(each["function"]["name"], each["function"].get("parameters") or {})
        for each in body.get("tools") or ()
        if each.get("type") == "function"
    ]
    return _asked(rows, tools, is_streamed=bool(body.get("stream")))


def read_responses(body: Json) -> Asked:
    """Read a request for responses."""
    given = body.get("input", ())
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    tools = [
        Tool(each["name"], each.get("parameters") or {})
        for each in body.get("tools") or ()
        if each.get("type") == "function"
    ]
    return _asked([_item_row(each) for each in items], tools, is_streamed=bool(body.get("stream")))


def read_messages(body: Json) -> Asked:
    """Read a request for messages."""
    rows = [row for each in body.get("messages", ()) for row in _message_rows(each)]
    tools = [Tool(each["name"], each.get("input_schema") or {}) for each in body.get("tools") or ()]
    return _asked(rows, tools, is_streamed=bool(body.get("stream")))


def read_contents(body: Json, *, is_streamed: bool) -> Asked:
    """Read a request for generated content."""
    rows = [row for each in body.get("contents", ()) for row in _content_rows(each)]
    tools = [
        Tool(each["name"], each.get("parametersJsonSchema") or each.get("parameters") or {})
        for group in body.get("tools") or ()
        for each in group.get("functionDeclarations", ())
    ]
    settings = body.get("generationConfig") or {}
    schema = settings.get("responseJsonSchema") or settings.get("responseSchema")
    wants_json = settings.get("responseMimeType") == "application/json"
    found = _asked(rows, tools, is_streamed=is_streamed)
    return Asked(
        found.prompt, found.has_result, found.tools, is_streamed, schema if wants_json else None
    )


def _asked(rows: list[_Row], tools: list[Tool], *, is_streamed: bool) -> Asked:
    said = [number for number, row in enumerate(rows) if row.texts]
    last = said[-1] if said else -1
    return Asked(
        # The last line alone: what was said before may be repeated in front of it.
        prompt=rows[last].texts[-1].splitlines()[-1] if said else "",
        has_result=any(row.is_result for row in rows[last + 1 :]),
        tools=tuple(tools),
        is_streamed=is_streamed,
    )


def _words(texts: Iterator[str]) -> tuple[str, ...]:
    """Return the texts that hold words of a person."""
    cleaned = (_ASIDE.sub("", text).strip() for text in texts)
    return tuple(text for text in cleaned if text)


def _texts(content: object) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    for part in content if isinstance(content, list) else ():
        if isinstance(part.get("text"), str):
            yield part["text"]


def _chat_row(message: Json) -> _Row:
    if message["role"] == "user":
        return _Row(_words(_texts(message.get("content"))))
    return _Row(is_result=message["role"] == "tool")


def _item_row(item: Json) -> _Row:
    if item.get("role") == "user":
        return _Row(_words(_texts(item.get("content"))))
    return _Row(is_result=str(item.get("type", "")).endswith("_call_output"))


def _message_rows(message: Json) -> Iterator[_Row]:
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    # The result first: what stands beside it is a note of the program, not a new prompt.
    has_result = any(part.get("type") == "tool_result" for part in parts)
    yield _Row(is_result=has_result)
    if message["role"] == "user" and not has_result:
        yield _Row(_words(_texts(content)))


def _content_rows(content: Json) -> Iterator[_Row]:
    parts = content.get("parts", ())
    has_result = any("functionResponse" in part for part in parts)
    yield _Row(is_result=has_result)
    if content.get("role") == "user" and not has_result:
        yield _Row(_words(_texts(list(parts))))


def decoded(body: bytes) -> Json:
    """Return the JSON of a request; an empty body is an empty object."""
    found = json.loads(body or b"{}")
    return found if isinstance(found, dict) else {}
