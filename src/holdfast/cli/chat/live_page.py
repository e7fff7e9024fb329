"""A page of Markdown redrawn in place: finished blocks are printed once, the rest is redrawn."""

import asyncio
import io
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from holdfast.cli.approval_policy import AttendancePolicy
from holdfast.cli.chat.prompt import BEGIN_UPDATE, END_UPDATE, PromptRegion
from holdfast.cli.chat.screen import MARKS, PlainPage, ScreenPage
from holdfast.cli.chat.transcript import lines_of
from holdfast.cli.output import Printer
from holdfast.cli.terminal import can_redraw, is_colored, size_of_screen
from holdfast.domain.ids import CallId
from holdfast.domain.messages import Message, Role
from holdfast.domain.text import clean, one_line
from holdfast.domain.turns import TurnRows

if TYPE_CHECKING:
    from rich.markdown import Markdown


_HEADING: Final = re.compile(r" {0,3}#{1,6}(?:\s|$)")
_FENCE: Final = re.compile(r"\s*(`{3,}|~{3,})")
_ITEM: Final = re.compile(r"(\s*(?:[-*+]|(\d{1,9})[.)])\s)\s*\S")


class Block(NamedTuple):
    """A Markdown block; `is_apart` is whether a blank line precedes it."""

    text: str
    is_apart: bool


class BlockSplitter:
    """Splits text that arrives in chunks of any size into blocks."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._rest = ""
        self._fence = ""
        self._opening = ""
        # Column at which the text of the open list item begins; 0 outside of a list.
        self._inset = 0
        self._is_first = True
        self._is_spaced = False

    def ending(self, lines: int, characters: int) -> str:
        """Return the incomplete block, or the end of it.

        Truncated code begins with its fence nevertheless.
        """
        found = "\n".join([*self._lines[-lines:], self._rest])
        is_cut = len(self._lines) > lines or len(found) > characters
        opening = f"{self._opening}\n" if is_cut and self._fence else ""
        return opening + found[-characters:]

    def add(self, text: str) -> list[Block]:
        """Append a chunk of text; return the blocks that it completes."""
        *lines, self._rest = (self._rest + text).split("\n")
        return [block for line in lines for block in self._take(line)]

    def finish(self) -> list[Block]:
        """Return the remaining blocks, and reset for a new text."""
        rest, self._rest = self._rest, ""
        found = [*(self._take(rest) if rest else ()), *self._close()]
        self._fence, self._inset, self._is_first, self._is_spaced = "", 0, True, False
        return found

    def _take(self, line: str) -> Iterator[Block]:
        if self._fence:
            self._lines.append(line)
            if _ends(line, self._fence):
                self._fence = ""
                # Text inside an item is part of it.
                yield from self._close() if not self._inset else ()
        elif not line.strip():
            yield from self._blank()
        else:
            yield from self._text(line)

    def _blank(self) -> Iterator[Block]:
        # An item may continue after a blank line; the next line decides.
        if self._inset and self._lines:
            self._lines.append("")
            return
        yield from self._close()
        self._is_spaced = True

    def _text(self, line: str) -> Iterator[Block]:
        is_inside = bool(self._inset) and len(line) - len(line.lstrip()) >= 2
        item = _ITEM.match(line)
        if item is not None and self._is_new_item(item, line):
            yield from self._close()
            self._inset = len(item[1])
        elif not is_inside and (_begins_anew(line) or self._lines[-1:] == [""]):
            yield from self._close()
        self._lines.append(line)
        if (found := _FENCE.match(line)) is not None:
            self._fence, self._opening = found[1], line
        elif _HEADING.match(line) and not self._inset:
            yield from self._close()

    def _is_new_item(self, item: re.Match[str], line: str) -> bool:
        if self._inset:
            return len(line) - len(line.lstrip()) < self._inset
        # Inside a paragraph, a number such as a year at the start of a line is not a list.
        return not self._lines or item[2] in (None, "1")

    def _close(self) -> Iterator[Block]:
        lines, is_item = self._lines, bool(self._inset)
        self._lines, self._inset = [], 0
        is_spaced = bool(lines) and not lines[-1]
        while lines and not lines[-1]:
            lines.pop()
        if lines:
            is_apart = not self._is_first and (self._is_spaced or not is_item)
            self._is_first = False
            self._is_spaced = is_spaced
            yield Block("\n".join(lines), is_apart)


def _begins_anew(line: str) -> bool:
    return bool(_HEADING.match(line) or _FENCE.match(line))


def _ends(line: str, fence: str) -> bool:
    content = line.strip()
    return len(content) >= len(fence) and not content.strip(fence[0])


# Colours of the terminal's own palette: it may be light or dark.
_THEME: Final = "ansi_dark"
_SPELLED_OUT: Final = {"html_inline": "text", "softbreak": "hardbreak"}
_NAMED: Final = re.compile(r"( {0,3}(?:> ?|[-*+] +|\d{1,9}[.)] +)*)\[(?=[^\]]+\]:)")
# A narrower column could not show a readable word.
_COLUMN_NARROWEST: Final = 6


def render_block(markdown: str) -> "Markdown":
    """Return a Markdown block as a printable object."""
    drawn = _kinds()(_escape_definitions(markdown), code_theme=_THEME, hyperlinks=False)
    for token in drawn.parsed:
        _spell_out(token)
    return drawn


def _escape_definitions(markdown: str) -> str:
    """Escape link definitions, because the links that use them are in other blocks."""
    lines = markdown.split("\n")
    for number, line in enumerate(lines):
        # Only at the start of a block: elsewhere they are text already.
        if not _NAMED.match(line):
            break
        lines[number] = _NAMED.sub(r"\1\\[", line)
    return "\n".join(lines)


@cache
def _kinds() -> "type[Markdown]":
    """Return our Markdown class; created on first use, because importing rich is slow."""
    from rich.markdown import CodeBlock, Heading, Markdown, TableElement
    from rich.syntax import Syntax

    class Title(Heading):
        """A left-aligned heading."""

        LEVEL_ALIGN: ClassVar = {}

    class Code(CodeBlock):
        """Indented code without a box, which would be copied with it."""

        def __rich_console__(self, *_: Any) -> Iterable[Any]:
            code = str(self.text).rstrip("\n")
            yield Syntax(code, self.lexer_name, theme=_THEME, word_wrap=True, padding=(0, 2))

    class Grid(TableElement):
        """A table whose cells are wrapped and never cut; printed as lines if it is too wide."""

        def __rich_console__(self, console: Any, options: Any) -> Iterable[Any]:
            for table in super().__rich_console__(console, options):
                columns: list[Any] = getattr(table, "columns", [])
                if len(columns) * _COLUMN_NARROWEST > options.max_width:
                    yield from _as_lines(self)
                    return
                for column in columns:
                    column.overflow = "fold"
                yield table

    class Drawn(Markdown):
        elements: ClassVar = {
            **Markdown.elements,
            "heading_open": Title,
            "fence": Code,
            "code_block": Code,
            "table_open": Grid,
        }

    return Drawn


def _as_lines(table: Any) -> Iterable[Any]:
    from rich.text import Text

    rows = [table.header.row, *(table.body.rows if table.body else ())]
    for row in rows:
        yield Text(" | ").join(cell.content for cell in row.cells)


def _spell_out(token: Any) -> None:
    """Convert tokens that rich would drop to text, and preserve line breaks."""
    if token.type == "html_block":
        token.type, token.info = "code_block", "html"
    for child in token.children or ():
        if child.type == "image":
            _write_out(child)
        elif child.type == "link_open":
            child.attrs["href"] = _address(child, "href")
        child.type = _SPELLED_OUT.get(child.type, child.type)


def _write_out(picture: Any) -> None:
    """Convert an image to text, as links are: `description (URL)`."""
    address = _address(picture, "src")
    picture.content = f"{picture.content} ({address})" if picture.content else address
    picture.type, picture.tag, picture.children = "text", "", None


def _address(token: Any, name: str) -> str:
    address, title = token.attrs.get(name, ""), token.attrs.get("title")
    return f'{address} "{title}"' if title else str(address)


_PADDING: Final = re.compile(r" +((?:\x1b\[[0-9;]*m)*)$", re.MULTILINE)
_STYLE: Final = re.compile(r"\x1b\[[0-9;]*m")
# A background colour would look wrong in a light terminal.
_STYLES: Final = {"markdown.code": "bold cyan", "markdown.code_block": "cyan"}
# Nothing fits into fewer columns.
NARROWEST: Final = 10


def render_markdown(markdown: str, width: int) -> str:
    """Return a rendered block as lines of at most `width` columns, each with its line end."""
    drawn = render_block(clean(markdown))
    return "".join(f"{line}\n" for line in _print_lines(drawn, width))


def wrap_text(text: str, width: int, style: str = "") -> list[str]:
    """Return plain text as lines of at most `width` columns, each styled separately."""
    from rich.text import Text

    # rich counts a tab as one column, but a terminal shows up to eight.
    content = Text(clean(text).expandtabs(4), style=style)
    return _print_lines(content, width) or [""]


def _print_lines(thing: Any, width: int) -> list[str]:
    """Return the printed lines of an object, without trailing padding."""
    from rich.console import Console
    from rich.theme import Theme

    stream = io.StringIO()
    console = Console(
        file=stream,
        theme=Theme(_STYLES),
        width=max(width, NARROWEST),
        force_terminal=True,
        # Colours are chosen by TERM and COLORTERM, because the output here is a string buffer.
        _environ={name: os.environ.get(name, "") for name in ("TERM", "COLORTERM")},
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    console.print(thing)
    lines = _PADDING.sub(r"\1", stream.getvalue()).split("\n")
    seen = [number for number, line in enumerate(lines) if _STYLE.sub("", line)]
    return lines[seen[0] : seen[-1] + 1] if seen else []


_UP: Final = "\x1b[{}A"


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
        sys.stdout.write(f"{BEGIN_UPDATE}{erased}{text}{drawn}{END_UPDATE}")
        sys.stdout.flush()
        self._lines = lines


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
        self,
        printer: Printer,
        region: PlainRegion | PromptRegion,
        *,
        is_colored: bool,
        shows_users: bool = False,
    ) -> None:
        self.shows_users = shows_users
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
        self._end_reasoning()
        is_first, self._busy = bool(self._busy), ""
        blocks = self._blocks.add(text)
        if is_first or blocks:
            # Redrawn before they are written, so that complete blocks are not drawn twice.
            self._draw()
            self._write_blocks(blocks)
        else:
            self._draw_soon()

    def show_reasoning(self, text: str) -> None:
        """Append a chunk of the model's reasoning; omitted without colours."""
        # Only the dim style distinguishes reasoning from the answer.
        if self.is_colored:
            self._thoughts += text
            self._draw_soon()

    def aside(self, text: str, *, is_loud: bool = False) -> None:
        """Write a remark in a dim style."""
        self._end_block()
        if is_loud or not self._printer.settings.quiet:
            self._write(self._style(clean(text), "" if is_loud else _DIM))

    def busy(self, what: str) -> None:
        """Show a spinner with what is being waited for, unless `--quiet` is set."""
        self._busy = "" if self._printer.settings.quiet else what
        self._since = asyncio.get_running_loop().time()
        self._tick()

    def show_call(self, call_id: CallId, line: str) -> None:
        """Show a spinner next to the call."""
        self._end_block()
        if not self._printer.settings.quiet:
            self._calls[call_id] = line
        self.busy("")

    def show_result(self, call_id: CallId, line: str, *, is_well: bool) -> None:
        """Replace a call's spinner with its result."""
        self._end_block()
        self._calls.pop(call_id, None)
        if not self._printer.settings.quiet:
            mark = self._style("✓", _GREEN) if is_well else self._style("✗", _RED)
            self._write(f"{mark} {self._style(clean(line), _DIM)}")

    def show_change(self, lines: list[str]) -> None:
        """Write the diff of a call in colours."""
        self._end_block()
        if not self._printer.settings.quiet:
            rendered = (self._style(clean(line), MARKS.get(line[:1], _DIM)) for line in lines)
            self._write("\n".join(f"  {line}" for line in rendered))

    def show_queued(self, message: Message) -> None:
        """Show a message that waits for its turn."""
        self._queue.append(message)
        self._draw()

    def show_user(self, turn: int) -> None:
        """Write the user's message above its answer."""
        due = [each for each in self._queue if each.turn <= turn]
        self._queue = [each for each in self._queue if each.turn > turn]
        self._draw()
        for message in due:
            self._write_user(message)

    def show_past(self, turn: TurnRows) -> None:
        """Write an earlier turn as it was shown then."""
        for message in turn.messages:
            if message.role is Role.USER:
                self._write_user(message)
            elif message.role is Role.ASSISTANT:
                self._write_blocks(self._blocks.add(message.text))
                self._end_block()
            else:
                for line in lines_of(message):
                    self._write(self._style(clean(line), _DIM))

    def finish_output(self) -> None:
        """Write the rest of the answer, and stop the spinner."""
        self._end_block()
        self._calls.clear()
        self._busy = ""
        self._stop_ticking()
        self._draw()

    def drop_queued(self) -> None:
        """Discard live lines, because they belong to a session that was left."""
        self._queue.clear()
        self.finish_output()

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
        self._write(blank + "\n".join(self._style(line, _BOLD) for line in shown) + "\n")

    def _end_block(self) -> None:
        self._end_reasoning()
        self._write_blocks(self._blocks.finish())

    def _end_reasoning(self) -> None:
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

    def _style(self, text: str, style: str) -> str:
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
    region: PlainRegion | PromptRegion = PromptRegion() if policy.converses else PlainRegion()
    return LivePage(printer, region, is_colored=colored, shows_users=policy.converses)
