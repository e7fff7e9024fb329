"""R23: the clock is set back, forward, stopped and sped up; order and leases do not move."""

import asyncio
import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    Event,
    Gap,
    Holdfast,
    Session,
    SessionId,
    SessionQuery,
    SessionRequest,
    TurnEnded,
    open_holdfast,
)
from holdfast.app import Environment
from tests.marks import proves
from tests.torture.attempts import Record
from tests.torture.audit import audit
from tests.torture.clients.house import Client, new_id, settings
from tests.torture.clocks import PatientClock, SettableClock
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE
from tests.torture.notebooks import read_books

pytestmark = pytest.mark.slow

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
Wrong = Callable[[SettableClock], None]

CLOCKS: dict[str, Wrong] = {
    "an hour back": lambda clock: clock.step(-HOUR),
    "a day forward": lambda clock: clock.step(DAY),
    "ten years back": lambda clock: clock.step(-3652 * DAY),
    "ten years forward": lambda clock: clock.step(3652 * DAY),
    "ten minutes back": lambda clock: clock.step(-HOUR / 6),
    "ten minutes forward": lambda clock: clock.step(HOUR / 6),
    "stopped": lambda clock: clock.step(timedelta(0), pace=0),
    "ten times as fast": lambda clock: clock.step(timedelta(0), pace=10),
    "running backwards": lambda clock: clock.step(timedelta(0), pace=-1),
    "a second back": lambda clock: clock.step(timedelta(seconds=-1)),
    "to the next century": lambda clock: clock.step(27000 * DAY),
}


@proves("R23")
@pytest.mark.parametrize("wrong", CLOCKS)
def test_order_leases_and_cursors_do_not_move_with_the_clock(
    tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell, wrong: str
) -> None:
    turns = sized(quick=2, test=5, torture=30, release=100)

    shown = asyncio.run(talked_across(tmp_path, luck, CLOCKS[wrong], turns))

    result = audit(
        tmp_path / "home", records=[tmp_path / "a.jsonl"], streams=[tmp_path / "a.stream"]
    )
    tell(f"{wrong}: {turns} turns in order")
    assert result.is_clean, result
    assert cut_off(tmp_path / "home") == []
    assert negative_durations(shown) == []


@proves("R23")
def test_two_servers_whose_clocks_differ_by_twenty_minutes_keep_one_order(
    tmp_path: Path, luck: random.Random, sized: Sized
) -> None:
    asyncio.run(talked_from_two_clocks(tmp_path, luck, sized(test=5, torture=30)))

    result = audit(tmp_path / "home", records=[tmp_path / "a.jsonl"])
    assert result.is_clean, result
    assert cut_off(tmp_path / "home") == []


@proves("R23")
def test_a_jump_of_the_clock_sweeps_nothing(tmp_path: Path, luck: random.Random) -> None:
    assert asyncio.run(swept_after_a_jump(tmp_path, luck)) == ()


@proves("R23")
def test_a_listing_that_is_read_across_a_jump_shows_everything_once(
    tmp_path: Path, luck: random.Random
) -> None:
    seen, there = asyncio.run(listed_across_a_jump(tmp_path / "home", luck))

    assert sorted(seen) == sorted(set(seen))
    assert set(there) <= set(seen)


@proves("R23")
def test_a_time_taken_from_the_clock_as_it_is_would_lie_before_the_last(
    tmp_path: Path, luck: random.Random
) -> None:
    clock = SettableClock()
    shown = asyncio.run(talked_across(tmp_path, luck, CLOCKS["an hour back"], 1, clock))

    assert clock.now() < shown[0].updated_at


async def talked_across(
    folder: Path,
    luck: random.Random,
    wrong: Wrong,
    turns: int,
    clock: SettableClock | None = None,
) -> list[Session]:
    """Talk, let the clock go wrong, and talk on, following all the time."""
    clock = clock or SettableClock()
    record = Record(folder / "a.jsonl", synced=False)
    streams = Record(folder / "a.stream", synced=False)
    config, outside = settings(folder / "home"), Environment(clock=clock)
    async with open_holdfast(config=config, outside=outside) as house:
        client = Client(house, record, streams)
        session = new_id(luck)
        await client.open(session)
        cursor = await _turn(client, session, luck, 0)
        wrong(clock)
        for _ in range(turns):
            cursor = await _turn(client, session, luck, cursor)
        await house.agents.update(house.owner, "holdfast", {"description": "another"})
        await client.act("close", session)
        shown = [await house.sessions.get(house.owner, SessionId(session))]
        agent = await house.agents.get(house.owner, "holdfast")
        assert agent.updated_at >= agent.created_at
    record.close()
    streams.close()
    return shown


async def _turn(client: Client, session: str, luck: random.Random, cursor: int) -> int:
    stored = await client.send(session, new_id(luck, "long"))

    def ended(item: Event | Gap) -> bool:
        return (
            isinstance(item, Event)
            and isinstance(item.payload, TurnEnded)
            and item.turn == stored.turn
        )

    async with asyncio.timeout(PATIENCE):
        return await client.follow(session, cursor, until=ended)


async def talked_from_two_clocks(folder: Path, luck: random.Random, turns: int) -> None:
    """Let two servers, one early and one late, write into one session by turns."""
    config = settings(folder / "home")
    record = Record(folder / "a.jsonl", synced=False)
    streams = Record(folder / "a.stream", synced=False)
    early, late = PatientClock(-HOUR / 6), PatientClock(HOUR / 6)
    async with (
        open_holdfast(config=config, outside=Environment(clock=early)) as one,
        open_holdfast(config=config, outside=Environment(clock=late)) as two,
    ):
        clients = [Client(house, record, streams) for house in (one, two)]
        session = new_id(luck)
        await clients[0].open(session)
        cursor = 0
        for number in range(turns):
            cursor = await _turn(clients[number % 2], session, luck, cursor)
    record.close()
    streams.close()


async def swept_after_a_jump(folder: Path, luck: random.Random) -> tuple[SessionId, ...]:
    """Open a session in a repository and set the clock a day forward; return what is swept."""
    clock = SettableClock()
    (folder / "work" / "repo" / ".git").mkdir(parents=True)
    config = settings(folder / "home", workspace_root=folder / "work")
    async with open_holdfast(config=config, outside=Environment(clock=clock)) as house:
        repo = await house.repos.add(house.owner, str(folder / "work" / "repo"))
        await house.open(id=new_id(luck), request=SessionRequest(repo_id=repo.id))
        clock.step(DAY)
        return await house.maintenance.sweep(timedelta(minutes=30))


async def listed_across_a_jump(home: Path, luck: random.Random) -> tuple[list[str], list[str]]:
    """Page through sessions while the clock goes back and new sessions open."""
    clock = SettableClock()
    seen: list[str] = []
    async with open_holdfast(config=settings(home), outside=Environment(clock=clock)) as house:
        there = [(await house.open(id=new_id(luck))).id for _ in range(9)]
        cursor: str | None = None
        for _ in range(20):
            page = await house.sessions.list(_query(house), cursor=cursor)
            seen += [session.id for session in page.items]
            cursor = page.next_cursor
            if cursor is None:
                break
            clock.step(-HOUR)
            await house.open(id=new_id(luck))
    return seen, [str(session) for session in there]


def _query(house: Holdfast) -> SessionQuery:
    return SessionQuery(owner=house.owner, limit=2)


def cut_off(home: Path) -> list[str]:
    """Return every step that was broken off: here nobody dies, so a lease must have moved."""
    return [
        f"event {news.sequence} of {book.id}"
        for book in read_books(home).notebooks.values()
        for news in book.news
        if news.name == "step.failed"
    ]


def durations(shown: list[Session]) -> list[tuple[str, Any, Any]]:
    """Return every stretch of time that a session tells, with its two ends."""
    return [
        (f"{session.id} {name}", getattr(session, begins), getattr(session, ends))
        for session in shown
        for name, begins, ends in (
            ("life", "created_at", "updated_at"),
            ("work", "started_at", "finished_at"),
            ("wait", "created_at", "started_at"),
        )
    ]


def negative_durations(shown: list[Session]) -> list[str]:
    """Return the stretches that end before they begin."""
    return [name for name, begins, ends in durations(shown) if ends < begins]
