"""The JSON form of questions and calls: the form of `/v1`, in which nothing is cut or cleaned."""

from typing import Final

from holdfast.cli.forms import Form, instant
from holdfast.cli.manners import ONE_BY_ONE
from holdfast.domain.approvals import Approval, ApprovalState, Question
from holdfast.domain.calls import Call, CallState
from holdfast.domain.messages import ToolResult

_ONCE: Final = {"id": "once", "name": "Allow once", "kind": "allow_once"}
_SESSION: Final = {"id": "session", "name": "Allow in this session", "kind": "allow_always"}
_DENY: Final = {"id": "deny", "name": "Deny", "kind": "reject_once"}


def is_for_session(question: Question) -> bool:
    """Tell whether a yes can cover all of the like in the session."""
    return question.memory is not None and question.tool_class not in ONE_BY_ONE


def approval_form(approval: Approval) -> Form:
    """Return a question, and its answer once there is one."""
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
    """Return a call; one that was settled stays unknown, and says how it was settled."""
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
    """Return what came of a call; nothing while it has no result."""
    if result is None:
        return {"status": None, "result": None, "error": None}
    error = result.error
    return {
        "status": result.status.value,
        "result": result.result,
        "error": {"code": error.code, "message": error.message} if error else None,
    }
