"""Run one tool call in a fixed order: plan, ask for approval, start, run, answer.

Nothing runs before its intent and its start are on disk; the first call of a step that may run
twice has both in one commit. Every error of a call becomes its result; the turn continues.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final

from holdfast.domain.approvals import Question
from holdfast.domain.calls import Call
from holdfast.domain.drafts import Draft, MessageDraft
from holdfast.domain.events import ToolEnded, ToolStarted
from holdfast.domain.ids import ApprovalId
from holdfast.domain.messages import ResultStatus, Role, ToolError, ToolResult
from holdfast.domain.tools import ResultCode
from holdfast.engine.cancellation import clear_cancellation, stop_if_cancelled
from holdfast.engine.tool_approval import Permission, permit
from holdfast.engine.tool_results import UNSHOWABLE, limit_result
from holdfast.engine.turn_state import TurnState
from holdfast.ports.tools import CallOutcome, PlannedCall, RequestedCall, Toolbox, ToolWorkspace
from holdfast.services.approvals import ALWAYS_ALLOWED, Ruling

logger = logging.getLogger("holdfast.engine")

# Key for the text of call arguments that are not a JSON object.
NOT_AN_OBJECT: Final = "not a JSON object"

REFUSALS: Final[Mapping[Ruling, tuple[ResultCode, str]]] = {
    Ruling.REFUSE: (ResultCode.REJECTED, "The session's approval mode does not allow this."),
    Ruling.REJECTED: (ResultCode.REJECTED, "The user did not allow this."),
    Ruling.EXPIRED: (
        ResultCode.EXPIRED,
        "The approval request was not answered in time, so the call was not executed.",
    ),
    Ruling.TOO_LARGE: (
        ResultCode.TOO_LARGE,
        "The call is too large to be shown in full for approval, so it was not executed.",
    ),
    Ruling.UNATTENDED: (
        ResultCode.REJECTED,
        "This call requires approval, and no user is present to give it (unattended).",
    ),
}


async def dispatch(
    toolbox: Toolbox, play: TurnState, call: Call, new_id: Callable[[], str]
) -> CallOutcome:
    """Run the call if it is allowed, and return its result, which is not on disk yet."""
    place = play.turn.place
    if place is None:
        return refuse_call(ResultCode.UNKNOWN_TOOL, f"There is no tool {call.name!r}.")
    planned = await _planned(toolbox, place, call)
    if isinstance(planned, CallOutcome):
        return planned
    tightened = next((spec.approval for spec in play.turn.tools if spec.name == call.name), None)
    # A call that was asked about before a crash keeps its answer; a new one has none to look up.
    is_allowed = planned.tool_class in ALWAYS_ALLOWED and call not in play.turn.calls
    if tightened is not None or not is_allowed:
        question = _question(call, planned, new_id())
        permission = await permit(play, question, tightened=tightened)
        if permission.how is not Ruling.RUN:
            return _denied(permission)
    # An approval that arrives after cancellation does not start the call.
    stop_if_cancelled()
    await play.emit((ToolStarted(call_id=call.id, name=call.name, arguments=call.arguments),))
    return await _run(toolbox, place, planned)


def answer(call: Call, done: CallOutcome) -> tuple[Draft, ...]:
    """Return the call's result as an event and as a message."""
    result = ToolResult(
        call_id=call.id, name=call.name, status=done.status, result=done.result, error=done.error
    )
    return (
        ToolEnded(
            call_id=call.id,
            name=call.name,
            status=done.status,
            result=done.result,
            failure=done.error,
        ),
        MessageDraft(role=Role.TOOL_RESULT, parts=(result,)),
    )


def refuse_call(
    code: ResultCode, message: str, status: ResultStatus = ResultStatus.ERROR
) -> CallOutcome:
    """Return the result of a call that did not run."""
    return CallOutcome(status=status, error=ToolError(code=code, message=message))


async def _planned(toolbox: Toolbox, place: ToolWorkspace, call: Call) -> PlannedCall | CallOutcome:
    try:
        planned = await clear_cancellation(toolbox.plan(place, _asked(call)))
    # An exception of the toolbox is the result of this call and does not end the turn.
    except Exception:  # noqa: BLE001
        return _failed(call.name)
    if isinstance(planned, CallOutcome):
        return await _shown(planned, place, call.name)
    # Checked here, because a tool without a schema would accept these arguments.
    if NOT_AN_OBJECT in call.arguments:
        return refuse_call(ResultCode.INVALID_ARGUMENTS, "The arguments are not a JSON object.")
    return planned


async def _run(toolbox: Toolbox, place: ToolWorkspace, planned: PlannedCall) -> CallOutcome:
    name = planned.asked.name
    try:
        done = await clear_cancellation(toolbox.run(place, planned))
    # As above: the turn continues, and the details are only in the log.
    except Exception:  # noqa: BLE001
        return _failed(name)
    return await _shown(done, place, name)


async def _shown(done: CallOutcome, place: ToolWorkspace, name: str) -> CallOutcome:
    """Return the outcome in a form that fits into a row and a model request."""
    error = done.error
    try:
        result = await limit_result(done.result, place.shelf)
        if error is not None:
            text = await limit_result(error.message, place.shelf)
            error = ToolError(code=error.code, message=text)
    except UNSHOWABLE:
        logger.exception("The result of %s cannot be stored", name)
        message = f"{name} was executed, but its result cannot be stored."
        # An unknown outcome stays unknown: a person has to check it whatever was returned.
        is_ok = done.status is ResultStatus.OK
        return refuse_call(ResultCode.FAILED, message, ResultStatus.ERROR if is_ok else done.status)
    return CallOutcome(status=done.status, result=result, error=error)


def _failed(name: str) -> CallOutcome:
    logger.exception("The tool %s failed", name)
    message = f"{name} failed with an internal error; see the log of Holdfast for details."
    return refuse_call(ResultCode.FAILED, message)


def _asked(call: Call) -> RequestedCall:
    return RequestedCall(
        id=call.id,
        name=call.name,
        arguments=call.arguments,
        idempotency_key=call.idempotency_key,
    )


def _question(call: Call, planned: PlannedCall, approval_id: str) -> Question:
    return Question(
        id=ApprovalId(approval_id),
        call_id=call.id,
        tool=call.name,
        tool_class=planned.tool_class,
        arguments=call.arguments,
        question=planned.question,
        digest=planned.digest,
        preview=dict(planned.preview),
        memory=planned.memory,
    )


def _denied(permission: Permission) -> CallOutcome:
    code, message = REFUSALS[permission.how]
    # Quoted as data: the model may read the reason but must not follow it as an instruction.
    said = f" Their note: {permission.note!r}" if permission.note else ""
    return refuse_call(code, message + said, ResultStatus.DENIED)
