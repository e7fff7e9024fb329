"""A session changes hands: on leaving, on a lost lease, after a fault; no turn plays twice."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast import RunScope
from holdfast.app import Environment
from holdfast.domain.errors import Code, HoldfastError, StorageFull, Unavailable
from holdfast.domain.events import TurnEnded
from holdfast.domain.sessions import Status, StopReason
from holdfast.ports.store import Store, Tx
from tests.houses import (
    current,
    head_of,
    key_of,
    news_until,
    open_house,
    payloads,
    played,
    texts,
)
from tests.stand_ins import (
    PATIENCE,
    Gate,
    GatedRuntime,
    SeededRandomness,
    SettableClock,
    StandInMachine,
    an_answer,
    asked,
    streamed,
)

# Programs are started here, which belongs to the whole run and not to the quick one.
pytestmark = [pytest.mark.anyio, pytest.mark.slow]


class BrokenStore:
    """A store that refuses to write while the test says so."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.error: Exception | None = None
        self.refused = asyncio.Event()

    async def write(self, work: Callable[[Tx], Coroutine[Any, Any, Any]], **how: Any) -> Any:
        if self.error is not None:
            self.refused.set()
            raise self.error
        return await self._store.write(work, **how)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def _second(clock: SettableClock) -> Environment:
    """Be another process."""
    machine = StandInMachine("second")
    return Environment(clock=clock, randomness=SeededRandomness(1), machine=machine)


async def test_leaving_the_house_leaves_the_turn_open_and_free(
    home: Path, outside: Environment, clock: SettableClock
) -> None:
    gate = Gate()
    first = GatedRuntime([(asked(),), (streamed("half"),), gate])
    async with open_house(home, first, outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        await gate.reached()
    assert first.closed == 1

    second = GatedRuntime([an_answer("whole")])
    async with open_house(home, second, outside=_second(clock), scope=RunScope.OWN) as house:
        left = await head_of(house, session)
        assert (left.holder, left.status, left.turn, left.settled) == (None, Status.RUNNING, 1, 0)

        await house.maintenance.recover()
        assert texts(await played(house, session.id)) == [
            ("user", "hello"),
            ("assistant", "whole"),
        ]


async def test_two_houses_on_one_home_play_each_turn_once(
    home: Path, outside: Environment, clock: SettableClock
) -> None:
    one, two = GatedRuntime(), GatedRuntime()
    async with (
        open_house(home, one, outside=outside) as first,
        open_house(home, two, outside=_second(clock)) as second,
    ):
        session = await first.open()
        for number in range(10):
            house = (first, second)[number % 2]
            await house.send(session.id, f"message {number}")
        rows = await played(second, session.id)

    sent = [row.text for row in rows if row.role == "user"]
    assert sent == [f"message {number}" for number in range(10)]
    turns = sorted(turn.turn for turn in (*one.turns, *two.turns))
    assert turns == list(range(1, rows[-1].turn + 1))
    assert [row.sequence for row in rows] == list(range(1, len(rows) + 1))


async def test_an_interrupt_by_another_house_stops_the_turn_here(
    home: Path, outside: Environment, clock: SettableClock
) -> None:
    gate = Gate()
    runtime = GatedRuntime([(asked(),), gate, (streamed("too late"),)])
    async with (
        open_house(home, runtime, outside=outside) as house,
        open_house(home, GatedRuntime(), outside=_second(clock), scope=RunScope.NONE) as other,
    ):
        session = await house.open()
        await house.send(session.id, "hello")
        await gate.reached()

        stopped = (await other.sessions.interrupt(other.owner, session.id)).session
        gate.open()

        assert (stopped.status, stopped.last_stop) == (Status.IDLE, StopReason.ABORTED)
    assert runtime.closed == 1
    async with open_house(home, GatedRuntime(), outside=outside) as house:
        assert "too late" not in str(await house.read(session.id))
        assert (await current(house, session)).last_event == stopped.last_event


async def test_a_turn_whose_lease_was_lost_is_stopped_within_a_second_or_so(
    home: Path, outside: Environment
) -> None:
    gate, taken = Gate(), Gate()
    slow = GatedRuntime([gate, an_answer("stale")])
    # For the other house a minute has passed, in which the first has slept.
    later = SettableClock()
    later.advance(minutes=1)
    second = GatedRuntime([taken])
    async with (
        open_house(home, slow, outside=outside) as house,
        open_house(home, second, outside=_second(later), scope=RunScope.OWN) as other,
    ):
        session = await house.open()
        await house.send(session.id, "hello")
        await gate.reached()

        other.coordinator.wake(await key_of(house, session))
        await taken.reached()
        async with asyncio.timeout(PATIENCE):
            await slow.ended.wait()

        assert house.coordinator.active() == frozenset()
        assert other.coordinator.active() == {await key_of(house, session)}
        assert (await head_of(other, session)).epoch == 2


@pytest.mark.parametrize(
    "error",
    [StorageFull(Code.STORAGE_FULL, "full"), Unavailable(Code.STORE_POISONED, "broken")],
)
async def test_a_turn_that_the_disk_stopped_is_taken_up_again(
    home: Path, outside: Environment, error: HoldfastError, caplog: pytest.LogCaptureFixture
) -> None:
    stores: list[BrokenStore] = []

    def broken(store: Store) -> Store:
        stores.append(BrokenStore(store))
        return stores[0]

    gate = Gate()
    runtime = GatedRuntime([gate, (asked(),)], [an_answer("after all")])
    async with open_house(home, runtime, outside=replace(outside, wrap=broken)) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        await gate.reached()
        stores[0].error = error
        gate.open()
        await stores[0].refused.wait()
        with caplog.at_level(logging.WARNING):
            await asyncio.sleep(0)
        stores[0].error = None

        rows = await played(house, session.id)

    assert texts(rows) == [("user", "hello"), ("assistant", "after all")]
    assert f"the session with key 1 was skipped: {error.message}" in caplog.messages


async def test_a_tick_that_cannot_reach_the_store_is_tried_again(
    home: Path, outside: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    stores: list[BrokenStore] = []

    def broken(store: Store) -> Store:
        stores.append(BrokenStore(store))
        return stores[0]

    gate = Gate()
    runtime = GatedRuntime([gate, an_answer("done")])
    async with open_house(home, runtime, outside=replace(outside, wrap=broken)) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        await gate.reached()
        stores[0].error = Unavailable(Code.STORE_BUSY, "busy")
        async with asyncio.timeout(PATIENCE):
            await stores[0].refused.wait()
        stores[0].error = None
        gate.open()
        await news_until(house, session.id, TurnEnded)

        ended = payloads(await news_until(house, session.id, TurnEnded))[-1]
    assert ended.stop_reason is StopReason.STOP
    assert "the coordinator could not reach the store: busy" in caplog.messages


async def test_a_fault_of_ours_leaves_the_turn_to_be_taken_up_again(
    home: Path, outside: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    stores: list[BrokenStore] = []

    def broken(store: Store) -> Store:
        stores.append(BrokenStore(store))
        return stores[0]

    async with open_house(home, GatedRuntime(), outside=replace(outside, wrap=broken)) as house:
        session = await house.open()
        message = await house.send(session.id, "hello")
        stores[0].error = ZeroDivisionError()
        async with asyncio.timeout(PATIENCE):
            await stores[0].refused.wait()
        await asyncio.sleep(0)
        stores[0].error = None

        rows = await played(house, session.id)

    assert rows[0] == message
    assert "the session with key 1 was skipped after an internal error" in caplog.messages
