"""Frames of a server-sent event stream: one event, one line of JSON, one blank line.

A control frame carries no `id:`, so it never moves a reader's cursor; a `gap` does, because the
numbers it covers will not come.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from holdfast.domain.events import Gap
from holdfast.services.tails import Item, News, end_of

HEADERS: Final = {
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
}
HEARTBEAT: Final = b": hb\n\n"

_encoder = msgspec.json.Encoder()


def control_frame(name: str, data: dict[str, Any], *, retry: int) -> bytes:
    """Return a frame about the stream itself; `retry` is how long a browser waits if it ends."""
    return b"retry: %d\nevent: %s\ndata: %s\n\n" % (retry, name.encode(), _encoder.encode(data))


def gap_frame(first: int, last: int, *, reason: str, resync: str | None) -> bytes:
    """Return the frame that stands for numbers which will not come."""
    data = {"from": first, "to": last, "reason": reason, "resync": resync}
    return b"id: %d\nevent: gap\ndata: %s\n\n" % (last, _encoder.encode(data))


def event_frames(sequence: int, words: Sequence[tuple[str, bytes]]) -> bytes:
    """Return the frames of one event, a name and a line of JSON each.

    Only the last one moves the cursor, so a cut between two repeats the first and loses nothing.
    """
    frames = [b"event: %s\ndata: %s\n\n" % (name.encode(), data) for name, data in words]
    if frames:
        frames[-1] = b"id: %d\n" % sequence + frames[-1]
    return b"".join(frames)


class Rendering:
    """Items as frames, in the words that one reader wants.

    What is left out on the reader's wish is told as one gap, together with what comes after it.
    """

    def __init__(self, frame: Callable[[News], bytes], resync: str) -> None:
        """`frame` makes the bytes of an event, `resync` is where to read what was pruned."""
        self._made = frame
        self._resync = resync
        self._hidden: tuple[int, int] | None = None

    def frames(self, items: list[Item]) -> list[bytes]:
        """Return the frames of the next items."""
        frames: list[bytes] = []
        for item in items:
            frame = self._frame(item)
            if frame:
                frames += [*self.hidden(), frame]
            else:
                first = self._hidden[0] if self._hidden else end_of(item)
                self._hidden = (first, end_of(item))
        return frames

    def hidden(self) -> tuple[bytes, ...]:
        """Return the gap for what was left out since the last frame."""
        if self._hidden is None:
            return ()
        first, last = self._hidden
        self._hidden = None
        return (gap_frame(first, last, reason="filtered", resync=None),)

    def _frame(self, item: Item) -> bytes:
        if isinstance(item, Gap):
            return gap_frame(
                item.from_sequence, item.to_sequence, reason=item.reason, resync=self._resync
            )
        return self._made(item)
