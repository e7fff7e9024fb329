"""Stream one model request to its end; coalesces deltas before they are written."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from math import inf
from typing import Any, Final, cast

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
_CHANNELS: Final = tuple(Channel)


class DeltaPiece(Struct, frozen=True, kw_only=True):
    """Text of one channel; `offset` is the number of characters before it in that channel."""

    channel: Channel
    offset: int
    text: str


Gathered = DeltaPiece | ReasoningEnded | CallStarted | CallArguments | CallEnded | Stopped | Failed
_Other = ReasoningEnded | CallStarted | CallArguments | CallEnded | Stopped | Failed


# Receives buffered items in order; returns whether it has enough.
Write = Callable[[tuple[Gathered, ...]], Awaitable[bool]]


async def coalesce(stream: AsyncGenerator[LlmDelta, None], write: Write) -> Exception | None:
    """Read a stream up to and including the first `Stopped` or `Failed`; write it in batches.

    Returns the exception of the stream, after everything before it was written; raises what `write`
    raises. Uses the clock of the event loop.
    """
    gathering = _Gathering(write)
    error: Exception | None = None
    try:
        # In this task from beginning to end: a stream must be closed by the task that opened it.
        try:
            async for delta in stream:
                is_to_wait = gathering.add(delta)
                if isinstance(delta, Stopped | Failed):
                    break
                # Back-pressure: the provider waits for the disk, so the buffer stays bounded.
                if is_to_wait and not await gathering.make_room():
                    break
        except asyncio.CancelledError:
            error = CancelledItselfError()
        except Exception as raised:  # noqa: BLE001 — a failure of this step, not of the caller
            error = raised
        finally:
            gathering.is_reading = False
            # Also after the last item or an early exit: it may hold a socket.
            try:
                await stream.aclose()
            except Exception:
                # The answer is complete, or has failed already.
                log.debug("a provider's stream failed while it was closed", exc_info=True)
        await gathering.finish()
    finally:
        await gathering.close()
    return error


class _Gathering:
    """Buffer of items that were not written yet; at most one timer and one write are pending.

    Writes run beside the reader in a task, because the provider may stall; the last one does not.
    """

    def __init__(self, write: Write) -> None:
        self._write = write
        self._loop = asyncio.get_running_loop()
        self._reader = cast("asyncio.Task[Any]", asyncio.current_task())
        self._not_before = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        # Whether the reader awaits the provider, which only a cancellation can end.
        self.is_reading = True
        self._is_due = False
        self._has_enough = False
        self._offsets = dict.fromkeys(_CHANNELS, 0)
        self._items: list[tuple[Channel, list[str]] | _Other] = []
        self._size = 0

    def add(self, delta: LlmDelta) -> bool:
        """Append a delta; return whether the stream has to wait, or nothing more is read."""
        if isinstance(delta, LlmTextDelta):
            self._add_text(Channel.TEXT, delta.text)
        elif isinstance(delta, LlmReasoningDelta):
            self._add_text(Channel.REASONING, delta.text)
        else:
            self._items.append(delta)
            self._size += 1
        if self._size >= ENOUGH:
            return True
        if self._timer is None and self._items:
            # A time in the past fires immediately, but after all deltas that are already available.
            self._timer = self._loop.call_at(self._not_before, self._begin_write)
        # A cancellation may have been swallowed by the provider.
        return self._has_enough or self._reader.cancelling() > 0

    async def make_room(self) -> bool:
        """Start to write the items, after those that are being written.

        Return whether more is to be read.
        """
        self.is_reading = False
        if self._writing is not None:
            await asyncio.wait((self._writing,))
        self.is_reading = True
        if self._size >= ENOUGH:
            self._begin_write()
        is_over = self._has_enough or self._failure is not None
        return not is_over and not self._reader.cancelling()

    async def finish(self) -> None:
        """Write the rest; raise instead if the reader was cancelled, or a write failed."""
        # The cancellation by a failed write is taken back; any other one passes.
        if self._reader.cancelling() and (self._failure is None or self._reader.uncancel()):
            raise asyncio.CancelledError
        while self._writing is not None:
            await asyncio.wait((self._writing,))
        if self._failure is not None:
            raise self._failure
        if self._items and not self._has_enough:
            await self._write(self._take())

    async def close(self) -> None:
        """Stop the timer and a write that is still pending."""
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)

    def _begin_write(self) -> None:
        if self._has_enough or self._failure is not None:
            return
        if self._writing is None:
            self._writing = self._loop.create_task(self._write_batch(self._take()))
        else:
            # Follows the one that is in progress.
            self._is_due = True

    async def _write_batch(self, items: tuple[Gathered, ...]) -> None:
        try:
            self._has_enough = await self._write(items)
        # Raised by `finish`.
        except BaseException as error:  # noqa: BLE001
            self._failure = error
            # The provider may stall for minutes; nothing it sends can be written.
            if self.is_reading:
                self._reader.cancel()
        self._writing = None
        if self._is_due:
            self._begin_write()

    def _take(self) -> tuple[Gathered, ...]:
        """Return all buffered items and make room."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._is_due = False
        items = tuple(
            [self._piece(*item) if isinstance(item, tuple) else item for item in self._items]
        )
        self._items = []
        self._size = 0
        self._not_before = self._loop.time() + PAUSE
        return items

    def _add_text(self, channel: Channel, text: str) -> None:
        if not text:
            return
        last = self._items[-1] if self._items else None
        if isinstance(last, tuple) and last[0] is channel:
            last[1].append(text)
        else:
            self._items.append((channel, [text]))
        self._size += len(text)

    def _piece(self, channel: Channel, texts: list[str]) -> DeltaPiece:
        text = storable("".join(texts))
        offset = self._offsets[channel]
        self._offsets[channel] = offset + len(text)
        return DeltaPiece(channel=channel, offset=offset, text=text)


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
    hearing = _Hearing(step, message_id)

    async def write(items: tuple[Gathered, ...]) -> bool:
        try:
            deltas = hearing.hear(items)
        # Any exception of an adapter is a failure of this step, not of the caller.
        except Exception as error:  # noqa: BLE001
            hearing.fail(error)
            return True
        # Deltas that arrive with the end are written with it, which saves one transaction.
        if deltas and hearing.end is None:
            await emit(deltas)
        return hearing.has_enough

    try:
        stream = llm.stream(request)
    # As above.
    except Exception as error:  # noqa: BLE001
        return hearing.fail(error)
    broken = await coalesce(stream, write)
    return hearing.answer() if broken is None else hearing.fail(broken)


_BROKEN_OFF = Failed(
    kind=FailureKind.UNAVAILABLE, message="The provider's answer ended before it was complete."
)
_ENDLESS = Failed(
    kind=FailureKind.UNAVAILABLE,
    message="The provider's answer was longer than 4 MiB, or had more than 128 tool calls.",
)
_RAISED = Failed(kind=FailureKind.UNKNOWN, message="The provider's adapter raised an error.")


class _Hearing:
    """Accumulates the output of one step."""

    def __init__(self, step: int, message_id: MessageId | None) -> None:
        self.end: Stopped | Failed | None = None
        self.has_enough = False
        self._step = step
        self._message_id = message_id
        self._size = 0
        self._texts: dict[Channel, list[str]] = {channel: [] for channel in _CHANNELS}
        self._open: dict[str, tuple[CallStarted, list[str]]] = {}
        self._calls: list[AskedCall] = []
        self._signature: str | None = None
        self._unsent: tuple[StepDelta, ...] = ()
        self._error: Exception | None = None

    def hear(self, items: Sequence[Gathered]) -> tuple[StepDelta, ...]:
        """Add buffered items and return their text as deltas."""
        deltas: list[StepDelta] = []
        for item in items:
            if isinstance(item, DeltaPiece | CallArguments):
                self._size += len(item.text)
            asked = len(self._open) + len(self._calls)
            is_one_more = isinstance(item, CallStarted) and asked >= CALLS_MOST
            if self._size > LONGEST or is_one_more:
                self.end, self.has_enough = _ENDLESS, True
                break
            match item:
                case DeltaPiece():
                    deltas.append(self._delta(item))
                case CallStarted():
                    self._open[item.id] = item, []
                case CallArguments():
                    # Empty chunks are dropped, because a stream may contain an unlimited number of
                    # them.
                    self._open[item.id][1].extend(filter(None, [item.text]))
                case CallEnded():
                    self._complete(item.id)
                case ReasoningEnded():
                    self._signature = item.signature
                case Stopped():
                    self.end = item
                case Failed():
                    self.end = _with_a_time_to_wait(item)
        if self.end is not None:
            self._unsent = tuple(deltas)
        return tuple(deltas)

    def fail(self, error: Exception) -> ModelAnswer:
        """Return the result after an exception of the adapter; a complete answer remains."""
        if self.end is None:
            self.end = _RAISED
            self._error = error
        return self.answer()

    def answer(self) -> ModelAnswer:
        """Return the result of the step."""
        return ModelAnswer(
            text="".join(self._texts[Channel.TEXT]),
            reasoning="".join(self._texts[Channel.REASONING]),
            signature=self._signature,
            calls=tuple(self._calls),
            end=self.end or _BROKEN_OFF,
            unsent=self._unsent,
            error=self._error,
        )

    def _complete(self, call_id: str) -> None:
        begun, pieces = self._open.pop(call_id)
        name = storable(begun.name[:_NAME_LONGEST])
        self._calls.append(AskedCall(id=begun.id, name=name, arguments="".join(pieces)))

    def _delta(self, piece: DeltaPiece) -> StepDelta:
        self._texts[piece.channel].append(piece.text)
        return StepDelta(
            step=self._step,
            message_id=self._message_id,
            channel=piece.channel,
            offset=piece.offset,
            text=piece.text,
        )


def _with_a_time_to_wait(failed: Failed) -> Failed:
    """Return the failure, with `retry_after` removed unless it is positive and finite."""
    wait = failed.retry_after
    return failed if wait is None or 0 < wait < inf else replace(failed, retry_after=None)
