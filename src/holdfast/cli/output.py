"""Printing: JSON for programs on stdout, text for people on stdout, remarks on stderr.

All text for people passes `terminal.clean` here; only the chat screen also writes to the two
streams.
"""

import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TextIO

from holdfast.cli.options import GlobalOptions
from holdfast.cli.terminal import is_colored, is_terminal
from holdfast.domain.text import clean, one_line

if TYPE_CHECKING:
    from rich.console import Console

Row = Sequence[str]

GAP: Final = 2
LAST_WIDTH: Final = 16


class Printer:
    """Output of a command, in the format its caller asked for."""

    def __init__(self, settings: GlobalOptions) -> None:
        self.settings = settings
        self.is_json = settings.json

    def document(self, value: object) -> None:
        """Print one JSON document on one line."""
        import msgspec

        sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
        sys.stdout.flush()

    def listing(
        self, forms: Sequence[object], next_cursor: str | None, columns: Row, rows: Iterable[Row]
    ) -> None:
        """Print a page: for programs `data` and the next cursor, for people a table."""
        if self.is_json:
            self.document({"data": list(forms), "next_cursor": next_cursor})
            return
        self.table(columns, rows)
        # Not in a pipe: the program set its own limit.
        if next_cursor is not None and is_terminal(sys.stdout):
            self.remark(f"More results: --cursor {next_cursor}")

    def record(self, form: object, rows: Mapping[str, object]) -> None:
        """Print one record: JSON for programs, a line per field for people."""
        if self.is_json:
            self.document(form)
            return
        width = max(len(name) for name in rows)
        for name, value in rows.items():
            if value is not None:
                self.line(f"{name:<{width}}  {value}")

    def done(self, form: object, message: str) -> None:
        """Print the result of a change: JSON for programs, a sentence for people."""
        if self.is_json:
            self.document(form)
        else:
            self.line(message)

    def line(self, text: str, *, style: str = "") -> None:
        """Print a line of text for people; `style` is used on terminals with colours."""
        message = clean(text)
        is_plain = not style or not is_colored(sys.stdout, self.settings.color)
        sys.stdout.write(f"{message}\n" if is_plain else f"\x1b[{style}m{message}\x1b[0m\n")

    def remark(self, text: str) -> None:
        """Print a remark on stderr, unless `--quiet` or `--json` is set."""
        if not self.settings.quiet and not self.is_json:
            self._aside(text)

    def warn(self, text: str) -> None:
        """Print a warning on stderr, even with `--quiet`."""
        self._aside(text)

    def table(self, columns: Row, rows: Iterable[Row]) -> None:
        """Print a table; if stdout is not a terminal, lines with tab-separated fields."""
        cells = [[one_line(cell) for cell in row] for row in rows]
        if not is_terminal(sys.stdout):
            for row in (columns, *cells) if cells else ():
                sys.stdout.write("\t".join(row) + "\n")
            return
        if cells:
            console = self.console(sys.stdout)
            console.print(_draw_table(*_fit_columns(columns, cells, console.width)))

    def console(self, stream: TextIO) -> "Console":
        """Return a console that honours the `--color` option."""
        from rich.console import Console

        colored = is_colored(stream, self.settings.color)
        return Console(
            file=stream,
            # `--color always` also applies in a pipe, where rich would omit colours.
            force_terminal=True if colored else None,
            color_system="auto" if colored else None,
            # Foreign text is not markup: `[red]` and `:bomb:` are printed as they are.
            highlight=False,
            markup=False,
            emoji=False,
        )

    def flush(self) -> None:
        """Flush stdout; remarks on stderr are flushed when they are written."""
        sys.stdout.flush()

    def discard_output(self) -> None:
        """Redirect stdout to /dev/null, so that the exit raises no BrokenPipeError either."""
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            # The file descriptor and not the object, because Python flushes the object at exit.
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)

    def _aside(self, text: str) -> None:
        message = _wrap(clean(text)) if is_terminal(sys.stderr) else clean(text)
        dim = is_colored(sys.stderr, self.settings.color)
        sys.stderr.write(f"\x1b[2m{message}\x1b[0m\n" if dim else f"{message}\n")
        sys.stderr.flush()


def _wrap(text: str) -> str:
    """Wrap lines between words: a terminal would break inside a word."""
    # Read for each remark, because the terminal may have been resized.
    width = max(shutil.get_terminal_size().columns, LAST_WIDTH)
    lines = [
        textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""]
        for line in text.split("\n")
    ]
    return "\n".join(part for parts in lines for part in parts)


def _fit_columns(
    columns: Row, cells: Sequence[Sequence[str]], width: int
) -> tuple[list[str], list[list[str]]]:
    """Drop columns, from the right, until the first and the last have room.

    The first is an id, which is useless when cut; the last is what people search for.
    """
    kept = list(range(len(columns)))
    widths = [max(len(row[number]) for row in (columns, *cells)) + GAP for number in kept]
    while len(kept) > 2 and sum(widths[each] for each in kept[:-1]) + LAST_WIDTH > width:
        del kept[-2]
    chosen = [[row[each] for each in kept] for row in (columns, *cells)]
    return chosen[0], chosen[1:]


def _draw_table(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, GAP, 0, 0), header_style="bold", show_edge=False)
    # Only the last column is wrapped on a narrow terminal: ids must stay whole to be copied.
    for number, name in enumerate(columns, start=1):
        table.add_column(name, no_wrap=number < len(columns))
    for row in cells:
        table.add_row(*(Text(cell, overflow="ellipsis", no_wrap=True) for cell in row))
    return table


def local_time(at: datetime | None) -> str:
    """Return an instant in local time."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M") if at is not None else "-"


def money(microcents: int, *, priced: bool, estimated: bool = False) -> str:
    """Return micro-cents as dollars; an unknown price is a word."""
    # For display only: sums are computed in whole micro-cents.
    amount = f"${microcents / 100_000_000:.4f}"
    if estimated and not priced:
        return f"at most {amount}"
    return amount if priced else "unknown"


def price(microcents: int, *, priced: bool, estimated: bool = False) -> str:
    """Return a cost as text; an unpriced part makes it a lower bound, unless it is estimated."""
    if priced:
        return money(microcents, priced=True) if microcents else "free"
    if estimated:
        return f"{money(microcents, priced=False, estimated=True)} (estimate)"
    known = f"{money(microcents, priced=True)} and " if microcents else ""
    return f"{known}unknown (unpriced)"
