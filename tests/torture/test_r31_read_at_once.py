"""R31: whoever hears of a message reads it at once, on any server, also across kills."""

import asyncio
import math
import random
from contextlib import AsyncExitStack
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
from tests.torture.recovery import until
from tests.torture.served import Server

pytestmark = pytest.mark.slow

SESSIONS = 6
KILLS = 3


@proves("R31")
def test_a_message_can_be_read_when_its_event_arrives(
    tmp_path: Path, crew: Crew, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    count = sized(quick=100, test=500, torture=3_000, release=10_000)
    # Whoever stops to read a message hears the heartbeats late: their time is judged elsewhere.
    tale = Tale(Checker(patience=math.inf))

    asyncio.run(read_at_once(tmp_path, crew, luck, tale, count=count))

    tell(f"{tale.found} messages read as soon as they were told, over {KILLS} kills, 0 missing")
    assert tale.missing == []
    assert tale.checker.faults == []
    assert tale.found >= count


@proves("R31")
def test_a_server_that_tells_too_early_is_found(
    tmp_path: Path, crew: Crew, luck: random.Random
) -> None:
    tale = Tale(Checker())

    asyncio.run(read_at_once(tmp_path, crew, luck, tale, count=20, kills=0, fault="blind"))

    assert tale.missing != []


@dataclass
class Tale:
    """What was told of, and was there or not."""

    checker: Checker
    found: int = 0
    missing: list[str] = field(default_factory=list)

    @property
    def told(self) -> int:
        """Return how many messages were told of."""
        return self.found + len(self.missing)


async def read_at_once(
    folder: Path,
    crew: Crew,
    luck: random.Random,
    tale: Tale,
    *,
    count: int,
    kills: int = KILLS,
    fault: str = "",
) -> None:
    """Talk, listen and read on two servers, one of which is killed now and then."""
    servers = [Server(crew, folder / "home", fault=fault, forked=True) for _ in range(2)]
    for server in servers:
        server.start()
    done = asyncio.Event()
    async with AsyncExitStack() as stack:
        callers = [await stack.enter_async_context(Caller(server)) for server in servers]
        sessions = [new_id(luck) for _ in range(SESSIONS)]
        for session in sessions:
            await callers[0].open(session)
        async with asyncio.TaskGroup() as tasks:
            readers = [
                tasks.create_task(hear_and_read(servers, callers, session, tale, luck))
                for session in sessions
            ]
            talkers = [
                tasks.create_task(talk(luck.choice(callers), session, luck, done))
                for session in sessions
            ]
            for number in range(1, kills + 1):
                await until(lambda: tale.told >= count * number // (kills + 1))  # noqa: B023
                victim = luck.choice(servers)
                victim.kill()
                await asyncio.to_thread(victim.start)
            await until(lambda: tale.told >= count)
            done.set()
            await asyncio.wait(talkers)
            for reader in readers:
                reader.cancel()
    for server in servers:
        server.kill()


async def talk(caller: Caller, session: str, luck: random.Random, done: asyncio.Event) -> None:
    """Say one thing after the other."""
    while not done.is_set():
        await caller.send(session, new_id(luck, "short"))


async def hear_and_read(
    servers: list[Server], callers: list[Caller], session: str, tale: Tale, luck: random.Random
) -> None:
    """Follow a session, wherever it can be followed, and read each message when it is told."""
    cursor = 0
    while True:
        wish = Listening(session, cursor)
        try:
            async with listening(luck.choice(servers), wish, tale.checker) as ear:
                async for frame in ear:
                    if frame.event == "message.created":
                        await read(luck.choice(callers), session, frame.data["data"], tale)
                    cursor = frame.id or cursor
        except ConnectionError:
            await asyncio.sleep(0.02)


async def read(caller: Caller, session: str, told: dict[str, object], tale: Tale) -> None:
    """Read a message that was told of."""
    path = f"/v1/sessions/{session}/messages/{told['message_id']}"
    answer = await caller.ask("GET", path)
    if answer.status_code == 200 and answer.json()["sequence"] == told["message_sequence"]:
        tale.found += 1
    else:
        tale.missing.append(f"{path}: {answer.status_code}")
