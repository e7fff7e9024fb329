"""Approvals in a conversation: asked at the terminal, or answered by flags."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from holdfast.cli.approval_policy import UNATTENDED, AttendancePolicy, is_for_session
from holdfast.cli.chat.prompt import InterruptPressedError, KeyboardLock
from holdfast.cli.chat.screen import NEVER_BY_FLAG, ChatScreen
from holdfast.cli.output import Printer
from holdfast.domain.approvals import (
    NOTE_LONGEST,
    Approval,
    ApprovalScope,
    ApprovalState,
    Decision,
)
from holdfast.domain.errors import Code, Conflict
from holdfast.domain.events import ApprovalAnswered
from holdfast.domain.ids import ApprovalId, CallId, SessionId
from holdfast.domain.text import escape_hidden
from holdfast.domain.tools import ToolClass

if TYPE_CHECKING:
    from holdfast.api import Holdfast
    from holdfast.cli.chat.prompt import AnswerPrompt


BY_TERMINAL: Final = "terminal"
BY_HTTP: Final = "http"
_CHANGES: Final = frozenset({ToolClass.WRITE, ToolClass.SENSITIVE_WRITE, ToolClass.COMMIT})
_BOLD, _GREEN, _RED, _CYAN = "1", "32", "31", "36"
_MARKS: Final = {"+": _GREEN, "-": _RED, "@": _CYAN}


class ApprovalPrompt:
    """Prompts at the terminal until there is a valid answer."""

    def __init__(
        self, printer: Printer, prompt: "AnswerPrompt", policy: AttendancePolicy = UNATTENDED
    ) -> None:
        self._printer = printer
        self._prompt = prompt
        self._policy = policy
        # A server records the channel of an answer.
        self._by = BY_HTTP if policy.is_remote else BY_TERMINAL

    async def answer(self, approval: Approval, *, own: bool = False) -> Decision:
        """Show the whole question and return the answer; Ctrl-C and Ctrl-D raise, as prompts do.

        A flag may answer a server's question about an `own` turn; a local store has the flags
        itself.
        """
        if own and self._policy.is_remote and self._policy.answers(approval.question):
            return Decision(state=ApprovalState.ALLOWED, by=self._by)
        has_more = is_for_session(approval.question)
        with self._prompt.fresh():
            # After earlier keys are set aside, so that they cannot answer a question not shown yet.
            for line, style in question_lines(approval):
                self._printer.line(line, style=style)
            self._printer.flush()
            while True:
                said = await self._prompt.answer("Allow? [y/a/n] " if has_more else "Allow? [y/n] ")
                found = read_answer(said, has_more=has_more)
                if isinstance(found, Decision):
                    return replace(found, by=self._by)
                self._printer.warn(found)


def question_lines(approval: Approval) -> Iterator[tuple[str, str]]:
    """Yield the lines of a question, each with its style; no character is omitted."""
    question = approval.question
    is_change = question.tool_class in _CHANGES
    yield f"{question.tool} asks for approval ({question.tool_class.replace('_', ' ')}):", _BOLD
    for line in escape_hidden(question.question).split("\n"):
        yield line, _MARKS.get(line[:1], "") if is_change else ""
    yield f"y: allow once{_options_text(approval)}, n or n REASON: deny.", ""


def read_answer(text: str, *, has_more: bool) -> Decision | str:
    """Return the answer of a line, or an error message."""
    word, _, rest = text.strip().partition(" ")
    note = rest.strip()
    allowed = Decision(state=ApprovalState.ALLOWED, by=BY_TERMINAL)
    match word.lower().rstrip(",.:;"):
        case "y" | "yes" if not note:
            return allowed
        case "a" | "always" if not note and has_more:
            return Decision(
                state=ApprovalState.ALLOWED, by=BY_TERMINAL, scope=ApprovalScope.SESSION
            )
        case "a" | "always" if not note:
            return "This call can be allowed only once; answer y or n."
        case "n" | "no" if len(note) <= NOTE_LONGEST:
            return Decision(state=ApprovalState.DENIED, by=BY_TERMINAL, note=note or None)
        case "n" | "no":
            return f"A reason may have at most {NOTE_LONGEST} characters; this one has {len(note)}."
        case _:
            return f"Answer y{', a' if has_more else ''} or n; n may be followed by a reason."


def _options_text(approval: Approval) -> str:
    question = approval.question
    if not is_for_session(question):
        return ""
    return f", a: allow for this session ({escape_hidden(question.memory or '')})"


_STATE_WORDS: Final = {
    ApprovalState.ALLOWED: "allowed",
    ApprovalState.DENIED: "denied",
}


class _OpenQuestion(NamedTuple):
    task: asyncio.Task[None]
    call_id: CallId | None


class InteractiveApprovals:
    """Prompts in the background, so that events are shown while a person thinks."""

    def __init__(
        self,
        holdfast: "Holdfast",
        screen: ChatScreen,
        questions: ApprovalPrompt,
        keyboard: KeyboardLock | None = None,
    ) -> None:
        """`keyboard` is shared with the other readers of the keyboard."""
        self._holdfast = holdfast
        self._screen = screen
        self._questions = questions
        self.keyboard = keyboard or KeyboardLock()
        self._alone = asyncio.Lock()
        self._open: dict[ApprovalId, _OpenQuestion] = {}
        self._closed: set[ApprovalId] = set()

    async def list_pending(self, session_id: SessionId) -> list[Approval]:
        """Return the pending approvals of a session."""
        found = await self._holdfast.approvals.list(
            self._holdfast.owner, session_id, state=ApprovalState.WAITING
        )
        return list(found.items)

    def begin(self, tasks: asyncio.TaskGroup, approval: Approval, *, own: bool = False) -> None:
        """Ask a question, unless it is open or was answered here.

        `own` is whether the turn was started by this conversation.
        """
        if approval.id not in self._open and approval.id not in self._closed:
            task = tasks.create_task(self._ask(approval, own=own))
            self._open[approval.id] = _OpenQuestion(task, approval.question.call_id)

    async def withdraw(self, answered: ApprovalAnswered) -> None:
        """Withdraw a question that was answered by another client."""
        if await self._withdraw(answered.approval_id):
            self._screen.remark(_describe_answer(answered.decision, answered.by))

    async def withdraw_call(self, call_id: CallId) -> None:
        """Withdraw the question about a call, which has ended without an answer."""
        for which, each in tuple(self._open.items()):
            if each.call_id == call_id:
                await self._withdraw(which)

    async def withdraw_all(self) -> None:
        """Withdraw every question, because the answers are no longer needed."""
        for which in tuple(self._open):
            await self._withdraw(which)

    async def _withdraw(self, which: ApprovalId) -> bool:
        found = self._open.pop(which, None)
        if found is None:
            return False
        found.task.cancel()
        # Until the prompt has restored the terminal, nothing can be written to it.
        await asyncio.wait([found.task])
        return True

    async def _ask(self, approval: Approval, *, own: bool) -> None:
        owner, session_id = self._holdfast.owner, approval.session_id
        answer: Decision | None = None
        try:
            async with self._alone:
                # This question may have been answered while another one was shown.
                found = await self._holdfast.approvals.get(owner, session_id, approval.id)
                if found.state is not ApprovalState.WAITING:
                    return
                session = await self._holdfast.sessions.get(owner, session_id)
                async with self.keyboard.for_question():
                    self._screen.pause()
                    with suppress(InterruptPressedError):
                        answer = await self._questions.answer(found, own=own)
        finally:
            # From here on, an answer event may be that of our own answer.
            self._open.pop(approval.id, None)
        self._closed.add(approval.id)
        if answer is None:
            turn = session.settled + 1
            await self._holdfast.sessions.interrupt(owner, session_id, turn=turn)
        else:
            await self._send_answer(found, answer)

    async def _send_answer(self, approval: Approval, answer: Decision) -> None:
        approvals, owner = self._holdfast.approvals, self._holdfast.owner
        try:
            now = await approvals.answer(
                owner, approval.session_id, approval.id, answer, digest=approval.question.digest
            )
        except Conflict as error:
            if error.code is not Code.APPROVAL_CLOSED:
                raise
            now = await approvals.get(owner, approval.session_id, approval.id)
        if (now.answered_by, now.state, now.scope) != (answer.by, answer.state, answer.scope):
            self._screen.remark(_describe_answer(now.state, now.answered_by or ""))


def _describe_answer(state: str, by: str) -> str:
    decision = _STATE_WORDS.get(ApprovalState(state))
    if decision is None:
        return (
            f"The approval request has expired ({by})."
            if by
            else "The approval request has expired."
        )
    return f"Already answered elsewhere: {decision}, by {by}."


BY_FLAG: Final = "flag"
UNATTENDED_NOTE: Final = "No user is present to approve this."
_DENIAL: Final = Decision(state=ApprovalState.DENIED, by=BY_FLAG, note=UNATTENDED_NOTE)


class AutomaticApprovals:
    """Answers each question of its own turns once."""

    def __init__(self, holdfast: "Holdfast", screen: ChatScreen, policy: AttendancePolicy) -> None:
        self._holdfast = holdfast
        self._screen = screen
        self._policy = policy
        self._seen: set[ApprovalId] = set()

    async def list_pending(self, session_id: SessionId) -> list[Approval]:
        """Return the pending approvals of a session."""
        found = await self._holdfast.approvals.list(
            self._holdfast.owner, session_id, state=ApprovalState.WAITING
        )
        return list(found.items)

    def begin(self, tasks: asyncio.TaskGroup, approval: Approval, *, own: bool = False) -> None:
        """Answer a question of an own turn, unless it is answered or a person may still answer."""
        if approval.id in self._seen:
            return
        self._seen.add(approval.id)
        is_due = not self._policy.is_attended or self._policy.answers(approval.question)
        if own and is_due:
            tasks.create_task(self._answer(approval))
        else:
            self._screen.remark(
                f"Answer it with `holdfast approvals answer {approval.id} --allow` or --deny."
            )

    async def withdraw(self, answered: ApprovalAnswered) -> None:
        """Do nothing: no prompt is shown."""

    async def withdraw_call(self, call_id: CallId) -> None:
        """Do nothing: no prompt is shown."""

    async def withdraw_all(self) -> None:
        """Do nothing: no prompt is shown."""

    async def _answer(self, approval: Approval) -> None:
        tool = approval.question.tool
        if self._policy.answers(approval.question):
            await allow_by_flag(self._holdfast, approval)
        elif await _send_answer(self._holdfast, approval, _DENIAL):
            advice = "" if tool == NEVER_BY_FLAG else f" Allow it with --yes-to {tool}."
            self._screen.remark(f"{UNATTENDED_NOTE}{advice}")


async def allow_by_flag(holdfast: "Holdfast", approval: Approval) -> None:
    """Allow a question by flag."""
    await _send_answer(holdfast, approval, Decision(state=ApprovalState.ALLOWED, by=BY_FLAG))


async def _send_answer(holdfast: "Holdfast", approval: Approval, answer: Decision) -> bool:
    """Send an answer; return False if another client answered first."""
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
