"""`--input ndjson`: what programs say, one JSON object for each line of stdin.

Lines are taken while turns run, so that a program can queue what it says, have it refused, or
have it stop the turn. At the end of the input every turn is waited for.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec

from holdfast.cli.tasks import ended, first_of
from holdfast.domain.errors import Code, Conflict, HoldfastError, Invalid
from holdfast.domain.messages import Text, require_sendable
from holdfast.domain.sessions import OnBusy

if TYPE_CHECKING:
    from holdfast.cli.conversation import Conversation


class Saying(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is said, under which id, and what it does to a turn that runs."""

    text: str
    id: str | None = None
    on_busy: OnBusy = OnBusy.QUEUE


def read_saying(line: str, number: int) -> Saying:
    """Return what a line says; the number is for whoever has to correct it."""
    try:
        said = msgspec.json.decode(line.encode(), type=Saying)
        require_sendable((Text(text=said.text),))
    except msgspec.MsgspecError as error:
        told = f"Line {number} of stdin is not {{text, id?, on_busy?}} as JSON: {error}."
        raise Invalid(Code.INVALID_BODY, told, {"line": number}) from None
    return said


async def say_each(conversation: "Conversation", lines: AsyncIterator[str]) -> None:
    """Say what the lines say as they come, and show the news until every turn has settled."""
    with conversation.signals.turn(own=True) as stop:
        watching = asyncio.create_task(conversation.watch())
        saying = asyncio.create_task(_put_each(conversation, lines))
        stopping = asyncio.create_task(_stop_when(stop, conversation))
        try:
            # The watch ends by itself where the session is closed: then nothing can be said.
            await first_of(saying, watching, stopping)
            await first_of(conversation.is_calm.wait(), watching)
            for task in (watching, saying):
                if task.done():
                    task.result()
        finally:
            await ended(watching, saying, stopping)
    await conversation.catch_up()


async def _put_each(conversation: "Conversation", lines: AsyncIterator[str]) -> None:
    number = 0
    async for line in lines:
        number += 1
        said = read_saying(line, number)
        try:
            await conversation.put(said.text, id=said.id, on_busy=said.on_busy)
        except Conflict as error:
            if error.code is not Code.TURN_RUNNING:
                raise
            tell(error)


async def _stop_when(stop: asyncio.Event, conversation: "Conversation") -> None:
    await stop.wait()
    await conversation.interrupt()


def tell(error: HoldfastError) -> None:
    """Tell a program what was refused, while everything goes on."""
    sys.stderr.write(msgspec.json.encode(error.body()).decode() + "\n")
    sys.stderr.flush()
