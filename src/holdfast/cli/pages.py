"""Where a conversation is written for people: as it comes, where nothing can be drawn twice.

The answer goes to stdout; everything else stands aside, on stderr.
"""

import sys
from typing import Final, Protocol

from holdfast.cli.output import Printer
from holdfast.cli.terminal import clean
from holdfast.domain.ids import CallId
from holdfast.domain.messages import Message

# A line of a change begins so; each is shown in a colour of its own.
MARKS: Final = {"+": "32", "-": "31", "@": "36"}


class Page(Protocol):
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
