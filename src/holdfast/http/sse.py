"""Frames of a server-sent event stream: one event, one line of JSON, one blank line.

A control frame carries no `id:`, so it never moves a reader's cursor; a `gap` does, because the
numbers it covers will not come.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from holdfast.domain.events import Gap
from holdfast.services.event_stream import BufferedEvent, Item, end_of

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

    def __init__(self, frame: Callable[[BufferedEvent], bytes], resync: str) -> None:
        """`frame` makes the bytes of an event, `resync` is where to read what was pruned."""
        self._made = frame
        self._resync = resync
        self._hidden: tuple[int, int] | None = None

    def frames(self, item: Item) -> bytes:
        """Return the frames of the next item; none if its reader does not want to hear of it."""
        frame = self.plain(item)
        if frame:
            before, self._hidden = self._hidden, None
            return _filtered(before) + frame
        first = self._hidden[0] if self._hidden else end_of(item)
        self._hidden = (first, end_of(item))
        return b""

    @property
    def is_hiding(self) -> bool:
        """Tell whether something was left out that has not been told as a gap."""
        return self._hidden is not None

    def hidden(self, told: int) -> tuple[bytes, int]:
        """Return the gap for what was left out since a number, and the last number it covers.

        There is none if something else, which was never sent, stands between them.
        """
        before, self._hidden = self._hidden, None
        if before is None or before[0] != told + 1:
            return b"", told
        return _filtered(before), before[1]

    def plain(self, item: Item) -> bytes:
        """Return the frames of an item by itself."""
        if isinstance(item, Gap):
            return gap_frame(
                item.from_sequence, item.to_sequence, reason=item.reason, resync=self._resync
            )
        return self._made(item)


def _filtered(numbers: tuple[int, int] | None) -> bytes:
    return gap_frame(*numbers, reason="filtered", resync=None) if numbers else b""
