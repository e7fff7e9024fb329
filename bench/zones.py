"""Desks: durable appends to an output, and the window of a long one opened by a fresh process."""

import asyncio
import resource
import subprocess
import sys
import time
from pathlib import Path

from bench.figures import Figure, at_least, at_rate, below, measures, middle
from bench.yardsticks import raw_appends, raw_store
from holdfast import Holdfast, RunScope, open_holdfast

ROUNDS = 7
LINES = 600
WARM_UP = 1_000
GOAL = 20_000
# A program's lines are gathered for a quarter of a second, and written together.
PROGRAMS = 8
TOGETHER = 50
_NOTE = f"{PROGRAMS} programs at once, {TOGETHER} lines a call"
LINE = '{"type":"assistant","text":"' + "x" * 172 + '"}'
SIZE = 1 << 30
BATCH = 8 << 20
OPENINGS = 9
OPEN = """
import asyncio, sys
from bench.zones import opened
print(asyncio.run(opened(sys.argv[1])))
"""


@measures("zone_append", "zone_append_100", "zone_append_1")
def appends(folder: Path) -> dict[str, Figure]:
    """Append lines as programs say them, from many writers at once, and one by one.

    Every call is on disk when it returns; calls that come together share a commit.
    """
    return asyncio.run(_appends(folder))


async def _appends(folder: Path) -> dict[str, Figure]:
    raw = raw_store(folder / "raw.db")
    bare, grouped, hundred, one = [], [], [], []
    async with open_holdfast(folder / "home", scope=RunScope.NONE) as house:
        raw_appends(raw, 0, WARM_UP)
        await _append(house, 1, WARM_UP)
        for number in range(1, ROUNDS + 1):
            bare.append(raw_appends(raw, WARM_UP * number, LINES))
            grouped.append(await _append(house, PROGRAMS, LINES, together=TOGETHER))
            hundred.append(await _append(house, 100, LINES // 20))
            one.append(await _append(house, 1, LINES))
    yardstick = middle(bare)
    return {
        "zone_append": at_rate(middle(grouped), "lines/s", GOAL, _NOTE),
        "zone_append_100": at_least(middle(hundred), "lines/s", yardstick, 2),
        "zone_append_1": at_least(middle(one), "lines/s", yardstick, 0.3),
    }


async def _append(house: Holdfast, desks: int, lines: int, *, together: int = 1) -> float:
    """Return lines per second; each desk has a writer, who waits for every call."""
    calls = max(lines // together, 1)

    async def write(desk: int) -> None:
        for _ in range(calls):
            await house.zones.append_lines(house.owner, f"agent-{desk}", [LINE] * together)

    started = time.perf_counter()
    await asyncio.gather(*(write(desk) for desk in range(desks)))
    return desks * calls * together / (time.perf_counter() - started)


@measures("zone_open_1gb", "zone_open_1gb_mb")
def opening(folder: Path) -> dict[str, Figure]:
    """Open the window of a log of a gibibyte, each time in a process that was just started."""
    home = folder / "home"
    asyncio.run(_filled(home))
    told = [_opened_elsewhere(home) for _ in range(OPENINGS)]
    return {
        "zone_open_1gb": below(middle([ms for ms, _ in told]), "ms", 100),
        "zone_open_1gb_mb": below(middle([mb for _, mb in told]), "MB", 64),
    }


async def _filled(home: Path) -> None:
    text = "\n".join([LINE] * (BATCH // (len(LINE) + 1)))
    async with open_holdfast(home, scope=RunScope.NONE) as house:
        for _ in range(SIZE // len(text)):
            await house.zones.append_output(house.owner, "agent", text)
        snapshot = '{"schemaVersion":2,"highWaterMark":1}'
        await house.zones.write_state(house.owner, "agent", snapshot)


def _opened_elsewhere(home: Path) -> tuple[float, float]:
    command = [sys.executable, "-c", OPEN, str(home)]
    told = subprocess.run(command, check=True, capture_output=True, text=True)
    ms, mb = told.stdout.split()
    return float(ms), float(mb)


async def opened(home: str) -> str:
    """Return the milliseconds until the window is there, and by how many MB memory grew for it."""
    async with open_holdfast(Path(home), scope=RunScope.NONE) as house:
        before = _most_memory()
        started = time.perf_counter()
        replay = await house.zones.replay(house.owner, "agent")
        taken = 1000 * (time.perf_counter() - started)
        assert len(replay.lines) == 5_000
        return f"{taken} {_most_memory() - before}"


def _most_memory() -> float:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # In bytes there, in KiB everywhere else.
    return most / (1 << 20 if sys.platform == "darwin" else 1 << 10)
