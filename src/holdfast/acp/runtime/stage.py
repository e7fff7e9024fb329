"""What those who answer a program share in one turn: whom to ask, where to write, what is known."""

import asyncio
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct

from holdfast.acp.process.launching import Start
from holdfast.acp.runtime.conversation import Conversation
from holdfast.acp.runtime.outbox import Batch, Outbox
from holdfast.acp.runtime.permissions import is_allowed, question_of, ruled
from holdfast.acp.runtime.worktree import texts_in
from holdfast.acp.translate.call_books import Asked
from holdfast.acp.translate.translator import Translator
from holdfast.domain.approvals import Answer, Approval, ApprovalScope, Choice, Question
from holdfast.domain.drafts import Decided
from holdfast.domain.ids import CallId
from holdfast.domain.programs import ProgramOptions
from holdfast.domain.tools import ToolClass
from holdfast.ports import Approver, RepositoryFiles
from holdfast.services.policy import EARLIER, Ruling, ruling


class Posed(Struct, frozen=True, kw_only=True):
    """A question about a call: the answer a rule gives, or whom to wait for; and what to write."""

    question: Question
    answer: Answer | Approval | None = None
    batch: Batch = ()


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One turn, as those see it who answer the program beside it."""

    conversation: Conversation
    translator: Translator
    approver: Approver
    files: RepositoryFiles
    options: ProgramOptions
    start: Start
    new_id: Callable[[], str]
    # Notes that the program does something.
    touch: Callable[[], Awaitable[None]]
    outbox: Outbox = field(default_factory=Outbox)
    # The calls that were allowed in this turn, and which files each of them is about.
    allowed: dict[CallId, Asked] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """Return the repository."""
        return self.start.folder

    def now(self) -> float:
        """Return the time that waiting is measured by."""
        return asyncio.get_running_loop().time()

    async def pose(
        self, asked: Asked, tool_class: ToolClass, choices: tuple[Choice, ...] = ()
    ) -> Posed:
        """Decide who answers a question about a call: a rule, somebody before, or somebody now."""
        question = question_of(asked, choices, tool_class, folder=self.folder, new_id=self.new_id())
        standing = await self.approver.standing(question)
        how = ruling(question, standing, None)
        if how is Ruling.ASK:
            return Posed(question=question, batch=(question,))
        earlier = standing.earlier
        if earlier is not None and EARLIER[earlier.state] is how:
            # The very same was asked before: one answer is enough.
            waits = how is Ruling.WAIT
            return Posed(question=earlier.question, answer=None if waits else earlier)
        answer = ruled(how, standing, question)
        decided = Decided(question=question, answer=answer)
        return Posed(question=question, answer=answer, batch=(decided,))

    def heed(self, asked: Asked, answer: Answer | Approval) -> bool:
        """Take an answer in, and tell whether it is a yes."""
        if is_allowed(answer):
            self.allowed[asked.id] = asked
            if asked.kind == "edit" and answer.scope is ApprovalScope.SESSION:
                self.conversation.may_edit = True
            return True
        self.translator.deny(asked.id)
        return False

    async def permitted(self, asked: Asked, tool_class: ToolClass) -> bool:
        """Tell whether something may be done that the program has us do, asking if need be."""
        posed = await self.pose(asked, tool_class)
        await self.outbox.record(posed.batch)
        answer = posed.answer or await self.approver.decision(posed.question)
        is_allowed_now = self.heed(asked, answer)
        # Good for this one act and no other.
        self.allowed.pop(asked.id, None)
        return is_allowed_now

    def covers_write(self, path: str) -> bool:
        """Tell whether somebody has allowed a call of this turn that names the file.

        An answer is good for one write; one for the whole session, for every plain write.
        """
        inside = path.removeprefix(f"{self.folder}/")
        for asked in self.allowed.values():
            named = {each.path for each in asked.locations}
            if asked.kind in _EDITS and (path in named or _mentions(asked, path, inside)):
                del self.allowed[asked.id]
                return True
        return False

    def covers_command(self, argv: tuple[str, ...]) -> bool:
        """Tell whether somebody has allowed a call of this turn that is this very command."""
        is_shell = argv[0].rpartition("/")[2] in _SHELLS and len(argv) == 3
        lines = {" ".join(argv), shlex.join(argv), argv[2] if is_shell else ""} - {""}
        for asked in self.allowed.values():
            if asked.kind not in _EDITS and lines & set(texts_in(asked.arguments)):
                del self.allowed[asked.id]
                return True
        return False


_EDITS: Final = frozenset({"edit", "delete", "move"})
_SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh"})


def _mentions(asked: Asked, path: str, inside: str) -> bool:
    """Tell whether a call that names no file says in its arguments that it is about this one."""
    return not asked.locations and not {path, inside}.isdisjoint(texts_in(asked.arguments))
