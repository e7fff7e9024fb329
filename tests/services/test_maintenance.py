"""Pruning keeps what is needed: only deltas, only of turns that ended, only after an hour."""

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import RunScope
from holdfast.app import Environment
from holdfast.domain.events import Gap, StepDelta
from holdfast.domain.sessions import Session
from holdfast.ports.store import Tx
from holdfast.services.maintenance import Retention
from tests.builders import an_event
from tests.commits import append_rows
from tests.houses import House, key_of, open_house, payloads, played
from tests.marks import demands
from tests.stand_ins import (
    PATIENCE,
    Gate,
    GatedRuntime,
    SettableClock,
    StandInMachine,
    an_answer,
    asked,
    streamed,
)

pytestmark = pytest.mark.anyio


async def test_deltas_are_kept_for_an_hour(
    home: Path, outside: Environment, clock: SettableClock
) -> None:
    runtime = GatedRuntime([(asked(),), (streamed("x"),), an_answer("x")])
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        await played(house, session.id)

        clock.advance(hours=24)
        assert await house.maintenance.prune() == 0
        clock.advance(seconds=1)
        assert await house.maintenance.prune() == 1


async def test_a_sooner_time_may_be_asked_for(
    home: Path, outside: Environment, clock: SettableClock
) -> None:
    runtime = GatedRuntime([(asked(),), (streamed("x"),), an_answer("x")])
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        rows = await played(house, session.id)
        clock.advance(seconds=1)

        assert await house.maintenance.prune(timedelta(0)) == 1
        assert await house.read(session.id) == rows


@demands("S2-001h")
async def test_deltas_of_a_turn_that_runs_are_not_pruned(
    home: Path, outside: Environment, clock: SettableClock
) -> None:
    gate = Gate()
    runtime = GatedRuntime([(asked(),), (streamed("kept"),), gate])
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        await gate.reached()
        clock.advance(days=2)

        assert await house.maintenance.prune() == 0
        await house.sessions.interrupt(house.owner, session.id)
        assert (await house.read(session.id))[1].text == "kept"


async def test_many_deltas_go_in_several_batches(
    home: Path, outside: Environment, clock: SettableClock
) -> None:
    async with open_house(home, GatedRuntime(), outside=outside, scope=RunScope.NONE) as house:
        session = await house.open()

        async def flood(tx: Tx) -> None:
            head = await tx.sessions.state(session.owner, session.id)
            assert head is not None
            numbers = range(2, 5_003)
            events = [an_event(streamed("x"), sequence=number, turn=0) for number in numbers]
            await append_rows(tx, head, events=events)

        await house.store.write(flood)
        clock.advance(days=2)

        assert await house.maintenance.prune() == 5_001
        left = payloads(list((await house.events.list(house.owner, session.id)).items))
        assert not any(isinstance(each, StepDelta) for each in left)


async def test_whoever_keeps_house_forgets_what_is_too_old(
    home: Path, outside: Environment, clock: SettableClock
) -> None:
    runtime = GatedRuntime([(asked(),), (streamed("x"),), an_answer("x")])
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        rows = await played(house, session.id)
        clock.advance(days=2)

        retention = Retention(deltas=timedelta(days=3), events=timedelta(days=1))
        keeping = asyncio.create_task(house.maintenance.keep(timedelta(0), retention))
        async with asyncio.timeout(PATIENCE):
            while not await _gaps(house, session):
                pass
        keeping.cancel()

        assert {gap.reason for gap in await _gaps(house, session)} == {"retention"}
        assert await house.read(session.id) == rows


async def _gaps(house: House, session: Session) -> list[Gap]:
    page = await house.events.list(house.owner, session.id)
    return [item for item in page.items if isinstance(item, Gap)]


async def test_recovery_names_the_sessions_it_wakes(home: Path, outside: Environment) -> None:
    async with open_house(home, GatedRuntime(), outside=outside, scope=RunScope.NONE) as house:
        waiting, empty = await house.open(), await house.open()
        await house.send(waiting.id, "hello")
        assert (await house.maintenance.recover()).sessions == (waiting.id,)
        assert empty.turn == 0

    runtime = GatedRuntime()
    async with open_house(home, runtime, outside=outside) as house:
        await played(house, waiting.id)
        assert (await house.maintenance.recover()).sessions == ()
    assert len(runtime.turns) == 1


async def test_what_runs_here_is_not_woken_again(
    home: Path, outside: Environment, machine: StandInMachine
) -> None:
    gate = Gate()
    runtime = GatedRuntime([gate])
    async with open_house(home, runtime, outside=outside) as house:
        session = await house.open()
        await house.send(session.id, "hello")
        await gate.reached()

        assert (await house.maintenance.recover()).sessions == ()
        assert house.coordinator.active() == {await key_of(house, session)}
    assert (len(runtime.turns), machine.dead) == (1, set())
