"""R25 over HTTP: readers are cut off at any byte and come back with `Last-Event-ID`.

Two servers share the home; somebody talks and somebody prunes meanwhile.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import RunScope, open_holdfast
from tests.marks import proves
from tests.torture.attempts import Record, meant
from tests.torture.audit import Audit, audit
from tests.torture.callers import Caller
from tests.torture.clients.house import new_id, settings
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE, Crew
from tests.torture.ears import GoneError, Listening, listening
from tests.torture.frames import CONTROLS, HEARTBEAT, Checker, Frame
from tests.torture.notebooks import read_books
from tests.torture.recovery import quiet
from tests.torture.served import Server

pytestmark = pytest.mark.slow

READERS = 6
SESSIONS = 2
# As they are stored, which the auditor can compare; and in every word that `/v1` has for text.
WORDS = (
    "words=house",
    "deltas=both",
    "words=house",
    "deltas=step",
    "deltas=none",
    "deltas=message",
)


@proves("R25", "R29")
@pytest.mark.parametrize("how", ["", "brief"])
def test_what_readers_of_a_server_saw_is_what_the_store_says(
    tmp_path: Path, crew: Crew, luck: random.Random, sized: Sized, tell: Tell, *, how: str
) -> None:
    reconnects = sized(quick=30, test=100, torture=1_000, release=10_000)
    tale = Tale(Checker(patience=sized.within(15)))

    asyncio.run(read_while_writing(tmp_path, crew, luck, tale, fault=how, reconnects=reconnects))
    result = judged(tmp_path)

    tell(f"{reconnects} reconnects over HTTP, {tale.cuts} amid a frame, {tale.events} events read")
    assert result.is_clean, result
    assert tale.checker.faults == []
    assert tale.strange == []
    assert tale.missing(tmp_path / "home") == []
    assert min(tale.cuts, tale.gaps, tale.events) > 0


@proves("R25", "R29")
@pytest.mark.parametrize(("fault", "count"), [("forgetful", "GAP"), ("repeating", "DISORDER")])
def test_a_server_that_leaves_out_or_repeats_is_found(
    tmp_path: Path, crew: Crew, luck: random.Random, fault: str, count: str
) -> None:
    tale = Tale(Checker())

    asyncio.run(read_while_writing(tmp_path, crew, luck, tale, fault=fault, reconnects=60))

    assert judged(tmp_path).counts[count] > 0
    assert tale.checker.faults != []


@dataclass
class Tale:
    """What all readers together have seen."""

    checker: Checker
    events: int = 0
    gaps: int = 0
    cuts: int = 0
    ends: list[tuple[str, int]] = field(default_factory=list)
    told: dict[tuple[str, int, str], Any] = field(default_factory=dict)
    strange: list[str] = field(default_factory=list)

    def missing(self, home: Path) -> list[str]:
        """Return the readers that did not reach the end of their session's log."""
        books = read_books(home).by_id()
        return [f"{key} ended at {end}" for key, end in self.ends if end != books[key].events]

    async def compare(self, caller: Caller, session: str) -> None:
        """Hold what was told in the words of `/v1` against the pages of the same events."""
        place: str | None = "after=0"
        while place is not None:
            query = f"?format=json&deltas=both&limit=1000&{place}"
            page = await caller.get(f"/v1/sessions/{session}/events{query}")
            for form in page["data"]:
                told = self.told.get((session, form["sequence"], form["event_type"]), form)
                if told != form:
                    self.strange.append(f"{form['sequence']} of {session} was told otherwise")
            place = f"cursor={page['next_cursor']}" if page["next_cursor"] else None


async def read_while_writing(
    folder: Path, crew: Crew, luck: random.Random, tale: Tale, *, fault: str, reconnects: int
) -> None:
    """Let readers come and go on two servers while others talk and prune."""
    record = Record(folder / "a.jsonl", synced=False)
    streams = Record(folder / "a.stream", synced=False)
    servers = [Server(crew, folder / "home", fault=fault, forked=True) for _ in range(2)]
    for server in servers:
        server.start()
    async with AsyncExitStack() as stack:
        talker = await stack.enter_async_context(Caller(servers[0], record))
        config = settings(folder / "home")
        house = await stack.enter_async_context(open_holdfast(config=config, scope=RunScope.NONE))
        sessions = [new_id(luck) for _ in range(SESSIONS)]
        for session in sessions:
            await talker.open(session)
        note = streams.note
        readers = [
            Reader(servers, sessions[number % SESSIONS], words, note, luck)
            for number, words in enumerate(WORDS[:READERS])
        ]
        done = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_talk(talker, sessions, luck, done))
            tasks.create_task(_prune(house.maintenance.prune, luck, done))
            reading = [
                tasks.create_task(each.come_and_go(reconnects // READERS + 1, tale))
                for each in readers
            ]
            await asyncio.wait(reading)
            done.set()
        await quiet(folder / "home")
        # What has ended is pruned for sure, and whoever comes now must meet a gap.
        await house.maintenance.prune(timedelta(0))
        readers += [Reader(servers, key, "words=house", note, luck) for key in sessions]
        await asyncio.gather(*(each.catch_up(talker, tale) for each in readers))
        for session in sessions:
            await tale.compare(talker, session)
    for server in servers:
        server.stop()
    record.close()
    streams.close()


async def _talk(
    caller: Caller, sessions: Sequence[str], luck: random.Random, done: asyncio.Event
) -> None:
    while not done.is_set():
        kind = luck.choice(["long", "long", "short", "broken"])
        await caller.send(luck.choice(sessions), new_id(luck, kind))
        await asyncio.sleep(luck.uniform(0, 0.03))


async def _prune(prune: Callable[[timedelta], Any], luck: random.Random, done: Any) -> None:
    while not done.is_set():
        await prune(timedelta(0))
        await asyncio.sleep(luck.uniform(0, 0.1))


class Reader:
    """One reader with its cursor, which writes down every frame that it got whole."""

    numbers = 0

    def __init__(
        self,
        servers: Sequence[Server],
        session: str,
        words: str,
        note: Callable[..., None],
        luck: random.Random,
    ) -> None:
        Reader.numbers += 1
        self._servers = servers
        self._session = session
        self._words = words
        self._luck = luck
        self._cursor = 0
        self._who = {"session": session, "reader": Reader.numbers}
        self._note: Callable[..., None] = note if "house" in words else lambda **_: None
        self._note(**self._who, after=0)

    async def come_and_go(self, times: int, tale: Tale) -> None:
        """Connect so many times, each time for a random while, on either server."""
        for _ in range(times):
            # Some leave at a byte, some after a while, some amid whatever comes first.
            size = self._luck.choice([1 << 30, self._luck.randrange(1, 20_000)])
            moment = self._luck.choice([0.02, 0.1, 0.5])
            try:
                async with asyncio.timeout(moment if size > 20_000 else PATIENCE):
                    await self._visit(size, tale, until=lambda: False)
            except TimeoutError:
                continue

    async def catch_up(self, caller: Caller, tale: Tale) -> None:
        """Read to the end of the log, once nobody writes any more."""
        last = (await caller.get(f"/v1/sessions/{self._session}"))["last_event"]
        # What a reader does not want to hear is told with what comes next, or at the end.
        self._words += "&until=settled"
        async with asyncio.timeout(PATIENCE):
            while self._cursor < last:
                await self._visit(1 << 30, tale, until=lambda: self._cursor >= last)
        tale.ends.append((self._session, self._cursor))

    async def _visit(self, size: int, tale: Tale, *, until: Callable[[], bool]) -> None:
        wish = Listening(self._session, self._cursor, self._words, enough=size)
        async with listening(self._luck.choice(self._servers), wish, tale.checker) as ear:
            assert ear.status == 200, ear.body
            try:
                while not until():
                    self._take(await ear.next(), tale)
            except GoneError:
                tale.cuts += bool(ear.rest)

    def _take(self, frame: Frame, tale: Tale) -> None:
        if frame.event == HEARTBEAT or frame.event in CONTROLS:
            return
        if frame.event == "gap":
            tale.gaps += 1
            self._note(**self._who, first=frame.first, last=frame.id)
        elif "house" in self._words:
            payload = frame.raw.partition(b',"payload":')[2].removesuffix(b"}")
            self._note(**self._who, first=frame.id, last=frame.id, digest=meant(payload))
        else:
            tale.told[self._session, frame.first, frame.event] = frame.data
        tale.events += frame.event != "gap"
        # The first of two words for one piece of news does not move the cursor.
        self._cursor = frame.id or self._cursor


def judged(folder: Path) -> Audit:
    """Judge the folder's home by what was sent and what was read."""
    return audit(folder / "home", records=[folder / "a.jsonl"], streams=[folder / "a.stream"])
