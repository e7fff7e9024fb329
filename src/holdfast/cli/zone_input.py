"""`holdfast zones write|append`: what comes on stdin goes to a desk."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from io import BufferedReader
from typing import TYPE_CHECKING, Annotated, cast

import typer

from holdfast.cli.opening import opened
from holdfast.cli.output import Printer
from holdfast.cli.zone_options import OneDesk
from holdfast.domain.errors import Code, Invalid

if TYPE_CHECKING:
    from holdfast.cli.house import House
    from holdfast.zones.model import OutputAppended


@dataclass(frozen=True, kw_only=True)
class WriteOptions(OneDesk):
    """A snapshot from stdin."""

    if_modified: Annotated[
        int | None,
        typer.Option(metavar="MS", help="Only over the snapshot of this time; 0 is none."),
    ] = None


async def write(printer: Printer, wanted: WriteOptions) -> None:
    """Replace the snapshot of a desk with what comes on stdin."""
    import msgspec

    from holdfast.http.v1.zones_forms import StateWrittenForm
    from holdfast.zones.model import WRITE_LARGEST, require_definition_id

    # Before anything is read: a command that cannot be right waits for nobody.
    require_definition_id(wanted.id)
    content = await asyncio.to_thread(_stdin, WRITE_LARGEST + 1)
    async with opened(printer) as holdfast:
        done = await holdfast.zones.write_state(
            holdfast.owner, wanted.id, content, if_modified_ms=wanted.if_modified
        )
    form = msgspec.convert(done, StateWrittenForm, from_attributes=True)
    printer.done(form, f"{done.bytes_written} bytes lie in {done.zone}.")


async def append(printer: Printer, wanted: OneDesk) -> None:
    """Append the lines of stdin to the output of a desk, as they come."""
    from holdfast.http.v1.zones_forms import OutputAppendedForm
    from holdfast.zones.model import require_definition_id

    require_definition_id(wanted.id)
    offset, size = None, 0
    async with opened(printer) as holdfast:
        async for done in _appended(holdfast, wanted.id):
            offset = done.offset if offset is None else offset
            size += done.bytes_written
        zone = (await holdfast.zones.show(holdfast.owner, wanted.id)).zone
    form = OutputAppendedForm(zone=zone, offset=offset or 0, bytes_written=size)
    printer.done(form, f"{size} bytes were appended to {zone}.")


async def _appended(holdfast: "House", id_: str) -> AsyncGenerator["OutputAppended", None]:
    """Append what comes, a batch for whatever is there at a time; yield what became of each."""
    from holdfast.zones.model import APPEND_LARGEST, require_size

    held = b""
    while more := await asyncio.to_thread(_some_of_stdin):
        held += more
        end = held.rfind(b"\n") + 1
        if end:
            whole, held = held[:end], held[end:]
            yield await holdfast.zones.append_lines(holdfast.owner, id_, (_text(whole),))
        # Refused as soon as no append can take it: what never ends a line never ends.
        require_size(len(held), APPEND_LARGEST, what="A line")
    if held:
        yield await holdfast.zones.append_lines(holdfast.owner, id_, (_text(held),))


def _stdin(most: int) -> bytes:
    # Python has no stdin where whoever started it closed it.
    return sys.stdin.buffer.read(most) if sys.stdin is not None else b""


def _some_of_stdin() -> bytes:
    # As much as is there, and no waiting for more: what comes slowly is appended as it comes.
    return cast(BufferedReader, sys.stdin.buffer).read1(1 << 20) if sys.stdin is not None else b""


def _text(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise Invalid(Code.INVALID_TEXT, "stdin is not UTF-8 text; convert it first.") from None
