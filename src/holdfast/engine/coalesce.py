"""Deltas gathered into pieces worth writing down: every 50 ms or 256 characters, the first at once.

No text is lost, reordered or held back by a provider that stalls. What the pieces mean, and which
drafts they become, is decided in `step.py`.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from msgspec import Struct

from holdfast.domain.events import Channel
from holdfast.domain.texts import storable
from holdfast.engine.cancelling import uncancelled
from holdfast.ports import (
    CallArguments,
    CallEnded,
    CallStarted,
    Failed,
    LlmDelta,
    ReasoningDelta,
    ReasoningEnded,
    Stopped,
    TextDelta,
)

PAUSE: Final = 0.05
ENOUGH: Final = 256


class Piece(Struct, frozen=True, kw_only=True):
    """Text of one channel; `offset` counts the characters of that channel before it."""

    channel: Channel
    offset: int
    text: str


Gathered = Piece | ReasoningEnded | CallStarted | CallArguments | CallEnded | Stopped | Failed
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
        await uncancelled(pump)
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

    def _piece(self, channel: Channel, texts: list[str]) -> Piece:
        text = storable("".join(texts))
        offset = self._offsets[channel]
        self._offsets[channel] = offset + len(text)
        return Piece(channel=channel, offset=offset, text=text)
