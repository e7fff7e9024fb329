"""The lower end of a terminal: a few live lines below what was written for good.

What is written for good appears above the live lines and is never touched again, so that it can
scroll away; only the live lines are drawn anew.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from prompt_toolkit.application import Application

# Terminals that know it show what is between the two at once; the others ignore both.
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"
_UP: Final = "\x1b[{}A"


class Region(Protocol):
    """Where a page is drawn."""

    def write(self, text: str) -> None:
        """Write whole lines for good."""

    def live(self, lines: Sequence[str]) -> None:
        """Show these lines below, in place of those that were there; each fits into a row."""


class BareRegion:
    """Live lines below what a command prints, where nothing is typed."""

    def __init__(self) -> None:
        self._lines: Sequence[str] = ()

    def write(self, text: str) -> None:
        """Write above the live lines."""
        self._draw(text, self._lines)

    def live(self, lines: Sequence[str]) -> None:
        """Draw the live lines, if they are others."""
        if lines != self._lines:
            self._draw("", lines)

    def _draw(self, text: str, lines: Sequence[str]) -> None:
        up = _UP.format(len(self._lines)) if self._lines else ""
        erased = f"\r{up}\x1b[J" if self._lines else ""
        drawn = "".join(f"{line}\n" for line in lines)
        sys.stdout.write(f"{_BEGIN}{erased}{text}{drawn}{_END}")
        sys.stdout.flush()
        self._lines = lines


class PromptRegion:
    """Live lines above the line at which a person types.

    They are part of the prompt, which draws them; while there is no prompt they are not seen.
    """

    def __init__(self) -> None:
        self.lines: Sequence[str] = ()
        self._prompt: Application[Any] | None = None

    def belong_to(self, prompt: "Application[Any]") -> None:
        """Say which prompt draws the lines."""
        self._prompt = prompt

    def write(self, text: str) -> None:
        """Write above the prompt, and draw that anew."""
        prompt = self._prompt
        if prompt is None or not prompt.is_running:
            sys.stdout.write(text)
            sys.stdout.flush()
            return
        output = prompt.output
        output.write_raw(_BEGIN)
        prompt.renderer.erase()
        output.write_raw(text)
        # At once and not when the loop has time: a gap would flicker.
        prompt.renderer.render(prompt, prompt.layout)
        output.write_raw(_END)
        output.flush()

    def live(self, lines: Sequence[str]) -> None:
        """Show the lines with the next drawing, which comes soon."""
        if lines != self.lines:
            self.lines = lines
            if self._prompt is not None:
                self._prompt.invalidate()
