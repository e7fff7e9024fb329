"""One session, a thousand events a second, two hundred readers in this process."""

import asyncio
import random
import time
from contextlib import aclosing
from pathlib import Path

from bench.figures import Figure, below, measures, middle
from holdfast import Holdfast, RunScope, Session, open_holdfast

READERS = 200
RATE = 1_000
SECONDS = 5
BURST = 20


@measures("fanout", "fanout_p99_ms")
def fanout(folder: Path) -> dict[str, Figure]:
    """Deliveries that are late by the time the writing ends do not count."""
    return asyncio.run(_fanout(folder))


async def _fanout(folder: Path) -> dict[str, Figure]:
    delays: list[float] = []
    async with open_holdfast(folder / "home", scope=RunScope.NONE) as holdfast:
        session = await holdfast.open()
        readers = [asyncio.create_task(_read(holdfast, session, delays)) for _ in range(READERS)]
        await asyncio.sleep(0.2)
        started = time.perf_counter()
        events = await write(holdfast, session)
        seconds = time.perf_counter() - started
        for reader in readers:
            reader.cancel()
        counts = await asyncio.gather(*readers, return_exceptions=True)
    del counts
    delivered = len(delays)
    rate = delivered / seconds
    delays.sort()
    worst = delays[int(delivered * 0.99) - 1] * 1000
    share = delivered / (events * READERS)
    return {
        "fanout": Figure(
            value=rate,
            unit="deliveries/s",
            yardstick=READERS * RATE,
            ratio=rate / (READERS * RATE),
            goal="≥ 200,000/s",
            met=rate >= READERS * RATE * 0.99,
            note=f"{events / seconds:,.0f} events/s written, {share:.1%} delivered in time",
        ),
        "fanout_p99_ms": below(worst, "ms", 200),
    }


async def write(holdfast: Holdfast, session: Session) -> int:
    """Write at the given rate, a burst at a time; a send is one message and one event.

    A burst does not wait for the one before it: how fast the disk is has figures of its own.
    """

    async def burst() -> None:
        stamp = f"{time.perf_counter()}"
        await asyncio.gather(*(holdfast.send(session.id, stamp) for _ in range(BURST)))

    started = time.perf_counter()
    bursts = RATE * SECONDS // BURST
    writing = []
    for number in range(bursts):
        writing.append(asyncio.create_task(burst()))
        await asyncio.sleep(started + (number + 1) * BURST / RATE - time.perf_counter())
    await asyncio.gather(*writing)
    return bursts * BURST


async def _read(holdfast: Holdfast, session: Session, delays: list[float]) -> None:
    now = time.time
    async with aclosing(holdfast.follow(session.id, after=1)) as news:
        async for event in news:
            delays.append(now() - event.at.timestamp())


@measures("reconnect")
def reconnect(folder: Path) -> dict[str, Figure]:
    """Resume at a random cursor of a long session, up to its first event."""
    return asyncio.run(_reconnect(folder))


async def _reconnect(folder: Path) -> dict[str, Figure]:
    samples = []
    chance = random.Random(1)
    async with open_holdfast(folder / "home", scope=RunScope.NONE) as holdfast:
        session = await holdfast.open()
        for _ in range(100):
            await asyncio.gather(*(holdfast.send(session.id, "x" * 100) for _ in range(100)))
        for _ in range(200):
            cursor = chance.randrange(10_000)
            started = time.perf_counter()
            async with aclosing(holdfast.follow(session.id, after=cursor)) as news:
                await anext(news)
            samples.append((time.perf_counter() - started) * 1000)
    return {"reconnect": below(middle(samples), "ms", 5)}
