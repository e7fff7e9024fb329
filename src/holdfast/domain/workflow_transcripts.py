"""The record of a session as an export keeps it: four roles, camel case, and nothing left out.

This and the dialect of `--json` are the only places where these names exist.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, assert_never

import msgspec

from holdfast.domain.ids import ModelId
from holdfast.domain.messages import (
    Compaction,
    Media,
    Message,
    Notice,
    Part,
    Plan,
    Reasoning,
    ResultStatus,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from holdfast.domain.timestamps import milliseconds, spelled

Form = dict[str, Any]

ROLES: Final[Mapping[Role, str]] = {
    Role.USER: "user",
    Role.ASSISTANT: "assistant",
    Role.TOOL_CALL: "assistant",
    Role.TOOL_RESULT: "tool",
    Role.SYSTEM: "system",
}
# A file may have 64 levels, and a message lies eight deep in it.
DEEPEST: Final = 48
# Longer ones are not read as numbers: it would take quadratic time.
_NUMBER_LARGEST: Final = 10**990
_encoder: Final = msgspec.json.Encoder()


def transcript(messages: Iterable[Message], refs: Mapping[ModelId, str]) -> list[Form]:
    """Return all rows by their sequence; `refs` says how people write a model."""
    return [_row(row, refs) for row in sorted(messages, key=lambda row: row.sequence)]


def _row(row: Message, refs: Mapping[ModelId, str]) -> Form:
    form: Form = {
        "id": row.id,
        "sessionId": row.session_id,
        "sequenceNumber": row.sequence,
        "role": ROLES[row.role],
        "content": _content(row),
        "timestamp": spelled(milliseconds(row.created_at)),
    }
    if row.model_id is not None:
        form["modelId"] = refs.get(row.model_id, row.model_id)
    return form


def _content(row: Message) -> list[Form]:
    if row.role is Role.SYSTEM:
        # One text, because only Holdfast tells plans, notices and summaries apart.
        return [_text("\n\n".join(_part(part)["text"] for part in row.parts))]
    return [_part(part) for part in row.parts]


def _part(part: Part) -> Form:
    match part:
        case Text() | Notice() | Compaction() | Plan():
            return _text(_words(part))
        case Reasoning():
            return {"type": "reasoning", "text": part.text}
        case ToolCall():
            arguments = plain(part.arguments)
            return {"type": "tool_call", "id": part.id, "name": part.name, "args": arguments}
        case ToolResult():
            return _result(part)
        case Media():
            return _media(part)
        case _:
            assert_never(part)


def _words(part: Text | Notice | Compaction | Plan) -> str:
    if isinstance(part, Plan):
        return "\n".join(f"- {step.text} ({step.status})" for step in part.steps)
    return part.summary if isinstance(part, Compaction) else part.text


def _text(text: str) -> Form:
    return {"type": "text", "text": text}


def _result(part: ToolResult) -> Form:
    told: Form = {"status": part.status.value}
    if part.error is not None:
        told |= {"code": part.error.code, "message": part.error.message}
    value = told if part.result is None else plain(part.result)
    form: Form = {"type": "tool_result", "toolCallId": part.call_id, "result": value}
    return form if part.status is ResultStatus.OK else {**form, "isError": True}


def _media(part: Media) -> Form:
    form: Form = {
        "type": "media",
        "mimeType": part.mime_type,
        "source": {"kind": "handle", "ref": part.ref},
        "name": part.name,
        "byteLength": part.byte_length,
    }
    return {key: value for key, value in form.items() if value is not None}


def plain(value: Any, depth: int = 1) -> Any:
    """Return a value as a file can hold it: what is too deep, or too long a number, as JSON."""
    if isinstance(value, dict | list | tuple):
        if depth > DEEPEST:
            return _encoder.encode(value).decode()
        if isinstance(value, dict):
            return {key: plain(inner, depth + 1) for key, inner in value.items()}
        return [plain(inner, depth + 1) for inner in value]
    if isinstance(value, int) and abs(value) >= _NUMBER_LARGEST:
        return _encoder.encode(value).decode()
    return value
