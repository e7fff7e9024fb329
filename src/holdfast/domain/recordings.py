"""Recordings: rows that a caller writes into a record by itself, without asking for an answer."""

from typing import Final

import msgspec

from holdfast.domain.drafts import MessageDraft
from holdfast.domain.errors import Code, Invalid
from holdfast.domain.messages import (
    TEXT_LARGEST,
    Media,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolResult,
    require_parts,
)
from holdfast.domain.texts import is_encodable, require_text

NAME_LONGEST: Final = 255
# What people may say in a row; notices and summaries are the house's own words.
_WORDS: Final = (Text, Reasoning, Media)


def require_recordable(draft: MessageDraft) -> MessageDraft:
    """Return a draft that may be recorded, or refuse what is empty, too large or not its role's."""
    if draft.role is Role.USER:
        raise Invalid(
            Code.ROLE_NOT_ALLOWED,
            "A user's message is sent, because it wants an answer; it cannot only be recorded.",
            {"role": draft.role},
        )
    require_parts(draft.role, draft.parts)
    match draft.parts:
        case (ToolCall() as call,):
            _require_name(call.id, "id")
            _require_name(call.name, "name")
        case (ToolResult() as result,):
            _require_name(result.call_id, "tool_call_id")
        case _:
            _require_words(draft)
    _require_size(draft)
    return draft


def _require_words(draft: MessageDraft) -> None:
    if not all(isinstance(part, _WORDS) for part in draft.parts):
        raise Invalid(
            Code.MESSAGE_INVALID,
            f"A {draft.role} message that is recorded holds words only.",
            {"role": draft.role},
        )
    said = "".join(part.text for part in draft.parts if isinstance(part, Text | Reasoning))
    if not said.strip() and not any(isinstance(part, Media) for part in draft.parts):
        raise Invalid(Code.MESSAGE_EMPTY, "The message is empty; say something.")
    if "\x00" in said or not is_encodable(said):
        raise Invalid(
            Code.INVALID_TEXT,
            "The message contains a NUL character or a lone surrogate; remove it.",
            {"field": "text"},
        )


def _require_name(text: str, field: str) -> None:
    require_text(text, field=field, shortest=1, longest=NAME_LONGEST)


def _require_size(draft: MessageDraft) -> None:
    try:
        size = len(msgspec.json.encode(draft.parts))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        raise Invalid(
            Code.MESSAGE_INVALID, "The content must be plain JSON.", {"role": draft.role}
        ) from None
    if size > TEXT_LARGEST:
        raise Invalid(Code.MESSAGE_TOO_LARGE, "A message may have 1 MiB at most.")
