"""Stream one model request to its end; coalesces deltas before they are written."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from itertools import groupby
from math import inf
from operator import attrgetter
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.events import Channel, StepDelta
from holdfast.domain.ids import MessageId
from holdfast.domain.text import storable
from holdfast.engine.cancellation import CancelledItselfError
from holdfast.ports.llm import (
    CallArguments,
    CallEnded,
    CallStarted,
    Failed,
    FailureKind,
    Llm,
    LlmDelta,
    LlmReasoningDelta,
    LlmRequest,
    LlmTextDelta,
    ReasoningEnded,
    Stopped,
)
from holdfast.ports.runtime import Emit

log = logging.getLogger("holdfast.engine")
PAUSE: Final = 0.05
ENOUGH: Final = 256
_CHANNELS: Final[Mapping[type, Channel]] = {
    LlmTextDelta: Channel.TEXT,
    LlmReasoningDelta: Channel.REASONING,
}
_text: Final = attrgetter("text")


class DeltaPiece(Struct, frozen=True, kw_only=True):
    """Text of one channel; `offset` is the number of characters before it in that channel."""

    channel: Channel
    offset: int
    text: str


Gathered = DeltaPiece | ReasoningEnded | CallStarted | CallArguments | CallEnded | Stopped | Failed
# Receives buffered items in order; returns whether it has enough.
Write = Callable[[tuple[Gathered, ...]], Awaitable[bool]]


async def coalesce(stream: AsyncGenerator[LlmDelta, None], write: Write) -> Exception | None:
    """Read a stream up to and including the first `Stopped` or `Failed`; write it in batches.

    Returns the exception of the stream, after everything before it was written; raises what `write`
    raises. Uses the clock of the event loop.
    """
    loop = asyncio.get_running_loop()
    buffer = _DeltaBuffer(write, loop)
    error: Exception | None = None
    try:
        # In this task from beginning to end: a stream must be closed by the task that opened it.
        try:
            async for delta in stream:
                # Added here, because a call for each of so many deltas takes most of the time.
                size = len(delta.text) if isinstance(delta, LlmTextDelta | LlmReasoningDelta) else 1
                if size:
                    buffer.deltas.append(delta)
                    buffer.size += size
                if isinstance(delta, Stopped | Failed):
                    break
                if buffer.size >= ENOUGH or buffer.has_enough or buffer.reader.cancelling():
                    # Back-pressure: the provider waits for the disk, so the buffer stays bounded.
                    if not await buffer.make_room():
                        break
                elif buffer.timer is None and buffer.deltas:
                    # A time in the past fires immediately, but after all deltas that are there.
                    buffer.timer = loop.call_at(buffer.not_before, buffer.begin_write)
        except asyncio.CancelledError:
            error = CancelledItselfError()
        except Exception as raised:  # noqa: BLE001 — a failure of this step, not of the caller
            error = raised
        finally:
            buffer.is_reading = False
            # Also after the last item or an early exit: it may hold a socket.
            try:
                await stream.aclose()
            except Exception:
                # The answer is complete, or has failed already.
                log.debug("a provider's stream failed while it was closed", exc_info=True)
        await buffer.finish()
    finally:
        if buffer.timer is not None or buffer.writing is not None:
            await buffer.close()
    return error


class _DeltaBuffer:
    """Deltas that were not written yet; at most one timer and one write are pending.

    Writes run beside the reader in a task, because the provider may stall; the last one does not.
    """

    def __init__(self, write: Write, loop: asyncio.AbstractEventLoop) -> None:
        self._write = write
        self._loop = loop
        # Always set, because a task reads the stream.
        self.reader: asyncio.Task[Any] = asyncio.current_task()  # type: ignore[assignment]
        self.not_before = self._loop.time()
        self.timer: asyncio.TimerHandle | None = None
        self.writing: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        # Whether the reader awaits the provider, which only a cancellation can end.
        self.is_reading = True
        self._is_due = False
        self.has_enough = False
        self._offsets: dict[Channel, int] = {}
        self.deltas: list[LlmDelta] = []
        self.size = 0

    async def make_room(self) -> bool:
        """Start to write the items, after those that are being written.

        Return whether more is to be read.
        """
        self.is_reading = False
        if self.writing is not None:
            await asyncio.wait((self.writing,))
        self.is_reading = True
        if self.size >= ENOUGH:
            self.begin_write()
        is_over = self.has_enough or self._failure is not None
        # A cancellation may have been swallowed by the provider.
        return not is_over and not self.reader.cancelling()

    async def finish(self) -> None:
        """Write the rest; raise instead if the reader was cancelled, or a write failed."""
        # The cancellation by a failed write is taken back; any other one passes.
        if self.reader.cancelling() and (self._failure is None or self.reader.uncancel()):
            raise asyncio.CancelledError
        while self.writing is not None:
            await asyncio.wait((self.writing,))
        if self._failure is not None:
            raise self._failure
        if self.deltas and not self.has_enough:
            await self._write(self._take())

    async def close(self) -> None:
        """Stop the timer and a write that is still pending."""
        if self.timer is not None:
            self.timer.cancel()
        if self.writing is not None:
            self.writing.cancel()
            await asyncio.gather(self.writing, return_exceptions=True)

    def begin_write(self) -> None:
        """Start to write what is there, after what is being written."""
        if self.has_enough or self._failure is not None:
            return
        if self.writing is None:
            self.writing = self._loop.create_task(self._write_batch(self._take()))
        else:
            # Follows the one that is in progress.
            self._is_due = True

    async def _write_batch(self, items: tuple[Gathered, ...]) -> None:
        try:
            self.has_enough = await self._write(items)
        # Raised by `finish`.
        except BaseException as error:  # noqa: BLE001
            self._failure = error
            # The provider may stall for minutes; nothing it sends can be written.
            if self.is_reading:
                self.reader.cancel()
        self.writing = None
        if self._is_due:
            self.begin_write()

    def _take(self) -> tuple[Gathered, ...]:
        """Return everything in the buffer, each text in one piece, and make room."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        self._is_due = False
        items: list[Gathered] = []
        for kind, deltas in groupby(self.deltas, type):
            channel = _CHANNELS.get(kind)
            if channel is None:
                items += deltas  # type: ignore[arg-type]
                continue
            text = storable("".join(map(_text, deltas)))
            offset = self._offsets.get(channel, 0)
            self._offsets[channel] = offset + len(text)
            items.append(DeltaPiece(channel=channel, offset=offset, text=text))
        self.deltas = []
        self.size = 0
        self.not_before = self._loop.time() + PAUSE
        return tuple(items)


# Limits on one answer: a larger one is a provider fault and would exhaust memory and disk.
CALLS_MOST: Final = 128
LONGEST: Final = 4 << 20
_NAME_LONGEST: Final = 256


class AskedCall(Struct, frozen=True, kw_only=True):
    """A complete call requested by the model; `arguments` is the received JSON text."""

    id: str
    name: str
    arguments: str


class ModelAnswer(Struct, frozen=True, kw_only=True):
    """Result of a model request; `unsent` are the deltas that arrived with its end.

    `calls` holds only complete calls; `error` is the exception of the adapter, if any.
    """

    text: str = ""
    reasoning: str = ""
    signature: str | None = None
    calls: tuple[AskedCall, ...] = ()
    end: Stopped | Failed
    unsent: tuple[StepDelta, ...] = ()
    error: Exception | None = None


async def ask(
    llm: Llm, request: LlmRequest, *, emit: Emit, step: int, message_id: MessageId | None = None
) -> ModelAnswer:
    """Send a request and emit its deltas while the model streams; raises only what `emit` does."""
    answer = _AnswerBuilder(emit, step, message_id)
    try:
        stream = llm.stream(request)
    # Any exception of an adapter is a failure of this step, not of the caller.
    except Exception as error:  # noqa: BLE001
        return answer.build(error)
    return answer.build(await coalesce(stream, answer.write))


_BROKEN_OFF = Failed(
    kind=FailureKind.UNAVAILABLE, message="The provider's answer ended before it was complete."
)
_ENDLESS = Failed(
    kind=FailureKind.UNAVAILABLE,
    message="The provider's answer was longer than 4 MiB, or had more than 128 tool calls.",
)
_RAISED = Failed(kind=FailureKind.UNKNOWN, message="The provider's adapter raised an error.")


class _AnswerBuilder:
    """Accumulates the output of one step."""

    def __init__(self, emit: Emit, step: int, message_id: MessageId | None) -> None:
        self._emit = emit
        self._step = step
        self._message_id = message_id
        self._size = 0
        self._texts: dict[Channel, list[str]] = {Channel.TEXT: [], Channel.REASONING: []}
        self._open: dict[str, tuple[CallStarted, list[str]]] = {}
        self._calls: list[AskedCall] = []
        self._signature: str | None = None
        self._end: Stopped | Failed | None = None
        self._unsent: tuple[StepDelta, ...] = ()
        self._error: Exception | None = None

    async def write(self, items: tuple[Gathered, ...]) -> bool:
        """Add items and emit their text; return whether no more is wanted."""
        try:
            deltas = self._add(items)
        # As above, such as a part of a call that was not started.
        except Exception as error:  # noqa: BLE001
            self._fail(error)
            return True
        if self._end is not None:
            # Deltas that arrive with the end are written with it, which saves one transaction.
            self._unsent = tuple(deltas)
        elif deltas:
            await self._emit(deltas)
        return self._end is _ENDLESS

    def build(self, broken: Exception | None) -> ModelAnswer:
        """Return the result of the step, whose stream may have raised an exception."""
        if broken is not None:
            self._fail(broken)
        return ModelAnswer(
            text="".join(self._texts[Channel.TEXT]),
            reasoning="".join(self._texts[Channel.REASONING]),
            signature=self._signature,
            calls=tuple(self._calls),
            end=self._end or _BROKEN_OFF,
            unsent=self._unsent,
            error=self._error,
        )

    def _add(self, items: Sequence[Gathered]) -> list[StepDelta]:
        """Add items up to the largest size, and return their text as deltas."""
        deltas: list[StepDelta] = []
        for item in items:
            if isinstance(item, DeltaPiece | CallArguments):
                self._size += len(item.text)
            asked = len(self._open) + len(self._calls)
            is_one_more = isinstance(item, CallStarted) and asked >= CALLS_MOST
            if self._size > LONGEST or is_one_more:
                self._end = _ENDLESS
                break
            match item:
                case DeltaPiece(channel=channel, offset=offset, text=text):
                    self._texts[channel].append(text)
                    deltas.append(
                        StepDelta(
                            step=self._step,
                            message_id=self._message_id,
                            channel=channel,
                            offset=offset,
                            text=text,
                        )
                    )
                case CallStarted():
                    self._open[item.id] = item, []
                case CallArguments():
                    # Empty chunks are dropped, because a stream may contain an unlimited number of
                    # them.
                    self._open[item.id][1].extend(filter(None, [item.text]))
                case CallEnded():
                    begun, pieces = self._open.pop(item.id)
                    name = storable(begun.name[:_NAME_LONGEST])
                    self._calls.append(AskedCall(id=begun.id, name=name, arguments="".join(pieces)))
                case ReasoningEnded():
                    self._signature = item.signature
                case Stopped():
                    self._end = item
                case Failed():
                    self._end = _with_a_time_to_wait(item)
        return deltas

    def _fail(self, error: Exception) -> None:
        """Note an exception of the adapter; a complete answer remains."""
        if self._end is None:
            self._end = _RAISED
            self._error = error


def _with_a_time_to_wait(failed: Failed) -> Failed:
    """Return the failure, with `retry_after` removed unless it is positive and finite."""
    wait = failed.retry_after
    return failed if wait is None or 0 < wait < inf else replace(failed, retry_after=None)
