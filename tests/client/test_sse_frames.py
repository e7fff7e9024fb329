"""Streams taken apart: whatever the pieces they come in, and never beyond their bounds."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as some

from holdfast.client import stream
from holdfast.client.stream import InvalidStreamError, SseFrame, SseParser
from tests.marks import each_case

STREAM = (
    b'retry: 1000\nevent: connected\ndata: {"after":0}\n\n'
    b": hb\n\n"
    b"id: 1\nevent: message.created\ndata: {}\n\n"
    b'unknown: field\nevent: closing\ndata:{"reason":"cycle"}\n\n'
)
TAKEN_APART = [
    SseFrame(event="connected", data=b'{"after":0}', retry=1000),
    SseFrame(),
    SseFrame(event="message.created", data=b"{}", id=1),
    SseFrame(event="closing", data=b'{"reason":"cycle"}'),
]


@given(some.lists(some.integers(0, len(STREAM)), max_size=12))
def test_frames_are_the_same_however_the_stream_is_cut(cuts: list[int]) -> None:
    at = [0, *sorted(cuts), len(STREAM)]
    taking = SseParser()

    found = [frame for begin, end in pairwise(at) for frame in taking.feed(STREAM[begin:end])]

    assert found == TAKEN_APART


def test_half_a_frame_is_none() -> None:
    assert SseParser().feed(STREAM[:-1]) == TAKEN_APART[:-1]


@each_case(
    "frame",
    [
        b"id: 1\nid: 2\nevent: x\ndata: {}\n\n",
        b"event: x\ndata: {\ndata: }\n\n",
        b"id: one\nevent: x\ndata: {}\n\n",
        b"id: -1\nevent: x\ndata: {}\n\n",
        b"id: 1234567890123456789012\nevent: x\ndata: {}\n\n",
        b"retry: \nevent: x\ndata: {}\n\n",
    ],
)
def test_a_frame_that_says_two_things_or_no_number_is_refused(frame: bytes) -> None:
    with pytest.raises(InvalidStreamError):
        SseParser().feed(frame)


def test_a_frame_without_an_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "FRAME_LARGEST", 100)
    taking = SseParser()
    assert taking.feed(b"data: " + b"x" * 90) == []

    with pytest.raises(InvalidStreamError, match="has no end"):
        taking.feed(b"x" * 10)


def test_a_large_frame_is_taken_in_time_that_grows_with_its_length() -> None:
    text = b"event: x\ndata: " + b"y" * (4 << 20) + b"\n\n"
    taking = SseParser()

    found = [
        frame
        for begin in range(0, len(text), 4096)
        for frame in taking.feed(text[begin : begin + 4096])
    ]

    assert [(frame.event, len(frame.data)) for frame in found] == [("x", 4 << 20)]
