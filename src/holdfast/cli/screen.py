"""What a conversation looks like: text as it arrives for people, lines of JSON for programs."""

import re
import sys
from typing import TYPE_CHECKING, Any, Final, Protocol

from holdfast.cli.forms import words_of
from holdfast.cli.manners import ANYBODY, Manner
from holdfast.cli.output import Printer, price
from holdfast.cli.stream import EventLines
from holdfast.cli.terminal import clean, is_colored, is_terminal, one_line
from holdfast.cli.working import Working
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
)
from holdfast.domain.messages import CLOSING, Message, Notice, NoticeCode, Role
from holdfast.domain.sessions import StopReason

if TYPE_CHECKING:
    from holdfast.cli.house import House


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
    """The answer as it arrives; everything else stands aside, on stderr."""

    def __init__(self, printer: Printer, holdfast: "House", manner: Manner = ANYBODY) -> None:
        self._printer = printer
        self._holdfast = holdfast
        self._manner = manner
        self._working = Working(self.remark, manner)
        self._spinner: Any = None
        self._shown = 0
        self._open_line = False
        self._thinking = False
        self._missed = False
        self._failure: str | None = None

    async def show(self, item: Event | Gap) -> None:
        """Show a piece of news as far as it says something to a person."""
        if isinstance(item, Gap):
            # From here on offsets do not fit; the message itself brings the rest of its text.
            self._missed = True
            return
        match item.payload:
            case StepStarted():
                self._begin()
            case StepDelta():
                self._delta(item.payload)
            case MessageAppended(role=Role.ASSISTANT | Role.TOOL_CALL | Role.SYSTEM):
                await self._row(item, item.payload)
            case StepFailed() as failed:
                self._failure = failed.failure.message
            case ToolStarted() | ToolEnded() | ApprovalRequested() | ApprovalAnswered() as work:
                self._working.show(work)
            case CallSettled() as settled:
                self.remark(f"The unknown call {settled.call_id} was {settled.how}.")
            case SessionCompacted() as folded:
                self.remark(f"What came before message {folded.dropped_through + 1} is summed up.")
            case TurnEnded() as ended:
                self._end(ended)
                self._tell_cost(ended)
            case SessionClosed() as closed:
                self.remark(f"The session was closed: {closed.reason or closed.status}.")
            case _:
                pass

    def waiting(self) -> None:
        """Turn a wheel on a terminal: the message is saved, the answer is on its way."""
        if self._printer.settings.quiet or not is_terminal(sys.stdout):
            return
        if is_colored(sys.stdout, self._printer.settings.color):
            self._spinner = self._printer.console(sys.stdout).status("saved, waiting …")
            self._spinner.start()

    def remark(self, text: str) -> None:
        """Say something on the side, on a line of its own."""
        self.pause()
        self._printer.remark(text)

    def pause(self) -> None:
        """Stop the wheel, and end a line that is open."""
        self._stop_spinner()
        self._end_line()

    def _begin(self) -> None:
        """Start with a new step; one that failed before it is told of, because it was in vain."""
        self._shown = 0
        self._missed = False
        if self._failure is not None:
            self.remark(f"{_ADVICE.sub('', self._failure)} Asking again.")
            self._failure = None

    def _delta(self, delta: StepDelta) -> None:
        if delta.channel is Channel.REASONING:
            self._think(delta.text)
            return
        # Text that is out of place could not be taken back once it is shown.
        if delta.offset != self._shown:
            self._missed = True
        if not self._missed:
            self._shown += len(delta.text)
            self._write(delta.text)

    def _think(self, text: str) -> None:
        """Show thoughts to people only, and dimly."""
        # Dimness is all that tells thoughts from the answer; where it is missing, so are they.
        if is_terminal(sys.stdout) and is_colored(sys.stdout, self._printer.settings.color):
            self._stop_spinner()
            sys.stdout.write(f"\x1b[2m{clean(text)}\x1b[0m")
            sys.stdout.flush()
            self._open_line = self._thinking = True

    async def _row(self, event: Event, row: MessageAppended) -> None:
        message = await self._holdfast.messages.get(
            self._holdfast.owner, event.session_id, row.message_id
        )
        match row.role:
            case Role.ASSISTANT:
                self._complete(message)
            case Role.TOOL_CALL:
                self._working.note(message)
            case _:
                self._notice(message)

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
            self._write(rest)

    def _write(self, text: str) -> None:
        self._stop_spinner()
        if self._thinking:
            self._end_line()
            self._thinking = False
        shown = clean(text)
        sys.stdout.write(shown)
        sys.stdout.flush()
        if shown:
            self._open_line = not shown.endswith("\n")

    def _tell_cost(self, ended: TurnEnded) -> None:
        """Tell a person what a turn has cost; programs read it from the events."""
        if self._manner.asks:
            tokens = f"{ended.usage.input} tokens in, {ended.usage.output} out"
            self.remark(f"{tokens}, {price(ended.microcents, priced=ended.priced)}")

    def _end(self, ended: TurnEnded) -> None:
        self.pause()
        # The turn tells its failure itself; that of a step was only a try.
        self._failure = None
        if ended.stop_reason is StopReason.ABORTED:
            self._printer.warn("Stopped; what was said so far is kept.")
        elif ended.failure is not None:
            told = one_line(ended.failure.message, longest=2_000)
            self._printer.warn(f"The turn failed ({ended.failure.code}): {told}")
        elif ended.stop_reason is not StopReason.STOP:
            self._printer.warn(f"The turn ended with {ended.stop_reason}.")

    def _end_line(self) -> None:
        if self._open_line:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self._open_line = False

    def _stop_spinner(self) -> None:
        if self._spinner is not None:
            self._spinner.stop()
            self._spinner = None
