"""Messages of pydantic-ai as messages of ours; knows their attributes, and not the package."""

import json
from collections.abc import Mapping
from typing import Any, Final

from holdfast.domain.costs import Usage
from holdfast.domain.drafts import MessageDraft
from holdfast.domain.ids import CallId
from holdfast.domain.messages import (
    MEDIA_LARGEST,
    Compaction,
    Media,
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
    is_media_type,
    media_handle,
)
from holdfast.domain.tools import ResultCode
from holdfast.integrations.calls import NOT_RUN, UNKNOWN_OUTCOME
from holdfast.integrations.records import ForeignCost, ForeignEntry

_KNOWN: Final = {UNKNOWN_OUTCOME: ResultStatus.UNKNOWN, NOT_RUN: ResultStatus.SKIPPED}
# How a call ended without success; one that was interrupted may have taken effect.
_OUTCOMES: Final = {
    "failed": ResultStatus.ERROR,
    "denied": ResultStatus.ERROR,
    "retried": ResultStatus.ERROR,
    "interrupted": ResultStatus.UNKNOWN,
}
_CALLS: Final = frozenset({"tool-call", "builtin-tool-call"})
_RETURNS: Final = frozenset({"tool-return", "builtin-tool-return"})
MediaOf = dict[str, tuple[str, bytes]]


def entry_of(message: Any, instructed: str | None = None) -> ForeignEntry:
    """Return a message as a record with its messages; the key and the content are the caller's.

    `instructed` are the instructions of the request before, which each one repeats.
    """
    media: MediaOf = {}
    drafts: list[MessageDraft] = []
    said: list[Part] = []
    role = Role.ASSISTANT if message.kind == "response" else Role.USER
    for part in message.parts:
        if part.part_kind in {"text", "thinking", "file", "speech"}:
            said += _spoken(part, media)
            continue
        drafts += _flushed(said, role)
        drafts += _drafts(part, media)
    drafts += _flushed(said, role)
    text = _clean(getattr(message, "instructions", None) or "")
    if text and text != _clean(instructed or ""):
        drafts.append(_message(Role.SYSTEM, Notice(code=NoticeCode.INSTRUCTIONS, text=text)))
    return ForeignEntry(
        kind=message.kind, raw=b"", drafts=tuple(drafts), media=tuple(media.values())
    )


def cost_of(message: Any, entry_id: str) -> ForeignCost | None:
    """Return what the request to a provider used, if the message is its answer."""
    if message.kind != "response" or not message.usage.has_values():
        return None
    used = message.usage
    return ForeignCost(
        request_id=message.provider_response_id or entry_id,
        model=f"{message.provider_name or 'pydantic-ai'}:{message.model_name or 'unknown'}",
        usage=Usage(
            # Ours are apart from the cached ones, and theirs include them.
            input=max(used.input_tokens - used.cache_read_tokens - used.cache_write_tokens, 0),
            output=used.output_tokens,
            cache_read=used.cache_read_tokens,
            cache_write=used.cache_write_tokens,
            reasoning=(used.details or {}).get("reasoning_tokens", 0),
        ),
    )


def _flushed(said: list[Part], role: Role) -> list[MessageDraft]:
    parts = tuple(said)
    said.clear()
    return [MessageDraft(role=role, parts=parts)] if parts else []


def _spoken(part: Any, media: MediaOf) -> list[Part]:
    if part.part_kind == "file":
        return [_media(part.content, media)]
    audio = getattr(part, "audio", None)
    heard = [_media(audio, media)] if audio is not None else []
    text = getattr(part, "content", None) or getattr(part, "transcript", None)
    if not isinstance(text, str) or not text:
        return heard
    is_thought = part.part_kind == "thinking"
    return [*heard, Reasoning(text=_clean(text)) if is_thought else Text(text=_clean(text))]


def _drafts(part: Any, media: MediaOf) -> list[MessageDraft]:
    kind = part.part_kind
    if kind in _CALLS:
        return [_message(Role.TOOL_CALL, _call(part))]
    if kind in _RETURNS or (kind == "retry-prompt" and part.tool_name):
        return [_message(Role.TOOL_RESULT, _result(part))]
    if kind == "user-prompt":
        content = part.content
        pieces = [content] if isinstance(content, str) else list(content)
        parts = [made for piece in pieces if (made := _piece(piece, media)) is not None]
        return [MessageDraft(role=Role.USER, parts=tuple(parts))] if parts else []
    if kind in {"system-prompt", "instruction", "retry-prompt", "retry-feedback"}:
        text = _as_text(part.content)
        notice = Notice(code=NoticeCode.INSTRUCTIONS, text=text)
        return [_message(Role.SYSTEM, notice)] if text else []
    if kind == "compaction":
        text = _as_text(part.content or "") or "The provider has compacted the conversation."
        return [_message(Role.SYSTEM, Compaction(summary=text, dropped_through=0))]
    return []


def _message(role: Role, part: Part) -> MessageDraft:
    return MessageDraft(role=role, parts=(part,))


def _piece(piece: Any, media: MediaOf) -> Part | None:
    if isinstance(piece, str):
        return Text(text=_clean(piece)) if piece else None
    if hasattr(piece, "data") and hasattr(piece, "media_type"):
        return _media(piece, media)
    text = getattr(piece, "content", None) or getattr(piece, "url", None)
    return Text(text=_as_text(text)) if text else None


def _media(file: Any, media: MediaOf) -> Part:
    content, mime_type = file.data, str(file.media_type).partition(";")[0].lower()
    if not isinstance(content, bytes) or not is_media_type(mime_type):
        return Text(text=f"[{mime_type}]")
    if not 0 < len(content) <= MEDIA_LARGEST:
        return Text(text=f"[{mime_type}, {len(content)} bytes]")
    ref = media_handle(content)
    media[ref] = mime_type, content
    return Media(mime_type=mime_type, ref=ref, byte_length=len(content))


def _call(part: Any) -> ToolCall:
    return ToolCall(
        id=CallId(part.tool_call_id), name=part.tool_name, arguments=arguments_of(part.args)
    )


def arguments_of(given: Any) -> dict[str, Any]:
    """Return the arguments of a call; what is no JSON object is kept as its text."""
    if isinstance(given, Mapping):
        return dict(given)
    try:
        found = json.loads(given or "{}")
    except (ValueError, RecursionError):
        return {"_raw": _clean(str(given))}
    return found if isinstance(found, dict) else {"_raw": _clean(str(given))}


def _result(part: Any) -> ToolResult:
    said = _as_text(part.content)
    status = _KNOWN.get(said, ResultStatus.OK)
    if status is ResultStatus.OK:
        outcome = "retried" if part.part_kind == "retry-prompt" else getattr(part, "outcome", "")
        status = _OUTCOMES.get(outcome, ResultStatus.OK)
    error = None
    if status is not ResultStatus.OK:
        code = ResultCode.UNKNOWN if status is ResultStatus.UNKNOWN else ResultCode.FAILED
        error = ToolError(code=code, message=said)
    return ToolResult(
        call_id=CallId(part.tool_call_id),
        name=part.tool_name or "",
        status=status,
        result=None if error else said,
        error=error,
    )


def _as_text(content: Any) -> str:
    if isinstance(content, str):
        return _clean(content)
    try:
        return _clean(json.dumps(content, ensure_ascii=False))
    except (TypeError, ValueError):
        return _clean(str(content))


def _clean(text: str) -> str:
    """Return a text as it can be stored: without NUL and lone surrogates."""
    return text.replace("\x00", "").encode("utf-8", "replace").decode()
