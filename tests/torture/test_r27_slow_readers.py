"""R27: readers that never read and readers at 1 kB/s cost little, are cut off, and can go on."""

import asyncio
import contextlib
import json
import random
import socket
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import pytest

from tests.marks import proves
from tests.torture.callers import Caller
from tests.torture.conftest import Sized, Tell
from tests.torture.crew import PATIENCE, Crew
from tests.torture.ears import Listening, listening
from tests.torture.frames import CONTROLS, Checker, Frame, Frames
from tests.torture.served import Server

pytestmark = pytest.mark.slow

MIB = 1 << 20
EACH_MOST = MIB
ALL_MOST = 100 * MIB
FAST_P99 = 0.2
# How many sessions are talked to at the same time, how often, and how much is said each time.
AT_ONCE = 4
ROUNDS = 2
A_ROUND = 1_000
# After so much of it the memory of a server grows no further.
WARM = 5
# How much is read by one who comes back.
REST = 50
# What the server holds for all readers of a session together, and takes for its other work.
SHARED = 32 * MIB


@proves("R27", "R29")
def test_slow_readers_are_cut_off_with_a_cursor_and_others_do_not_notice(
    tmp_path: Path, crew: Crew, luck: random.Random, sized: Sized, tell: Tell
) -> None:
    pairs = sized(quick=2, test=20, torture=50)
    events = sized(quick=2_000, test=8_000, torture=100_000)
    at_once = sized(quick=1, test=AT_ONCE, torture=AT_ONCE)
    tale = Tale(Checker(patience=sized.within(15)))

    asyncio.run(
        read_slowly(tmp_path, crew, luck, tale, pairs=pairs, events=events, at_once=at_once)
    )

    cost = tale.peak - tale.before
    tell(
        f"{pairs} silent and {pairs} slow readers, {tale.read} events read, "
        f"{cost / MIB:.0f} MiB more in all, p99 {tale.p99 * 1000:.0f} ms"
    )
    assert tale.checker.faults == []
    assert (tale.cut, tale.complete) == (2 * pairs, 2 * pairs)
    assert tale.queued <= EACH_MOST
    assert cost <= min(2 * pairs * EACH_MOST + SHARED, ALL_MOST)
    assert tale.p99 <= sized.within(FAST_P99)


@proves("R27")
def test_a_server_that_waits_for_slow_readers_is_found(
    tmp_path: Path, crew: Crew, luck: random.Random
) -> None:
    tale = Tale(Checker())
    wait = read_slowly(tmp_path, crew, luck, tale, pairs=2, events=8_000, fault="patient")

    asyncio.run(wait)

    assert tale.cut == 0
    assert tale.peak - tale.before > 2 * 2 * EACH_MOST


@dataclass
class Tale:
    """What the server spent, and what its readers got."""

    checker: Checker
    before: int = 0
    peak: int = 0
    # What waited in the kernel for one of the readers, in bytes.
    queued: int = 0
    read: int = 0
    cut: int = 0
    complete: int = 0
    delays: list[float] = field(default_factory=list)

    @property
    def p99(self) -> float:
        """Return how long nearly all news took to a reader that keeps up."""
        return sorted(self.delays)[len(self.delays) * 99 // 100]


async def read_slowly(
    folder: Path,
    crew: Crew,
    luck: random.Random,
    tale: Tale,
    *,
    pairs: int,
    events: int,
    at_once: int = AT_ONCE,
    fault: str = "",
) -> None:
    """Let the server talk to readers of every kind, and see what that costs."""
    model = talkative(folder, luck)
    server = Server(crew, folder / "home", fault=fault, model=model)
    server.start()
    async with Caller(server) as caller:
        count = events // (at_once * ROUNDS * A_ROUND)
        # What it takes to talk is taken before: the rest is what readers cost.
        for _ in range(min(count, WARM)):
            await talk_to_all(server, caller, await wave(caller, at_once), Tale(tale.checker))
        waves = [await wave(caller, at_once) for _ in range(count)]
        sessions = [session for each in waves for session in each]
        slow = [Slow(server, luck.choice(sessions), number % 2) for number in range(2 * pairs)]
        for each in slow:
            await each.connect()
        await until_open(caller, len(slow))
        tale.before = server.resident()
        async with asyncio.TaskGroup() as tasks:
            dripping = [tasks.create_task(each.drip()) for each in slow]
            watching = tasks.create_task(watch(server, tale))
            for each_wave in waves:
                await talk_to_all(server, caller, each_wave, tale)
            if not fault:
                await until_open(caller, 0)
            for task in (*dripping, watching):
                task.cancel()
        for each in slow:
            tale.cut += await each.was_cut()
            tale.complete += not fault and await each.goes_on(tale.checker)
    server.kill()


def talkative(folder: Path, luck: random.Random) -> str:
    """Write down a model that says little at first, and then much."""
    script = folder / "talkative.json"
    # Each character takes four bytes: much to send, and little to write down.
    text = "".join(luck.choice("🌊🪝🐚🧭") * 256 for _ in range(A_ROUND))
    steps = [{"text": "yes"}, {"text": text, "chunks": A_ROUND, "repeat": ROUNDS}]
    script.write_text(json.dumps(steps, ensure_ascii=False))
    return f"scripted:{script}"


async def wave(caller: Caller, at_once: int) -> list[str]:
    """Open sessions that will be talked to at the same time."""
    begin = "/v1/agents/holdfast/sessions"
    sessions = [(await caller.sure("POST", begin, {}))["id"] for _ in range(at_once)]
    for session in sessions:
        await say(caller, session, "Are you well?")
    return sessions


async def talk_to_all(server: Server, caller: Caller, sessions: list[str], tale: Tale) -> None:
    """Have the model talk in all of them, turn after turn, to somebody who keeps up."""
    async with asyncio.TaskGroup() as tasks:
        for session in sessions:
            tasks.create_task(keep_up(server, session, tale))
            tasks.create_task(ask_on(caller, session))


async def ask_on(caller: Caller, session: str) -> None:
    """Have the model talk, turn after turn."""
    for _ in range(ROUNDS):
        await say(caller, session, "Tell me more.")


async def say(caller: Caller, session: str, text: str) -> None:
    """Send a message and wait until its turn has ended."""
    body = {"role": "user", "content": {"text": text}}
    await caller.sure("POST", f"/v1/sessions/{session}/messages", body)
    await settled(caller, session)


async def settled(caller: Caller, session: str) -> None:
    """Wait until no turn of a session runs or waits."""
    async with asyncio.timeout(PATIENCE):
        while True:
            now = await caller.get(f"/v1/sessions/{session}")
            if now["turn"] == now["settled"]:
                return
            await asyncio.sleep(0.02)


async def until_open(caller: Caller, number: int) -> None:
    """Wait until exactly so many streams are open."""
    async with asyncio.timeout(PATIENCE):
        while True:
            told = await caller.ask("GET", "/metrics")
            if f"holdfast_open_streams {number}\n" in told.text:
                return
            await asyncio.sleep(0.05)


async def keep_up(server: Server, session: str, tale: Tale) -> None:
    """Read as fast as it comes, up to the end of the last turn."""
    async with listening(server, Listening(session), tale.checker) as ear:
        async for frame in ear:
            if frame.id is None:
                continue
            tale.read += 1
            turn = frame.data["data"].get("turn") or 0
            if turn > 1:
                told = datetime.fromisoformat(frame.data["created_at"]).timestamp()
                tale.delays.append(time.time() - told)
            if frame.event == "session.completed" and turn == ROUNDS + 1:
                return
    raise AssertionError("a reader that keeps up was cut off")


async def watch(server: Server, tale: Tale) -> None:
    """Look at the server's memory, and at what the kernel keeps for its readers."""
    while True:
        tale.peak = max(tale.peak, server.resident())
        tale.queued = max([tale.queued, *queues(server.port)])
        await asyncio.sleep(0.05)


def queues(port: int) -> list[int]:
    """Return how many bytes wait to be sent on each connection of a port of ours."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [int(row[4].partition(":")[0], 16) for row in rows if row[1].endswith(f":{port:04X}")]


class Slow:
    """A reader with little room and less haste; what it has read is enough to go on from."""

    def __init__(self, server: Server, session: str, drips: int) -> None:
        self._server = server
        self._session = session
        self._drips = drips
        self._got = bytearray()
        self._socket = socket.socket()
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

    async def connect(self) -> None:
        """Ask, and read nothing."""
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self._socket, ("127.0.0.1", self._server.port))
        head = (
            f"GET {Listening(self._session).path} HTTP/1.1\r\n"
            f"Host: 127.0.0.1:{self._server.port}\r\n"
            f"Authorization: Bearer {self._server.token}\r\n\r\n"
        )
        await loop.sock_sendall(self._socket, head.encode())

    async def drip(self) -> None:
        """Read 1 kB in a second, or nothing at all."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            while self._drips:
                self._got += await loop.sock_recv(self._socket, 100)
                await asyncio.sleep(0.1)

    async def was_cut(self) -> bool:
        """Read what is left, and tell whether the server has ended it."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(1):
                while piece := await loop.sock_recv(self._socket, 1 << 16):
                    self._got += piece
        except TimeoutError:
            return False
        except ConnectionError:
            return True
        finally:
            self._socket.close()
        return True

    async def goes_on(self, checker: Checker) -> bool:
        """Come back with the last number and read on; tell whether nothing is missing between."""
        heard = numbers(unpacked(bytes(self._got)))
        before = len(heard)
        wish = Listening(self._session, heard[-1] if heard else 0)
        async with listening(self._server, wish, checker) as ear:
            while len(heard) < before + REST:
                heard += numbers([await ear.next()])
        return heard == list(range(1, before + REST + 1))


def unpacked(answer: bytes) -> list[Frame]:
    """Return the whole frames of an answer that was cut off anywhere."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"chunked" in head.lower()
    plain = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16) if size else 0
        plain += body[:length]
        body = body[length + 2 :]
    return Frames().feed(plain)


def numbers(frames: list[Frame]) -> list[int]:
    """Return the numbers of what is no word about the stream itself."""
    return [frame.id for frame in frames if frame.id is not None and frame.event not in CONTROLS]
