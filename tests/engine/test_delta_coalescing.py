"""Coalescing, on a clock that jumps: when pieces come, what is in them, and how it all ends."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.events import Channel
from holdfast.engine.cancellation import CancelledItselfError
from holdfast.engine.streaming import DeltaPiece, Gathered, coalesce
from holdfast.ports.llm import (
    CallArguments,
    CallEnded,
    CallStarted,
    LlmDelta,
    LlmReasoningDelta,
    LlmTextDelta,
    ReasoningEnded,
    StepStop,
    Stopped,
)
from tests.engine.virtual_time import VIRTUAL_TIME, VirtualTimeLoop

pytestmark = pytest.mark.anyio

STOP = Stopped(reason=StepStop.STOP)
Timed = LlmDelta | float | Exception


@pytest.fixture
def anyio_backend() -> Any:
    return VIRTUAL_TIME


async def provider(*script: Timed) -> AsyncGenerator[LlmDelta, None]:
    """Yield deltas; a number is a pause in seconds, an exception is raised."""
    for item in script:
        if isinstance(item, float):
            await asyncio.sleep(item)
        elif isinstance(item, Exception):
            raise item
        else:
            yield item


async def timed(*script: Timed) -> list[tuple[int, tuple[Gathered, ...]]]:
    """Return what came, each with the milliseconds at which it came."""
    clock = asyncio.get_running_loop()
    start = clock.time()
    heard: list[tuple[int, tuple[Gathered, ...]]] = []

    async def write(items: tuple[Gathered, ...]) -> bool:
        heard.append((round((clock.time() - start) * 1000), items))
        return False

    assert await coalesce(provider(*script), write) is None
    return heard


def say(text: str) -> LlmTextDelta:
    return LlmTextDelta(text=text)


def think(text: str) -> LlmReasoningDelta:
    return LlmReasoningDelta(text=text)


def text(offset: int, text: str) -> DeltaPiece:
    return DeltaPiece(channel=Channel.TEXT, offset=offset, text=text)


def thought(offset: int, text: str) -> DeltaPiece:
    return DeltaPiece(channel=Channel.REASONING, offset=offset, text=text)


async def test_the_first_piece_comes_at_once_and_the_next_after_fifty_milliseconds() -> None:
    script: list[Timed] = [say("a"), 0.01, say("b"), 0.01, say("c"), 0.1, say("d"), STOP]

    assert await timed(*script) == [
        (0, (text(0, "a"),)),
        (50, (text(1, "bc"),)),
        (120, (text(3, "d"), STOP)),
    ]


async def test_an_answer_that_is_there_at_once_comes_in_one_piece() -> None:
    assert await timed(say("all "), say("at "), say("once"), STOP) == [
        (0, (text(0, "all at once"), STOP))
    ]


async def test_text_comes_in_time_although_the_provider_stalls() -> None:
    script: list[Timed] = [say("a"), 0.001, say("b"), 60.0, STOP]

    assert await timed(*script) == [
        (0, (text(0, "a"),)),
        (50, (text(1, "b"),)),
        (60_001, (STOP,)),
    ]


async def test_two_hundred_and_fifty_six_characters_do_not_wait() -> None:
    script: list[Timed] = [say("a"), 0.01, say("b" * 255), 0.01, say("c"), 0.01, say("d"), STOP]

    assert await timed(*script) == [
        (0, (text(0, "a"),)),
        (20, (text(1, "b" * 255 + "c"),)),
        (30, (text(257, "d"), STOP)),
    ]


async def test_channels_keep_their_order_and_count_apart() -> None:
    script: list[Timed] = [
        think("one"),
        think(" two"),
        ReasoningEnded(),
        say("three"),
        think("four"),
        say("5"),
    ]

    assert await timed(*script, STOP) == [
        (
            0,
            (
                thought(0, "one two"),
                ReasoningEnded(),
                text(0, "three"),
                thought(7, "four"),
                text(5, "5"),
                STOP,
            ),
        )
    ]


async def test_calls_pass_through_in_their_place() -> None:
    call: list[LlmDelta] = [
        CallStarted(id="c", name="look"),
        CallArguments(id="c", text="{"),
        CallArguments(id="c", text="}"),
        CallEnded(id="c"),
    ]

    assert await timed(say("a"), *call, STOP) == [(0, (text(0, "a"), *call, STOP))]


async def test_many_small_deltas_that_are_no_text_do_not_pile_up() -> None:
    arguments = [CallArguments(id="c", text="x")] * 600

    sizes = [len(items) for _, items in await timed(*arguments, STOP)]

    assert sizes == [256, 256, 89]


async def test_empty_text_is_nothing() -> None:
    assert await timed(say(""), think(""), 1.0, STOP) == [(1000, (STOP,))]


async def test_nothing_after_the_end_is_heard() -> None:
    assert await timed(say("a"), STOP, say("b"), STOP) == [(0, (text(0, "a"), STOP))]


async def test_a_stream_without_an_end_just_ends() -> None:
    assert await timed(say("a")) == [(0, (text(0, "a"),))]


async def test_what_no_row_can_hold_is_replaced_and_halves_find_each_other() -> None:
    script: list[Timed] = [
        say("a\x00b"),
        say("\ud83d"),
        say("\ude00"),
        say("\ud800"),
        say("ü"),
        STOP,
    ]

    assert await timed(*script) == [(0, (text(0, "a\ufffdb😀\ufffdü"), STOP))]


class Pieces:
    """Takes what is written, and stops the stream after so many batches, if it is told to."""

    def __init__(self, *, most: int = 1_000, seconds: float = 0, error: Exception | None = None):
        self.heard: list[tuple[Gathered, ...]] = []
        self._most = most
        self._seconds = seconds
        self._error = error

    async def write(self, items: tuple[Gathered, ...]) -> bool:
        self.heard.append(items)
        await asyncio.sleep(self._seconds)
        if self._error is not None:
            raise self._error
        return len(self.heard) >= self._most


async def test_an_error_is_returned_after_the_text_before_it() -> None:
    pieces = Pieces()

    error = await coalesce(provider(say("a"), ValueError("broken wire")), pieces.write)

    assert str(error) == "broken wire"
    assert pieces.heard == [(text(0, "a"),)]


class Watched:
    """A provider that tells when it was closed, and in which task."""

    def __init__(self, *script: Timed) -> None:
        self._script = script
        self.asked = 0
        self.closings: list[str] = []
        self.tasks: set[object] = set()

    async def stream(self) -> AsyncGenerator[LlmDelta, None]:
        try:
            for item in self._script:
                self.asked += 1
                self.tasks.add(asyncio.current_task())
                if isinstance(item, float):
                    await asyncio.sleep(item)
                elif isinstance(item, LlmTextDelta):
                    yield item
        except BaseException as error:
            self.closings.append(type(error).__name__)
            raise
        finally:
            self.tasks.add(asyncio.current_task())
            # A real provider has something to await when it lets go of its connection.
            await asyncio.sleep(0)
            self.closings.append("closed")


async def test_a_failed_write_ends_a_provider_that_waits() -> None:
    watched = Watched(say("a"), 1000.0)
    me = asyncio.current_task()

    with pytest.raises(OSError, match="disk"):
        await coalesce(watched.stream(), Pieces(error=OSError("disk")).write)

    assert watched.closings == ["CancelledError", "closed"]
    assert me is not None
    assert me.cancelling() == 0


async def test_a_failed_write_ends_a_provider_that_waits_for_room() -> None:
    watched = Watched(*[say("x" * 256)] * 5)

    with pytest.raises(OSError, match="disk"):
        await coalesce(watched.stream(), Pieces(seconds=1, error=OSError("disk")).write)

    assert (watched.asked, watched.closings) == (2, ["GeneratorExit", "closed"])


async def test_a_failed_write_ends_a_provider_that_ignores_cancellation() -> None:
    async def stubborn() -> AsyncGenerator[LlmDelta, None]:
        yield say("a")
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            yield say("b")
            raise AssertionError("it was asked again") from None

    with pytest.raises(OSError, match="disk"):
        await coalesce(stubborn(), Pieces(error=OSError("disk")).write)


async def test_a_reader_that_has_enough_asks_the_provider_no_more() -> None:
    watched = Watched(*[say("x" * 256)] * 5)
    pieces = Pieces(most=1)

    await coalesce(watched.stream(), pieces.write)

    assert (len(pieces.heard), watched.asked) == (1, 2)
    assert watched.closings == ["GeneratorExit", "closed"]


async def test_cancelling_the_reader_closes_the_provider() -> None:
    watched = Watched(say("a"), 1000.0)
    pieces = Pieces()

    reader = asyncio.create_task(coalesce(watched.stream(), pieces.write))
    await asyncio.sleep(1)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader

    assert (pieces.heard, watched.closings) == ([(text(0, "a"),)], ["CancelledError", "closed"])


async def test_a_cancelled_reader_stays_cancelled_although_its_write_fails() -> None:
    watched = Watched(say("a"), 1000.0)

    reader = asyncio.create_task(
        coalesce(watched.stream(), Pieces(seconds=1, error=OSError("disk")).write)
    )
    await asyncio.sleep(0.5)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader

    assert watched.closings == ["CancelledError", "closed"]


async def test_a_provider_that_cancels_itself_has_failed() -> None:
    async def confused() -> AsyncGenerator[LlmDelta, None]:
        yield say("a")
        raise asyncio.CancelledError

    error = await coalesce(confused(), Pieces().write)

    assert isinstance(error, CancelledItselfError)


async def test_a_provider_that_fails_while_it_is_closed_disturbs_no_reader() -> None:
    async def clumsy() -> AsyncGenerator[LlmDelta, None]:
        try:
            yield say("a")
            yield STOP
        finally:
            raise OSError("could not close")

    pieces = Pieces()

    assert await coalesce(clumsy(), pieces.write) is None
    assert pieces.heard == [(text(0, "a"), STOP)]


async def test_a_provider_lives_in_one_task_and_ends_there() -> None:
    watched = Watched(say("a"), 0.1, say("b"), 0.1, say("c"))
    pieces = Pieces()

    await coalesce(watched.stream(), pieces.write)

    assert pieces.heard == [(text(0, "a"),), (text(1, "b"),), (text(2, "c"),)]
    assert (len(watched.tasks), watched.closings) == (1, ["closed"])


async def test_a_slow_reader_holds_the_provider_back_and_loses_nothing() -> None:
    watched = Watched(*[say("x" * 100)] * 30)
    asked: list[int] = []
    heard = ""

    async def write(items: tuple[Gathered, ...]) -> bool:
        nonlocal heard
        heard += "".join(item.text for item in items if isinstance(item, DeltaPiece))
        await asyncio.sleep(1)
        asked.append(watched.asked)
        return False

    await coalesce(watched.stream(), write)

    assert heard == "x" * 3000
    assert asked == [6, 9, 12, 15, 18, 21, 24, 27, 30, 30]


words = st.text(alphabet="ab \x00é😀", max_size=300)
scripts = st.lists(
    st.one_of(words.map(say), words.map(think), st.sampled_from([0.0, 0.01, 0.049, 0.06, 0.5])),
    max_size=30,
)


@given(scripts)
def test_no_text_is_lost_and_offsets_meet_whatever_the_provider_does(
    script: list[LlmDelta | float],
) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        batches = runner.run(timed(*script, STOP))

    pieces = [item for _, items in batches for item in items if isinstance(item, DeltaPiece)]
    for channel, kind in ((Channel.TEXT, LlmTextDelta), (Channel.REASONING, LlmReasoningDelta)):
        own = [piece for piece in pieces if piece.channel is channel]
        spoken = "".join(delta.text for delta in script if isinstance(delta, kind))
        assert "".join(piece.text for piece in own) == spoken.replace("\x00", "\ufffd")
        assert [piece.offset for piece in own] == [
            sum(len(earlier.text) for earlier in own[:number]) for number in range(len(own))
        ]
    assert batches[-1][1][-1] == STOP


async def test_two_thousand_deltas_become_forty_batches() -> None:
    async def chatty() -> AsyncGenerator[LlmDelta, None]:
        for _ in range(2000):
            await asyncio.sleep(0)
            yield say("word ")
        yield STOP

    pieces = Pieces()
    await coalesce(chatty(), pieces.write)

    assert len(pieces.heard) == 40
