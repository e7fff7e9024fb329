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

from holdfast.cli.chat.conversation import cancel_tasks, wait_for_first
from holdfast.domain.errors import Code, Conflict, HoldfastError, Invalid
from holdfast.domain.messages import TEXT_LARGEST, Part, Text, require_sendable
from holdfast.domain.sessions import OnBusy

if TYPE_CHECKING:
    from holdfast.cli.chat.conversation import ChatConversation


Content = str | tuple[Part, ...]
READ_AHEAD: Final = 100
# One character more than a message may have, so that a longer line is refused and not cut.
LINE_LARGEST: Final = TEXT_LARGEST + 4


def read_all() -> str:
    """Return all of stdin as one message; refuse an empty one."""
    text = _decode(_stdin().read(LINE_LARGEST))
    if not text.strip():
        raise Invalid(Code.MESSAGE_EMPTY, "stdin is empty; send a message on it.")
    return text


async def input_messages(first_message: str | None, *, patient: bool) -> AsyncIterator[Content]:
    """Return the given message, or the lines of stdin as they arrive, without blank lines.

    Refuses empty input and an invalid first message. If not `patient`, does not wait for the first
    line of a pipe that has no data yet.
    """
    if first_message is not None:
        return single_message(first_message)
    lines = read_lines()
    if not patient and _is_silent():
        return lines
    first = await anext(lines, None)
    if first is None:
        raise Invalid(Code.MESSAGE_EMPTY, "stdin is empty; send a message on it.")
    require_sendable((Text(text=first),))
    return _with_first(first, lines)


async def single_message(message: Content) -> AsyncIterator[Content]:
    """Yield one message."""
    yield message


async def _with_first(first: str, lines: AsyncIterator[str]) -> AsyncIterator[Content]:
    yield first
    async for line in lines:
        yield line


async def read_lines() -> AsyncIterator[str]:
    """Yield the lines of stdin as they arrive, without blank lines."""
    stream = _stdin()
    queue: asyncio.Queue[bytes] = asyncio.Queue()
    room = threading.Semaphore(READ_AHEAD)
    loop = asyncio.get_running_loop()

    def put(line: bytes) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, line)

    # A daemon thread that is never joined: a blocked read must not prevent the exit.
    threading.Thread(target=_read_in_thread, args=(stream, put, room), daemon=True).start()
    while line := await queue.get():
        room.release()
        text = _decode(line).rstrip("\r\n")
        if text.strip():
            yield text


def _read_in_thread(
    stream: IO[bytes], put: Callable[[bytes], object], room: threading.Semaphore
) -> None:
    """Pass lines on until the end of the stream, then an empty one; bounded by `room`."""
    # After the conversation has ended, the event loop or the stream is closed.
    with suppress(RuntimeError, ValueError), _duplicate(stream) as lines:
        while line := lines.readline(LINE_LARGEST):
            room.acquire()
            put(line)
        put(b"")


def _stdin() -> IO[bytes]:
    # Python sets sys.stdin to None if it was closed at the start.
    stdin: TextIO | None = sys.stdin
    if stdin is None:
        raise Invalid(Code.MESSAGE_EMPTY, "There is no stdin; pass the message as an argument.")
    return stdin.buffer


def _is_silent() -> bool:
    """Return whether stdin has neither data nor an end yet."""
    try:
        return not select.select([sys.stdin], [], [], 0)[0]
    except (OSError, ValueError):
        # A stream that cannot be polled is not a pipe, and does not block.
        return False


def _duplicate(stream: IO[bytes]) -> IO[bytes]:
    """Return a separate reader: at exit Python needs the lock of sys.stdin."""
    try:
        return open(os.dup(stream.fileno()), "rb")
    except OSError:
        return stream


def _decode(data: bytes) -> str:
    # A line that is too long may be cut inside a character; report the length, not the encoding.
    if len(data) >= LINE_LARGEST:
        raise Invalid(Code.MESSAGE_TOO_LARGE, "A message may have at most 1 MiB of text.")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Invalid(Code.INVALID_TEXT, "stdin is not UTF-8 text; convert it first.") from None


class InputMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message, its id, and what it does to a running turn."""

    text: str
    id: str | None = None
    on_busy: OnBusy = OnBusy.QUEUE


def parse_input_message(line: str, number: int) -> InputMessage:
    """Return the message of a line; the line number is for error messages."""
    try:
        first_message = msgspec.json.decode(line.encode(), type=InputMessage)
        require_sendable((Text(text=first_message.text),))
    except msgspec.MsgspecError as error:
        error_text = f"Line {number} of stdin is not {{text, id?, on_busy?}} as JSON: {error}."
        raise Invalid(Code.INVALID_BODY, error_text, {"line": number}) from None
    return first_message


async def send_each(conversation: "ChatConversation", lines: AsyncIterator[str]) -> None:
    """Send the lines as they arrive, and show events until every turn has settled."""
    with conversation.signals.turn(own=True) as stop:
        watching = asyncio.create_task(conversation.watch())
        message = asyncio.create_task(_queue_each(conversation, lines))
        stopping = asyncio.create_task(_stop_when(stop, conversation))
        try:
            # Following ends by itself if the session is closed: then nothing can be sent.
            await wait_for_first(message, watching, stopping)
            await wait_for_first(conversation.idle.wait(), watching)
            for task in (watching, message):
                if task.done():
                    task.result()
        finally:
            await cancel_tasks(watching, message, stopping)
    await conversation.catch_up()


async def _queue_each(conversation: "ChatConversation", lines: AsyncIterator[str]) -> None:
    number = 0
    async for line in lines:
        number += 1
        first_message = parse_input_message(line, number)
        try:
            await conversation.send(
                first_message.text, id=first_message.id, on_busy=first_message.on_busy
            )
        except Conflict as error:
            if error.code is not Code.TURN_RUNNING:
                raise
            report_error(error)


async def _stop_when(stop: asyncio.Event, conversation: "ChatConversation") -> None:
    await stop.wait()
    await conversation.interrupt()


def report_error(error: HoldfastError) -> None:
    """Print an error as a line for programs, without ending the conversation."""
    from holdfast.wire.errors import error_form

    sys.stderr.write(msgspec.json.encode(error_form(error)).decode() + "\n")
    sys.stderr.flush()
