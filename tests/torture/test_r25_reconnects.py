"""R25: readers leave and come back at random points while somebody writes and somebody prunes."""

import asyncio
import random
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import Conflict, Gap, Holdfast, open_holdfast
from holdfast.domain.ids import SessionId
from tests.marks import proves
from tests.torture.attempts import Record
from tests.torture.audit import Audit, audit
from tests.torture.clients.house import Client, new_id, settings, shown
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE
from tests.torture.notebooks import read_books
from tests.torture.recovery import quiet

pytestmark = pytest.mark.slow

READERS = 6
SESSIONS = 2


@proves("R25")
def test_what_readers_saw_is_what_the_store_says(
    tmp_path: Path, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    reconnects = sized(quick=30, test=100, torture=1_000, release=10_000)

    tale = asyncio.run(read_while_writing(tmp_path, luck, reconnects=reconnects))
    result = judged(tmp_path)

    tell(f"{reconnects} reconnects, {tale.events} events and {tale.gaps} gaps read, all covered")
    assert result.is_clean, result
    assert tale.gaps > 0
    assert tale.missing(tmp_path / "home") == []


@proves("R25")
@pytest.mark.parametrize(("slip", "count"), [(1, "GAP"), (-1, "DISORDER")])
def test_a_reader_that_comes_back_at_the_wrong_place_is_found(
    tmp_path: Path, luck: random.Random, slip: int, count: str
) -> None:
    asyncio.run(read_while_writing(tmp_path, luck, reconnects=60, slip=slip))

    assert judged(tmp_path).counts[count] > 0


class Tale:
    """What all readers together have seen."""

    def __init__(self) -> None:
        self.events = 0
        self.gaps = 0
        self.slips = 0
        self.ends: list[tuple[str, int]] = []

    def missing(self, home: Path) -> list[str]:
        """Return the readers that did not reach the end of their session's log."""
        books = read_books(home).by_id()
        return [f"{key} ended at {end}" for key, end in self.ends if end != books[key].events]


async def read_while_writing(
    folder: Path, luck: random.Random, *, reconnects: int, slip: int = 0
) -> Tale:
    """Let readers come and go on two servers while a third party talks and prunes."""
    tale = Tale()
    record = Record(folder / "a.jsonl", synced=False)
    streams = Record(folder / "a.stream", synced=False)
    config = settings(folder / "home")
    async with open_holdfast(config=config) as one, open_holdfast(config=config) as two:
        writer = Client(one, record)
        sessions = [new_id(luck) for _ in range(SESSIONS)]
        for session in sessions:
            await writer.open(session)
        reading = [
            Reader((one, two), sessions[number % SESSIONS], number, streams, luck)
            for number in range(READERS)
        ]
        done = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_talk(writer, sessions, luck, done))
            tasks.create_task(_prune(two, luck, done))
            readers = [
                tasks.create_task(each.come_and_go(reconnects // READERS + 1, slip, tale))
                for each in reading
            ]
            await asyncio.wait(readers)
            done.set()
        await quiet(folder / "home")
        # What has ended is pruned for sure, and whoever comes now must meet a gap.
        await one.maintenance.prune(timedelta(0))
        late = enumerate(sessions, start=READERS)
        reading += [Reader((one, two), key, number, streams, luck) for number, key in late]
        await asyncio.gather(*(each.catch_up(tale) for each in reading))
    record.close()
    streams.close()
    return tale


async def _talk(
    client: Client, sessions: list[str], luck: random.Random, done: asyncio.Event
) -> None:
    while not done.is_set():
        kind = luck.choice(["long", "long", "short", "broken"])
        await client.send(luck.choice(sessions), new_id(luck, kind))
        await asyncio.sleep(luck.uniform(0, 0.03))


async def _prune(house: Holdfast, luck: random.Random, done: asyncio.Event) -> None:
    while not done.is_set():
        await house.maintenance.prune(timedelta(0))
        await asyncio.sleep(luck.uniform(0, 0.1))


class Reader:
    """One reader with its cursor, which writes down everything it is shown."""

    def __init__(
        self,
        houses: tuple[Holdfast, Holdfast],
        session: str,
        number: int,
        streams: Record,
        luck: random.Random,
    ) -> None:
        self._houses = houses
        self._session = SessionId(session)
        self._luck = luck
        self._cursor = 0
        self._who = {"session": session, "reader": number}
        self._note: Callable[..., None] = streams.note
        self._note(**self._who, after=0)

    async def come_and_go(self, times: int, slip: int, tale: Tale) -> None:
        """Connect so many times, each time for a random while, on either server."""
        for _ in range(times):
            # Some leave after a number of events, some at a moment, perhaps between two reads.
            moment = self._luck.choice([0.002, 0.02, 0.1])
            await self._visit(slip, self._luck.choice([1, 3, 10, 40]), moment, tale)
        # A control says nothing before somebody has come back at the wrong place and read on.
        while slip and not tale.slips:
            await self._visit(slip, 1, PATIENCE, tale)

    async def catch_up(self, tale: Tale) -> None:
        """Read to the end of the log, once nobody writes any more."""
        house = self._houses[0]
        last = (await house.sessions.get(house.owner, self._session)).last_event
        async with asyncio.timeout(PATIENCE):
            await self._read(self._cursor, tale, until=lambda _: self._cursor >= last)
        tale.ends.append((self._session, self._cursor))

    async def _visit(self, slip: int, enough: int, moment: float, tale: Tale) -> None:
        after = max(0, self._cursor + slip)
        is_wrong, seen = after != self._cursor, 0

        def until(count: int) -> bool:
            nonlocal seen
            seen = count
            return count >= enough

        try:
            async with asyncio.timeout(moment):
                await self._read(after, tale, until=until)
        except (TimeoutError, Conflict):
            # A cursor from the future is refused; only the control has one.
            await asyncio.sleep(0)
        tale.slips += is_wrong and seen > 0

    async def _read(self, after: int, tale: Tale, *, until: Callable[[int], bool]) -> None:
        """Read until there is enough, which is judged by how many were read and may be none."""
        count = 0
        if until(count):
            return
        stream = self._luck.choice(self._houses).follow(self._session, after=after)
        try:
            async for item in stream:
                self._note(**self._who, **shown(item))
                self._cursor = item.to_sequence if isinstance(item, Gap) else item.sequence
                tale.gaps += isinstance(item, Gap)
                tale.events += not isinstance(item, Gap)
                count += 1
                if until(count):
                    return
        finally:
            await stream.aclose()


def judged(folder: Path) -> Audit:
    """Judge the folder's home by what was sent and what was read."""
    return audit(folder / "home", records=[folder / "a.jsonl"], streams=[folder / "a.stream"])
