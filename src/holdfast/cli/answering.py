"""Answering for nobody: what a house in this process would decide by itself, said to a server.

A server asks and waits, because somebody may come. A command that nobody sits at answers the
questions of its own turns at once: with what its flags say, else with no.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from holdfast.cli.manners import Manner
from holdfast.cli.screen import Screen
from holdfast.cli.working import NEVER_BY_FLAG
from holdfast.domain.approvals import Answer, Approval, ApprovalState
from holdfast.domain.errors import Code, Conflict
from holdfast.domain.events import ApprovalAnswered
from holdfast.domain.ids import ApprovalId, CallId, SessionId

if TYPE_CHECKING:
    from holdfast.cli.house import House

BY_FLAG: Final = "flag"
NOBODY: Final = "Nobody is there to be asked."


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
        is_due = not self._manner.is_attended or self._manner.answers(approval.question)
        if own and is_due and approval.id not in self._seen:
            self._seen.add(approval.id)
            tasks.create_task(self._answer(approval))

    async def withdraw(self, answered: ApprovalAnswered) -> None:
        """Do nothing: nothing is shown that could be taken back."""

    async def withdraw_call(self, call_id: CallId) -> None:
        """Do nothing: nothing is shown that could be taken back."""

    async def withdraw_all(self) -> None:
        """Do nothing: nothing is shown that could be taken back."""

    async def _answer(self, approval: Approval) -> None:
        question = approval.question
        answer = Answer(state=ApprovalState.ALLOWED, by=BY_FLAG)
        if not self._manner.answers(question):
            answer = Answer(state=ApprovalState.DENIED, by=BY_FLAG, note=NOBODY)
            is_vain = question.tool == NEVER_BY_FLAG
            advice = "" if is_vain else f" --yes-to {question.tool} answers for you."
            self._screen.remark(f"{NOBODY}{advice}")
        try:
            await self._holdfast.approvals.answer(
                self._holdfast.owner,
                approval.session_id,
                approval.id,
                answer,
                digest=question.digest,
            )
        except Conflict as error:
            # Somebody elsewhere was faster.
            if error.code is not Code.APPROVAL_CLOSED:
                raise
