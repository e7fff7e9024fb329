"""The questions of one conversation: each is asked once, as long as it waits.

Whoever plays the turn, here or elsewhere, the answer is written into the store; and an answer from
elsewhere takes the question back from the screen.
"""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from holdfast.cli.live.keyboard import Keyboard
from holdfast.cli.prompts import PressedError
from holdfast.cli.questions import Questions
from holdfast.cli.screen import Screen
from holdfast.domain.approvals import Approval, ApprovalAnswer, ApprovalState
from holdfast.domain.errors import Code, Conflict
from holdfast.domain.events import ApprovalAnswered
from holdfast.domain.ids import ApprovalId, CallId, SessionId

if TYPE_CHECKING:
    from holdfast.cli.house import House

_TOLD: Final = {
    ApprovalState.ALLOWED: "allowed",
    ApprovalState.DENIED: "denied",
}


class _Open(NamedTuple):
    task: asyncio.Task[None]
    call_id: CallId | None


class Asking:
    """Asks in the background, so that news are heard while a person thinks."""

    def __init__(
        self,
        holdfast: "House",
        screen: Screen,
        questions: Questions,
        keyboard: Keyboard | None = None,
    ) -> None:
        """`keyboard` is shared with whoever else reads keys here."""
        self._holdfast = holdfast
        self._screen = screen
        self._questions = questions
        self.keyboard = keyboard or Keyboard()
        self._alone = asyncio.Lock()
        self._open: dict[ApprovalId, _Open] = {}
        self._closed: set[ApprovalId] = set()

    async def waiting(self, session_id: SessionId) -> list[Approval]:
        """Return the questions of a session that wait."""
        found = await self._holdfast.approvals.list(
            self._holdfast.owner, session_id, state=ApprovalState.WAITING
        )
        return list(found.items)

    def begin(self, tasks: asyncio.TaskGroup, approval: Approval, *, own: bool = False) -> None:
        """Ask a question, unless it is asked, or was answered, here already.

        `own` is one of a turn that this conversation asked for.
        """
        if approval.id not in self._open and approval.id not in self._closed:
            task = tasks.create_task(self._ask(approval, own=own))
            self._open[approval.id] = _Open(task, approval.question.call_id)

    async def withdraw(self, answered: ApprovalAnswered) -> None:
        """Take a question back that has its answer; our own was let go of when it was given."""
        if await self._take_back(answered.approval_id):
            self._screen.remark(_elsewhere(answered.decision, answered.by))

    async def withdraw_call(self, call_id: CallId) -> None:
        """Take back what was asked about a call: it has ended without an answer."""
        for which, each in tuple(self._open.items()):
            if each.call_id == call_id:
                await self._take_back(which)

    async def withdraw_all(self) -> None:
        """Take every question back: nobody waits for the answers any more."""
        for which in tuple(self._open):
            await self._take_back(which)

    async def _take_back(self, which: ApprovalId) -> bool:
        found = self._open.pop(which, None)
        if found is None:
            return False
        found.task.cancel()
        # Until the prompt has put the terminal back, nothing can be written to it.
        await asyncio.wait([found.task])
        return True

    async def _ask(self, approval: Approval, *, own: bool) -> None:
        owner, session_id = self._holdfast.owner, approval.session_id
        answer: ApprovalAnswer | None = None
        try:
            async with self._alone:
                # Another question may have been in the way, and this one answered meanwhile.
                found = await self._holdfast.approvals.get(owner, session_id, approval.id)
                if found.state is not ApprovalState.WAITING:
                    return
                session = await self._holdfast.sessions.get(owner, session_id)
                async with self.keyboard.for_question():
                    self._screen.pause()
                    with suppress(PressedError):
                        answer = await self._questions.answer(found, own=own)
        finally:
            # From here on the news of an answer may be that of ours.
            self._open.pop(approval.id, None)
        self._closed.add(approval.id)
        if answer is None:
            turn = session.settled + 1
            await self._holdfast.sessions.interrupt(owner, session_id, turn=turn)
        else:
            await self._give(found, answer)

    async def _give(self, found: Approval, answer: ApprovalAnswer) -> None:
        approvals, owner = self._holdfast.approvals, self._holdfast.owner
        try:
            now = await approvals.answer(
                owner, found.session_id, found.id, answer, digest=found.question.digest
            )
        except Conflict as error:
            if error.code is not Code.APPROVAL_CLOSED:
                raise
            now = await approvals.get(owner, found.session_id, found.id)
        if (now.answered_by, now.state, now.scope) != (answer.by, answer.state, answer.scope):
            self._screen.remark(_elsewhere(now.state, now.answered_by or ""))


def _elsewhere(state: str, by: str) -> str:
    told = _TOLD.get(ApprovalState(state))
    if told is None:
        return f"The question has expired ({by})." if by else "The question has expired."
    return f"Answered elsewhere meanwhile: {told}, by {by}."
