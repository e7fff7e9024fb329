"""State shared by the handlers of one turn: approvals, grants, the folder, and the draft queue."""

import asyncio
import shlex
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from holdfast.acp.client.agent_command import AgentStart
from holdfast.acp.client.agent_session import AcpSession
from holdfast.acp.client.content import FileEdit
from holdfast.acp.client.permissions import (
    HOLDS_SECRET,
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
    EARLIER,
    Approval,
    ApprovalChoice,
    ApprovalContext,
    ApprovalScope,
    ApprovalState,
    Decision,
    Question,
    Ruling,
    decide_approval,
)
from holdfast.domain.drafts import ApprovalDecided, Draft
from holdfast.domain.errors import HoldfastError
from holdfast.domain.ids import ApprovalId, CallId
from holdfast.domain.tools import ToolClass
from holdfast.ports.runtime import Approver, Emit
from holdfast.ports.tools import PlannedWrite, RepositoryFiles
from holdfast.process.cancellation import run_to_end
from holdfast.services.approvals import BY_TIME

Batch = Sequence[Draft]
T = TypeVar("T")


class DraftQueue:
    """The drafts of a turn in the order of their translation; the turn is the only writer.

    Handlers of requests run concurrently and queue theirs; `wake` makes the turn write them.
    """

    def __init__(self, emit: Emit, wake: Callable[[], None]) -> None:
        self._emit = emit
        self._wake = wake
        # The loop time of the last write.
        self.written_at = 0.0
        self._queued: deque[tuple[Batch, asyncio.Future[None]]] = deque()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._queued)

    async def record(self, batch: Batch) -> None:
        """Queue the batch of a handler and wait until it is on disk."""
        if self._is_closed:
            # The turn is over: nothing is written any more, and no action may run unrecorded.
            raise asyncio.CancelledError
        if batch:
            written = self._add(batch)
            self._wake()
            await written

    async def write(self, batch: Batch = ()) -> None:
        """Write everything that is queued and then this batch; called by the turn only."""
        if batch:
            self._add(batch)
        while self._queued:
            oldest, written = self._queued[0]
            self.written_at = asyncio.get_running_loop().time()
            await self._emit(oldest)
            self._queued.popleft()
            if not written.done():
                written.set_result(None)

    async def write_until(self, work: asyncio.Task[T]) -> T:
        """Write what handlers queue until work is done that waits for them (deadlock)."""
        queued = asyncio.Event()
        self._wake = queued.set
        work.add_done_callback(lambda _: queued.set())
        try:
            while not work.done():
                queued.clear()
                await self.write()
                await queued.wait()
            await self.write()
        except BaseException:
            self.close()
            work.cancel()
            await asyncio.wait([work])
            raise
        return work.result()

    def close(self) -> None:
        """Accept no more batches and cancel all waiters."""
        self._is_closed = True
        for _, written in self._queued:
            written.cancel()
        self._queued.clear()

    def _add(self, batch: Batch) -> asyncio.Future[None]:
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queued.append((batch, written))
        return written


# `answered_by` of a question that the agent itself has withdrawn.
BY_AGENT: Final = "agent"
# Limits the edits of one file that are replayed, because each can double the candidate texts.
_SHOWN_MOST: Final = 8
_SHELLS: Final = frozenset({"sh", "bash", "dash", "zsh"})


class PosedQuestion(Struct, frozen=True, kw_only=True):
    """A question about a call, the answer of a rule if there is one, and the drafts to write."""

    question: Question
    answer: Decision | Approval | None = None
    drafts: Batch = ()


class AllowedCall(Struct, frozen=True, kw_only=True):
    """A call that a user has allowed, and the tool class that the question showed."""

    call: CallRequest
    tool_class: ToolClass


@dataclass(frozen=True, kw_only=True)
class TurnContext:
    """One turn, as the concurrent handlers of the agent's requests see it."""

    agent_session: AcpSession
    translator: Translator
    approver: Approver
    files: RepositoryFiles
    options: ProgramOptions
    start: AgentStart
    new_id: Callable[[], str]
    # Records activity of the agent.
    touch: Callable[[], Awaitable[None]]
    drafts: DraftQueue
    # Calls that a user has allowed in this turn and that are not used yet. Calls allowed by a rule
    # are not included, because the rule is applied to the action itself, too.
    allowed_calls: dict[CallId, AllowedCall] = field(default_factory=dict)
    # Approvals that were already passed on to the agent.
    given: set[ApprovalId] = field(default_factory=set)

    @property
    def folder(self) -> str:
        """Return the folder of the repository."""
        return self.start.folder

    def now(self) -> float:
        """Return the loop time, by which timeouts are measured."""
        return asyncio.get_running_loop().time()

    async def pose(
        self, call: CallRequest, subject: ApprovalSubject, choices: tuple[ApprovalChoice, ...] = ()
    ) -> PosedQuestion:
        """Decide who answers a question about a call: a rule, an earlier answer, or a user."""
        question = build_question(call, choices, subject, folder=self.folder, new_id=self.new_id())
        if self.agent_session.agent_process.connection.redactor.shows_mark(question.question):
            return _decision_drafts(question, HOLDS_SECRET)
        standing = _without_answer(await self.approver.standing(question))
        how = decide_approval(question, standing, None)
        if how is Ruling.ASK and call.is_cut:
            how = Ruling.TOO_LARGE
        if how is Ruling.ASK:
            return PosedQuestion(question=question, drafts=(question,))
        earlier = standing.earlier
        if earlier is not None and EARLIER[earlier.state] is how:
            # The same question is already open or answered, so it is not asked twice.
            waits = how is Ruling.WAIT
            return PosedQuestion(question=earlier.question, answer=None if waits else earlier)
        return _decision_drafts(question, answer_by_rule(how, standing, question))

    def unanswerable(self, call: CallRequest, subject: ApprovalSubject) -> PosedQuestion:
        """Return the denial of a question that offers no choice to answer with."""
        question = build_question(call, (), subject, folder=self.folder, new_id=self.new_id())
        return _decision_drafts(question, NOT_OFFERED)

    def take_answer(
        self, call: CallRequest, answer: Decision | Approval, tool_class: ToolClass
    ) -> bool:
        """Record an answer and return whether it permits the call; a one-time yes counts once."""
        if not is_allowed(answer):
            self.translator.deny(call.id)
            return False
        if isinstance(answer, Approval):
            is_new = answer.id not in self.given
            self.given.add(answer.id)
            if is_new:
                self.allowed_calls[call.id] = AllowedCall(call=call, tool_class=tool_class)
            return is_new or answer.scope is ApprovalScope.SESSION
        return True

    async def is_permitted(self, call: CallRequest, subject: ApprovalSubject) -> bool:
        """Return whether an action that the agent requests is allowed; asks a user if needed."""
        posed = await self.pose(call, subject)
        try:
            await run_to_end(self.drafts.record(posed.drafts))
            answer = posed.answer or await self.approver.decision(posed.question)
        except asyncio.CancelledError:
            await self.withdraw(posed.question)
            raise
        is_allowed_now = self.take_answer(call, answer, subject.tool_class)
        # The approval was for this action only, so it must not cover another one.
        self.allowed_calls.pop(call.id, None)
        return is_allowed_now

    async def withdraw(self, question: Question) -> None:
        """Close a question that the agent has withdrawn."""
        # If the connection is lost or this fails, the question is closed with the turn.
        if self.agent_session.connection.lost is None:
            with suppress(HoldfastError):
                await self.approver.withdraw(question, by=BY_AGENT)

    def covers_write(self, planned: PlannedWrite, before: str, content: str) -> bool:
        """Return whether an allowed open call covers this write; consumes the permission.

        A file that is executed later (sensitive write) needs a call that was asked about as such.
        Where the call showed edits, the content must be the result of these edits.
        """
        path, tool_class = planned.path, planned.tool_class
        inside = path.removeprefix(f"{self.folder}/")
        enough = {tool_class, ToolClass.SENSITIVE_WRITE}

        def covers(allowed: AllowedCall) -> bool:
            call = allowed.call
            is_named = path in call.paths or _mentions(call, path, inside)
            is_shown = _matches_edits(call.edits, path, before, content)
            return allowed.tool_class in enough and is_named and is_shown

        return self._use_allowed(covers)

    def covers_command(self, argv: tuple[str, ...], start: AgentStart) -> bool:
        """Return whether an allowed open call is exactly this command; consumes the permission.

        Another folder or environment is not covered, because the question did not show it.
        """
        if start.folder != self.folder or start.environment != self.start.environment:
            return False
        is_shell = argv[0].rpartition("/")[2] in _SHELLS and len(argv) == 3
        lines = {" ".join(argv), shlex.join(argv), argv[2] if is_shell else ""} - {""}

        def covers(allowed: AllowedCall) -> bool:
            is_command = allowed.tool_class is ToolClass.PROCESS
            return is_command and not lines.isdisjoint(texts_in(allowed.call.arguments))

        return self._use_allowed(covers)

    def _use_allowed(self, covers: Callable[[AllowedCall], bool]) -> bool:
        """Consume the first allowed call that covers an action; discard calls that have ended."""
        for call_id, allowed in list(self.allowed_calls.items()):
            if not self.translator.is_open(call_id):
                del self.allowed_calls[call_id]
            elif covers(allowed):
                del self.allowed_calls[call_id]
                return True
        return False


def _without_answer(context: ApprovalContext) -> ApprovalContext:
    """Return the approval context without an earlier answer that is used up or withdrawn."""
    earlier = context.earlier
    if earlier is None:
        return context
    is_spent = earlier.state is ApprovalState.ALLOWED and earlier.scope is ApprovalScope.ONCE
    is_closed = earlier.state is ApprovalState.EXPIRED and earlier.answered_by != BY_TIME
    return replace(context, earlier=None) if is_spent or is_closed else context


def _decision_drafts(question: Question, answer: Decision) -> PosedQuestion:
    # The question was not asked, so it need not be stored in full.
    brief = replace(question, question=summarize_unasked(question.question))
    return PosedQuestion(
        question=brief, answer=answer, drafts=(ApprovalDecided(question=brief, answer=answer),)
    )


def _mentions(call: CallRequest, path: str, inside: str) -> bool:
    """Return whether a call without paths mentions this file in its arguments."""
    return not call.paths and not {path, inside}.isdisjoint(texts_in(call.arguments))


def _matches_edits(edits: Sequence[FileEdit], path: str, before: str, content: str) -> bool:
    """Return whether the content is the result of the shown edits on the text before.

    Agents show either whole texts or the replaced part, for one occurrence or for all.
    """
    shown = [each for each in edits if each.path == path]
    if not shown or shown[-1].new == content:
        return True
    made = {before}
    for edit in shown[:_SHOWN_MOST]:
        old = edit.old
        made = {text.replace(old, edit.new, n) for text in made for n in (1, -1)} if old else set()
    return len(shown) <= _SHOWN_MOST and content in made
