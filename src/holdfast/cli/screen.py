"""What a conversation looks like: text as it arrives for people, lines of JSON for programs."""

import re
from typing import TYPE_CHECKING, Final, Protocol

from holdfast.cli.forms import words_of
from holdfast.cli.manners import ANYBODY, Manner
from holdfast.cli.output import Printer, price
from holdfast.cli.pages import Page, PlainPage
from holdfast.cli.stream import EventLines
from holdfast.cli.terminal import one_line
from holdfast.cli.working import Working
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
from holdfast.domain.messages import CLOSING, Message, Notice, NoticeCode, Role
from holdfast.domain.sessions import StopReason

if TYPE_CHECKING:
    from holdfast.cli.house import House
    from holdfast.cli.live.meter import Meter


class Screen(Protocol):
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
_TOLD_ELSEWHERE = CLOSING | {NoticeCode.SESSION_CLOSED, NoticeCode.CALL_SETTLED}


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
        manner: Manner = ANYBODY,
        page: Page | None = None,
    ) -> None:
        self.page = page or PlainPage(printer)
        self.meter: Meter | None = None
        self._holdfast = holdfast
        self._manner = manner
        self._working = Working(self.page, manner)
        self._shown = 0
        self._missed = False
        self._failure: str | None = None

    async def show(self, item: Event | Gap) -> None:
        """Show a piece of news as far as it says something to a person."""
        if self.meter is not None:
            self.meter.hear(item)
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
                self.remark(_told(change))
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
            if isinstance(part, Notice) and part.code not in _TOLD_ELSEWHERE:
                self.remark(words_of(part))

    def _complete(self, message: Message) -> None:
        """Show what the deltas did not: the message holds all of its text."""
        rest = message.text[self._shown :]
        if rest:
            self._shown += len(rest)
            self.page.text(rest)

    def _tell_cost(self, ended: TurnEnded) -> None:
        """Tell a person what a turn has cost; programs read it from the events."""
        if self._manner.asks and (ended.usage != Usage() or ended.microcents):
            tokens = f"{ended.usage.input} tokens in, {ended.usage.output} out"
            self.remark(f"{tokens}, {price(ended.microcents, priced=ended.priced)}")

    def _end(self, ended: TurnEnded) -> None:
        self.page.settle()
        # The turn tells its failure itself; that of a step was only a try.
        self._failure = None
        if ended.stop_reason is StopReason.ABORTED:
            self.page.aside("Stopped; what was said so far is kept.", is_loud=True)
        elif ended.failure is not None:
            told = one_line(ended.failure.message, longest=2_000)
            self.page.aside(f"The turn failed ({ended.failure.code}): {told}", is_loud=True)
        elif ended.stop_reason is not StopReason.STOP:
            self.page.aside(f"The turn ended with {ended.stop_reason}.", is_loud=True)


def _told(change: CallSettled | SessionCompacted | SessionClosed) -> str:
    match change:
        case CallSettled():
            return f"The unknown call {change.call_id} was {change.how}."
        case SessionCompacted():
            return f"What came before message {change.dropped_through + 1} is summed up."
        case SessionClosed():
            return f"The session was closed: {change.reason or change.status}."
