"""What a stream may say, letter by letter, and a checker that holds every stream to it.

Written from the contract, without a line of Holdfast. A frame that could be read in two ways is a
fault, and so is a number that a control frame carries.
"""

import json
import re
import time
from dataclasses import dataclass, field
from typing import Any

HEARTBEAT = "heartbeat"
CONTROLS = {"connected", "closing"}
BEAT_SECONDS = 15.0
_FRAME = re.compile(
    rb"(?:retry: (?P<retry>[0-9]+)\n)?(?:id: (?P<id>[0-9]+)\n)?"
    rb"event: (?P<event>[a-z_.]+)\ndata: (?P<data>[^\r\n\x00]*)"
)


@dataclass(frozen=True)
class Frame:
    """What stands between two blank lines; `raw` is the data as it came."""

    event: str
    id: int | None = None
    data: Any = None
    retry: int | None = None
    raw: bytes = b""

    @property
    def first(self) -> int:
        """Return the first number that the frame accounts for."""
        return int(self.data["from"] if self.event == "gap" else self.data["sequence"])


class NoFrameError(Exception):
    """Something that no reader could take for a frame."""


def frame_of(block: bytes) -> Frame:
    """Return the frame of a block of lines; there is only one way to write it."""
    if block == b": hb":
        return Frame(HEARTBEAT)
    found = _FRAME.fullmatch(block)
    if found is None:
        raise NoFrameError(repr(block[:200]))
    number, retry = found["id"], found["retry"]
    return Frame(
        event=found["event"].decode(),
        id=int(number) if number else None,
        data=json.loads(found["data"]),
        retry=int(retry) if retry else None,
        raw=found["data"],
    )


class Frames:
    """Bytes in, frames out."""

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that are whole by now."""
        *blocks, self.rest = (self.rest + data).split(b"\n\n")
        return [frame_of(block) for block in blocks]


@dataclass
class Checker:
    """What was found wrong with all the streams of a test, and how much there was to check."""

    # How long a heartbeat may take on this machine.
    patience: float = BEAT_SECONDS
    faults: list[str] = field(default_factory=list)
    streams: int = 0
    frames: int = 0
    beats: int = 0

    def stream(self, after: int | None, *, in_pairs: bool = False) -> "Checked":
        """Return the checker of one stream that begins behind a number, if that is known."""
        self.streams += 1
        return Checked(self, after, in_pairs)

    def __str__(self) -> str:
        return f"{self.streams} streams, {self.frames} frames, {self.beats} heartbeats checked"


class Checked:
    """One stream under the checker's eyes."""

    def __init__(self, checker: Checker, after: int | None, in_pairs: bool) -> None:
        """`in_pairs` streams tell a piece of text in two words, of which the second counts."""
        self._checker = checker
        self._in_pairs = in_pairs
        self._last = ""
        self._beaten_at = time.monotonic()
        self.begun = self._beaten_at
        self.cursor = after

    def heard(self, frame: Frame, at: float | None = None) -> None:
        """Judge the next frame."""
        self._checker.frames += 1
        if not self._last and frame.event != "connected":
            self._fault(f"the stream begins with {frame.event}")
        if self._last == "closing":
            self._fault(f"{frame.event} follows the end")
        if frame.event == HEARTBEAT:
            self._beat(time.monotonic() if at is None else at)
        elif frame.event in CONTROLS:
            self._control(frame)
        else:
            self._counted(frame)
        self._last = frame.event

    def left(self, at: float | None = None) -> None:
        """Judge the silence at the end."""
        now = time.monotonic() if at is None else at
        if now - self._beaten_at > self._checker.patience:
            self._fault(f"no heartbeat for {now - self._beaten_at:.1f} s")

    def _beat(self, now: float) -> None:
        self._checker.beats += 1
        self.left(now)
        self._beaten_at = now

    def _control(self, frame: Frame) -> None:
        if frame.id is not None:
            self._fault(f"{frame.event} carries the number {frame.id}")
        if frame.retry is None:
            self._fault(f"{frame.event} does not say when to come back")
        if frame.event == "connected":
            if self._last:
                self._fault("the stream begins twice")
            if self.cursor is not None and frame.data["after"] != self.cursor:
                self._fault(f"asked for {self.cursor}, begun after {frame.data['after']}")
            self.cursor = frame.data["after"]
        elif frame.data["after"] != self.cursor:
            self._fault(f"{self.cursor} was reached, the end says {frame.data['after']}")

    def _counted(self, frame: Frame) -> None:
        last = frame.data["to"] if frame.event == "gap" else frame.data["sequence"]
        is_first_of_two = self._in_pairs and frame.event == "step.generating"
        if frame.id is None and is_first_of_two:
            return
        if frame.id != last:
            self._fault(f"{frame.event} {last} carries {frame.id}")
        if frame.first != (self.cursor or 0) + 1 or last < frame.first:
            self._fault(f"{frame.event} {frame.first} to {last} follows {self.cursor}")
        self.cursor = last

    def _fault(self, what: str) -> None:
        self._checker.faults.append(what)
