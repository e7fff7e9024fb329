"""Desks: durable appends to an output, and the window of a long one opened by a fresh process."""

import asyncio
import time
from pathlib import Path

from bench.figures import Figure, at_least, below, measures, middle
from bench.yardsticks import raw_appends, raw_store
from holdfast import Holdfast, Scope, open_holdfast

ROUNDS = 7
LINES = 600
WARM_UP = 1_000
LINE = '{"type":"assistant","text":"' + "x" * 172 + '"}'
SIZE = 1 << 30
BATCH = 8 << 20
OPENINGS = 9


@measures("zone_append")
def appends(folder: Path) -> dict[str, Figure]:
    """Append lines one by one, each on disk before the next."""
    return asyncio.run(_appends(folder))


async def _appends(folder: Path) -> dict[str, Figure]:
    raw = raw_store(folder / "raw.db")
    bare, ours = [], []
    async with open_holdfast(folder / "home", scope=Scope.NONE) as house:
        raw_appends(raw, 0, WARM_UP)
        await _append(house, WARM_UP)
        for number in range(1, ROUNDS + 1):
            bare.append(raw_appends(raw, WARM_UP * number, LINES))
            ours.append(await _append(house, LINES))
    return {"zone_append": at_least(middle(ours), "lines/s", middle(bare), 0.3)}


async def _append(house: Holdfast, lines: int) -> float:
    started = time.perf_counter()
    for _ in range(lines):
        await house.zones.append_output(house.owner, "agent", LINE)
    return lines / (time.perf_counter() - started)


@measures("zone_open_1gb")
def opening(folder: Path) -> dict[str, Figure]:
    """Open the window of a log of a gibibyte, each time with a store that was just opened."""
    return asyncio.run(_opening(folder))


async def _opening(folder: Path) -> dict[str, Figure]:
    home = folder / "home"
    text = "\n".join([LINE] * (BATCH // (len(LINE) + 1)))
    async with open_holdfast(home, scope=Scope.NONE) as house:
        for _ in range(SIZE // len(text)):
            await house.zones.append_output(house.owner, "agent", text)
        snapshot = '{"schemaVersion":2,"highWaterMark":1}'
        await house.zones.write_state(house.owner, "agent", snapshot)
    taken = []
    for _ in range(OPENINGS):
        async with open_holdfast(home, scope=Scope.NONE) as house:
            started = time.perf_counter()
            replay = await house.zones.replay(house.owner, "agent")
            taken.append(1000 * (time.perf_counter() - started))
            assert len(replay.lines) == 5_000
    return {"zone_open_1gb": below(middle(taken), "ms", 200)}
