"""Stream one model request to its end; coalesces deltas before they are written."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from math import inf
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from holdfast.domain.events import Channel, StepDelta
from holdfast.domain.ids import MessageId
from holdfast.domain.text import storable
from holdfast.engine.cancellation import clear_cancellation
from holdfast.ports.llm import (
    CallArguments,
    CallEnded,
    CallStarted,
    Failed,
    FailureKind,
    Llm,
    LlmDelta,
    LlmRequest,
    ReasoningDelta,
    ReasoningEnded,
    Stopped,
    TextDelta,
)
from holdfast.ports.runtime import Emit

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


async def coalesce(
    stream: AsyncGenerator[LlmDelta, None],
) -> AsyncGenerator[tuple[Gathered, ...], None]:
    """Yield buffered items in order, up to and including the first `Stopped` or `Failed`.

    An exception of the stream is raised after everything before it was yielded. Closing this
    generator closes the stream. Uses the clock of the event loop.
    """
    gathering = _Gathering()
    # One task for the whole stream: its resources must be closed by the task that opened them.
    pump = asyncio.create_task(_fill(gathering, stream))
    try:
        is_over = False
        while not is_over:
            await gathering.due.wait()
            is_over = gathering.is_over
            if items := gathering.take():
                yield items
        await clear_cancellation(pump)
    finally:
        gathering.is_left = True
        if not pump.done():
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)


async def _fill(gathering: "_Gathering", stream: AsyncGenerator[LlmDelta, None]) -> None:
    try:
        # Close it also after the last item or an early exit: it may hold a socket.
        async with aclosing(stream):
            async for delta in stream:
                is_full = gathering.add(delta)
                # Also when the reader has left and the provider has not noticed the cancellation.
                if isinstance(delta, Stopped | Failed) or gathering.is_left:
                    break
                # Back-pressure: the provider waits for the disk, so the buffer stays bounded.
                if is_full:
                    await gathering.room.wait()
    finally:
        gathering.is_over = True
        gathering.due_at_once()


class _Gathering:
    """Buffer of items that were not taken yet; at most one timer is pending."""

    def __init__(self) -> None:
        self.due = asyncio.Event()
        self.room = asyncio.Event()
        self.is_over = False
        self.is_left = False
        self._loop = asyncio.get_running_loop()
        self._not_before = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._offsets = dict.fromkeys(_CHANNELS, 0)
        self._items: list[tuple[Channel, list[str]] | _Other] = []
        self._size = 0

    def add(self, delta: LlmDelta) -> bool:
        """Append a delta; return whether the stream has to wait until the reader takes items.

        The reader is woken when the buffer is full or the timer fires.
        """
        if isinstance(delta, TextDelta):
            self._add_text(Channel.TEXT, delta.text)
        elif isinstance(delta, ReasoningDelta):
            self._add_text(Channel.REASONING, delta.text)
        else:
            self._items.append(delta)
            self._size += 1
        if self._size >= ENOUGH:
            self.room.clear()
            self.due_at_once()
            return True
        if self._timer is None and self._items:
            # A time in the past fires immediately, but after all deltas that are already available.
            self._timer = self._loop.call_at(self._not_before, self.due.set)
        return False

    def take(self) -> tuple[Gathered, ...]:
        """Return all buffered items and make room."""
        self.due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        items = tuple(
            [self._piece(*item) if isinstance(item, tuple) else item for item in self._items]
        )
        self._items = []
        self._size = 0
        self._not_before = self._loop.time() + PAUSE
        self.room.set()
        return items

    def due_at_once(self) -> None:
        """Wake the reader without waiting for the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self.due.set()

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
    try:
        gathered = coalesce(llm.stream(request))
    # Any exception of an adapter is a failure of this step, not of the caller.
    except Exception as error:  # noqa: BLE001
        return hearing.fail(error)
    async with aclosing(gathered):
        while not hearing.has_enough:
            try:
                deltas = hearing.hear(await anext(gathered))
            except StopAsyncIteration:
                break
            # As above; an exception of `emit` is the caller's and passes.
            except Exception as error:  # noqa: BLE001
                return hearing.fail(error)
            # Deltas that arrive with the end are written with it, which saves one transaction.
            if deltas and hearing.end is None:
                await emit(deltas)
    return hearing.answer()


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
