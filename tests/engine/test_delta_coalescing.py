"""Coalescing, on a clock that jumps: when pieces come, what is in them, and how it all ends."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.events import Channel
from holdfast.engine.streaming import DeltaPiece, Gathered, coalesce
from holdfast.ports.llm import (
    CallArguments,
    CallEnded,
    CallStarted,
    LlmDelta,
    ReasoningDelta,
    ReasoningEnded,
    StepStop,
    Stopped,
    TextDelta,
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
    return [
        (round((clock.time() - start) * 1000), items) async for items in coalesce(provider(*script))
    ]


def say(text: str) -> TextDelta:
    return TextDelta(text=text)


def think(text: str) -> ReasoningDelta:
    return ReasoningDelta(text=text)


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


async def test_an_error_is_raised_after_the_text_before_it() -> None:
    heard: list[tuple[Gathered, ...]] = []

    async def hear() -> None:
        async for items in coalesce(provider(say("a"), ValueError("broken wire"))):
            heard.append(items)

    with pytest.raises(ValueError, match="broken wire"):
        await hear()

    assert heard == [(text(0, "a"),)]


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
                elif isinstance(item, TextDelta):
                    yield item
        except BaseException as error:
            self.closings.append(type(error).__name__)
            raise
        finally:
            self.tasks.add(asyncio.current_task())
            # A real provider has something to await when it lets go of its connection.
            await asyncio.sleep(0)
            self.closings.append("closed")


async def test_closing_the_generator_closes_a_provider_that_waits() -> None:
    watched = Watched(say("a"), 1000.0)

    async with aclosing(coalesce(watched.stream())) as gathered:
        first = await anext(gathered)

    assert (first, watched.closings) == ((text(0, "a"),), ["CancelledError", "closed"])


async def test_closing_the_generator_closes_a_provider_that_waits_for_room() -> None:
    watched = Watched(*[say("x" * 256)] * 5)

    async with aclosing(coalesce(watched.stream())) as gathered:
        await anext(gathered)
        await asyncio.sleep(1)

    assert (watched.asked, watched.closings) == (2, ["GeneratorExit", "closed"])


async def test_closing_before_the_first_piece_asks_the_provider_nothing() -> None:
    watched = Watched(say("a"))

    async with aclosing(coalesce(watched.stream())):
        pass

    assert (watched.asked, watched.closings) == (0, [])


async def test_cancelling_the_reader_closes_the_provider() -> None:
    watched = Watched(say("a"), 1000.0)
    heard: list[Sequence[Gathered]] = []

    async def read() -> None:
        async with aclosing(coalesce(watched.stream())) as gathered:
            async for items in gathered:
                heard.append(items)

    reader = asyncio.create_task(read())
    await asyncio.sleep(1)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader

    assert (heard, watched.closings) == ([(text(0, "a"),)], ["CancelledError", "closed"])


async def test_a_provider_that_fails_while_it_is_closed_disturbs_nobody() -> None:
    async def clumsy() -> AsyncGenerator[LlmDelta, None]:
        try:
            yield say("a")
            await asyncio.sleep(1000)
        finally:
            raise OSError("could not close")

    async with aclosing(coalesce(clumsy())) as gathered:
        first = await anext(gathered)

    assert first == (text(0, "a"),)


async def test_a_provider_lives_in_one_task_and_ends_there() -> None:
    watched = Watched(say("a"), 0.1, say("b"), 0.1, say("c"))

    pieces = [items async for items in coalesce(watched.stream())]

    assert pieces == [(text(0, "a"),), (text(1, "b"),), (text(2, "c"),)]
    assert (len(watched.tasks), watched.closings) == (1, ["closed"])


async def test_a_slow_reader_holds_the_provider_back_and_loses_nothing() -> None:
    watched = Watched(*[say("x" * 100)] * 30)
    asked, heard = [], ""

    async with aclosing(coalesce(watched.stream())) as gathered:
        async for items in gathered:
            heard += "".join(item.text for item in items if isinstance(item, DeltaPiece))
            await asyncio.sleep(1)
            asked.append(watched.asked)

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
    for channel, kind in ((Channel.TEXT, TextDelta), (Channel.REASONING, ReasoningDelta)):
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

    assert len([items async for items in coalesce(chatty())]) == 40
