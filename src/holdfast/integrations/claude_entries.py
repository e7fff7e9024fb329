"""Entries of Claude transcripts as messages; knows their JSON, and not the package."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import Struct

from holdfast.domain.costs import Usage
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.ids import CallId
from holdfast.domain.messages import (
    Compaction,
    Notice,
    NoticeCode,
    Part,
    Reasoning,
    ResultStatus,
    Role,
    Text,
    ToolCall,
    ToolError,
    ToolResult,
)
from holdfast.domain.tools import ResultCode
from holdfast.integrations.records import ForeignCost

Entry = Mapping[str, Any]
# Text that the program writes as the model, without having asked one.
_SYNTHETIC: Final = "<synthetic>"
# What the program writes of calls that were cut off, when it resumes.
_UNKNOWN: Final = ("outcome is unknown", "unknown outcome", "outcome unknown", "interrupted")
# What the program says beside the conversation; other entries of its system are bookkeeping.
_SHOWN: Final = frozenset({"api_error", "local_command", "informational"})
# Where attachments have their text; it depends on their type, and new ones come with any version.
_ATTACHED: Final = ("prompt", "text", "content", "output", "stdout", "snippet", "filename")
_TITLES: Final = {"custom-title": "customTitle", "ai-title": "aiTitle"}


class Mapped(Struct, frozen=True, kw_only=True):
    """What is made of an entry: messages, a title, and what its request used."""

    drafts: tuple[MessageDraft, ...] = ()
    title: str | None = None
    cost: ForeignCost | None = None
    # Whether the model has asked for a tool, so that its text is no answer.
    asks: bool = False


def mapped(entry: Any) -> Mapped:
    """Return what an entry says; an unknown one says nothing and is kept as it is."""
    if not isinstance(entry, Mapping):
        return Mapped()
    kind, message = _text(entry.get("type")), entry.get("message")
    if kind in _TITLES:
        title = entry.get(_TITLES[kind])
        return Mapped(title=title if isinstance(title, str) else None)
    if kind in {"system", "attachment"}:
        text = _noted(entry)
        notice = Notice(code=NoticeCode.HARNESS, text=text)
        return Mapped(drafts=(_draft(Role.SYSTEM, notice),) if text else ())
    if kind not in {"user", "assistant"} or not isinstance(message, Mapping):
        return Mapped()
    blocks = list(_blocks(message.get("content")))
    if kind == "user":
        return Mapped(drafts=tuple(_user(entry, blocks)))
    asks = message.get("stop_reason") == "tool_use"
    return Mapped(drafts=tuple(_assistant(message, blocks)), cost=_cost(message), asks=asks)


def key_of(entry: Any) -> str | None:
    """Return the key of an entry's record: its own id, if it has one."""
    uuid = entry.get("uuid") if isinstance(entry, Mapping) else None
    return f"u:{uuid}" if isinstance(uuid, str) and uuid else None


def _blocks(content: Any) -> Iterator[Entry]:
    if isinstance(content, str):
        yield {"type": "text", "text": content}
    elif isinstance(content, list):
        yield from (block for block in content if isinstance(block, Mapping))


def _noted(entry: Entry) -> str:
    """Return what the program says beside the conversation, or has put into it."""
    if entry["type"] == "system":
        return _text(entry.get("content")) if _text(entry.get("subtype")) in _SHOWN else ""
    attachment = entry.get("attachment")
    if not isinstance(attachment, Mapping):
        return ""
    name = _text(attachment.get("type")) or "attachment"
    texts = (
        "\n\n".join(_text(block.get("text")) for block in _blocks(attachment.get(field)))
        for field in _ATTACHED
    )
    text = next((text for text in texts if text.strip()), "")
    return f"{name}: {text}" if text else name


def _user(entry: Entry, blocks: list[Entry]) -> Iterator[MessageDraft]:
    said: list[str] = []
    for block in blocks:
        if block.get("type") == "tool_result" and isinstance(block.get("tool_use_id"), str):
            yield _draft(Role.TOOL_RESULT, _result(block))
        elif text := _text(block.get("text")):
            said.append(text)
    text = "\n\n".join(said)
    if not text:
        return
    if entry.get("isCompactSummary"):
        yield _draft(Role.SYSTEM, Compaction(summary=text, dropped_through=0))
    elif entry.get("isMeta"):
        yield _draft(Role.SYSTEM, Notice(code=NoticeCode.HARNESS, text=text))
    else:
        yield _draft(Role.USER, Text(text=text))


def _assistant(message: Entry, blocks: list[Entry]) -> Iterator[MessageDraft]:
    for block in blocks:
        kind = block.get("type")
        if kind == "text" and (text := _text(block.get("text"))):
            is_made_up = message.get("model") == _SYNTHETIC
            notice = Notice(code=NoticeCode.HARNESS, text=text)
            yield (
                _draft(Role.SYSTEM, notice)
                if is_made_up
                else _draft(Role.ASSISTANT, Text(text=text))
            )
        elif kind == "thinking" and (text := _text(block.get("thinking"))):
            yield _draft(Role.ASSISTANT, Reasoning(text=text))
        elif kind == "tool_use" and isinstance(block.get("id"), str) and block["id"]:
            given = block.get("input")
            arguments = dict(given) if isinstance(given, Mapping) else {"_raw": given}
            name = _text(block.get("name"))[:255] or "tool"
            part = ToolCall(id=CallId(block["id"]), name=name, arguments=arguments)
            yield _draft(Role.TOOL_CALL, part)


def _result(block: Entry) -> ToolResult:
    content = block.get("content")
    text = "\n".join(_text(each.get("text")) for each in _blocks(content))
    status, error = ResultStatus.OK, None
    if block.get("is_error"):
        is_unknown = any(words in text.lower() for words in _UNKNOWN)
        status = ResultStatus.UNKNOWN if is_unknown else ResultStatus.ERROR
        code = ResultCode.UNKNOWN if is_unknown else ResultCode.FAILED
        error = ToolError(code=code, message=text)
    plain = content if isinstance(content, str) else json.loads(json.dumps(content))
    return ToolResult(
        call_id=CallId(block["tool_use_id"]),
        name="",
        status=status,
        result=None if error else _clean(plain),
        error=error,
    )


def _cost(message: Entry) -> ForeignCost | None:
    used, request_id, model = message.get("usage"), message.get("id"), message.get("model")
    if not isinstance(used, Mapping) or not isinstance(request_id, str) or model == _SYNTHETIC:
        return None
    usage = Usage(
        # Theirs is apart from the cached ones, as ours.
        input=_count(used, "input_tokens"),
        output=_count(used, "output_tokens"),
        cache_read=_count(used, "cache_read_input_tokens"),
        cache_write=_count(used, "cache_creation_input_tokens"),
    )
    return ForeignCost(request_id=request_id, model=f"anthropic:{model}", usage=usage)


def _count(used: Entry, name: str) -> int:
    value = used.get(name)
    return value if isinstance(value, int) and value > 0 else 0


def _draft(role: Role, part: Part) -> MessageDraft:
    return MessageDraft(role=role, parts=(part,))


def _text(text: Any) -> str:
    return _clean(text) if isinstance(text, str) else ""


def _clean(value: Any) -> Any:
    """Return a text as it can be stored: without NUL and lone surrogates."""
    if isinstance(value, str):
        return value.replace("\x00", "").encode("utf-8", "replace").decode()
    return value
