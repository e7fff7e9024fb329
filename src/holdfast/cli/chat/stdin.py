"""Messages from a pipe: all of stdin as one, one per line, or one JSON object per line."""

import asyncio
import os
import select
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Final, TextIO

import msgspec

from holdfast.cli.chat.conversation import ended, first_of
from holdfast.domain.errors import Code, Conflict, HoldfastError, Invalid
from holdfast.domain.messages import TEXT_LARGEST, Text, require_sendable
from holdfast.domain.sessions import OnBusy

if TYPE_CHECKING:
    from holdfast.cli.chat.conversation import Conversation


READ_AHEAD: Final = 100
# One more than a message may have, so that a line which is too long is refused and not cut.
LINE_LARGEST: Final = TEXT_LARGEST + 4


def whole_input() -> str:
    """Return all of stdin as one message; an empty one is refused."""
    text = _decoded(_stdin().read(LINE_LARGEST))
    if not text.strip():
        raise Invalid(Code.MESSAGE_EMPTY, "There is nothing on stdin; say something.")
    return text


async def sayings(said: str | None, *, patient: bool) -> AsyncIterator[str]:
    """Return the one thing to say, or the lines of stdin as they come, blank ones left out.

    Nothing at all is refused, and so is a first thing that cannot be said. Whoever is not
    `patient` does not wait for the first line of a pipe that says nothing yet.
    """
    if said is not None:
        return _one(said)
    lines = lines_of_stdin()
    if not patient and _is_silent():
        return lines
    first = await anext(lines, None)
    if first is None:
        raise Invalid(Code.MESSAGE_EMPTY, "There is nothing on stdin; say something.")
    require_sendable((Text(text=first),))
    return _with_first(first, lines)


async def _one(said: str) -> AsyncIterator[str]:
    yield said


async def _with_first(first: str, lines: AsyncIterator[str]) -> AsyncIterator[str]:
    yield first
    async for line in lines:
        yield line


async def lines_of_stdin() -> AsyncIterator[str]:
    """Yield the lines of stdin as they come, blank ones left out."""
    stream = _stdin()
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    room = threading.Semaphore(READ_AHEAD)
    loop = asyncio.get_running_loop()

    def put(line: bytes) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, line)

    # A thread of its own that nobody waits for: a blocked read must not keep us from leaving.
    threading.Thread(target=_read, args=(stream, put, room), daemon=True).start()
    while line := await queue.get():
        room.release()
        text = _decoded(line).rstrip("\r\n")
        if text.strip():
            yield text


def _read(stream: IO[bytes], put: Callable[[bytes], object], room: threading.Semaphore) -> None:
    """Pass lines on until there are no more, and then nothing; not too many at a time."""
    # What comes when the conversation has been left finds its loop, or its stream, closed.
    with suppress(RuntimeError, ValueError), _own(stream) as lines:
        while line := lines.readline(LINE_LARGEST):
            room.acquire()
            put(line)
        put(b"")


def _stdin() -> IO[bytes]:
    # Python has no stdin where whoever started it closed it.
    stdin: TextIO | None = sys.stdin
    if stdin is None:
        raise Invalid(Code.MESSAGE_EMPTY, "There is no stdin; say something as an argument.")
    return stdin.buffer


def _is_silent() -> bool:
    """Tell whether stdin has neither a byte nor an end yet."""
    try:
        return not select.select([sys.stdin], [], [], 0)[0]
    except (OSError, ValueError):
        # What cannot be asked is no pipe, and does not wait for anybody.
        return False


def _own(stream: IO[bytes]) -> IO[bytes]:
    """Return a reader of its own: Python wants the lock of sys.stdin back when it ends."""
    try:
        return open(os.dup(stream.fileno()), "rb")
    except OSError:
        return stream


def _decoded(data: bytes) -> str:
    # What is too long may have been cut inside a character; the length is the fault to tell.
    if len(data) >= LINE_LARGEST:
        raise Invalid(Code.MESSAGE_TOO_LARGE, "The text of a message may have 1 MiB at most.")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Invalid(Code.INVALID_TEXT, "stdin is not UTF-8 text; convert it first.") from None


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
