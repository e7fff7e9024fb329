"""Leases: who may run a session's turns, judged by proof of death, by boot and by time."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast import RunScope
from holdfast.app import Environment
from holdfast.domain.errors import Code, Conflict, NotFound
from holdfast.domain.events import TurnStarted
from holdfast.domain.ids import SessionKey
from holdfast.domain.leases import DURATION_MS, Lease
from holdfast.domain.sessions import SessionState, Status
from holdfast.services.leases import Leases
from tests.houses import House, head_of, news_until, open_house
from tests.stand_ins import GatedRuntime, SettableClock, StandInMachine

pytestmark = pytest.mark.anyio


@pytest.fixture
async def house(home: Path, outside: Environment) -> AsyncIterator[House]:
    """Open a home that plays nothing by itself."""
    async with open_house(home, GatedRuntime(), outside=outside, scope=RunScope.NONE) as house:
        yield house


@pytest.fixture
async def session(house: House) -> SessionState:
    """Open a session in which a turn waits."""
    return await _waiting(house)


@pytest.fixture
def other(house: House, clock: SettableClock) -> StandInMachine:
    """Be another process of the same boot, about which nothing is proven."""
    return StandInMachine("second")


async def _waiting(house: House) -> SessionState:
    session = await house.open()
    await house.send(session.id, "hello")
    return await head_of(house, session)


async def _now(house: House, seen: SessionState) -> SessionState:
    """Return where the session stands since it was seen."""
    head = await house.store.read(lambda tx: tx.sessions.state_by_key(seen.key))
    assert head is not None
    return head


def _leases(house: House, clock: SettableClock, machine: StandInMachine) -> Leases:
    return Leases(house.store, house.journal, clock, machine)


async def test_taking_a_session_begins_its_turn(
    house: House, session: SessionState, machine: StandInMachine, clock: SettableClock
) -> None:
    lease = await house.leases.acquire(session.key)

    assert lease == Lease(key=session.key, holder=str(machine.holder()), epoch=1)
    head = await _now(house, session)
    assert (head.status, head.holder, head.epoch) == (Status.RUNNING, lease.holder, 1)
    assert head.until == clock.lease_clock_ms() + DURATION_MS
    await news_until(house, session.session_id, TurnStarted)


async def test_a_session_in_which_nothing_waits_is_not_taken(house: House) -> None:
    session = await head_of(house, await house.open())

    assert await house.leases.acquire(session.key) is None
    assert (await _now(house, session)).holder is None


async def test_a_session_that_is_not_there_cannot_be_taken(house: House) -> None:
    with pytest.raises(NotFound):
        await house.leases.acquire(SessionKey(99))


async def test_one_of_many_that_reach_for_a_session_gets_it(
    house: House, session: SessionState, clock: SettableClock
) -> None:
    others = [_leases(house, clock, StandInMachine(f"p{number}")) for number in range(10)]

    taken = await asyncio.gather(*(leases.acquire(session.key) for leases in others))

    assert len([lease for lease in taken if lease is not None]) == 1
    assert (await _now(house, session)).epoch == 1


@pytest.mark.parametrize(
    ("milliseconds", "is_taken"),
    [(0, False), (DURATION_MS - 1, False), (DURATION_MS, True), (60_000, True)],
)
async def test_a_lease_of_a_process_that_may_live_lasts_four_seconds(
    house: House, session: SessionState, clock: SettableClock, milliseconds: int, is_taken: bool
) -> None:
    await house.leases.acquire(session.key)
    clock.advance(milliseconds=milliseconds)

    lease = await _leases(house, clock, StandInMachine("second")).acquire(session.key)

    assert (lease is not None) is is_taken


async def test_a_dead_process_of_this_boot_is_not_waited_for(
    house: House, session: SessionState, clock: SettableClock, machine: StandInMachine
) -> None:
    await house.leases.acquire(session.key)
    other = StandInMachine("second")
    other.dead.add(machine.holder())

    lease = await _leases(house, clock, other).acquire(session.key)

    assert lease == Lease(key=session.key, holder=str(other.holder()), epoch=2)


async def test_a_lease_of_another_boot_says_nothing(
    house: House, session: SessionState, clock: SettableClock
) -> None:
    await house.leases.acquire(session.key)
    clock.boot = 5

    rebooted = StandInMachine("first", boot="boot-two")

    assert await _leases(house, clock, rebooted).acquire(session.key) is not None


async def test_taking_what_one_holds_already_changes_the_epoch(
    house: House, session: SessionState
) -> None:
    first = await house.leases.acquire(session.key)
    second = await house.leases.acquire(session.key)

    assert first is not None
    assert second is not None
    assert (first.epoch, second.epoch) == (1, 2)
    with pytest.raises(Conflict) as caught:
        await house.leases.release(first)
    assert caught.value.code is Code.LEASE_LOST


async def test_all_leases_of_a_process_are_extended_and_nobody_elses(
    house: House, session: SessionState, clock: SettableClock, other: StandInMachine
) -> None:
    theirs = await _waiting(house)
    await house.leases.acquire(session.key)
    await _leases(house, clock, other).acquire(theirs.key)
    clock.advance(seconds=3)

    assert await house.leases.extend() == {session.key}

    until = [(await _now(house, each)).until for each in (session, theirs)]
    assert until == [clock.lease_clock_ms() + DURATION_MS, clock.lease_clock_ms() + 1_000]


async def test_a_late_extension_counts_while_nobody_else_has_the_session(
    house: House, session: SessionState, clock: SettableClock, other: StandInMachine
) -> None:
    await house.leases.acquire(session.key)
    clock.advance(seconds=60)
    assert await house.leases.extend() == {session.key}
    assert await _leases(house, clock, other).acquire(session.key) is None

    clock.advance(seconds=60)
    assert await _leases(house, clock, other).acquire(session.key) is not None
    assert await house.leases.extend() == set()


async def test_a_released_session_can_be_taken_at_once_and_its_turn_goes_on(
    house: House, session: SessionState, clock: SettableClock, other: StandInMachine
) -> None:
    lease = await house.leases.acquire(session.key)
    assert lease is not None

    await house.leases.release(lease)

    head = await _now(house, session)
    assert (head.holder, head.until, head.status) == (None, 0, Status.RUNNING)
    assert await _leases(house, clock, other).acquire(session.key) is not None


async def test_waiting_sessions_that_nobody_alive_holds_are_reaped(
    house: House, session: SessionState, clock: SettableClock, other: StandInMachine
) -> None:
    theirs = _leases(house, clock, other)
    assert await theirs.list_abandoned(()) == [session]

    await house.leases.acquire(session.key)
    assert await theirs.list_abandoned(()) == []
    held = await _now(house, session)
    assert await house.leases.list_abandoned({session.key}) == []
    assert await house.leases.list_abandoned(()) == [held]

    clock.advance(seconds=5)
    assert await theirs.list_abandoned(()) == [held]
