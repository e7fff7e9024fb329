"""Drafts of those who work beside a turn: each is told when its own are on disk, and not before."""

import asyncio

import pytest

from holdfast.acp.client.turn_context import DraftQueue
from holdfast.domain.events import TurnStarted

pytestmark = pytest.mark.anyio

BATCH = (TurnStarted(),)


async def test_whoever_hands_something_over_waits_until_it_is_on_disk() -> None:
    outbox = DraftQueue()
    waiting = asyncio.create_task(outbox.record(BATCH))
    await outbox.filled()
    taken = outbox.taken()
    before = waiting.done()
    after = outbox.taken()
    await waiting

    assert (taken, before, after) == (BATCH, False, None)


async def test_nothing_to_write_needs_no_waiting() -> None:
    outbox = DraftQueue()
    await outbox.record(())

    assert outbox.taken() is None


async def test_when_the_turn_is_over_nobody_goes_on() -> None:
    outbox = DraftQueue()
    waiting = [asyncio.create_task(outbox.record(BATCH)) for _ in range(2)]
    await outbox.filled()
    outbox.taken()
    outbox.close()
    await asyncio.wait(waiting)
    late = asyncio.create_task(outbox.record(BATCH))
    await asyncio.wait([late])

    assert [each.cancelled() for each in (*waiting, late)] == [True] * 3


async def test_one_who_gave_up_is_passed_over() -> None:
    outbox = DraftQueue()
    waiting = asyncio.create_task(outbox.record(BATCH))
    await outbox.filled()
    outbox.taken()
    waiting.cancel()
    await asyncio.wait([waiting])

    outbox.settle()
    assert waiting.cancelled()
