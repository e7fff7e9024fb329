"""Export a session as a workflow: pure and deterministic."""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Final, assert_never

import msgspec
from msgspec.structs import replace

from holdfast.domain.agents import LlmRuntime, neutralise
from holdfast.domain.ids import ModelId
from holdfast.domain.messages import (
    Compaction,
    Media,
    Message,
    Notice,
    Output,
    Part,
    Plan,
    Reasoning,
    ResultStatus,
    Role,
    Step,
    Text,
    ToolCall,
    ToolResult,
    Withdrawn,
    describe_withdrawal,
)
from holdfast.domain.sessions import Session
from holdfast.domain.time import format_iso8601, milliseconds
from holdfast.domain.tools import NARROWEST, Grant, ResultCode, narrowest_tier
from holdfast.domain.turns import TurnRows, group_by_turn
from holdfast.workflows.model import (
    EXPORT_KEY,
    GRANTS,
    SCHEMA_VERSION,
    NodeType,
    Workflow,
    kebab_id,
)

Form = dict[str, Any]
ROLES: Final[Mapping[Role, str]] = {
    Role.USER: "user",
    Role.ASSISTANT: "assistant",
    Role.TOOL_CALL: "assistant",
    Role.TOOL_RESULT: "tool",
    Role.SYSTEM: "system",
}
# A file may have 64 levels, and a message is nested eight levels deep.
DEEPEST: Final = 48
# Longer numbers are not parsed, because that takes quadratic time.
_NUMBER_LARGEST: Final = 10**990
_encoder: Final = msgspec.json.Encoder()


def transcript(messages: Iterable[Message], refs: Mapping[ModelId, str]) -> list[Form]:
    """Return all messages by sequence; `refs` maps models to their readable names."""
    return [_row(row, refs) for row in sorted(messages, key=lambda row: row.sequence)]


def _row(row: Message, refs: Mapping[ModelId, str]) -> Form:
    form: Form = {
        "id": row.id,
        "sessionId": row.session_id,
        "sequenceNumber": row.sequence,
        "role": ROLES[row.role],
        "content": _content(row),
        "timestamp": format_iso8601(milliseconds(row.created_at)),
    }
    if row.model_id is not None:
        form["modelId"] = refs.get(row.model_id, row.model_id)
    return form


def _content(row: Message) -> list[Form]:
    if row.role is Role.SYSTEM:
        # Joined into one text, because the format does not distinguish plans, notices and
        # summaries.
        return [_text("\n\n".join(_part(part)["text"] for part in row.parts))]
    # The format has only texts, no values; the text of an answer contains its value.
    return [_part(part) for part in row.parts if not isinstance(part, Output)]


def _part(part: Part) -> Form:
    match part:
        case Text() | Notice() | Compaction() | Plan() | Step() | Withdrawn():
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
        case Output():
            return _text(msgspec.json.encode(part.value).decode())
        case _:
            assert_never(part)


def _words(part: Text | Notice | Compaction | Plan | Step | Withdrawn) -> str:
    if isinstance(part, Withdrawn):
        return describe_withdrawal(part)
    if isinstance(part, Step):
        return f"Step {part.name}: {part.status}"
    if isinstance(part, Plan):
        return "\n".join(f"- {step.text} ({step.status})" for step in part.steps)
    return part.summary if isinstance(part, Compaction) else part.text


def _text(text: str) -> Form:
    return {"type": "text", "text": text}


def _result(part: ToolResult) -> Form:
    outcome: Form = {"status": part.status.value}
    if part.error is not None:
        outcome |= {"code": part.error.code, "message": part.error.message}
    value = outcome if part.result is None else plain(part.result)
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
    """Return a value that a file can hold; deep values and long numbers become JSON text."""
    if isinstance(value, dict | list | tuple):
        if depth > DEEPEST:
            return _encoder.encode(value).decode()
        if isinstance(value, dict):
            return {key: plain(inner, depth + 1) for key, inner in value.items()}
        return [plain(inner, depth + 1) for inner in value]
    if isinstance(value, int) and abs(value) >= _NUMBER_LARGEST:
        return _encoder.encode(value).decode()
    return value


# Error codes of calls that were refused before they reached a tool.
NEVER_INVOKED: Final = frozenset({ResultCode.UNKNOWN_TOOL.value, ResultCode.NOT_GRANTED.value})


def export(
    session: Session,
    messages: Iterable[Message],
    refs: Mapping[ModelId, str],
    agent: Form | None = None,
) -> Workflow:
    """Return the workflow of a session; `agent` is its agent snapshot in file form.

    Without one, `agent_ref` names an agent that the author has to bind.
    """
    rows = list(messages)
    answered = [turn for turn in group_by_turn(rows) if turn.is_answered]
    steps = [_node(number, turn, session) for number, turn in enumerate(answered, start=1)]
    nodes = [_end(NodeType.INPUT), *steps, _end(NodeType.OUTPUT)]
    ids = [node["id"] for node in nodes]
    body: Form = {
        "id": kebab_id(session.title),
        "name": session.title,
        "agents": None if agent is None else [agent],
        "tools": _restrictions(session) or None,
        "nodes": nodes,
        "edges": [{"from": source, "to": target} for source, target in pairwise(ids)],
        "metadata": {EXPORT_KEY: _metadata(session, rows, refs)},
    }
    return Workflow({"schema_version": SCHEMA_VERSION, "workflow": _metadata_text(body)})


def _restrictions(session: Session) -> Form:
    """Return how the session was narrower than its agent, so that it stays so when it is run."""
    granted, had = session.agent.grant or NARROWEST, session.grant
    tier = narrowest_tier([had, Grant(fs=session.context.fs_scope_tier)])
    lists = {key: list(getattr(had, name)) for key, name in GRANTS.items()}
    form: Form = {} if replace(had, fs=granted.fs) == granted else lists
    if tier is not granted.fs:
        form["fsScopeTier"] = tier.value
    # The tools of a program are its own; the tools of this session do not describe them.
    if session.tools != session.agent.tools and isinstance(session.agent.runtime, LlmRuntime):
        form["allowedTools"] = [tool.name for tool in session.tools]
    return form


def open_model(session: Session, messages: Iterable[Message], default: ModelId) -> ModelId:
    """Return the model for an agent that names none: the one that this session used.

    Once there is an answer, the result does not depend on the configuration of the exporter.
    """
    asked = (row.model_id for row in sorted(messages, key=lambda row: row.sequence))
    return session.model_id or next(filter(None, asked), default)


def find_left_out(workflow: Workflow) -> list[str]:
    """Return the called tools that are in no node, because every call was refused."""
    kept = workflow.body.get("metadata", {}).get(EXPORT_KEY, {}).get("messages", ())
    parts = [part for row in kept for part in row["content"]]
    names = {part["id"]: part["name"] for part in parts if part["type"] == "tool_call"}
    used = {name for node in workflow.nodes.values() for name in node.get("tools", ())}
    refused = {
        names.get(part["toolCallId"])
        for part in parts
        if part["type"] == "tool_result" and _code(part["result"]) in NEVER_INVOKED
    }
    return [name for name in dict.fromkeys(names.values()) if name in refused - used]


def _end(kind: NodeType) -> Form:
    return {"id": kind.value, "type": kind.value}


def _node(number: int, turn: TurnRows, session: Session) -> Form:
    return _metadata_text(
        {
            "id": f"turn-{number}",
            "type": NodeType.AGENT.value,
            "agent_ref": session.agent.slug,
            "prompt_template": neutralise(_prompt(turn)) or None,
            "tools": _tools(turn) or None,
        }
    )


def _prompt(turn: TurnRows) -> str:
    rows = [
        "\n\n".join(part.text for part in row.parts if isinstance(part, Text))
        for row in turn.messages
        if row.role is Role.USER
    ]
    return "\n\n".join(filter(None, rows))


def _tools(turn: TurnRows) -> list[str]:
    """Return the tools of a turn in the order of their first use."""
    parts = [part for row in turn.messages for part in row.parts]
    refused = {
        part.call_id
        for part in parts
        if isinstance(part, ToolResult) and part.error and part.error.code in NEVER_INVOKED
    }
    calls = [part for part in parts if isinstance(part, ToolCall) and part.id not in refused]
    # A model may ask for a tool without a name, which no file can list.
    return list(dict.fromkeys(call.name for call in calls if call.name))


def _metadata(session: Session, rows: list[Message], refs: Mapping[ModelId, str]) -> Form:
    return _metadata_text(
        {
            "source": "session",
            "sessionId": session.id,
            "agentSlug": session.agent.slug,
            "title": session.title,
            "createdAt": format_iso8601(milliseconds(session.created_at)),
            "updatedAt": format_iso8601(milliseconds(session.updated_at)),
            "messages": transcript(rows, refs),
        }
    )


def _metadata_text(form: Form) -> Form:
    """Return the mapping without `None` values: absent keys are omitted, never null."""
    return {key: value for key, value in form.items() if value is not None}


def _code(result: Any) -> Any:
    return result.get("code") if isinstance(result, dict) else None
