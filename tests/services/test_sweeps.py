"""Sessions bound to a repository that nobody touched are closed; all others are left alone."""

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import Environment
from holdfast.domain.agents import AcpRuntime
from holdfast.domain.errors import Code, Unavailable
from holdfast.domain.events import SessionClosed
from holdfast.domain.sessions import Session, SessionRequest, Status, StopReason
from holdfast.ports.store import Store
from holdfast.services.maintenance import ROUNDS, round_seconds
from tests.houses import House, current, news_until, open_house, played, raw, texts
from tests.marks import demands, each_case
from tests.stand_ins import PATIENCE, Gate, GatedRuntime, SettableClock

pytestmark = pytest.mark.anyio

HALF_AN_HOUR = timedelta(minutes=30)


@pytest.fixture
def gate() -> Gate:
    """Stand in the first turn."""
    return Gate()


@pytest.fixture
async def house(home: Path, outside: Environment, gate: Gate) -> AsyncIterator[House]:
    """Open a home whose first turn waits at the gate."""
    async with open_house(home, GatedRuntime([gate]), outside=outside) as house:
        yield house


@pytest.fixture
async def bound(house: House, tmp_path: Path) -> Session:
    """Open a session that is bound to a repository."""
    (tmp_path / "tree" / ".git").mkdir(parents=True)
    repo = await house.repos.add(house.owner, str(tmp_path / "tree"), at_terminal=True)
    return await house.open(request=SessionRequest(repo_id=repo.id))


@demands("S1-090", "S1-090b", "S1-090d", "S1-095")
async def test_an_untouched_session_is_completed_and_says_why(
    house: House, bound: Session, clock: SettableClock
) -> None:
    clock.advance(minutes=30)
    assert await house.maintenance.sweep(HALF_AN_HOUR) == ()
    clock.advance(seconds=1)

    assert await house.maintenance.sweep(HALF_AN_HOUR) == (bound.id,)

    swept = await current(house, bound)
    assert (swept.status, swept.reason) == (Status.COMPLETED, "idle_timeout")
    assert texts(await house.read(bound.id)) == [("system", "Session completed: idle_timeout")]
    assert await house.maintenance.sweep(HALF_AN_HOUR) == ()


@demands("S1-091", "S1-091b", "S1-091c")
async def test_activity_puts_the_end_off(
    house: House, bound: Session, clock: SettableClock, gate: Gate
) -> None:
    clock.advance(minutes=29, seconds=59)
    await house.send(bound.id, "hello")
    clock.advance(seconds=2)

    assert await house.maintenance.sweep(HALF_AN_HOUR) == ()
    kept = await current(house, bound)
    assert kept.updated_at > bound.updated_at + timedelta(minutes=29)
    assert kept.status in (Status.PENDING, Status.RUNNING)


async def test_a_turn_that_was_silent_for_so_long_is_stopped(
    house: House, bound: Session, clock: SettableClock, gate: Gate
) -> None:
    await house.send(bound.id, "hello")
    await gate.reached()
    clock.advance(minutes=31)

    assert await house.maintenance.sweep(HALF_AN_HOUR) == (bound.id,)

    swept = await current(house, bound)
    assert (swept.status, swept.last_stop) == (Status.COMPLETED, StopReason.ABORTED)
    assert house.coordinator.active() == frozenset()


@demands("S1-095")
async def test_a_session_without_a_repository_is_left_alone(
    house: House, clock: SettableClock
) -> None:
    session = await house.open()
    clock.advance(days=365)

    assert await house.maintenance.sweep(HALF_AN_HOUR) == ()
    assert await current(house, session) == session


async def test_a_swept_session_can_be_resumed(
    house: House, bound: Session, clock: SettableClock
) -> None:
    clock.advance(hours=1)
    await house.maintenance.sweep(HALF_AN_HOUR)

    assert (await house.sessions.resume(house.owner, bound.id)).session.status is Status.IDLE


class Meddling:
    """A store in which something happens between the look at idle sessions and what follows."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.meanwhile: Any = None

    async def read(self, work: Any) -> Any:
        found = await self._store.read(work)
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize("what", ["a message", "a delete"])
async def test_what_happens_in_between_wins(
    home: Path, outside: Environment, clock: SettableClock, tmp_path: Path, what: str
) -> None:
    (tmp_path / "tree" / ".git").mkdir(parents=True)
    meddling = dataclasses.replace(outside, wrap=Meddling)
    async with open_house(home, GatedRuntime(), outside=meddling) as house:
        assert isinstance(house.store, Meddling)
        repo = await house.repos.add(house.owner, str(tmp_path / "tree"), at_terminal=True)
        session = await house.open(request=SessionRequest(repo_id=repo.id))
        clock.advance(hours=1)

        async def meanwhile() -> None:
            if what == "a message":
                await house.send(session.id, "still here")
            else:
                await house.sessions.delete(house.owner, session.id)

        house.store.meanwhile = meanwhile

        assert await house.maintenance.sweep(HALF_AN_HOUR) == ()
        if what == "a message":
            assert texts(await played(house, session.id))[-1] == ("assistant", "done")


class Watched:
    """A store that tells when it was written to, and fails while the test says so."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_scrubbed = False
        self.is_broken = False
        self.written = asyncio.Event()

    async def scrub(self) -> bool:
        self.is_scrubbed = True
        return await self._store.scrub()

    async def write(self, work: Any, **how: Any) -> Any:
        self.written.set()
        if self.is_broken:
            raise Unavailable(Code.STORE_BUSY, "busy")
        return await self._store.write(work, **how)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@asynccontextmanager
async def _kept(house: House, idle: timedelta) -> AsyncIterator[None]:
    """Keep house inside the block."""
    assert isinstance(house.store, Watched)
    house.store.written.clear()
    keeping = asyncio.create_task(house.maintenance.keep(idle))
    async with asyncio.timeout(PATIENCE):
        await house.store.written.wait()
        yield
    assert not keeping.done()
    keeping.cancel()
    await asyncio.wait([keeping])


async def test_keeping_house_scrubs_prunes_and_sweeps(
    home: Path, outside: Environment, clock: SettableClock, tmp_path: Path
) -> None:
    (tmp_path / "tree" / ".git").mkdir(parents=True)
    watched = dataclasses.replace(outside, wrap=Watched)
    async with open_house(home, GatedRuntime(), outside=watched) as house:
        repo = await house.repos.add(house.owner, str(tmp_path / "tree"), at_terminal=True)
        session = await house.open(request=SessionRequest(repo_id=repo.id))
        clock.advance(hours=1)

        async with _kept(house, HALF_AN_HOUR):
            await news_until(house, session.id, SessionClosed)

        assert house.store.is_scrubbed


async def test_house_is_kept_on_whatever_goes_wrong_once(
    home: Path, outside: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    watched = dataclasses.replace(outside, wrap=Watched)
    async with open_house(home, GatedRuntime(), outside=watched) as house:
        assert isinstance(house.store, Watched)
        house.store.is_broken = True
        with caplog.at_level(logging.WARNING):
            async with _kept(house, HALF_AN_HOUR):
                pass
        house.store.is_broken = False

    assert "maintenance was postponed: busy" in caplog.messages


async def test_no_time_at_all_means_that_nothing_is_swept(
    home: Path, outside: Environment, clock: SettableClock, tmp_path: Path
) -> None:
    (tmp_path / "tree" / ".git").mkdir(parents=True)
    watched = dataclasses.replace(outside, wrap=Watched)
    async with open_house(home, GatedRuntime(), outside=watched) as house:
        repo = await house.repos.add(house.owner, str(tmp_path / "tree"), at_terminal=True)
        session = await house.open(request=SessionRequest(repo_id=repo.id))
        clock.advance(hours=1)

        async with _kept(house, timedelta(0)):
            # A sweep would follow the pruning at once, before any of these returns.
            for _ in range(5):
                await house.read(session.id)

        assert await current(house, session) == session


@each_case(
    ("idle", "seconds"),
    [
        (timedelta(minutes=30), 10.0),
        (timedelta(minutes=10), 10.0),
        (timedelta(minutes=1), 1.0),
        (timedelta(milliseconds=1), 0.05),
        (timedelta(0), 10.0),
    ],
)
def test_a_sweep_comes_every_minute_or_ten_times_within_a_short_idle_time(
    idle: timedelta, seconds: float
) -> None:
    assert round_seconds(idle) == seconds
    assert ROUNDS == 6


@demands("S1-083")
async def test_a_swept_program_gives_up_its_slot(
    house: House, clock: SettableClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "tree" / ".git").mkdir(parents=True)
    repo = await house.repos.add(house.owner, str(tmp_path / "tree"), at_terminal=True)
    await house.agents.create(house.owner, {"name": "Cli", "runtime": AcpRuntime(command="x")})
    session = await house.open("cli", SessionRequest(repo_id=repo.id))
    clock.advance(hours=1)

    with caplog.at_level(logging.INFO, logger="holdfast.services.agent_processes"):
        assert await house.maintenance.sweep(HALF_AN_HOUR) == (session.id,)

    (record,) = [each for each in caplog.records if each.msg == "sessions.active_changed"]
    assert vars(record)["fields"] == {
        "active": 0,
        "limit": 5,
        "delta": -1,
        "session_id": session.id,
        "cause": "idle_timeout",
    }


async def test_a_damaged_session_does_not_keep_the_others_from_their_end(
    house: House, bound: Session, clock: SettableClock, home: Path
) -> None:
    other = await house.open(request=SessionRequest(repo_id=bound.repo_id))
    clock.advance(hours=1)
    with raw(home) as connection:
        connection.execute("UPDATE openings SET body = x'7b' WHERE session_key = 1")

    assert set(await house.maintenance.sweep(HALF_AN_HOUR)) == {bound.id, other.id}
