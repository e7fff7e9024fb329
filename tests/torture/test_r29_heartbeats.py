"""R29: the checker that sits on every stream of the run, and streams on which nothing else happens.

The rows about streams hold every one of theirs to the same checker.
"""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from tests.marks import each_case, proves
from tests.torture.callers import Caller
from tests.torture.clients.house import new_id
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE, Crew
from tests.torture.ears import Listening, listening
from tests.torture.frames import HEARTBEAT, Checker, Frame, frame_of
from tests.torture.served import Server

pytestmark = pytest.mark.slow

READERS = 6


@proves("R29")
def test_every_stream_has_heartbeats_that_move_no_cursor(
    tmp_path: Path, crew: Crew, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    beats = sized(test=1, torture=4)
    checker = Checker(patience=sized.within(15))

    asyncio.run(listen_long(tmp_path, crew, luck, checker, beats=beats))

    tell(str(checker))
    assert checker.faults == []
    assert checker.beats >= READERS * beats


@proves("R29")
def test_a_server_that_numbers_its_control_frames_is_found(
    tmp_path: Path, crew: Crew, luck: random.Random
) -> None:
    checker = Checker()

    asyncio.run(listen_long(tmp_path, crew, luck, checker, beats=0, fault="numbering"))

    assert "connected carries the number 0" in checker.faults


@proves("R29")
@each_case(
    ("frames", "fault"),
    [
        ([b": hb"], "the stream begins with heartbeat"),
        ([b'id: 9\nevent: a.b\ndata: {"sequence":9}'], "the stream begins with a.b"),
        (["connected", b'id: 2\nevent: a.b\ndata: {"sequence":2}'], "a.b 2 to 2 follows 0"),
        (["connected", b'event: a.b\ndata: {"sequence":1}'], "a.b 1 carries None"),
        (["connected", b'id: 3\nevent: gap\ndata: {"from":1,"to":2}'], "gap 2 carries 3"),
        (["connected", "closing", b": hb"], "heartbeat follows the end"),
        (["connected", "connected"], "the stream begins twice"),
    ],
)
def test_the_checker_finds_what_it_is_there_for(frames: list[Any], fault: str) -> None:
    checker = Checker()
    stream = checker.stream(0)

    for each in frames:
        stream.heard(CONTROL[each] if isinstance(each, str) else frame_of(each))

    assert fault in checker.faults


@proves("R29")
def test_the_checker_hears_a_heartbeat_that_does_not_come() -> None:
    checker = Checker(patience=15)
    stream = checker.stream(0)
    begun = stream.begun

    stream.heard(CONTROL["connected"])
    stream.heard(Frame(HEARTBEAT), begun + 14.9)
    stream.left(begun + 30.0)

    assert checker.faults == ["no heartbeat for 15.1 s"]


CONTROL = {
    "connected": Frame("connected", data={"after": 0}, retry=1),
    "closing": Frame("closing", data={"after": 0}, retry=1),
}


async def listen_long(
    folder: Path,
    crew: Crew,
    luck: random.Random,
    checker: Checker,
    *,
    beats: int,
    fault: str = "",
) -> None:
    """Listen to a quiet session and to a busy one until all have heard so many heartbeats."""
    server = Server(crew, folder / "home", fault=fault)
    server.start()
    done = asyncio.Event()
    async with Caller(server) as caller:
        sessions = [new_id(luck), new_id(luck)]
        for session in sessions:
            await caller.open(session)

        async def talk() -> None:
            while not done.is_set():
                await caller.send(sessions[0], new_id(luck, "long"))
                await asyncio.sleep(0.1)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(talk())
            listeners = [
                tasks.create_task(_hear(server, sessions[number % 2], beats, checker))
                for number in range(READERS)
            ]
            await asyncio.wait(listeners)
            done.set()
    server.kill()


async def _hear(server: Server, session: str, beats: int, checker: Checker) -> None:
    async with asyncio.timeout(PATIENCE), listening(server, Listening(session), checker) as ear:
        await ear.next()
        heard = 0
        while heard < beats:
            heard += (await ear.next()).event == HEARTBEAT
