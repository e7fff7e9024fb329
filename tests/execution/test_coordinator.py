"""The coordinator: when a turn runs, how many at once, and what happens when it cannot go on."""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast import RunScope, open_holdfast
from holdfast.app import Environment
from holdfast.domain.commits import SessionCommit
from holdfast.domain.errors import Conflict
from holdfast.domain.events import MessageAppended, TurnStarted
from holdfast.domain.ids import SessionKey
from holdfast.domain.sessions import Status
from holdfast.ports.store import Store
from tests.houses import current, head_of, key_of, open_house, played, texts
from tests.stand_ins import (
    Gate,
    GatedRuntime,
    SeededRandomness,
    SettableClock,
    StandInMachine,
    an_answer,
)

pytestmark = pytest.mark.anyio


def _second(clock: SettableClock) -> Environment:
    """Be another process."""
    machine = StandInMachine("second")
    return Environment(clock=clock, randomness=SeededRandomness(1), machine=machine)


async def test_only_so_many_turns_run_at_once(home: Path, outside: Environment) -> None:
    gates = [Gate() for _ in range(4)]
    runtime = GatedRuntime(*([gate, an_answer("done")] for gate in gates))
    async with open_house(home, runtime, outside=outside, at_a_time=2) as house:
        sessions = [await house.open() for _ in gates]
        for session in sessions:
            await house.send(session.id, "hello")
        await asyncio.gather(gates[0].reached(), gates[1].reached())
        statuses = [(await current(house, session)).status for session in sessions]
        assert sorted(statuses) == [Status.PENDING] * 2 + [Status.RUNNING] * 2
        assert len(house.coordinator.active()) == 2

        for gate in gates:
            gate.open()
            await gate.reached()
        rows = await asyncio.gather(*(played(house, session.id) for session in sessions))

    assert [len(each) for each in rows] == [2] * 4
    assert house.coordinator.active() == frozenset()


async def test_a_message_begins_its_turn_in_the_same_entry(
    home: Path, outside: Environment
) -> None:
    gate = Gate()
    async with open_house(home, GatedRuntime([gate, an_answer("done")]), outside=outside) as house:
        session = await house.open()

        message = await house.send(session.id, "hello")

        running = await current(house, session)
        begun = await house.events.list(house.owner, session.id, after=session.last_event)
        assert (running.status, running.settled) == (Status.RUNNING, 0)
        assert [type(event.payload) for event in begun.items] == [MessageAppended, TurnStarted]
        assert begun.items[0].payload.message_id == message.id
        gate.open()
        assert texts(await played(house, session.id))[-1] == ("assistant", "done")


async def test_a_message_that_finds_no_slot_waits_for_whoever_has_one(
    home: Path, outside: Environment, clock: SettableClock
) -> None:
    gate = Gate()
    runtime = GatedRuntime([gate, an_answer("one")], [an_answer("here")])
    async with open_house(home, runtime, outside=outside, at_a_time=1) as house:
        busy, waiting = await house.open(), await house.open()
        await house.send(busy.id, "a")
        await house.send(waiting.id, "b")
        assert (await current(house, waiting)).status is Status.PENDING

        async with open_house(home, GatedRuntime([an_answer("there")]), outside=_second(clock)):
            assert texts(await played(house, waiting.id))[-1] == ("assistant", "there")
        gate.open()
        await played(house, busy.id)


async def test_a_refused_message_gives_its_slot_back(home: Path, outside: Environment) -> None:
    async with open_house(home, GatedRuntime(), outside=outside, at_a_time=1) as house:
        closed, session = await house.open(), await house.open()
        await house.sessions.close(house.owner, closed.id)
        with pytest.raises(Conflict):
            await house.send(closed.id, "too late")

        await house.send(session.id, "hello")

        assert (await current(house, session)).status is Status.RUNNING


async def test_who_is_woken_while_its_turn_is_being_written_plays_it_once(
    home: Path, outside: Environment
) -> None:
    runtime = GatedRuntime()
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()
        key = await key_of(house, session)
        with house.coordinator.reserve_slot() as slot:
            kept = [slot.try_reserve(key, 1), slot.try_reserve(key, 1)]
            with house.coordinator.reserve_slot() as other:
                kept += [other.try_reserve(key, 1)]
            house.coordinator.wake(key)
            assert house.coordinator.active() == frozenset()
        await house.send(session.id, "hello")
        await played(house, session.id)

    assert kept == [True, True, False]
    assert [turn.turn for turn in runtime.turns] == [1]


async def test_a_slot_that_was_given_back_is_not_kept(home: Path, outside: Environment) -> None:
    async with open_house(home, GatedRuntime(), outside=outside) as house:
        session = await house.open()
        key = await key_of(house, session)
        with house.coordinator.reserve_slot() as slot:
            pass

        assert not slot.try_reserve(key, 1)
        await house.send(session.id, "hello")
        assert texts(await played(house, session.id))[-1] == ("assistant", "done")


class _FullSet(set[Any]):
    """Has no memory to grow: like a set of Python, it raises after it has added the first item."""

    def add(self, item: Any) -> None:
        is_first = not self
        super().add(item)
        if is_first:
            raise MemoryError


async def test_a_slot_is_given_back_when_memory_runs_out_while_it_is_reserved(
    home: Path, outside: Environment
) -> None:
    async with open_house(home, GatedRuntime(), outside=outside) as house:
        session = await house.open()
        key = await key_of(house, session)
        house.coordinator._starting = _FullSet()
        with pytest.raises(MemoryError), house.coordinator.reserve_slot() as slot:
            slot.try_reserve(key, 1)

        house.coordinator._starting = set(house.coordinator._starting)
        await house.send(session.id, "hello")
        assert texts(await played(house, session.id))[-1] == ("assistant", "done")


class TardyStore:
    """A store that tells late what it has written."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.has_written = asyncio.Event()
        self.may_tell = asyncio.Event()
        self.may_tell.set()

    async def write(self, work: Any, *, urgent: bool = False) -> Any:
        return await self._late(self._store.write(work, urgent=urgent))

    def commit(self, commit: SessionCommit) -> asyncio.Future[None]:
        return asyncio.ensure_future(self._late(self._store.commit(commit)))

    async def _late(self, writing: Awaitable[Any]) -> Any:
        written = await writing
        self.has_written.set()
        await self.may_tell.wait()
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_a_turn_is_played_although_its_sender_did_not_wait(
    home: Path, outside: Environment
) -> None:
    runtime = GatedRuntime()
    async with open_house(home, runtime, outside=replace(outside, wrap=TardyStore)) as house:
        assert isinstance(house.store, TardyStore)
        session = await house.open()
        house.store.has_written.clear()
        house.store.may_tell.clear()
        sending = asyncio.create_task(house.send(session.id, "hello"))
        await house.store.has_written.wait()
        sending.cancel()
        await asyncio.wait([sending])
        house.store.may_tell.set()

        assert texts(await played(house, session.id))[-1] == ("assistant", "done")

    assert [turn.turn for turn in runtime.turns] == [1]


async def test_what_is_sent_while_the_house_is_left_is_held_by_nobody(
    home: Path, outside: Environment
) -> None:
    async with open_house(home, GatedRuntime(), outside=replace(outside, wrap=TardyStore)) as house:
        assert isinstance(house.store, TardyStore)
        session = await house.open()
        house.store.has_written.clear()
        house.store.may_tell.clear()
        sending = asyncio.create_task(house.send(session.id, "hello"))
        await house.store.has_written.wait()
        asyncio.get_running_loop().call_later(0.1, house.store.may_tell.set)
    await sending

    async with open_house(home, GatedRuntime(), outside=outside, scope=RunScope.NONE) as other:
        assert (await head_of(other, session)).holder is None


class HeldWriteStore:
    """A store that can hold one write back: before it is executed, and before it is answered."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.holds_next = False
        self.before, self.after = Gate(), Gate()

    async def write(self, work: Any, *, urgent: bool = False) -> Any:
        is_held, self.holds_next = self.holds_next, False
        if is_held:
            await self.before.passed()
        written = await self._store.write(work, urgent=urgent)
        if is_held:
            await self.after.passed()
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_a_lease_acquired_during_a_renewal_is_not_taken_for_lost(
    home: Path, outside: Environment
) -> None:
    first, second = Gate(), Gate()
    runtime = GatedRuntime([first, an_answer("one")], [second, an_answer("two")])
    async with open_house(home, runtime, outside=replace(outside, wrap=HeldWriteStore)) as house:
        store = house.store
        assert isinstance(store, HeldWriteStore)
        early, late = await house.open(), await house.open()
        await house.send(early.id, "a")
        await first.reached()
        # Nothing else writes while the only turn waits: the next write is the renewal.
        store.holds_next = True
        store.before.open()
        await store.after.reached()

        await house.send(late.id, "b")
        await second.reached()
        store.after.open()
        first.open()
        await played(house, early.id)
        second.open()

        assert texts(await played(house, late.id)) == [("user", "b"), ("assistant", "two")]

    assert len(runtime.turns) == 2


async def test_a_session_acquired_again_during_a_renewal_is_not_taken_for_lost(
    home: Path, outside: Environment
) -> None:
    first, second = Gate(), Gate()
    runtime = GatedRuntime([first, an_answer("one")], [second, an_answer("two")])
    async with open_house(home, runtime, outside=replace(outside, wrap=HeldWriteStore)) as house:
        store = house.store
        assert isinstance(store, HeldWriteStore)
        session = await house.open()
        await house.send(session.id, "a")
        await first.reached()
        store.holds_next = True
        await store.before.reached()
        first.open()
        await played(house, session.id)
        store.before.open()
        await store.after.reached()

        await house.send(session.id, "b")
        await second.reached()
        store.after.open()
        await asyncio.sleep(0.1)
        second.open()

        assert texts(await played(house, session.id))[-1] == ("assistant", "two")

    assert [turn.turn for turn in runtime.turns] == [1, 2]


async def test_turns_of_one_session_run_one_after_the_other(
    home: Path, outside: Environment
) -> None:
    first, second = Gate(), Gate()
    runtime = GatedRuntime([first, an_answer("one")], [second, an_answer("two")])
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "a")
        await first.reached()
        await house.send(session.id, "b")
        house.coordinator.wake(await key_of(house, session))
        assert len(runtime.turns) == 1

        first.open()
        await second.reached()
        assert (await current(house, session)).settled == 1
        second.open()
        await played(house, session.id)

    assert [turn.turn for turn in runtime.turns] == [1, 2]


async def test_waking_what_is_not_there_or_does_not_wait_does_no_harm(
    home: Path, outside: Environment
) -> None:
    runtime = GatedRuntime()
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()
        house.coordinator.wake(SessionKey(99))
        house.coordinator.wake(await key_of(house, session))
        house.coordinator.interrupt(SessionKey(99))

        await house.send(session.id, "hello")
        await played(house, session.id)

    assert len(runtime.turns) == 1


async def test_a_house_of_scope_none_plays_nothing(home: Path, outside: Environment) -> None:
    runtime = GatedRuntime()
    async with open_house(home, runtime, outside=outside, scope=RunScope.NONE) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        await house.maintenance.recover()
        house.coordinator.wake(await key_of(house, session))
        assert (await current(house, session)).status is Status.PENDING

    assert runtime.turns == []


async def test_a_house_of_scope_own_plays_what_it_sent_itself(
    home: Path, outside: Environment
) -> None:
    runtime = GatedRuntime()
    async with open_house(home, GatedRuntime(), outside=outside, scope=RunScope.NONE) as writer:
        theirs = await writer.open()
        await writer.send(theirs.id, "not for you")
    async with open_house(home, runtime, outside=outside, scope=RunScope.OWN) as house:
        mine = await house.open()
        await house.send(mine.id, "hello")
        await played(house, mine.id)
        # Longer than it takes to look around for what was left.
        await asyncio.sleep(1.2)
        assert (await current(house, theirs)).settled == 0

    assert [turn.history[0].text for turn in runtime.turns] == ["hello"]


async def test_what_another_house_sent_is_left_to_that_house(
    home: Path, outside: Environment, clock: SettableClock
) -> None:
    gate = Gate()
    first, second = GatedRuntime([gate, an_answer("one")]), GatedRuntime([an_answer("two")])
    async with (
        open_house(home, first, outside=outside, scope=RunScope.OWN) as house,
        open_house(home, second, outside=_second(clock), scope=RunScope.OWN) as other,
    ):
        session = await house.open()
        await house.send(session.id, "a")
        await gate.reached()
        await other.send(session.id, "b")
        gate.open()

        rows = await played(other, session.id)

    assert texts(rows)[-1] == ("assistant", "two")
    assert [turn.turn for turn in first.turns] == [1]
    assert [turn.turn for turn in second.turns] == [2]


async def test_a_house_of_scope_all_plays_what_others_left(
    home: Path, outside: Environment, clock: SettableClock
) -> None:
    runtime = GatedRuntime()
    async with (
        open_house(home, runtime, outside=outside) as house,
        open_holdfast(home, outside=_second(clock), scope=RunScope.NONE) as writer,
    ):
        session = await writer.open()
        await writer.send(session.id, "hello")

        assert texts(await played(house, session.id))[-1] == ("assistant", "done")
