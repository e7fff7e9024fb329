"""Answering for nobody: what a house in this process would decide by itself, said to another.

A server asks and waits, because somebody may come. A command that nobody sits at answers the
questions of its own turns at once: with what its flags say, else with no. For those of other
turns it says how they are answered.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from holdfast.cli.manners import Manner
from holdfast.cli.screen import Screen
from holdfast.cli.working import NEVER_BY_FLAG
from holdfast.domain.approvals import Approval, ApprovalAnswer, ApprovalState
from holdfast.domain.errors import Code, Conflict
from holdfast.domain.events import ApprovalAnswered
from holdfast.domain.ids import ApprovalId, CallId, SessionId

if TYPE_CHECKING:
    from holdfast.cli.house import House

BY_FLAG: Final = "flag"
NOBODY: Final = "Nobody is there to be asked."
_NO: Final = ApprovalAnswer(state=ApprovalState.DENIED, by=BY_FLAG, note=NOBODY)


class Answering:
    """Answers each question of its own turns once."""

    def __init__(self, holdfast: "House", screen: Screen, manner: Manner) -> None:
        self._holdfast = holdfast
        self._screen = screen
        self._manner = manner
        self._seen: set[ApprovalId] = set()

    async def waiting(self, session_id: SessionId) -> list[Approval]:
        """Return the questions of a session that wait."""
        found = await self._holdfast.approvals.list(
            self._holdfast.owner, session_id, state=ApprovalState.WAITING
        )
        return list(found.items)

    def begin(self, tasks: asyncio.TaskGroup, approval: Approval, *, own: bool = False) -> None:
        """Answer a question of an own turn, unless that was done already or somebody may come."""
        if approval.id in self._seen:
            return
        self._seen.add(approval.id)
        is_due = not self._manner.is_attended or self._manner.answers(approval.question)
        if own and is_due:
            tasks.create_task(self._answer(approval))
        else:
            self._screen.remark(
                f"`holdfast approvals answer {approval.id} --allow` answers it, or --deny."
            )

    async def withdraw(self, answered: ApprovalAnswered) -> None:
        """Do nothing: nothing is shown that could be taken back."""

    async def withdraw_call(self, call_id: CallId) -> None:
        """Do nothing: nothing is shown that could be taken back."""

    async def withdraw_all(self) -> None:
        """Do nothing: nothing is shown that could be taken back."""

    async def _answer(self, approval: Approval) -> None:
        tool = approval.question.tool
        if self._manner.answers(approval.question):
            await allow_by_flag(self._holdfast, approval)
        elif await _give(self._holdfast, approval, _NO):
            advice = "" if tool == NEVER_BY_FLAG else f" --yes-to {tool} answers for you."
            self._screen.remark(f"{NOBODY}{advice}")


async def allow_by_flag(holdfast: "House", approval: Approval) -> None:
    """Answer a question with what a flag says."""
    await _give(holdfast, approval, ApprovalAnswer(state=ApprovalState.ALLOWED, by=BY_FLAG))


async def _give(holdfast: "House", approval: Approval, answer: ApprovalAnswer) -> bool:
    """Answer a question; tell whether nobody elsewhere was faster."""
    session_id, digest = approval.session_id, approval.question.digest
    try:
        await holdfast.approvals.answer(
            holdfast.owner, session_id, approval.id, answer, digest=digest
        )
    except Conflict as error:
        if error.code is not Code.APPROVAL_CLOSED:
            raise
        return False
    return True
