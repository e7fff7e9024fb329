"""Messages of LangChain as messages of ours; knows their attributes, and not the package."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from holdfast.domain.costs import Usage
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.ids import CallId
from holdfast.domain.messages import (
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
from holdfast.domain.tools import Effect, ResultCode
from holdfast.integrations.branches import show_branch
from holdfast.integrations.calls import NOT_RUN, UNKNOWN_OUTCOME
from holdfast.integrations.records import ForeignCost, ForeignEntry, ForeignWriter

# The stream of the messages of the newest checkpoint.
MESSAGES: Final = "messages"
_KNOWN: Final = {UNKNOWN_OUTCOME: ResultStatus.UNKNOWN, NOT_RUN: ResultStatus.SKIPPED}
Effects = Mapping[str, Effect]


async def show_messages(
    writer: ForeignWriter,
    messages: Sequence[Any],
    contents: Sequence[tuple[str, bytes]],
    effects: Effects,
) -> None:
    """Make the session show these messages; those that are not among them are withdrawn.

    `contents` are the same messages as the framework's serializer writes them.
    """
    identified = zip(range(len(messages)), messages, contents, strict=True)
    wanted = [_identity(*each) for each in identified]

    def make(place: int) -> ForeignEntry:
        message = messages[place]
        return ForeignEntry(kind=str(message.type), raw=b"", drafts=_drafts(message, effects))

    for place in await show_branch(writer, MESSAGES, wanted, make):
        cost = _cost(messages[place])
        if cost is not None:
            await writer.charge(cost)


def _identity(position: int, message: Any, content: tuple[str, bytes]) -> tuple[str, bytes]:
    """Return the key of a message, and what changes with its content."""
    digest = hashlib.sha256(content[1]).hexdigest()
    key = f"m:{message.id}" if message.id else f"p:{position}"
    return key, digest.encode()


def _drafts(message: Any, effects: Effects) -> tuple[MessageDraft, ...]:
    match message.type:
        case "human":
            said = _text(message.content)
            return _draft(Role.USER, Text(text=said)) if said else ()
        case "ai" | "AIMessageChunk":
            return (*_answer(message), *_calls(message, effects))
        case "tool":
            return _draft(Role.TOOL_RESULT, _result(message)) if message.tool_call_id else ()
        case _:
            said = _text(message.content)
            notice = Notice(code=NoticeCode.INSTRUCTIONS, text=said)
            return _draft(Role.SYSTEM, notice) if said else ()


def _draft(role: Role, *parts: Part) -> tuple[MessageDraft, ...]:
    return (MessageDraft(role=role, parts=parts),)


def _answer(message: Any) -> tuple[MessageDraft, ...]:
    parts: list[Part] = []
    thought = _reasoning(message.content)
    if thought:
        parts.append(Reasoning(text=thought))
    said = _text(message.content)
    if said:
        parts.append(Text(text=said))
    return _draft(Role.ASSISTANT, *parts) if parts else ()


def _calls(message: Any, effects: Effects) -> tuple[MessageDraft, ...]:
    """Return the calls of a message; what is no call of a tool has its text as its argument."""
    asked = [(each.get("id"), each.get("name"), each.get("args")) for each in message.tool_calls]
    asked += [
        (each.get("id"), each.get("name"), {"_raw": _clean(str(each.get("args") or ""))})
        for each in message.invalid_tool_calls
    ]
    return tuple(
        MessageDraft(
            role=Role.TOOL_CALL,
            parts=(ToolCall(id=CallId(id_), name=name or "unknown", arguments=dict(args or {})),),
            effect=effects.get(name or ""),
        )
        for id_, name, args in asked
        if id_
    )


def _result(message: Any) -> ToolResult:
    said = message.content if isinstance(message.content, str) else _text(message.content)
    status = _KNOWN.get(said, ResultStatus.OK)
    error = None
    if status is ResultStatus.OK and message.status == "error":
        status = ResultStatus.ERROR
    if status is not ResultStatus.OK:
        code = ResultCode.UNKNOWN if status is ResultStatus.UNKNOWN else ResultCode.FAILED
        error = ToolError(code=code, message=_clean(said))
    return ToolResult(
        call_id=CallId(message.tool_call_id),
        name=message.name or "",
        status=status,
        result=None if error else _clean(said),
        error=error,
    )


def _cost(message: Any) -> ForeignCost | None:
    used = getattr(message, "usage_metadata", None)
    if not used or not message.id:
        return None
    details, made = used.get("input_token_details") or {}, used.get("output_token_details") or {}
    cached, written = details.get("cache_read") or 0, details.get("cache_creation") or 0
    about = message.response_metadata or {}
    model = about.get("model_name") or about.get("model") or "unknown"
    provider = about.get("model_provider") or "langchain"
    return ForeignCost(
        request_id=message.id,
        model=f"{provider}:{model}",
        usage=Usage(
            # Ours are apart from the cached ones, and theirs include them.
            input=max((used.get("input_tokens") or 0) - cached - written, 0),
            output=used.get("output_tokens") or 0,
            cache_read=cached,
            cache_write=written,
            reasoning=made.get("reasoning") or 0,
        ),
    )


def _text(content: Any) -> str:
    """Return the texts of a content: a string, or a list of blocks."""
    if isinstance(content, str):
        return _clean(content)
    texts = [each if isinstance(each, str) else each.get("text") for each in content or ()]
    return _clean("\n\n".join(text for text in texts if isinstance(text, str)))


def _reasoning(content: Any) -> str:
    blocks = (
        []
        if isinstance(content, str)
        else [each for each in content or () if not isinstance(each, str)]
    )
    texts = [each.get("thinking") or each.get("reasoning") for each in blocks]
    return _clean("\n\n".join(text for text in texts if isinstance(text, str)))


def _clean(text: str) -> str:
    """Return a text as it can be stored: without NUL and lone surrogates."""
    return text.replace("\x00", "").encode("utf-8", "replace").decode()
