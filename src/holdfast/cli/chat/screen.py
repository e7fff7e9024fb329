"""What a conversation looks like: text as it arrives for people, JSON lines for programs.

A page that is redrawn in place is `live_page.py`.
"""

import difflib
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from holdfast.cli.approval_policy import UNATTENDED, AttendancePolicy
from holdfast.cli.chat.tool_lines import call_line, outcome
from holdfast.cli.forms import part_text
from holdfast.cli.json_stream import EventLines
from holdfast.cli.output import Printer, price
from holdfast.cli.terminal import clean, escape_hidden, one_line
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
    TurnStarted,
)
from holdfast.domain.ids import CallId
from holdfast.domain.messages import (
    CLOSING,
    Message,
    Notice,
    NoticeCode,
    ResultStatus,
    Role,
    ToolCall,
)
from holdfast.domain.sessions import StopReason
from holdfast.engine.tool_calls import REFUSALS
from holdfast.services.approval_policy import Ruling

if TYPE_CHECKING:
    from holdfast.cli.chat.status_line import StatusLine
    from holdfast.cli.services import House


SHOWN_MOST: Final = 30


def change_lines(name: str, arguments: Mapping[str, Any]) -> list[str]:
    """Return the lines of a change with a mark before each; nothing for calls that change none.

    A long one is cut: what was done is in the file, and this only tells of it.
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
    # The library marks with two characters, and explains itself with question marks.
    return [f"{line[0]}{line[2:]}" for line in rendered if line[0] != "?"]


# A line of a change begins so; each is shown in a colour of its own.
MARKS: Final = {"+": "32", "-": "31", "@": "36"}


class ScreenPage(Protocol):
    """What a screen can do with what it has to say."""

    # Whether it also tells what was said to the agent, and what waits.
    hears_users: bool

    def text(self, text: str) -> None:
        """Show a piece of the answer."""

    def thought(self, text: str) -> None:
        """Show a piece of what the model thinks."""

    def aside(self, text: str, *, is_loud: bool = False) -> None:
        """Say something that is not part of the answer; a loud thing is said in spite of -q."""

    def busy(self, what: str) -> None:
        """Show what is waited for, until something else is shown."""

    def begun(self, call_id: CallId, line: str) -> None:
        """Show that a call acts."""

    def ended(self, call_id: CallId, line: str, *, is_well: bool) -> None:
        """Show what came of a call."""

    def change(self, lines: list[str]) -> None:
        """Show what a call changes that nobody was asked about."""

    def queued(self, message: Message) -> None:
        """Show that something was said and waits for its turn."""

    def said(self, turn: int) -> None:
        """Show what was said to the agent, now that its turn has come."""

    def settle(self) -> None:
        """Finish what is open: nothing more comes for a while."""

    def pause(self) -> None:
        """Leave the terminal to somebody else, at the beginning of a line."""


class PlainPage:
    """Writes each piece once, in its order."""

    hears_users = False

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        self._is_open_line = False

    def text(self, text: str) -> None:
        """Write a piece of the answer."""
        shown = clean(text)
        sys.stdout.write(shown)
        sys.stdout.flush()
        if shown:
            self._is_open_line = not shown.endswith("\n")

    def thought(self, text: str) -> None:
        """Leave thoughts out: nothing would tell them from the answer."""

    def aside(self, text: str, *, is_loud: bool = False) -> None:
        """Write a line of its own."""
        self.pause()
        if is_loud:
            self._printer.warn(text)
        else:
            self._printer.remark(text)

    def busy(self, what: str) -> None:
        """Do nothing: what waits could not be taken away again."""

    def begun(self, call_id: CallId, line: str) -> None:
        """Write that a call acts."""
        self.aside(f"{line} …")

    def ended(self, call_id: CallId, line: str, *, is_well: bool) -> None:
        """Write what came of a call."""
        self.aside(line)

    def change(self, lines: list[str]) -> None:
        """Leave it out: in a pipe the files themselves tell."""

    def queued(self, message: Message) -> None:
        """Do nothing: who wrote it knows."""

    def said(self, turn: int) -> None:
        """Do nothing: who wrote it knows."""

    def settle(self) -> None:
        """End the line."""
        self.pause()

    def pause(self) -> None:
        """End a line that is open."""
        if self._is_open_line:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._is_open_line = False


ToolEvent = ToolStarted | ToolEnded | ApprovalRequested | ApprovalAnswered
# A flag does not answer for it, so the flag is not recommended.
NEVER_BY_FLAG: Final = "git_commit"


class ToolView:
    """Tells of calls and questions; remembers the line of each call until it has ended."""

    def __init__(self, page: ScreenPage, policy: AttendancePolicy) -> None:
        self._page = page
        self._policy = policy
        self._lines: dict[CallId | None, str] = {}
        # What was asked about was shown whole already.
        self._seen: set[CallId | None] = set()

    def note(self, message: Message) -> None:
        """Take note of what a call asks for: the news of a refusal do not repeat it."""
        for part in message.parts:
            if isinstance(part, ToolCall):
                self._lines[part.id] = call_line(part.name, part.arguments)

    def show(self, event: ToolEvent) -> None:
        """Tell a piece of news."""
        match event:
            case ToolStarted():
                self._begin(event)
            case ToolEnded():
                line = self._lines.pop(event.call_id, event.name)
                rendered = outcome(event.name, event.status, event.result, event.failure)
                is_well = event.status is ResultStatus.OK
                self._page.ended(
                    event.call_id, f"{line}: {rendered}{self._advice(event)}", is_well=is_well
                )
            case ApprovalRequested():
                self._seen.add(event.call_id)
                # Where somebody is asked, the question is shown by whoever asks it.
                if not self._policy.asks:
                    self._page.aside(f"{event.tool} asks: {escape_hidden(event.question)}")
            case ApprovalAnswered() if not self._policy.asks:
                line = self._lines.get(event.call_id, "The question")
                self._page.aside(f"{line}: {event.decision}, by {event.by}")
            case _:
                pass

    def _begin(self, event: ToolStarted) -> None:
        line = call_line(event.name, event.arguments)
        self._lines[event.call_id] = line
        if event.call_id not in self._seen and (lines := change_lines(event.name, event.arguments)):
            self._page.change([line, *lines])
        self._page.begun(event.call_id, line)

    def _advice(self, ended: ToolEnded) -> str:
        """Return how a call is allowed where nobody can be asked."""
        failure = ended.failure
        if failure is None or ended.status is not ResultStatus.DENIED:
            return ""
        is_unattended = (failure.code, failure.message) == REFUSALS[Ruling.UNATTENDED]
        if not is_unattended or ended.name in {*self._policy.yes_to, NEVER_BY_FLAG}:
            return ""
        return f" --yes-to {ended.name} answers for you."


class ChatScreen(Protocol):
    """Shows the news of a session."""

    async def show(self, item: Event | Gap) -> None:
        """Show a piece of news."""

    def waiting(self) -> None:
        """Show that a message is on disk and its answer has not begun."""

    def remark(self, text: str) -> None:
        """Say something that is not part of the conversation."""

    def pause(self) -> None:
        """Leave the terminal to somebody else for a while, at the beginning of a line."""


# Notices of which the news of a turn or a session tell already.
_REPORTED_ELSEWHERE = CLOSING | {NoticeCode.SESSION_CLOSED, NoticeCode.CALL_SETTLED}
# What a person is told to do when a turn has failed; after a try, it is done without them.
_ADVICE: Final = re.compile(r" (?:Wait [^.]*, then s|S)end a message to try again\.$")


class JsonScreen:
    """One line of JSON for each event, and nothing else on stdout."""

    def __init__(self, printer: Printer, lines: EventLines) -> None:
        self._printer = printer
        self._lines = lines

    async def show(self, item: Event | Gap) -> None:
        """Print the line of an event."""
        self._printer.document(await self._lines.line(item))

    def waiting(self) -> None:
        """Say nothing: the message's own event says it."""

    def remark(self, text: str) -> None:
        """Say nothing: programs read events."""

    def pause(self) -> None:
        """Do nothing: what is written is whole lines."""


class TextScreen:
    """The conversation in words: the answer as it arrives, and what is done for it."""

    def __init__(
        self,
        printer: Printer,
        holdfast: "House",
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
        """Show a piece of news as far as it says something to a person."""
        if self.meter is not None:
            self.meter.update(item)
        if isinstance(item, Gap):
            # From here on offsets do not fit; the message itself brings the rest of its text.
            self._missed = True
            return
        match item.payload:
            case TurnStarted():
                self.page.said(item.turn or 0)
                self.waiting()
            case StepStarted():
                self._begin()
            case StepDelta():
                self._delta(item.payload)
            case MessageAppended(role=Role.USER) as row if self.page.hears_users:
                self.page.queued(await self._message(item, row))
            case MessageAppended(role=Role.ASSISTANT | Role.TOOL_CALL | Role.SYSTEM) as row:
                await self._row(item, row)
            case StepFailed() as failed:
                self._failure = failed.failure.message
            case ToolStarted() | ToolEnded() | ApprovalRequested() | ApprovalAnswered() as work:
                self._working.show(work)
            case TurnEnded() as ended:
                self._end(ended)
                self._tell_cost(ended)
            case CallSettled() | SessionCompacted() | SessionClosed() as change:
                self.remark(_describe_change(change))
            case _:
                pass

    def waiting(self) -> None:
        """Show that the message is saved, and the answer on its way."""
        self.page.busy("saved, waiting …")

    def remark(self, text: str) -> None:
        """Say something on the side, on a line of its own."""
        self.page.aside(text)

    def pause(self) -> None:
        """Leave the terminal to somebody else for a while."""
        self.page.pause()

    def _begin(self) -> None:
        """Start with a new step; one that failed before it is told of, because it was in vain."""
        self._shown = 0
        self._missed = False
        if self._failure is not None:
            self.remark(f"{_ADVICE.sub('', self._failure)} Asking again.")
            self._failure = None
        self.waiting()

    def _delta(self, delta: StepDelta) -> None:
        if delta.channel is Channel.REASONING:
            self.page.thought(delta.text)
            return
        # Text that is out of place could not be taken back once it is shown.
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
        """Tell what Holdfast itself has to say in a conversation."""
        for part in message.parts:
            if isinstance(part, Notice) and part.code not in _REPORTED_ELSEWHERE:
                self.remark(part_text(part))

    def _complete(self, message: Message) -> None:
        """Show what the deltas did not: the message holds all of its text."""
        rest = message.text[self._shown :]
        if rest:
            self._shown += len(rest)
            self.page.text(rest)

    def _tell_cost(self, ended: TurnEnded) -> None:
        """Tell a person what a turn has cost; programs read it from the events."""
        if self._policy.asks and (ended.usage != Usage() or ended.microcents):
            tokens = f"{ended.usage.input} tokens in, {ended.usage.output} out"
            self.remark(f"{tokens}, {price(ended.microcents, priced=ended.priced)}")

    def _end(self, ended: TurnEnded) -> None:
        self.page.settle()
        # The turn tells its failure itself; that of a step was only a try.
        self._failure = None
        if ended.stop_reason is StopReason.ABORTED:
            self.page.aside("Stopped; what was said so far is kept.", is_loud=True)
        elif ended.failure is not None:
            rendered = one_line(ended.failure.message, longest=2_000)
            self.page.aside(f"The turn failed ({ended.failure.code}): {rendered}", is_loud=True)
        elif ended.stop_reason is not StopReason.STOP:
            self.page.aside(f"The turn ended with {ended.stop_reason}.", is_loud=True)


def _describe_change(change: CallSettled | SessionCompacted | SessionClosed) -> str:
    match change:
        case CallSettled():
            return f"The unknown call {change.call_id} was {change.how}."
        case SessionCompacted():
            return f"What came before message {change.dropped_through + 1} is summed up."
        case SessionClosed():
            return f"The session was closed: {change.reason or change.status}."
