"""Printing: JSON for programs on stdout, text for people on stdout, remarks on stderr.

All text for people passes `terminal.clean` here; nothing else writes to the two streams but the
screen of a conversation.
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
from holdfast.cli.terminal import clean, is_colored, is_terminal, one_line

if TYPE_CHECKING:
    from rich.console import Console

Row = Sequence[str]

GAP: Final = 2
LAST_WIDTH: Final = 16


class Printer:
    """What a command says, in the form its caller asked for."""

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
        """Print a page: for programs `data` and the cursor behind it, for people a table."""
        if self.is_json:
            self.document({"data": list(forms), "next_cursor": next_cursor})
            return
        self.table(columns, rows)
        # In a pipe a program asked for so many and got them.
        if next_cursor is not None and is_terminal(sys.stdout):
            self.remark(f"There is more: --cursor {next_cursor}")

    def record(self, form: object, rows: Mapping[str, object]) -> None:
        """Print one thing: for programs its form, for people a line for each field."""
        if self.is_json:
            self.document(form)
            return
        width = max(len(name) for name in rows)
        for name, value in rows.items():
            if value is not None:
                self.line(f"{name:<{width}}  {value}")

    def done(self, form: object, message: str) -> None:
        """Print what became of a thing: for programs its form, for people a sentence."""
        if self.is_json:
            self.document(form)
        else:
            self.line(message)

    def line(self, text: str, *, style: str = "") -> None:
        """Print a line of text for people; `style` is a code for terminals that have colours."""
        message = clean(text)
        is_plain = not style or not is_colored(sys.stdout, self.settings.color)
        sys.stdout.write(f"{message}\n" if is_plain else f"\x1b[{style}m{message}\x1b[0m\n")

    def remark(self, text: str) -> None:
        """Say something on the side, unless silence or JSON was asked for."""
        if not self.settings.quiet and not self.is_json:
            self._aside(text)

    def warn(self, text: str) -> None:
        """Say something on the side that silence does not cover."""
        self._aside(text)

    def table(self, columns: Row, rows: Iterable[Row]) -> None:
        """Print a table; where no person looks, plain lines with tabs between the fields."""
        cells = [[one_line(cell) for cell in row] for row in rows]
        if not is_terminal(sys.stdout):
            for row in (columns, *cells) if cells else ():
                sys.stdout.write("\t".join(row) + "\n")
            return
        if cells:
            console = self.console(sys.stdout)
            console.print(_draw_table(*_fit_columns(columns, cells, console.width)))

    def console(self, stream: TextIO) -> "Console":
        """Return a console that obeys the wish for colours."""
        from rich.console import Console

        colored = is_colored(stream, self.settings.color)
        return Console(
            file=stream,
            # `--color always` holds in a pipe too, where rich would leave the colours out.
            force_terminal=True if colored else None,
            color_system="auto" if colored else None,
            # Foreign text is no markup: `[red]` and `:bomb:` stay what they are.
            highlight=False,
            markup=False,
            emoji=False,
        )

    def flush(self) -> None:
        """See to it that everything has been written."""
        sys.stdout.flush()

    def hush(self) -> None:
        """Write to nowhere from now on, so that leaving raises nothing either."""
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            # The descriptor and not the object, because Python flushes the object when it ends.
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)

    def _aside(self, text: str) -> None:
        message = _wrap(clean(text)) if is_terminal(sys.stderr) else clean(text)
        dim = is_colored(sys.stderr, self.settings.color)
        sys.stderr.write(f"\x1b[2m{message}\x1b[0m\n" if dim else f"{message}\n")
        sys.stderr.flush()


def _wrap(text: str) -> str:
    """Break lines between words: a terminal would do it in the middle of one."""
    # Asked for at each remark, because the terminal may have another size by now.
    width = max(shutil.get_terminal_size().columns, LAST_WIDTH)
    lines = [
        textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""]
        for line in text.split("\n")
    ]
    return "\n".join(part for parts in lines for part in parts)


def _fit_columns(
    columns: Row, cells: Sequence[Sequence[str]], width: int
) -> tuple[list[str], list[list[str]]]:
    """Leave columns out, from the right, until the first and the last have room.

    The first is an id, which is of no use when it is cut; the last is what people look for.
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
    # Only the last column gives way on a narrow terminal: ids must stay whole to be copied.
    for number, name in enumerate(columns, start=1):
        table.add_column(name, no_wrap=number < len(columns))
    for row in cells:
        table.add_row(*(Text(cell, overflow="ellipsis", no_wrap=True) for cell in row))
    return table


def local_time(at: datetime | None) -> str:
    """Return an instant as people at this machine read it."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M") if at is not None else "-"


def money(microcents: int, *, priced: bool) -> str:
    """Return micro-cents as dollars; what has no price is a question mark."""
    # For the eye only: sums are made in whole micro-cents.
    return f"${microcents / 100_000_000:.4f}" if priced else "?"


def price(microcents: int, *, priced: bool) -> str:
    """Return what something has cost in a word; what is unpriced may have cost more than that."""
    if priced:
        return money(microcents, priced=True) if microcents else "free"
    known = f"{money(microcents, priced=True)} and " if microcents else ""
    return f"{known}? (unpriced)"
