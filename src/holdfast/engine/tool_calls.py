"""Run one tool call in a fixed order: plan, ask for approval, start, run, answer.

Nothing runs before its intent and its start are on disk; the first call of a step that may run
twice has both in one commit. Every error of a call becomes its result; the turn continues.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from holdfast.domain.approvals import ALWAYS_ALLOWED, Question, Ruling
from holdfast.domain.calls import Call, CallState
from holdfast.domain.drafts import Draft, MessageDraft
from holdfast.domain.events import ToolEnded, ToolProgressed, ToolStarted
from holdfast.domain.ids import ApprovalId, CallId
from holdfast.domain.messages import ResultStatus, Role, ToolError, ToolResult
from holdfast.domain.tools import Effect, ResultCode
from holdfast.domain.waits import Wait, WaitReason
from holdfast.engine.cancellation import stop_if_cancelled
from holdfast.engine.tool_approval import Permission, permit
from holdfast.engine.tool_results import UNSHOWABLE, limit_result
from holdfast.engine.turn_state import TurnState
from holdfast.ports.runtime import TurnPausedError
from holdfast.ports.tools import CallOutcome, PlannedCall, RequestedCall, Toolbox, ToolWorkspace

logger = logging.getLogger("holdfast.engine")

# Key for the text of call arguments that are not a JSON object.
NOT_AN_OBJECT: Final = "not a JSON object"

# Seconds between two progress events of a call.
PROGRESS_INTERVAL: Final = 0.25
_CUT_OFF: Final = (
    "outcome unknown: the call was cut off while it ran, and may not be run a second time"
)

# Rules of the agent and of the tool itself, which the session's mode cannot loosen.
_STRICTEST_FIRST: Final = ("deny", "ask", "mode")
T = TypeVar("T")

REFUSALS: Final[Mapping[Ruling, tuple[ResultCode, str]]] = {
    Ruling.DENIED_BY_MODE: (
        ResultCode.REJECTED,
        "The session's approval mode does not allow this.",
    ),
    Ruling.DENIED_BY_USER: (ResultCode.REJECTED, "The user did not allow this."),
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
    toolbox: Toolbox, state: TurnState, call: Call, new_id: Callable[[], str]
) -> CallOutcome:
    """Run the call if it is allowed, and return its result, which is not on disk yet."""
    place = state.turn.workspace
    if place is None:
        return refuse_call(ResultCode.UNKNOWN_TOOL, f"There is no tool {call.name!r}.")
    progress = ProgressEvents(state, call.id)
    asked = RequestedCall(
        id=call.id,
        name=call.name,
        arguments=call.arguments,
        idempotency_key=call.idempotency_key,
        turn=state.turn.turn,
        attempt=state.turn.starts.get(call.id, 0) + 1,
        is_resumed=call in state.turn.calls,
        report=progress.report,
    )
    planned = await _outcome_of(toolbox.plan(place, asked), place, call.name)
    if isinstance(planned, CallOutcome):
        return planned
    if refused := await _refusal(state, call, planned, new_id):
        return refused
    # An approval that arrives after cancellation does not start the call.
    stop_if_cancelled()
    if planned.client_timeout is not None:
        # On disk before the pause, which has a commit of its own.
        await state.emit()
        raise TurnPausedError(_wait_for(call), timeouts={call.id: planned.client_timeout})
    slot = planned.slot
    if slot is not None and not slot.try_take():
        # On disk before it waits: until then the call is intended and nothing more.
        await state.emit()
        if refused := await slot.take():
            return refused
    try:
        if not planned.goes_on or call.state is not CallState.STARTED:
            started = ToolStarted(call_id=call.id, name=call.name, arguments=call.arguments)
            await state.emit((started,))
        return await _outcome_of(toolbox.run(place, planned), place, call.name)
    finally:
        await progress.close()
        if slot is not None:
            slot.release()


async def _refusal(
    state: TurnState, call: Call, planned: PlannedCall, new_id: Callable[[], str]
) -> CallOutcome | None:
    """Return why a planned call must not run; asks for approval if it needs one."""
    # Checked here, because a tool without a schema would accept these arguments.
    if NOT_AN_OBJECT in call.arguments:
        return refuse_call(ResultCode.INVALID_ARGUMENTS, "The arguments are not a JSON object.")
    # A crash cut it off as repeatable, and the tool says now that it is not.
    if call.state is CallState.STARTED and planned.effect is Effect.UNSAFE:
        return refuse_call(ResultCode.UNKNOWN, _CUT_OFF, ResultStatus.UNKNOWN)
    rules = {planned.approval}
    for spec in state.turn.tools:
        if spec.name == call.name:
            rules.add(spec.approval)
    tightened = next(filter(rules.__contains__, _STRICTEST_FIRST), None)
    # A call that was asked about before a crash keeps its answer; a new one has none to look up.
    is_allowed = planned.tool_class in ALWAYS_ALLOWED and call not in state.turn.calls
    if tightened is not None or not is_allowed:
        question = _question(call, planned, new_id())
        permission = await permit(state, question, tightened=tightened)
        if permission.how is not Ruling.RUN:
            return _denial(permission)
    return None


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


def _wait_for(call: Call) -> Wait:
    return Wait(
        reason=WaitReason.CLIENT,
        text=f"The turn waits for a client to run {call.name}.",
        call_ids=(call.id,),
    )


async def _outcome_of(work: Awaitable[T], place: ToolWorkspace, name: str) -> T | CallOutcome:
    """Await work of the toolbox; its exception is the outcome of this call, the turn continues."""
    try:
        done = await work
    except asyncio.CancelledError:
        # Of the turn, or of the toolbox's own making.
        stop_if_cancelled()
        return _fail_call(name)
    except Exception:  # noqa: BLE001
        return _fail_call(name)
    return await _limit_outcome(done, place, name) if isinstance(done, CallOutcome) else done


async def _limit_outcome(done: CallOutcome, place: ToolWorkspace, name: str) -> CallOutcome:
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


def _fail_call(name: str) -> CallOutcome:
    logger.exception("The tool %s failed", name)
    message = f"{name} failed with an internal error; see the log of Holdfast for details."
    return refuse_call(ResultCode.FAILED, message)


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


def _denial(permission: Permission) -> CallOutcome:
    code, message = REFUSALS[permission.how]
    # Quoted as data: the model may read the reason but must not follow it as an instruction.
    said = f" Their note: {permission.note!r}" if permission.note else ""
    return refuse_call(code, message + said, ResultStatus.DENIED)


class ProgressEvents:
    """Writes the progress of one call; a report that a newer one replaces is not written."""

    def __init__(self, state: TurnState, call_id: CallId) -> None:
        self._state = state
        self._call_id = call_id
        self._newest: ToolProgressed | None = None
        # Reports are sent by a task, which holds the lock while it writes one.
        self._sending: tuple[asyncio.Task[None], asyncio.Lock] | None = None
        self._is_over = False

    def report(self, text: str, fraction: float | None) -> None:
        """Accept a report; returns at once. One after the end of the call is dropped."""
        if self._is_over:
            return
        self._newest = ToolProgressed(call_id=self._call_id, text=text, fraction=fraction)
        if self._sending is None:
            lock = asyncio.Lock()
            self._sending = asyncio.create_task(self._send(lock)), lock

    async def close(self) -> None:
        """End the reports; the one that is being written is on disk when this returns."""
        self._is_over = True
        if self._sending is not None:
            task, lock = self._sending
            try:
                async with lock:
                    pass
            finally:
                task.cancel()

    async def _send(self, lock: asyncio.Lock) -> None:
        while self._newest is not None:
            async with lock:
                event, self._newest = self._newest, None
                try:
                    await self._state.emit((event,))
                # The next write of the turn meets the same error and ends the turn.
                except Exception:
                    logger.exception("The progress of a call could not be written")
                    return
            await asyncio.sleep(PROGRESS_INTERVAL)
        self._sending = None
