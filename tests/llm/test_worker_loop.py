"""The second loop: what happens there, and that nothing of it holds up this one."""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import pytest

from holdfast.llm.provider_models import WorkerLoop

pytestmark = pytest.mark.anyio


async def nothing() -> None:
    """Have nothing left to do."""


@pytest.fixture
async def aside() -> AsyncIterator[WorkerLoop]:
    """Run a second loop until the test ends."""
    second = WorkerLoop()
    yield second
    await second.aclose(nothing)


async def count(most: int) -> AsyncGenerator[int, None]:
    for number in range(most):
        yield number


async def test_everything_comes_in_its_order(aside: WorkerLoop) -> None:
    heard = [number async for number in aside.stream(lambda: count(2_000))]

    assert heard == list(range(2_000))


async def test_it_runs_in_one_task_of_another_thread(aside: WorkerLoop) -> None:
    async def where() -> AsyncGenerator[tuple[str, asyncio.Task[None] | None], None]:
        try:
            yield threading.current_thread().name, asyncio.current_task()
            yield threading.current_thread().name, asyncio.current_task()
        finally:
            closed.append((threading.current_thread().name, asyncio.current_task()))

    closed: list[object] = []
    told = [each async for each in aside.stream(where)]

    assert told[0] == told[1] == closed[0]
    assert told[0][0] == "holdfast-llm"


async def test_what_takes_long_there_does_not_hold_up_this_loop(aside: WorkerLoop) -> None:
    go_on = threading.Event()

    async def busy() -> AsyncGenerator[str, None]:
        # Blocks the whole loop there, as a package does that works without waiting.
        assert go_on.wait(timeout=30)
        yield "done"

    listening = asyncio.create_task(anext(aside.stream(busy)))
    for _ in range(10):
        await asyncio.sleep(0)
    go_on.set()

    assert await listening == "done"


async def test_an_error_there_is_raised_here_after_what_came_before(aside: WorkerLoop) -> None:
    async def failing() -> AsyncGenerator[str, None]:
        yield "first"
        raise ValueError("no")

    async with aclosing(aside.stream(failing)) as stream:
        first = await anext(stream)
        with pytest.raises(ValueError, match="no"):
            await anext(stream)

    assert first == "first"


async def test_closing_here_has_closed_there(aside: WorkerLoop) -> None:
    closed = []

    async def endless() -> AsyncGenerator[int, None]:
        try:
            while True:
                yield 1
        finally:
            await asyncio.sleep(0)
            closed.append("closed")

    async with aclosing(aside.stream(endless)) as stream:
        await anext(stream)

    assert closed == ["closed"]


async def test_cancelling_here_has_cancelled_there(aside: WorkerLoop) -> None:
    begun, told = threading.Event(), []

    async def waiting() -> AsyncGenerator[int, None]:
        try:
            begun.set()
            await asyncio.Event().wait()
            yield 1
        except asyncio.CancelledError:
            told.append("cancelled")
            raise

    async def listen() -> None:
        async with aclosing(aside.stream(waiting)) as stream:
            await anext(stream)

    listening = asyncio.create_task(listen())
    await asyncio.to_thread(begun.wait)
    listening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await listening

    assert told == ["cancelled"]


async def test_it_does_not_run_ahead_of_who_listens(aside: WorkerLoop) -> None:
    yielded = []

    async def eager() -> AsyncGenerator[int, None]:
        for number in range(10_000):
            yielded.append(number)
            yield number

    async with aclosing(aside.stream(eager)) as stream:
        await anext(stream)
        ahead = len(yielded)
        rest = [number async for number in stream]

    assert ahead <= 600
    assert [0, *rest] == list(range(10_000))


async def test_when_it_is_closed_what_still_runs_there_ends(aside: WorkerLoop) -> None:
    async def waiting() -> AsyncGenerator[int, None]:
        yield 1
        await asyncio.Event().wait()

    stream = aside.stream(waiting)
    first = await anext(stream)
    await aside.aclose(nothing)

    assert [first, *[number async for number in stream]] == [1]


async def test_it_can_be_used_again_after_it_was_closed(aside: WorkerLoop) -> None:
    for _ in range(2):
        assert [number async for number in aside.stream(lambda: count(3))] == [0, 1, 2]
        await aside.aclose(nothing)


async def test_closing_what_was_never_used_does_nothing() -> None:
    asked = []

    async def last() -> None:
        asked.append("last")

    await WorkerLoop().aclose(last)

    assert asked == []
