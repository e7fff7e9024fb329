"""R32: the server is started anew under open streams; all come back and miss nothing."""

import asyncio
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.marks import proves
from tests.torture.callers import Caller
from tests.torture.clients.house import new_id
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import Crew
from tests.torture.ears import Listening, listening
from tests.torture.frames import Checker
from tests.torture.recovery import until, waiting
from tests.torture.served import Server

pytestmark = pytest.mark.slow

SESSIONS = 5
BACK_MOST = 10.0


@proves("R32", "R29")
@pytest.mark.parametrize("how", ["", "herding"], ids=["spread", "at once"])
def test_all_streams_come_back_complete(
    how: str, tmp_path: Path, crew: Crew, *, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    restarts = sized(test=1, torture=5, release=20)
    readers = sized(quick=15, test=50, torture=200)
    tale = Tale(Checker(patience=sized.within(15)))

    asyncio.run(restart(tmp_path, crew, luck, tale, restarts=restarts, readers=readers, fault=how))

    tell(
        f"{restarts} × {readers} streams back in {max(tale.back):.1f} s, "
        f"up to {tale.densest} in a second, {tale.checker.frames} frames"
    )
    assert tale.checker.faults == []
    assert tale.incomplete == []
    assert max(tale.back) <= sized.within(BACK_MOST)


@proves("R32")
def test_a_server_that_leaves_something_out_is_found(
    tmp_path: Path, crew: Crew, luck: random.Random
) -> None:
    tale = Tale(Checker())

    asyncio.run(restart(tmp_path, crew, luck, tale, restarts=1, readers=20, fault="forgetful"))

    assert tale.checker.faults != []


@dataclass
class Tale:
    """When who came back, and how far they got."""

    checker: Checker
    returns: list[float] = field(default_factory=list)
    back: list[float] = field(default_factory=list)
    incomplete: list[str] = field(default_factory=list)

    @property
    def densest(self) -> int:
        """Return how many came back within one second, at most."""
        times = sorted(self.returns)
        return max(sum(start <= each < start + 1 for each in times) for start in times)


async def restart(
    folder: Path,
    crew: Crew,
    luck: random.Random,
    tale: Tale,
    *,
    restarts: int,
    readers: int,
    fault: str = "",
) -> None:
    """Stop and start a server amid talk and readers, again and again."""
    server = Server(crew, folder / "home", fault=fault)
    server.start()
    done = asyncio.Event()
    async with Caller(server) as caller, asyncio.TaskGroup() as tasks:
        sessions = [new_id(luck) for _ in range(SESSIONS)]
        for session in sessions:
            await caller.open(session)
        faithful = [Faithful(server, luck.choice(sessions), tale) for _ in range(readers)]
        following = [tasks.create_task(each.follow()) for each in faithful]
        talking = tasks.create_task(talk(caller, sessions, luck, done))
        await until(lambda: all(each.visits == 1 for each in faithful))
        for number in range(1, restarts + 1):
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
            ready = time.monotonic()
            await until(lambda: all(each.visits > number for each in faithful))  # noqa: B023
            tale.back.append(max(each.since for each in faithful) - ready)
        done.set()
        await talking
        await until(lambda: not waiting(server.home))
        ends = {key: (await caller.get(f"/v1/sessions/{key}"))["last_event"] for key in sessions}
        await until(lambda: all(each.cursor >= ends[each.session] for each in faithful))
        tale.incomplete = [each.session for each in faithful if each.cursor != ends[each.session]]
        for task in following:
            task.cancel()
    server.stop()


async def talk(
    caller: Caller, sessions: list[str], luck: random.Random, done: asyncio.Event
) -> None:
    """Have something to tell all the time, also right before and after a restart."""
    while not done.is_set():
        await caller.send(luck.choice(sessions), new_id(luck, luck.choice(["long", "short"])))
        await asyncio.sleep(luck.uniform(0.05, 0.2))


class Faithful:
    """A reader that comes back when it was told to, as a browser does."""

    def __init__(self, server: Server, session: str, tale: Tale) -> None:
        self._server = server
        self._tale = tale
        self._retry = 1.0
        self.session = session
        self.cursor = 0
        self.visits = 0
        self.since = 0.0

    async def follow(self) -> None:
        """Read, and come back, for ever."""
        while True:
            try:
                await self._visit()
            except ConnectionError:
                # Nobody there: a browser tries again after the same time.
                self._retry = max(self._retry, 0.05)
            await asyncio.sleep(self._retry)

    async def _visit(self) -> None:
        wish = Listening(self.session, self.cursor)
        async with listening(self._server, wish, self._tale.checker) as ear:
            async for frame in ear:
                self._retry = frame.retry / 1000 if frame.retry is not None else self._retry
                self.cursor = frame.id or self.cursor
                if frame.event == "connected":
                    self.visits += 1
                    self.since = time.monotonic()
                    if self.visits > 1:
                        self._tale.returns.append(self.since)
