"""What the handlers of one turn share: approvals, grants, the folder, and the queue of drafts."""

import asyncio
import shlex
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from holdfast.acp.client.agent_session import AgentConversation
from holdfast.acp.client.content import FileEdit
from holdfast.acp.client.permissions import (
    NOT_OFFERED,
    ApprovalSubject,
    answer_by_rule,
    build_question,
    is_allowed,
    summarize_unasked,
)
from holdfast.acp.client.tool_calls import CallRequest
from holdfast.acp.client.translator import Translator
from holdfast.acp.client.unreported_changes import texts_in
from holdfast.domain.agent_processes import ProgramOptions
from holdfast.domain.approvals import (
    Approval,
    ApprovalAnswer,
    ApprovalChoice,
    ApprovalScope,
    ApprovalState,
    Question,
)
from holdfast.domain.drafts import ApprovalDecided, Draft
from holdfast.domain.errors import HoldfastError
from holdfast.domain.ids import ApprovalId, CallId
from holdfast.domain.tools import ToolClass
from holdfast.ports import ApprovalContext, Approver, PlannedWrite, RepositoryFiles
from holdfast.process.agent_child import AgentStart
from holdfast.services.approval_policy import EARLIER, Ruling, ruling
from holdfast.services.approvals import BY_TIME

Batch = Sequence[Draft]


class DraftQueue:
    """A queue from many who have something to write to the one who writes."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Batch, asyncio.Future[None]]] = deque()
        self._written: list[asyncio.Future[None]] = []
        self._filled = asyncio.Event()
        self._is_closed = False

    async def record(self, batch: Batch) -> None:
        """Have a batch written; it is on disk when this returns."""
        if self._is_closed:
            # The turn is over: nobody writes, and nobody may act on what was not written.
            raise asyncio.CancelledError
        if not batch:
            return
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((batch, future))
        self._filled.set()
        await future

    def taken(self) -> Batch | None:
        """Return the oldest batch to write, if there is one; those before it are on disk now."""
        self.settle()
        if not self._waiting:
            self._filled.clear()
            return None
        batch, future = self._waiting.popleft()
        self._written.append(future)
        return batch

    def settle(self) -> None:
        """Tell those whose batches were taken that these are on disk."""
        for future in self._written:
            if not future.done():
                future.set_result(None)
        self._written.clear()

    async def filled(self) -> None:
        """Wait until there is something to write."""
        await self._filled.wait()

    def close(self) -> None:
        """Write nothing more; whoever waits is told to stop."""
        self._is_closed = True
        for _, future in self._waiting:
            future.cancel()
        for future in self._written:
            future.cancel()
        self._waiting.clear()


# Who has closed a question that the program itself does not want answered any more.
BY_AGENT: Final = "agent"
# So many changes of one file are followed; each may double what could have been meant.
_SHOWN_MOST: Final = 8
_SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh"})


class PosedQuestion(Struct, frozen=True, kw_only=True):
    """A question about a call: the answer a rule gives, or whom to wait for; and what to write."""

    question: Question
    answer: ApprovalAnswer | Approval | None = None
    batch: Batch = ()


class AllowedCall(Struct, frozen=True, kw_only=True):
    """A call that somebody has allowed, and what it was said to be when they did."""

    asked: CallRequest
    tool_class: ToolClass


@dataclass(frozen=True, kw_only=True)
class TurnContext:
    """One turn, as those see it who answer the program beside it."""

    agent_session: AgentConversation
    translator: Translator
    approver: Approver
    files: RepositoryFiles
    options: ProgramOptions
    start: AgentStart
    new_id: Callable[[], str]
    # Notes that the program does something.
    touch: Callable[[], Awaitable[None]]
    outbox: DraftQueue = field(default_factory=DraftQueue)
    # The calls that somebody has allowed in this turn and that were not made use of yet. What a
    # rule allows is not among them: the rule answers for the act itself, too.
    allowed_calls: dict[CallId, AllowedCall] = field(default_factory=dict)
    # The answers that were given to the program.
    given: set[ApprovalId] = field(default_factory=set)

    @property
    def folder(self) -> str:
        """Return the repository."""
        return self.start.folder

    def now(self) -> float:
        """Return the time that waiting is measured by."""
        return asyncio.get_running_loop().time()

    async def pose(
        self, asked: CallRequest, subject: ApprovalSubject, choices: tuple[ApprovalChoice, ...] = ()
    ) -> PosedQuestion:
        """Decide who answers a question about a call: a rule, somebody before, or somebody now."""
        question = build_question(asked, choices, subject, folder=self.folder, new_id=self.new_id())
        standing = _without_answer(await self.approver.standing(question))
        how = ruling(question, standing, None)
        if how is Ruling.ASK and asked.is_cut:
            how = Ruling.TOO_LARGE
        if how is Ruling.ASK:
            return PosedQuestion(question=question, batch=(question,))
        earlier = standing.earlier
        if earlier is not None and EARLIER[earlier.state] is how:
            # The very same was asked before: one answer is enough.
            waits = how is Ruling.WAIT
            return PosedQuestion(question=earlier.question, answer=None if waits else earlier)
        return _decision_drafts(question, answer_by_rule(how, standing, question))

    def unanswerable(self, asked: CallRequest, subject: ApprovalSubject) -> PosedQuestion:
        """Return the no to a question that comes without an answer that could be given."""
        question = build_question(asked, (), subject, folder=self.folder, new_id=self.new_id())
        return _decision_drafts(question, NOT_OFFERED)

    def take_answer(
        self, asked: CallRequest, answer: ApprovalAnswer | Approval, tool_class: ToolClass
    ) -> bool:
        """Take an answer in, and tell whether it is a yes; one for once is a yes only once."""
        if not is_allowed(answer):
            self.translator.deny(asked.id)
            return False
        if isinstance(answer, Approval):
            is_new = answer.id not in self.given
            self.given.add(answer.id)
            if is_new:
                self.allowed_calls[asked.id] = AllowedCall(asked=asked, tool_class=tool_class)
            return is_new or answer.scope is ApprovalScope.SESSION
        return True

    async def is_permitted(self, asked: CallRequest, subject: ApprovalSubject) -> bool:
        """Tell whether something may be done that the program has us do, asking if need be."""
        posed = await self.pose(asked, subject)
        recording = asyncio.ensure_future(self.outbox.record(posed.batch))
        try:
            await asyncio.shield(recording)
            answer = posed.answer or await self.approver.decision(posed.question)
        except asyncio.CancelledError:
            await asyncio.wait([recording])
            await self.withdraw(posed.question)
            raise
        is_allowed_now = self.take_answer(asked, answer, subject.tool_class)
        # Good for this one act and no other.
        self.allowed_calls.pop(asked.id, None)
        return is_allowed_now

    async def withdraw(self, question: Question) -> None:
        """Close a question that the program does not want answered any more."""
        # One whose program is gone, or that cannot be closed now, ends with the turn.
        if self.agent_session.connection.lost is None:
            with suppress(HoldfastError):
                await self.approver.withdraw(question, by=BY_AGENT)

    def covers_write(self, planned: PlannedWrite, before: str, content: str) -> bool:
        """Tell whether somebody has allowed an open call that names the file; good for one write.

        What runs unseen later is covered only by a call that was asked about as such, and where
        changes were shown, only what they make of the text before.
        """
        path, tool_class = planned.path, planned.tool_class
        inside = path.removeprefix(f"{self.folder}/")
        enough = {tool_class, ToolClass.SENSITIVE_WRITE}

        def covers(allowed: AllowedCall) -> bool:
            asked = allowed.asked
            is_named = path in asked.paths or _mentions(asked, path, inside)
            is_shown = _matches_edits(asked.edits, path, before, content)
            return allowed.tool_class in enough and is_named and is_shown

        return self._use_allowed(covers)

    def covers_command(self, argv: tuple[str, ...], start: AgentStart) -> bool:
        """Tell whether somebody has allowed an open call that is this very command; good for one.

        Whoever allowed it has seen neither another folder nor variables.
        """
        if start.folder != self.folder or start.environment != self.start.environment:
            return False
        is_shell = argv[0].rpartition("/")[2] in _SHELLS and len(argv) == 3
        lines = {" ".join(argv), shlex.join(argv), argv[2] if is_shell else ""} - {""}

        def covers(allowed: AllowedCall) -> bool:
            is_command = allowed.tool_class is ToolClass.PROCESS
            return is_command and not lines.isdisjoint(texts_in(allowed.asked.arguments))

        return self._use_allowed(covers)

    def _use_allowed(self, covers: Callable[[AllowedCall], bool]) -> bool:
        """Take the first licence that covers an act; one whose call has ended covers nothing."""
        for call_id, allowed in list(self.allowed_calls.items()):
            if not self.translator.is_open(call_id):
                del self.allowed_calls[call_id]
            elif covers(allowed):
                del self.allowed_calls[call_id]
                return True
        return False


def _without_answer(standing: ApprovalContext) -> ApprovalContext:
    """Return how a session stands without an answer that was given already, or taken back."""
    earlier = standing.earlier
    if earlier is None:
        return standing
    is_spent = earlier.state is ApprovalState.ALLOWED and earlier.scope is ApprovalScope.ONCE
    is_closed = earlier.state is ApprovalState.EXPIRED and earlier.answered_by != BY_TIME
    return replace(standing, earlier=None) if is_spent or is_closed else standing


def _decision_drafts(question: Question, answer: ApprovalAnswer) -> PosedQuestion:
    # Nobody reads it before it is done, so it need not be kept whole.
    brief = replace(question, question=summarize_unasked(question.question))
    return PosedQuestion(
        question=brief, answer=answer, batch=(ApprovalDecided(question=brief, answer=answer),)
    )


def _mentions(asked: CallRequest, path: str, inside: str) -> bool:
    """Tell whether a call that names no file says in its arguments that it is about this one."""
    return not asked.paths and not {path, inside}.isdisjoint(texts_in(asked.arguments))


def _matches_edits(edits: Sequence[FileEdit], path: str, before: str, content: str) -> bool:
    """Tell whether a content is what the shown changes make of the text before.

    Some programs show whole texts, and some the piece that is replaced, once or wherever it stands.
    """
    shown = [each for each in edits if each.path == path]
    if not shown or shown[-1].new == content:
        return True
    made = {before}
    for edit in shown[:_SHOWN_MOST]:
        old = edit.old
        made = {text.replace(old, edit.new, n) for text in made for n in (1, -1)} if old else set()
    return len(shown) <= _SHOWN_MOST and content in made
