"""Many readers on real sockets: how much they get and how soon, and what they cost at rest."""

import asyncio
import gc
import os
import random
import subprocess
import sys
import time
from bisect import bisect_left
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from bench.clients import Caller, Counter
from bench.figures import Figure, at_least, below, measures, middle
from bench.servers import Server, holdfast_server, memory_of, run
from bench.streams import RATE, READERS
from holdfast import Config, Holdfast, RunScope, open_holdfast
from holdfast.api import LocalHoldfast
from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import is_paused

IDLE: Final = 1_000
# More than any bounded cache holds, so that only what grows without bound is measured.
WARM: Final = 1_100
LONG: Final = 10_000
RECONNECTS: Final = 200
# How long readers may take for what was written last, before it counts as lost.
LAST_SECONDS: Final = 1.0
LEAVING_SECONDS: Final = 0.02


@measures("fanout_http", "fanout_http_p99_ms")
def fanout(folder: Path) -> dict[str, Figure]:
    """Deliveries that are late by the time the writing ends do not count."""
    command = [sys.executable, "-m", "bench.fanning", str(folder / "home")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            return run(_fanout(child))
        finally:
            child.terminate()


async def _fanout(child: "subprocess.Popen[str]") -> dict[str, Figure]:
    told = await _heard(child)
    loop = asyncio.get_running_loop()
    caller = Caller(told["port"], told["token"])
    request = caller.get(f"/v1/sessions/{told['session']}/events")
    readers = [Counter(request, keeps=number == 0) for number in range(READERS)]
    for reader in readers:
        await loop.create_connection(lambda reader=reader: reader, "127.0.0.1", told["port"])
    used = time.process_time()
    done = await _heard(child)
    ended, used = time.time(), time.process_time() - used
    await asyncio.sleep(LAST_SECONDS)
    seconds, events = done["seconds"], done["events"]
    # What the session began with was there before.
    stamps = _stamps(readers[0].kept)
    before = len(stamps) - events
    in_time = sum(_counted(reader, ended) - before for reader in readers)
    delays = sorted(_delays(readers, stamps, before))
    if len(delays) != events * READERS:
        raise AssertionError(f"{len(delays)} of {events * READERS} were delivered")
    worst = delays[int(len(delays) * 0.99) - 1] * 1000
    rate = at_least(in_time / seconds, "deliveries/s", READERS * RATE, 0.99)
    note = (
        f"{events / seconds:,.0f} events/s written, {in_time / len(delays):.1%} delivered in time, "
        f"p50 {middle(delays) * 1000:.0f} ms; the server used {done['cpu'] / seconds:.0%} of a "
        f"core, its readers {used / seconds:.0%}"
    )
    return {
        "fanout_http": replace(rate, goal="≥ 200,000/s", note=note),
        "fanout_http_p99_ms": below(worst, "ms", 200),
    }


async def _heard(child: "subprocess.Popen[str]") -> dict[str, Any]:
    assert child.stdout is not None
    line = await asyncio.to_thread(child.stdout.readline)
    return msgspec.json.decode(line, type=dict[str, Any])


def _counted(reader: Counter, until: float) -> int:
    place = bisect_left(reader.arrivals, (until, 0))
    return reader.arrivals[place - 1][1] if place else 0


def _stamps(stream: bytes) -> list[float]:
    """Return when each event of a stream was made, as its own words say."""
    marks = stream.split(b'"created_at":"')[1:]
    return [datetime.fromisoformat(mark[:27].decode()).timestamp() for mark in marks]


def _delays(readers: list[Counter], stamps: list[float], before: int) -> list[float]:
    delays = []
    for reader in readers:
        known = before
        for arrived, count in reader.arrivals:
            delays += [arrived - stamps[number] for number in range(known, count)]
            known = max(known, count)
    return delays


@measures("reconnect_http")
def reconnect(folder: Path) -> dict[str, Figure]:
    """Resume at a random cursor of a long session, from connecting to the first event."""
    home = folder / "home"
    session = asyncio.run(_long(home))
    with holdfast_server(home) as server:
        samples = run(_reconnected(server, session))
    return {"reconnect_http": below(middle(samples), "ms", 5)}


async def _long(home: Path) -> str:
    async with open_holdfast(home, scope=RunScope.NONE) as holdfast:
        session = await holdfast.open()
        for _ in range(LONG // 100):
            await asyncio.gather(*(holdfast.send(session.id, "x" * 100) for _ in range(100)))
    return session.id


async def _reconnected(server: Server, session: str) -> list[float]:
    chance = random.Random(1)
    samples = []
    for _ in range(RECONNECTS):
        cursor = chance.randrange(LONG)
        started = time.perf_counter()
        async with Caller(server.port, server.token) as caller:
            request = caller.get(f"/v1/sessions/{session}/events?since={cursor}")
            came, _ = await caller.follow(request, b"\nid: ")
        samples.append((came - started) * 1000)
        # Until the server has noticed that this one left.
        await asyncio.sleep(LEAVING_SECONDS)
    return samples


@measures("rss_idle_mb")
def idle(folder: Path) -> dict[str, Figure]:
    """Open sessions and streams, let it rest, and look at what it holds."""
    home = folder / "home"
    sessions = asyncio.run(_opened(home))
    with holdfast_server(home) as server:
        empty = server.memory
        held = run(_rested(server, sessions))
    note = f"{empty:.0f} MB before the first stream"
    return {"rss_idle_mb": replace(below(held, "MB", 150), note=note)}


async def _opened(home: Path) -> list[str]:
    async with open_holdfast(home, scope=RunScope.NONE) as holdfast:
        return [(await _used(holdfast)) for _ in range(IDLE)]


async def _used(holdfast: Holdfast) -> str:
    session = await holdfast.open()
    await holdfast.send(session.id, "x" * 200)
    return session.id


async def _rested(server: Server, sessions: list[str]) -> float:
    loop = asyncio.get_running_loop()
    caller = Caller(server.port, server.token)
    readers = []
    for session in sessions[:READERS]:
        reader = Counter(caller.get(f"/v1/sessions/{session}/events"))
        await loop.create_connection(lambda reader=reader: reader, "127.0.0.1", server.port)
        readers.append(reader)
    await asyncio.gather(*(reader.begun for reader in readers))
    await asyncio.sleep(2)
    return server.memory


@measures("waiting_sessions")
def waiting(folder: Path) -> dict[str, Figure]:
    """Let a thousand turns wait for an approval, and measure what each adds to a fresh process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
        before, after = fresh.submit(_waiting, folder).result()
    note = f"{before:.0f} MB with {WARM} of them, {after:.0f} MB with {IDLE} more"
    kilobytes = (after - before) * 1000 / IDLE
    return {"waiting_sessions": Figure(value=kilobytes, unit="kB each", note=note)}


def _waiting(folder: Path) -> tuple[float, float]:
    return asyncio.run(_waited(folder))


async def _waited(folder: Path) -> tuple[float, float]:
    script = folder / "script.yaml"
    step = "- tool_calls: [{name: write_file, arguments: {path: a.txt, content: x}}]\n"
    await asyncio.to_thread(script.write_text, step)
    config = Config(
        home=folder / "home",
        default_model=f"scripted:{script}",
        approvals_pause_after=timedelta(),
    )
    async with open_holdfast(config=config) as holdfast:
        await _all_paused(holdfast, WARM)
        before = memory_of(os.getpid())
        await _all_paused(holdfast, IDLE)
        return before, memory_of(os.getpid())


async def _all_paused(holdfast: LocalHoldfast, count: int) -> None:
    """Send messages to so many new sessions, and wait until their turns are paused."""
    names = [await _used(holdfast) for _ in range(count)]
    for name in names:
        while not await _is_paused(holdfast, name):  # noqa: ASYNC110 — nothing tells of it
            await asyncio.sleep(0.1)
    gc.collect()


async def _is_paused(holdfast: LocalHoldfast, name: str) -> bool:
    head = await holdfast.store.read(lambda tx: tx.sessions.state(holdfast.owner, SessionId(name)))
    return head is not None and is_paused(head)
