"""The JSON forms of listings, as in `/v1`."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from holdfast.cli.approval_policy import ASKED_EACH_TIME
from holdfast.domain.agents import AcpRuntime, Agent, LlmRuntime, Runtime
from holdfast.domain.approvals import Approval, ApprovalState, Question
from holdfast.domain.calls import Call, CallState
from holdfast.domain.costs import Usage
from holdfast.domain.messages import (
    CLOSING,
    Compaction,
    Message,
    Notice,
    Part,
    Plan,
    Role,
    Text,
    ToolCall,
    ToolResult,
)
from holdfast.domain.repos import Repo
from holdfast.domain.sessions import Session, SessionContext, Status, StopReason
from holdfast.services.sessions import Verification

Form = dict[str, Any]
# The status names of `/v1`; an idle session whose last turn failed is handled below.
STATUS: Final[Mapping[Status, str]] = {
    Status.PENDING: "pending",
    Status.RUNNING: "running",
    Status.IDLE: "completed",
    Status.COMPLETED: "completed",
    Status.CANCELLED: "completed",
    Status.FAILED: "failed",
}


def instant(at: datetime | None) -> str | None:
    """Return an instant with six fractional digits and a `Z`."""
    # Not `isoformat`, which omits the fraction at a whole second.
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ") if at is not None else None


def session_form(session: Session, *, priced: bool) -> Form:
    """Return a session without its messages; `priced` is whether its cost is completely known."""
    failed = session.status is Status.IDLE and session.last_stop is StopReason.ERROR
    return {
        "id": session.id,
        "agent_id": session.agent_id,
        "title": session.title,
        "tags": list(session.tags),
        "model_id": session.model_id,
        "status": "failed" if failed else STATUS[session.status],
        "state": session.status.value,
        "turn": session.turn,
        "settled": session.settled,
        "last_stop": session.last_stop,
        "reason": session.reason,
        "repo_id": session.repo_id,
        "forked_from": _plain(session.forked_from),
        "turn_cap": session.turn_cap,
        "approval": session.approval.value,
        "context": context_form(session.context),
        "budget": _plain(session.budget),
        "usage": usage_form(session.usage),
        "cost": {"microcents": session.microcents, "priced": priced},
        "message_count": session.message_count,
        "last_event": session.last_event,
        "created_at": instant(session.created_at),
        "updated_at": instant(session.updated_at),
        "started_at": instant(session.started_at),
        "finished_at": instant(session.finished_at),
        "metadata": session.metadata,
    }


def context_form(context: SessionContext) -> Form:
    """Return the workspace of a session; unset fields are null."""
    return {
        "working_dir": context.working_dir,
        "active_file": context.active_file,
        "selection": _plain(context.selection),
        "git_ref": context.git_ref,
        "fs_scope_tier": context.fs_scope_tier.value,
        "variables": context.variables,
    }


def usage_form(usage: Usage) -> Form:
    """Return tokens by class; classes do not overlap, except that reasoning is part of output."""
    return {
        "input_tokens": usage.input + usage.cache_write,
        "cached_input_tokens": usage.cache_read,
        "output_tokens": usage.output,
        "reasoning_tokens": usage.reasoning,
    }


def message_forms(rows: Sequence[Message], following: Sequence[Message] = ()) -> list[Form]:
    """Return messages; `following` are later rows that show which answers were interrupted."""
    cut_off = _interrupted_messages([*rows, *following])
    return [message_form(row, interrupted=row.id in cut_off) for row in rows]


def message_form(message: Message, *, interrupted: bool = False) -> Form:
    """Return one message."""
    result = next((part for part in message.parts if isinstance(part, ToolResult)), None)
    form: Form = {
        "id": message.id,
        "session_id": message.session_id,
        "sequence": message.sequence,
        "turn": message.turn,
        "role": message.role.value,
        "content": _content(message),
        "tool_call_id": result.call_id if result else None,
        "model_id": message.model_id,
        "created_at": instant(message.created_at),
    }
    # `content` cannot contain thoughts, plans and notices, so such rows include their parts.
    if any(not isinstance(part, Text | ToolCall | ToolResult) for part in message.parts):
        form["parts"] = _plain(message.parts)
    if result is not None:
        form["result_status"] = result.status.value
    if interrupted:
        form["interrupted"] = True
    return form


def part_text(part: Part) -> str:
    """Return the text of a part; thoughts, images and calls have none here."""
    match part:
        case Text():
            return part.text
        case Notice():
            return part.text
        case Compaction():
            return part.summary
        case Plan():
            return "\n".join(f"- {step.text} ({step.status})" for step in part.steps)
        case _:
            return ""


def agent_form(agent: Agent) -> Form:
    """Return an agent."""
    runtime = agent.runtime
    llm = runtime if isinstance(runtime, LlmRuntime) else LlmRuntime()
    models = [choice.model_id for choice in llm.models]
    return {
        "id": agent.id,
        "slug": agent.slug,
        "name": agent.name,
        "description": agent.description,
        "system_prompt": agent.system_prompt,
        "default_model_id": models[0] if models else None,
        "fallback_model_ids": models[1:],
        "temperature": llm.temperature,
        "max_tokens": llm.max_tokens,
        "tools": [tool.as_given() for tool in agent.tools],
        "tags": list(agent.tags),
        "runtime": _runtime_form(runtime),
        "grant": _plain(agent.grant),
        "recovery": agent.recovery.value,
        "status": agent.status.value,
        "created_at": instant(agent.created_at),
        "updated_at": instant(agent.updated_at),
    }


def repo_form(repo: Repo) -> Form:
    """Return a repository."""
    return {
        "id": repo.id,
        "name": repo.name,
        "path": repo.path,
        "created_at": instant(repo.created_at),
    }


def verification_form(verified: Verification) -> Form:
    """Return the result of a session's verification."""
    return {
        "session_id": verified.session_id,
        "messages": verified.messages,
        "head": verified.head,
        "faults": list(verified.faults),
    }


def _content(message: Message) -> Form:
    match message.parts:
        case (ToolCall() as call,):
            return {"id": call.id, "name": call.name, "arguments": call.arguments}
        case (ToolResult() as result,):
            error = result.error.message if result.error else None
            return {"result": result.result, "error": error}
        case _:
            words = message.text
            # System messages have notices, plans and summaries, which `text` leaves out.
            if message.role is Role.SYSTEM:
                words = "\n".join(filter(None, map(part_text, message.parts)))
            return {"text": words}


def _interrupted_messages(rows: Sequence[Message]) -> set[str]:
    """Return the last assistant row of each turn that has a closing notice."""
    answers: dict[int, str] = {}
    closed: set[int] = set()
    for row in rows:
        if row.role is Role.ASSISTANT:
            answers |= {row.turn: row.id}
        if any(isinstance(part, Notice) and part.code in CLOSING for part in row.parts):
            closed.add(row.turn)
    return {message_id for turn, message_id in answers.items() if turn in closed}


def _runtime_form(runtime: Runtime) -> Form:
    if isinstance(runtime, AcpRuntime):
        form = _plain(runtime)
        assert isinstance(form, dict)  # noqa: S101 — for the type checker: a Struct is an object
        return form
    return {"type": "llm"}


def _plain(value: object) -> Any:
    """Return a domain value as plain JSON values."""
    return msgspec.json.decode(msgspec.json.encode(value))


_ONCE: Final = {"id": "once", "name": "Allow once", "kind": "allow_once"}
_SESSION: Final = {"id": "session", "name": "Allow in this session", "kind": "allow_always"}
_DENY: Final = {"id": "deny", "name": "Deny", "kind": "reject_once"}


def is_for_session(question: Question) -> bool:
    """Return whether an approval can cover all similar calls of the session."""
    return question.memory is not None and question.tool_class not in ASKED_EACH_TIME


def approval_form(approval: Approval) -> Form:
    """Return an approval, with its answer if there is one."""
    question = approval.question
    is_open = approval.state is ApprovalState.WAITING
    return {
        "id": approval.id,
        "session_id": approval.session_id,
        "tool_call_id": question.call_id,
        "question": question.question,
        "tool": question.tool,
        "class": question.tool_class.value,
        "arguments": question.arguments,
        "digest": question.digest,
        "options": [_ONCE, *([_SESSION] if is_for_session(question) else []), _DENY],
        "covers": question.memory if is_for_session(question) else None,
        "state": approval.state.value,
        "scope": None if is_open else approval.scope.value,
        "answered_by": approval.answered_by,
        "note": approval.note,
        "created_at": instant(approval.asked_at),
        "expires_at": instant(approval.expires_at),
        "answered_at": instant(approval.answered_at),
    }


def call_form(call: Call) -> Form:
    """Return a call; a settled call stays unknown and includes its settlement."""
    is_settled = call.state is CallState.SETTLED
    return {
        "id": call.id,
        "session_id": call.session_id,
        "turn": call.turn,
        "name": call.name,
        "arguments": call.arguments,
        "effect": call.effect.value,
        "state": CallState.UNKNOWN.value if is_settled else call.state.value,
        "settled": call.settlement.value if call.settlement else None,
        "idempotency_key": call.idempotency_key,
        "started_at": instant(call.started_at),
        "ended_at": instant(call.ended_at),
        "message_sequence": call.sequence,
        "result_sequence": call.result_sequence,
    }


def result_form(result: ToolResult | None) -> Form:
    """Return the result of a call; empty while it has none."""
    if result is None:
        return {"status": None, "result": None, "error": None}
    error = result.error
    return {
        "status": result.status.value,
        "result": result.result,
        "error": {"code": error.code, "message": error.message} if error else None,
    }
