"""Drafts of handlers that run beside a turn: each continues when its own are on disk."""

import asyncio
from collections.abc import Sequence

import pytest

from holdfast.acp.client.turn_context import DraftQueue
from holdfast.domain.drafts import Draft
from holdfast.domain.events import StepEnded, TurnStarted

pytestmark = pytest.mark.anyio

BATCH = (TurnStarted(),)
OTHER = (StepEnded(step=1),)


class Disk:
    """Writes batches one at a time, each when it is let through."""

    def __init__(self) -> None:
        self.written: list[Sequence[Draft]] = []
        self.wakes = 0
        self.reached = asyncio.Event()
        self.gate = asyncio.Semaphore(0)
        self.queue = DraftQueue(self.emit, self.wake)

    async def emit(self, batch: Sequence[Draft]) -> None:
        self.reached.set()
        await self.gate.acquire()
        self.written.append(batch)

    def wake(self) -> None:
        self.wakes += 1


async def test_a_handler_waits_until_its_batch_is_on_disk() -> None:
    disk = Disk()
    waiting = asyncio.create_task(disk.queue.record(BATCH))
    await asyncio.sleep(0)
    woken = (disk.wakes, len(disk.queue))
    writing = asyncio.create_task(disk.queue.write())
    await disk.reached.wait()
    before = waiting.done()
    disk.gate.release()
    await asyncio.gather(waiting, writing)

    assert (woken, before, disk.written, len(disk.queue)) == ((1, 1), False, [BATCH], 0)


async def test_the_batch_of_the_turn_follows_those_that_were_queued_before() -> None:
    disk = Disk()
    waiting = asyncio.create_task(disk.queue.record(BATCH))
    await asyncio.sleep(0)
    writing = asyncio.create_task(disk.queue.write(OTHER))
    await disk.reached.wait()
    late = asyncio.create_task(disk.queue.record(BATCH))
    for _ in range(3):
        disk.gate.release()
    await asyncio.gather(waiting, writing, late)

    assert disk.written == [BATCH, OTHER, BATCH]


async def test_nothing_to_write_needs_no_waiting() -> None:
    disk = Disk()
    await disk.queue.record(())
    await disk.queue.write()

    assert (disk.wakes, disk.written) == (0, [])


async def test_when_the_turn_is_over_no_handler_continues() -> None:
    disk = Disk()
    waiting = [asyncio.create_task(disk.queue.record(BATCH)) for _ in range(2)]
    await asyncio.sleep(0)
    writing = asyncio.create_task(disk.queue.write())
    await disk.reached.wait()
    writing.cancel()
    await asyncio.wait([writing])
    disk.queue.close()
    late = asyncio.create_task(disk.queue.record(BATCH))
    await asyncio.wait([*waiting, late])

    assert [each.cancelled() for each in (*waiting, late)] == [True] * 3
    assert disk.written == []


async def test_the_batch_of_a_cancelled_handler_is_written_all_the_same() -> None:
    disk = Disk()
    waiting = asyncio.create_task(disk.queue.record(BATCH))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    disk.gate.release()
    await disk.queue.write()

    assert (waiting.cancelled(), disk.written) == (True, [BATCH])


async def test_what_waits_for_a_handler_ends_because_its_batch_is_written() -> None:
    disk = Disk()
    disk.gate.release()
    handler = asyncio.create_task(disk.queue.record(BATCH))

    async def wait_for_handler() -> str:
        await handler
        return "ended"

    work = asyncio.create_task(wait_for_handler())

    assert await disk.queue.write_until(work) == "ended"
    assert disk.written == [BATCH]


async def test_a_write_that_fails_ends_handlers_and_what_waits_for_them() -> None:
    async def fail(batch: Sequence[Draft]) -> None:
        raise BrokenPipeError

    queue = DraftQueue(fail, lambda: None)
    handler = asyncio.create_task(queue.record(BATCH))
    work = asyncio.create_task(asyncio.wait([handler]))

    with pytest.raises(BrokenPipeError):
        await queue.write_until(work)
    await asyncio.wait([handler])
    assert (work.done(), handler.cancelled()) == (True, True)
