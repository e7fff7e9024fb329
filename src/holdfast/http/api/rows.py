"""The rows of `/api`: messages in three roles, a call folded together with its result."""

from collections.abc import Collection, Iterable
from typing import Any

from holdfast.domain.ids import CallId, SessionId
from holdfast.domain.messages import (
    Compaction,
    Media,
    Message,
    Notice,
    NoticeCode,
    Plan,
    Role,
    ToolCall,
    ToolResult,
)
from holdfast.http.api.forms import AgentMessage
from holdfast.http.times import stamp
from holdfast.services.messages import UnfinishedAnswer

Content = dict[str, Any]


def rows_of(
    session_id: SessionId, messages: Iterable[Message], *, without: Collection[CallId] = ()
) -> list[AgentMessage]:
    """Return the rows of a session's messages, in the order of their numbers.

    A call stands where its result does once there is one, so whoever reads on from a number
    sees it again, complete. `without` are calls whose results are not among the messages.
    """
    rows: dict[str, AgentMessage] = {}
    open_calls: dict[str, AgentMessage] = {}
    for message in messages:
        match message.parts:
            case (ToolCall() as call,) if call.id in without:
                pass
            case (ToolCall() as call,):
                row = _row(session_id, message, "system", _call_content(call))
                open_calls[call.id] = rows[message.id] = row
            case (ToolResult() as result,):
                begun = open_calls.pop(result.call_id, None)
                if begun is not None:
                    del rows[begun.id]
                    rows[begun.id] = _completed(session_id, begun, message, result)
            case _:
                rows |= {row.id: row for row in _told(session_id, message)}
    return list(rows.values())


def partial_row(session_id: SessionId, unfinished: UnfinishedAnswer) -> AgentMessage:
    """Return the row of text that is still being streamed."""
    return AgentMessage(
        id=unfinished.id,
        session_id=session_id,
        role="agent",
        content={"type": "text", "text": unfinished.text, "partial": True},
        timestamp=stamp(unfinished.at),
        sequence=None,
        turn=unfinished.turn,
    )


def _told(session_id: SessionId, message: Message) -> list[AgentMessage]:
    media = [part.ref for part in message.parts if isinstance(part, Media)]
    attached: Content = {"media": media} if media else {}
    match message.role:
        case Role.USER:
            content = {"type": "text", "text": message.text, **attached}
            return [_row(session_id, message, "user", content)]
        case Role.ASSISTANT if message.text or media:
            content = {"type": "text", "text": message.text, "partial": False, **attached}
            return [_row(session_id, message, "agent", content)]
        case Role.SYSTEM:
            return [_row(session_id, message, "system", _system_content(message))]
        case _:
            # What a model only thought is not shown here.
            return []


def _system_content(message: Message) -> Content:
    match message.parts:
        case (Plan(steps=steps),):
            told = [
                {"content": step.text, "priority": step.priority, "status": step.status}
                for step in steps
            ]
            return {"type": "plan", "steps": told}
        case (Notice(code=NoticeCode.ERROR, text=text),):
            return {"type": "text", "text": f"Turn failed: {text}", "code": NoticeCode.ERROR}
        case (Notice(code=code, text=text),):
            return {"type": "text", "text": text, "code": code}
        case (Compaction(summary=summary),):
            return {"type": "text", "text": summary, "code": "compaction"}
        case _:
            return {"type": "text", "text": message.text}


def _call_content(call: ToolCall) -> Content:
    return {"type": "tool", "tool": call.name, "args": call.arguments, "result": None}


def _completed(
    session_id: SessionId, begun: AgentMessage, message: Message, result: ToolResult
) -> AgentMessage:
    came = {
        "status": result.status,
        "output": result.result,
        "error": result.error.message if result.error else None,
    }
    return AgentMessage(
        id=begun.id,
        session_id=session_id,
        role="system",
        content={**begun.content, "result": came},
        timestamp=stamp(message.created_at),
        sequence=message.sequence,
        turn=message.turn,
    )


def _row(session_id: SessionId, message: Message, role: Any, content: Content) -> AgentMessage:
    return AgentMessage(
        id=message.id,
        session_id=session_id,
        role=role,
        content=content,
        timestamp=stamp(message.created_at),
        sequence=message.sequence,
        turn=message.turn,
    )
