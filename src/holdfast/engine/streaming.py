"""One model request, streamed to its end; deltas are coalesced before they are written."""

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
from holdfast.ports import (
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

PAUSE: Final = 0.05
ENOUGH: Final = 256


class DeltaPiece(Struct, frozen=True, kw_only=True):
    """Text of one channel; `offset` counts the characters of that channel before it."""

    channel: Channel
    offset: int
    text: str


Gathered = DeltaPiece | ReasoningEnded | CallStarted | CallArguments | CallEnded | Stopped | Failed
_Other = ReasoningEnded | CallStarted | CallArguments | CallEnded | Stopped | Failed


async def coalesce(
    stream: AsyncGenerator[LlmDelta, None],
) -> AsyncGenerator[tuple[Gathered, ...], None]:
    """Yield what has gathered, in its order, up to and with the first `Stopped` or `Failed`.

    What the stream raises is raised after everything before it was yielded. Closing this generator
    closes the stream. The time is the event loop's.
    """
    gathering = _Gathering()
    # One task for the stream's whole life: what a provider opens, the same task must close.
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
        pump.cancel()
        await asyncio.gather(pump, return_exceptions=True)


async def _fill(gathering: "_Gathering", stream: AsyncGenerator[LlmDelta, None]) -> None:
    try:
        # Closed here even when it was read to its end or we stop listening: it may hold a socket.
        async with aclosing(stream):
            async for delta in stream:
                gathering.add(delta)
                # Also when nobody listens any more and the provider has not heard of it.
                if isinstance(delta, Stopped | Failed) or gathering.is_left:
                    break
                # The provider waits for the disk, so a slow disk fills no memory.
                if gathering.is_full:
                    await gathering.room.wait()
    finally:
        gathering.is_over = True
        gathering.due_at_once()


class _Gathering:
    """What has come and was not taken yet; between an arrival and `due` lies one timer at most."""

    def __init__(self) -> None:
        self.due = asyncio.Event()
        self.room = asyncio.Event()
        self.is_over = False
        self.is_left = False
        self._loop = asyncio.get_running_loop()
        self._not_before = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._offsets = dict.fromkeys(Channel, 0)
        self._items: list[tuple[Channel, list[str]] | _Other] = []
        self._size = 0

    @property
    def is_full(self) -> bool:
        """Tell whether the stream has to wait until somebody takes."""
        return self._size >= ENOUGH

    def add(self, delta: LlmDelta) -> None:
        """Put a delta behind the others; the reader is woken when there is enough, or in time."""
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
        elif self._timer is None and self._items:
            # In the past it fires at once, but after all that the provider has ready.
            self._timer = self._loop.call_at(self._not_before, self.due.set)

    def take(self) -> tuple[Gathered, ...]:
        """Return all that has gathered and make room."""
        self.due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        items = tuple(
            self._piece(*item) if isinstance(item, tuple) else item for item in self._items
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


# Nobody means more than this: such an answer is a fault, and it would fill memory and disk.
CALLS_MOST: Final = 128
LONGEST: Final = 4 << 20
_NAME_LONGEST: Final = 256


class AskedCall(Struct, frozen=True, kw_only=True):
    """A call that the model asked for in full; `arguments` is the JSON text as it came."""

    id: str
    name: str
    arguments: str


class ModelAnswer(Struct, frozen=True, kw_only=True):
    """What a step came to; `unsent` are the deltas that arrived together with its end.

    `calls` are those that were complete, `error` is what the adapter raised, if it did.
    """

    text: str = ""
    reasoning: str = ""
    signature: str | None = None
    calls: tuple[AskedCall, ...] = ()
    end: Stopped | Failed
    unsent: tuple[StepDelta, ...] = ()
    error: Exception | None = None


async def ask(
    llm: Llm, request: LlmRequest, *, step: int, message_id: MessageId | None = None
) -> AsyncGenerator[tuple[StepDelta, ...] | ModelAnswer, None]:
    """Yield batches of deltas while the model speaks, and last the `Answer`; nothing is raised."""
    hearing = _Hearing(step, message_id)
    try:
        async with aclosing(coalesce(llm.stream(request))) as gathered:
            async for items in gathered:
                deltas = hearing.hear(items)
                # What comes with the end is written with the end: one transaction less.
                if deltas and hearing.end is None:
                    yield deltas
                if hearing.has_enough:
                    break
    # Whatever an adapter raises is a failure of this step, never of the turn's caller.
    except Exception as error:  # noqa: BLE001
        hearing.fail(error)
    yield hearing.answer()


_BROKEN_OFF = Failed(
    kind=FailureKind.UNAVAILABLE, message="The provider's answer broke off before its end."
)
_ENDLESS = Failed(
    kind=FailureKind.UNAVAILABLE,
    message="The provider's answer was longer than 4 MiB, or asked for more than 128 calls.",
)
_RAISED = Failed(kind=FailureKind.UNKNOWN, message="The provider's adapter raised an error.")


class _Hearing:
    """What has been heard of one step."""

    def __init__(self, step: int, message_id: MessageId | None) -> None:
        self.end: Stopped | Failed | None = None
        self.has_enough = False
        self._step = step
        self._message_id = message_id
        self._size = 0
        self._texts: dict[Channel, list[str]] = {channel: [] for channel in Channel}
        self._open: dict[str, tuple[CallStarted, list[str]]] = {}
        self._calls: list[AskedCall] = []
        self._signature: str | None = None
        self._unsent: tuple[StepDelta, ...] = ()
        self._error: Exception | None = None

    def hear(self, items: Sequence[Gathered]) -> tuple[StepDelta, ...]:
        """Take in what was gathered and return its text as deltas."""
        deltas: list[StepDelta] = []
        for item in items:
            if self._is_too_much(item):
                self.end, self.has_enough = _ENDLESS, True
                break
            match item:
                case DeltaPiece():
                    deltas.append(self._delta(item))
                case CallStarted():
                    self._open[item.id] = item, []
                case CallArguments():
                    # Nothing is not gathered: there may be no end of it.
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

    def fail(self, error: Exception) -> None:
        """Note that the adapter raised; what it said before stays, a whole answer included."""
        if self.end is None:
            self.end = _RAISED
            self._error = error

    def answer(self) -> ModelAnswer:
        """Return what the step came to."""
        return ModelAnswer(
            text="".join(self._texts[Channel.TEXT]),
            reasoning="".join(self._texts[Channel.REASONING]),
            signature=self._signature,
            calls=tuple(self._calls),
            end=self.end or _BROKEN_OFF,
            unsent=self._unsent,
            error=self._error,
        )

    def _is_too_much(self, item: Gathered) -> bool:
        if isinstance(item, DeltaPiece | CallArguments):
            self._size += len(item.text)
        asked = len(self._open) + len(self._calls)
        return self._size > LONGEST or (isinstance(item, CallStarted) and asked >= CALLS_MOST)

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
    """Return the failure without a time to wait that is none."""
    wait = failed.retry_after
    return failed if wait is None or 0 < wait < inf else replace(failed, retry_after=None)
