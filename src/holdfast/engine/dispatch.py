"""One call through its fixed order: planned, asked about, started, run, answered.

The intent is on disk before this begins. Whatever goes wrong with a call is its result; the turn
goes on.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Final

from holdfast.domain.approvals import Question
from holdfast.domain.calls import Call
from holdfast.domain.drafts import Draft, MessageDraft
from holdfast.domain.events import ToolEnded, ToolStarted
from holdfast.domain.ids import ApprovalId
from holdfast.domain.messages import ResultStatus, Role, ToolError, ToolResult
from holdfast.domain.tools import ResultCode
from holdfast.engine.play import Play
from holdfast.engine.policy import Ruling
from holdfast.engine.questions import Permission, permit
from holdfast.engine.results import bounded
from holdfast.ports import Asked, Done, Planned, Toolbox, Workplace

REFUSALS: Final[Mapping[Ruling, tuple[ResultCode, str]]] = {
    Ruling.REFUSE: (ResultCode.REJECTED, "The session's approval mode does not allow this."),
    Ruling.REJECTED: (ResultCode.REJECTED, "The user did not allow this."),
    Ruling.EXPIRED: (ResultCode.EXPIRED, "Nobody answered in time, so it was not done."),
    Ruling.UNATTENDED: (
        ResultCode.REJECTED,
        "This has to be allowed by somebody, and nobody is there to be asked (unattended).",
    ),
}


async def dispatch(
    toolbox: Toolbox, play: Play, call: Call, new_id: Callable[[], str]
) -> AsyncGenerator[Sequence[Draft], None]:
    """Yield what is to be written about the call, its one result in the last batch."""
    place = play.turn.place
    if place is None:
        yield answer(call, refused(ResultCode.UNKNOWN_TOOL, f"There is no tool {call.name!r}."))
        return
    planned = await toolbox.plan(place, _asked(call))
    if isinstance(planned, Done):
        yield answer(call, planned)
        return
    question = _question(call, planned, new_id())
    tightened = next((spec.approval for spec in play.turn.tools if spec.name == call.name), None)
    steps = permit(play.turn.approver, question, tightened=tightened)
    async with aclosing(steps):
        async for step in steps:
            if not isinstance(step, Permission):
                yield step
            elif step.how is not Ruling.RUN:
                yield answer(call, _denied(step))
            else:
                yield (ToolStarted(call_id=call.id, name=call.name, arguments=call.arguments),)
                yield answer(call, await _run(toolbox, place, planned))


def answer(call: Call, done: Done) -> tuple[Draft, ...]:
    """Return the call's one result, as a row and as news."""
    result = ToolResult(
        call_id=call.id, name=call.name, status=done.status, result=done.result, error=done.error
    )
    return (
        MessageDraft(role=Role.TOOL_RESULT, parts=(result,)),
        ToolEnded(
            call_id=call.id,
            name=call.name,
            status=done.status,
            result=done.result,
            failure=done.error,
        ),
    )


def refused(code: ResultCode, message: str, status: ResultStatus = ResultStatus.ERROR) -> Done:
    """Return the result of a call that did not run."""
    return Done(status=status, error=ToolError(code=code, message=message))


async def _run(toolbox: Toolbox, place: Workplace, planned: Planned) -> Done:
    done = await toolbox.run(place, planned)
    if done.status is not ResultStatus.OK:
        return done
    return Done(status=done.status, result=await bounded(done.result, place.shelf))


def _asked(call: Call) -> Asked:
    return Asked(
        id=call.id,
        name=call.name,
        arguments=call.arguments,
        idempotency_key=call.idempotency_key,
    )


def _question(call: Call, planned: Planned, approval_id: str) -> Question:
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


def _denied(permission: Permission) -> Done:
    code, message = REFUSALS[permission.how]
    # As data and in quotes: whoever said no may say why, and the model may read it.
    said = f" They said: {permission.note!r}" if permission.note else ""
    return refused(code, message + said, ResultStatus.DENIED)
