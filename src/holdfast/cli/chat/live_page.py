"""A page redrawn in place: finished Markdown blocks are printed once, the rest is redrawn."""

import asyncio
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

from holdfast.cli.approval_policy import AttendancePolicy
from holdfast.cli.chat.markdown import Block, BlockSplitter, render_markdown, wrap_text
from holdfast.cli.chat.screen import MARKS, PlainPage, ScreenPage
from holdfast.cli.chat.transcript import lines_of
from holdfast.cli.output import Printer
from holdfast.cli.terminal import can_redraw, is_colored, size_of_screen
from holdfast.domain.ids import CallId
from holdfast.domain.messages import Message, Role
from holdfast.domain.text import clean, one_line
from holdfast.domain.turns import TurnRows

if TYPE_CHECKING:
    from prompt_toolkit.application import Application


# Synchronized output: terminals that support it draw the text between the two at once.
_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"
_UP: Final = "\x1b[{}A"


class LiveRegion(Protocol):
    """Where a page is drawn."""

    def write(self, text: str) -> None:
        """Write complete lines permanently."""

    def live(self, lines: Sequence[str]) -> None:
        """Replace the live lines below the output; each fits into a row."""


class PlainRegion:
    """Live lines below the output of a command without a prompt."""

    def __init__(self) -> None:
        self._lines: Sequence[str] = ()

    def write(self, text: str) -> None:
        """Write above the live lines."""
        self._draw(text, self._lines)

    def live(self, lines: Sequence[str]) -> None:
        """Draw the live lines, if they have changed."""
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

    They are part of the prompt, which draws them; without a prompt they are not visible.
    """

    def __init__(self) -> None:
        self.lines: Sequence[str] = ()
        self._prompt: Application[Any] | None = None

    def belong_to(self, prompt: "Application[Any]") -> None:
        """Set the prompt that draws the lines."""
        self._prompt = prompt

    def write(self, text: str) -> None:
        """Write above the prompt, and redraw the prompt."""
        prompt = self._prompt
        if prompt is None or not prompt.is_running:
            sys.stdout.write(text)
            sys.stdout.flush()
            return
        output = prompt.output
        output.write_raw(_BEGIN)
        prompt.renderer.erase()
        output.write_raw(text)
        # At once and not in the next loop iteration, because a gap would flicker.
        prompt.renderer.render(prompt, prompt.layout)
        output.write_raw(_END)
        output.flush()

    def live(self, lines: Sequence[str]) -> None:
        """Show the lines with the next redraw."""
        if lines != self.lines:
            self.lines = lines
            if self._prompt is not None:
                self._prompt.invalidate()


_SPINNER: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_SECONDS: Final = 0.1
# From this duration on, the elapsed time is shown.
_LONG: Final = 2.0
_USER_LINES_MOST: Final = 12
# Drawing is limited to a fraction of the time, so that input and the answer are not delayed.
_REST: Final = 3
_DIM, _BOLD, _GREEN, _RED = "2", "1", "32", "31"


class LivePage:
    """Draws an answer while it arrives, and pending work, at the bottom of a terminal."""

    def __init__(
        self, printer: Printer, region: LiveRegion, *, is_colored: bool, hears_users: bool = False
    ) -> None:
        self.hears_users = hears_users
        self.region = region
        self._printer = printer
        self.is_colored = is_colored
        self._blocks = BlockSplitter()
        self._thoughts = ""
        self._busy = ""
        self._since = 0.0
        self._calls: dict[CallId, str] = {}
        self._queue: list[Message] = []
        self._has_written = False
        self._ticking: asyncio.TimerHandle | None = None
        self._drawing: asyncio.TimerHandle | None = None
        self._rested_at = 0.0

    def text(self, text: str) -> None:
        """Append a chunk of the answer; write the blocks that are complete."""
        self._end_thoughts()
        is_first, self._busy = bool(self._busy), ""
        blocks = self._blocks.add(text)
        if is_first or blocks:
            # Redrawn before they are written, so that complete blocks are not drawn twice.
            self._draw()
            self._write_blocks(blocks)
        else:
            self._draw_soon()

    def thought(self, text: str) -> None:
        """Append a chunk of the model's reasoning; omitted without colours."""
        # Only the dim style distinguishes reasoning from the answer.
        if self.is_colored:
            self._thoughts += text
            self._draw_soon()

    def aside(self, text: str, *, is_loud: bool = False) -> None:
        """Write a remark in a dim style."""
        self._end_block()
        if is_loud or not self._printer.settings.quiet:
            self._write(self._styled(clean(text), "" if is_loud else _DIM))

    def busy(self, what: str) -> None:
        """Show a spinner with what is being waited for, unless `--quiet` is set."""
        self._busy = "" if self._printer.settings.quiet else what
        self._since = asyncio.get_running_loop().time()
        self._tick()

    def begun(self, call_id: CallId, line: str) -> None:
        """Show a spinner beside the call."""
        self._end_block()
        if not self._printer.settings.quiet:
            self._calls[call_id] = line
        self.busy("")

    def ended(self, call_id: CallId, line: str, *, is_well: bool) -> None:
        """Replace a call's spinner with its result."""
        self._end_block()
        self._calls.pop(call_id, None)
        if not self._printer.settings.quiet:
            mark = self._styled("✓", _GREEN) if is_well else self._styled("✗", _RED)
            self._write(f"{mark} {self._styled(clean(line), _DIM)}")

    def change(self, lines: list[str]) -> None:
        """Write the diff of a call in colours."""
        self._end_block()
        if not self._printer.settings.quiet:
            rendered = (self._styled(clean(line), MARKS.get(line[:1], _DIM)) for line in lines)
            self._write("\n".join(f"  {line}" for line in rendered))

    def queued(self, message: Message) -> None:
        """Show a message that waits for its turn."""
        self._queue.append(message)
        self._draw()

    def said(self, turn: int) -> None:
        """Write the user's message above its answer."""
        due = [each for each in self._queue if each.turn <= turn]
        self._queue = [each for each in self._queue if each.turn > turn]
        self._draw()
        for message in due:
            self._write_user(message)

    def past(self, turn: TurnRows) -> None:
        """Write an earlier turn as it was shown then."""
        for message in turn.messages:
            if message.role is Role.USER:
                self._write_user(message)
            elif message.role is Role.ASSISTANT:
                self._write_blocks(self._blocks.add(message.text))
                self._end_block()
            else:
                for line in lines_of(message):
                    self._write(self._styled(clean(line), _DIM))

    def settle(self) -> None:
        """Write the rest of the answer, and stop the spinner."""
        self._end_block()
        self._calls.clear()
        self._busy = ""
        self._stop_ticking()
        self._draw()

    def forget(self) -> None:
        """Discard live lines, because they belong to a session that was left."""
        self._queue.clear()
        self.settle()

    def pause(self) -> None:
        """Write the rest of the answer, and remove the live lines."""
        self._end_block()
        self._stop_ticking()
        self._drop_drawing()
        self.region.live(())

    def _write_user(self, message: Message) -> None:
        first, *more = clean(message.text).rstrip("\n").split("\n")
        shown = [f"> {first}", *(f"  {line}" for line in more[: _USER_LINES_MOST - 1])]
        if len(more) >= _USER_LINES_MOST:
            shown.append(f"  … {len(more) - _USER_LINES_MOST + 1} more lines")
        blank = "\n" if self._has_written else ""
        self._write(blank + "\n".join(self._styled(line, _BOLD) for line in shown) + "\n")

    def _end_block(self) -> None:
        self._end_thoughts()
        self._write_blocks(self._blocks.finish())

    def _end_thoughts(self) -> None:
        thoughts, self._thoughts = self._thoughts.strip("\n"), ""
        if thoughts:
            self._write("\n".join(wrap_text(thoughts, self._width, "dim italic")))

    def _write_blocks(self, blocks: Iterable[Block]) -> None:
        for text, is_apart in blocks:
            # Without colours, the Markdown source is clearer than its rendering.
            rendered = render_markdown(text, self._width) if self.is_colored else f"{clean(text)}\n"
            self.region.write(f"\n{rendered}" if is_apart else rendered)
            self._has_written = True

    def _write(self, text: str) -> None:
        self.region.write(f"{text}\n")
        self._has_written = True

    @property
    def _width(self) -> int:
        return size_of_screen().columns

    def _tick(self) -> None:
        self._stop_ticking()
        if self._busy or self._calls:
            self._ticking = asyncio.get_running_loop().call_later(_SECONDS, self._tick)
        self._draw()

    def _stop_ticking(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
            self._ticking = None

    def _draw_soon(self) -> None:
        """Draw now, or when the next redraw is due."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._rested_at:
            self._draw()
        elif self._drawing is None:
            self._drawing = loop.call_at(self._rested_at, self._draw)

    def _draw(self) -> None:
        clock = asyncio.get_running_loop().time
        begun = clock()
        self._drop_drawing()
        columns, rows = size_of_screen()
        waits = self._first_waits(columns, max(2, rows // 4))
        tail = list(self._tail(columns, rows))
        # The newest lines are shown, and the prompt needs room below them.
        self.region.live([*tail[-max(1, rows // 2 - len(waits)) :], *waits])
        self._rested_at = clock() + _REST * (clock() - begun)

    def _drop_drawing(self) -> None:
        if self._drawing is not None:
            self._drawing.cancel()
            self._drawing = None

    def _tail(self, columns: int, rows: int) -> Iterator[str]:
        # Text beyond the screen size is not rendered, because each redraw would repeat it.
        room = columns * rows
        if self._thoughts.strip():
            yield from wrap_text(self._thoughts.strip("\n")[-room:], columns, "dim italic")
        tail = self._blocks.ending(rows, room)
        if tail.strip() and self.is_colored:
            yield from render_markdown(tail, columns).rstrip("\n").split("\n")
        elif tail.strip():
            yield from wrap_text(tail, columns)

    def _first_waits(self, columns: int, most: int) -> list[str]:
        """Return lines about pending work, limited: lines that scroll away cannot be erased."""
        left = len(self._calls) + bool(self._busy) + len(self._queue) - most + 1
        if left <= 1:
            return list(self._waits(columns))
        return [*islice(self._waits(columns), most - 1), self._row(f"… {left} more", columns)]

    def _waits(self, columns: int) -> Iterator[str]:
        now = asyncio.get_running_loop().time()
        wheel = _SPINNER[int(now / _SECONDS) % len(_SPINNER)]
        seconds = f" {now - self._since:.0f} s" if now - self._since >= _LONG else ""
        for what in (*self._calls.values(), *filter(None, [self._busy])):
            room = max(columns - len(seconds) - 4, 8)
            yield self._row(f"{wheel} {one_line(what, longest=room)}{seconds}", columns)
        for message in self._queue:
            room = max(columns - len("queued: "), 8)
            yield self._row(f"queued: {one_line(message.text, longest=room)}", columns)

    def _row(self, text: str, columns: int) -> str:
        return wrap_text(text, columns, "dim" if self.is_colored else "")[0]

    def _styled(self, text: str, style: str) -> str:
        """Return lines, each in a style; unchanged without colours."""
        if not style or not self.is_colored:
            return text
        return "\n".join(f"\x1b[{style}m{line}\x1b[0m" if line else "" for line in text.split("\n"))


def choose_page(printer: Printer, policy: AttendancePolicy) -> ScreenPage:
    """Return the page for a conversation."""
    if not can_redraw(sys.stdout) or printer.is_json:
        return PlainPage(printer)
    colored = is_colored(sys.stdout, printer.settings.color)
    # Without colours nothing is redrawn, unless a prompt is below it.
    if not policy.converses and not colored:
        return PlainPage(printer)
    region: LiveRegion = PromptRegion() if policy.converses else PlainRegion()
    return LivePage(printer, region, is_colored=colored, hears_users=policy.converses)
