"""Output of a conversation: text as it arrives for people, JSON lines for programs.

The page that is redrawn in place is `live_page.py`.
"""

import difflib
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from holdfast.cli.approval_policy import UNATTENDED, AttendancePolicy
from holdfast.cli.chat.tool_lines import call_line, outcome
from holdfast.cli.json_stream import EventLines
from holdfast.cli.output import Printer, price
from holdfast.domain.approvals import Ruling
from holdfast.domain.costs import Usage
from holdfast.domain.events import (
    ApprovalAnswered,
    ApprovalRequested,
    CallSettled,
    Channel,
    Event,
    Gap,
    MessageAppended,
    SessionClosed,
    SessionCompacted,
    StepDelta,
    StepFailed,
    StepStarted,
    ToolEnded,
    ToolStarted,
    TurnEnded,
    TurnPaused,
    TurnStarted,
)
from holdfast.domain.ids import CallId
from holdfast.domain.messages import (
    CLOSING_NOTICES,
    Message,
    Notice,
    NoticeCode,
    ResultStatus,
    Role,
    ToolCall,
)
from holdfast.domain.sessions import StopReason
from holdfast.domain.text import clean, escape_hidden, one_line
from holdfast.domain.waits import Wait, WaitReason
from holdfast.engine.tool_calls import REFUSALS

if TYPE_CHECKING:
    from holdfast.api import Holdfast
    from holdfast.cli.chat.status_line import StatusLine


SHOWN_MOST: Final = 30


def change_lines(name: str, arguments: Mapping[str, Any]) -> list[str]:
    """Return the diff lines of a call, each with a mark; empty for calls that change no file.

    A long diff is truncated, because the file itself has the complete change.
    """
    match name, arguments:
        case "edit_file", {"old": str(old), "new": str(new)}:
            found = _differences(old, new)
        case "write_file", {"content": str(content)}:
            found = [f"+{line}" for line in content.splitlines()]
        case _:
            return []
    left = len(found) - SHOWN_MOST
    return found if left <= 0 else [*found[:SHOWN_MOST], f"… {left} more lines"]


def _differences(old: str, new: str) -> list[str]:
    rendered = difflib.ndiff(old.splitlines(), new.splitlines())
    # difflib prefixes lines with two characters, and adds hint lines with question marks.
    return [f"{line[0]}{line[2:]}" for line in rendered if line[0] != "?"]


# Diff marks, each with its colour.
MARKS: Final = {"+": "32", "-": "31", "@": "36"}


class ScreenPage(Protocol):
    """Where a screen writes its output."""

    # Whether it also shows user messages and queued messages.
    shows_users: bool

    def text(self, text: str) -> None:
        """Show a chunk of the answer."""

    def show_reasoning(self, text: str) -> None:
        """Show a chunk of the model's reasoning."""

    def aside(self, text: str, *, is_loud: bool = False) -> None:
        """Show a remark that is not part of the answer; a loud one is shown in spite of -q."""

    def busy(self, what: str) -> None:
        """Show what is being waited for, until something else is shown."""

    def show_call(self, call_id: CallId, line: str) -> None:
        """Show that a call is running."""

    def show_result(self, call_id: CallId, line: str, *, is_well: bool) -> None:
        """Show the result of a call."""

    def show_change(self, lines: list[str]) -> None:
        """Show the change of a call that needed no approval."""

    def show_queued(self, message: Message) -> None:
        """Show a message that waits for its turn."""

    def show_user(self, turn: int) -> None:
        """Show the user's message when its turn starts."""

    def finish_output(self) -> None:
        """Finish open output, because nothing more comes for a while."""

    def pause(self) -> None:
        """Release the terminal to another writer, at the beginning of a line."""


class PlainPage:
    """Writes each chunk once, in order."""

    shows_users = False

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        self._is_open_line = False

    def text(self, text: str) -> None:
        """Write a chunk of the answer."""
        shown = clean(text)
        sys.stdout.write(shown)
        sys.stdout.flush()
        if shown:
            self._is_open_line = not shown.endswith("\n")

    def show_reasoning(self, text: str) -> None:
        """Omit reasoning, because it could not be distinguished from the answer."""

    def aside(self, text: str, *, is_loud: bool = False) -> None:
        """Write a line of its own."""
        self.pause()
        if is_loud:
            self._printer.warn(text)
        else:
            self._printer.remark(text)

    def busy(self, what: str) -> None:
        """Do nothing: a spinner could not be removed again."""

    def show_call(self, call_id: CallId, line: str) -> None:
        """Write that a call is running."""
        self.aside(f"{line} …")

    def show_result(self, call_id: CallId, line: str, *, is_well: bool) -> None:
        """Write the result of a call."""
        self.aside(line)

    def show_change(self, lines: list[str]) -> None:
        """Omit the change: in a pipe the files themselves show it."""

    def show_queued(self, message: Message) -> None:
        """Do nothing: the sender knows the message."""

    def show_user(self, turn: int) -> None:
        """Do nothing: the sender knows the message."""

    def finish_output(self) -> None:
        """End the line."""
        self.pause()

    def pause(self) -> None:
        """End an open line."""
        if self._is_open_line:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._is_open_line = False


ToolEvent = ToolStarted | ToolEnded | ApprovalRequested | ApprovalAnswered
# No flag can approve this tool, so the flag is not recommended for it.
NEVER_BY_FLAG: Final = "git_commit"


class ToolView:
    """Shows calls and approvals; stores the line of each call until it has ended."""

    def __init__(self, page: ScreenPage, policy: AttendancePolicy) -> None:
        self._page = page
        self._policy = policy
        self._lines: dict[CallId | None, str] = {}
        # Calls that were already shown in full by an approval prompt.
        self._seen: set[CallId | None] = set()

    def note(self, message: Message) -> None:
        """Store the arguments of a call, because the event of a denial does not repeat them."""
        for part in message.parts:
            if isinstance(part, ToolCall):
                self._lines[part.id] = call_line(part.name, part.arguments)

    def show(self, event: ToolEvent) -> None:
        """Show an event."""
        match event:
            case ToolStarted():
                self._begin(event)
            case ToolEnded():
                line = self._lines.pop(event.call_id, event.name)
                rendered = outcome(event.name, event.status, event.result, event.failure)
                is_well = event.status is ResultStatus.OK
                self._page.show_result(
                    event.call_id, f"{line}: {rendered}{self._advice(event)}", is_well=is_well
                )
            case ApprovalRequested():
                self._seen.add(event.call_id)
                # If this process prompts, the prompt itself shows the question.
                if not self._policy.asks:
                    self._page.aside(
                        f"{event.tool} asks for approval: {escape_hidden(event.question)}"
                    )
            case ApprovalAnswered() if not self._policy.asks:
                line = self._lines.get(event.call_id, "The approval request")
                self._page.aside(f"{line}: {event.decision}, by {event.by}")
            case _:
                pass

    def _begin(self, event: ToolStarted) -> None:
        line = call_line(event.name, event.arguments)
        self._lines[event.call_id] = line
        if event.call_id not in self._seen and (lines := change_lines(event.name, event.arguments)):
            self._page.show_change([line, *lines])
        self._page.show_call(event.call_id, line)

    def _advice(self, ended: ToolEnded) -> str:
        """Return how to allow a call when no person can be asked."""
        failure = ended.failure
        if failure is None or ended.status is not ResultStatus.DENIED:
            return ""
        is_unattended = (failure.code, failure.message) == REFUSALS[Ruling.UNATTENDED]
        if not is_unattended or ended.name in {*self._policy.yes_to, NEVER_BY_FLAG}:
            return ""
        return f" Allow it with --yes-to {ended.name}."


class ChatScreen(Protocol):
    """Shows the events of a session."""

    async def show(self, item: Event | Gap) -> None:
        """Show an event."""

    def show_waiting(self) -> None:
        """Show that a message is stored and its answer has not begun."""

    def remark(self, text: str) -> None:
        """Show a remark that is not part of the conversation."""

    def pause(self) -> None:
        """Release the terminal to another writer for a while, at the beginning of a line."""


# Notices that repeat the event of a turn or a session.
_REPORTED_ELSEWHERE = CLOSING_NOTICES | {NoticeCode.SESSION_CLOSED, NoticeCode.CALL_SETTLED}
# Advice to retry after a failed turn; removed where the retry is automatic.
_ADVICE: Final = re.compile(r" (?:Wait [^.]*, then s|S)end a message to try again\.$")


class JsonScreen:
    """One line of JSON for each event, and nothing else on stdout."""

    def __init__(self, printer: Printer, lines: EventLines) -> None:
        self._printer = printer
        self._lines = lines

    async def show(self, item: Event | Gap) -> None:
        """Print the line of an event."""
        self._printer.document(await self._lines.line(item))

    def show_waiting(self) -> None:
        """Do nothing: the message has an event of its own."""

    def remark(self, text: str) -> None:
        """Do nothing: programs read events."""

    def pause(self) -> None:
        """Do nothing: only complete lines are written."""


class TextScreen:
    """The conversation as text: the answer as it arrives, and its tool calls."""

    def __init__(
        self,
        printer: Printer,
        holdfast: "Holdfast",
        policy: AttendancePolicy = UNATTENDED,
        page: ScreenPage | None = None,
    ) -> None:
        self.page = page or PlainPage(printer)
        self.meter: StatusLine | None = None
        self._holdfast = holdfast
        self._policy = policy
        self._working = ToolView(self.page, policy)
        self._shown = 0
        self._missed = False
        self._failure: str | None = None

    async def show(self, item: Event | Gap) -> None:
        """Show an event, if it is relevant to a person."""
        if self.meter is not None:
            self.meter.update(item)
        if isinstance(item, Gap):
            # After a gap the offsets do not match; the final message contains the rest of the text.
            self._missed = True
            return
        match item.payload:
            case TurnStarted():
                self.page.show_user(item.turn or 0)
                self.show_waiting()
            case StepStarted():
                self._begin()
            case StepDelta():
                self._delta(item.payload)
            case MessageAppended(role=Role.USER) as row if self.page.shows_users:
                self.page.show_queued(await self._message(item, row))
            case MessageAppended(role=Role.ASSISTANT | Role.TOOL_CALL | Role.SYSTEM) as row:
                await self._row(item, row)
            case StepFailed() as failed:
                self._failure = failed.failure.message
            case ToolStarted() | ToolEnded() | ApprovalRequested() | ApprovalAnswered() as work:
                self._working.show(work)
            case TurnEnded() as ended:
                self._end(ended)
                self._show_cost(ended)
            case CallSettled() | SessionCompacted() | SessionClosed() | TurnPaused() as change:
                self._remark_change(change)
            case _:
                pass

    def show_waiting(self) -> None:
        """Show that the message is stored and the answer is pending."""
        self.page.busy("saved, waiting …")

    def remark(self, text: str) -> None:
        """Show a remark on a line of its own."""
        self.page.aside(text)

    def _remark_change(
        self, change: CallSettled | SessionCompacted | SessionClosed | TurnPaused
    ) -> None:
        if said := _describe_change(change):
            self.remark(said)

    def pause(self) -> None:
        """Release the terminal to another writer for a while."""
        self.page.pause()

    def _begin(self) -> None:
        """Start a new step; report the failure of the step before it."""
        self._shown = 0
        self._missed = False
        if self._failure is not None:
            self.remark(f"{_ADVICE.sub('', self._failure)} Retrying.")
            self._failure = None
        self.show_waiting()

    def _delta(self, delta: StepDelta) -> None:
        if delta.channel is Channel.REASONING:
            self.page.show_reasoning(delta.text)
            return
        # Text at a wrong offset could not be removed once it is shown.
        if delta.offset != self._shown:
            self._missed = True
        if not self._missed:
            self._shown += len(delta.text)
            self.page.text(delta.text)

    async def _row(self, event: Event, row: MessageAppended) -> None:
        message = await self._message(event, row)
        match row.role:
            case Role.ASSISTANT:
                self._complete(message)
            case Role.TOOL_CALL:
                self._working.note(message)
            case _:
                self._notice(message)

    async def _message(self, event: Event, row: MessageAppended) -> Message:
        owner = self._holdfast.owner
        return await self._holdfast.messages.get(owner, event.session_id, row.message_id)

    def _notice(self, message: Message) -> None:
        """Show a notice of Holdfast in the conversation."""
        for part in message.parts:
            if isinstance(part, Notice) and part.code not in _REPORTED_ELSEWHERE:
                self.remark(part.text)

    def _complete(self, message: Message) -> None:
        """Show the text that the deltas did not contain: the message has all of it."""
        rest = message.text[self._shown :]
        if rest:
            self._shown += len(rest)
            self.page.text(rest)

    def _show_cost(self, ended: TurnEnded) -> None:
        """Show the cost of a turn to a person; programs read it from the events."""
        if self._policy.asks and (ended.usage != Usage() or ended.microcents):
            tokens = f"{ended.usage.input} tokens in, {ended.usage.output} out"
            cost = price(ended.microcents, priced=ended.priced, estimated=ended.estimated)
            self.remark(f"{tokens}, {cost}")

    def _end(self, ended: TurnEnded) -> None:
        self.page.finish_output()
        # The turn reports its own failure; that of a step was only one attempt.
        self._failure = None
        if ended.stop_reason is StopReason.ABORTED:
            self.page.aside("Stopped; the partial answer is saved.", is_loud=True)
        elif ended.failure is not None:
            rendered = one_line(ended.failure.message, longest=2_000)
            self.page.aside(f"The turn failed ({ended.failure.code}): {rendered}", is_loud=True)
        elif ended.stop_reason is not StopReason.STOP:
            self.page.aside(f"The turn ended with {ended.stop_reason}.", is_loud=True)


def describe_wait(wait: TurnPaused | Wait) -> str | None:
    """Return what a turn waits for; nothing where a question or a call says it."""
    match wait.reason:
        case WaitReason.CLIENT:
            return f"{wait.text} Answer with `holdfast calls answer {' '.join(wait.call_ids)}`."
        case WaitReason.TOOL | WaitReason.RUNTIME | WaitReason.HOLDER:
            return wait.text
        case _:
            return None


def _describe_change(
    change: CallSettled | SessionCompacted | SessionClosed | TurnPaused,
) -> str | None:
    match change:
        case TurnPaused():
            return describe_wait(change)
        case CallSettled():
            return f"The unknown call {change.call_id} was {change.how}."
        case SessionCompacted():
            return f"Everything before message {change.dropped_through + 1} has been summarized."
        case SessionClosed():
            return f"The session was closed: {change.reason or change.status}."
